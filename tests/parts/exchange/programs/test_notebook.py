"""The tutorial, run by Jupyter's own client and kernel."""

from pathlib import Path
from typing import Any

import pytest

reason = "nbclient and ipykernel are not installed here: make test-exchange"
nbclient: Any = pytest.importorskip("nbclient", reason=reason)
nbformat: Any = pytest.importorskip("nbformat", reason=reason)
pytest.importorskip("ipykernel", reason=reason)
FILE = Path(__file__).parents[4] / "docs" / "tutorial.ipynb"


def test_the_tutorial_runs_and_shows_tables_and_figures(tmp_path: Path) -> None:
    notebook = nbformat.read(FILE, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert sum("text/html" in each for each in shown) == 3  # the run and two tables
    assert sum("image/png" in each for each in shown) == 1
    [verdict] = [each["text/markdown"] for each in shown if "text/markdown" in each]
    assert "rerope" in verdict and "512 (2x)" in verdict and "*" in verdict.split("512 (2x)")[1]

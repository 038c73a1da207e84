"""Tests by other programs' own libraries: run by `make test-exchange`, in a venv of its own."""

from pathlib import Path

import pytest

from tests.report.fake_run import fake_cells, keep


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with refused cells, failed and truncated samples."""
    folder = tmp_path_factory.mktemp("run")
    keep(folder, fake_cells(losses={"none": 1.9, "rerope": 0.0, "ntk": 0.25}))
    return folder

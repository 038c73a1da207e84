"""How far the told remaining time of a run was off: python tools/forecast.py RUN...

Replays the cells of finished run folders in the order in which they were measured, tells the time that is left behind
each, and compares it with what they took then. Prints a Markdown table of told / true, at shares of the run's time.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.checkpoints.checkpoint import folder_of
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.model import Model
from lexbench.runner.cells import PlannedCell
from lexbench.runner.forecast import Forecast, operations_per_second
from lexbench.runner.job import Job
from lexbench.runner.plan import plan_cells
from lexbench.stats.costs import costs_of_file

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)


def measured(run: Path) -> list[tuple[PlannedCell, float]]:
    """Steps of all jobs of a folder, and their seconds, in the order of its costs."""
    steps: dict[str, PlannedCell] = {}
    for file in sorted((run / "jobs").glob("*.json")):
        page = json.loads(file.read_text(encoding="utf-8"))
        job = job_of(page["config"])
        folder = folder_of(job.model, weights=False)
        planned = plan_cells(job, load_tokenizer(folder, job.model.bos))
        by_name = {(each.method.label, each.task.label, each.length, each.seed): each for each in planned}
        for cell in page["cells"]:
            steps[cell["cell"]] = by_name[cell["method"], cell["task"], cell["length"], cell["seed"]]
    costs = costs_of_file(run / "costs.jsonl")
    return [(steps[name], cost.seconds) for name, cost in costs.items() if name in steps and cost.tokens]


def job_of(config: Mapping[str, Any]) -> Job:
    """The job that a run folder's page tells of."""
    names = {"methods": "method", "tasks": "task"}
    parts = ("methods", "tasks", "corpus", "backend", "lengths", "n", "seeds")
    given = {part: config[names.get(part, part)] for part in parts}
    return Job.of(model=Model(**config["model"]), multiples=None, results=None, **given)


def told(cells: list[tuple[PlannedCell, float]]) -> list[tuple[float, float]]:
    """(share of the time that has gone, told / true time left) before each cell."""
    forecast, total, gone = Forecast(operations_per_second()), sum(seconds for _, seconds in cells), 0.0
    found = []
    for place, (step, seconds) in enumerate(cells):
        found.append((gone / total, forecast.remaining_seconds(each for each, _ in cells[place:]) / (total - gone)))
        forecast.learn(step, seconds)
        gone += seconds
    return found


def main() -> int:
    """Print a row for each run folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    print(f"| run | cells | minutes | {' | '.join(f'{share:.0%} gone' for share in SHARES)} |")
    print(f"| --- | ---: | ---: |{' ---: |' * len(SHARES)}")
    for run in parser.parse_args().runs:
        cells = measured(run)
        ratios = told(cells)
        shown = [next((f"{ratio:.2f}" for gone, ratio in ratios if gone >= share), "-") for share in SHARES]
        minutes = sum(seconds for _, seconds in cells) / 60
        print(f"| {run.name} | {len(cells)} | {minutes:.1f} | {' | '.join(shown)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

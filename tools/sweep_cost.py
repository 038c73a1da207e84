"""Hours that a sweep of all methods takes on large models, from a record of tools/gpu.py: python tools/sweep_cost.py

Reading a text of L tokens takes a L + b L^2 seconds, through the two lengths that were measured; a written token
c + d L.
Methods that were not measured take between the fastest and the slowest of those that were. Each GPU holds the model and
takes whole cells, so that the last ones end together only where GPUs divide the cells.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.methods.composition import changing_methods

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "benchmarks" / "gpu" / "nvidia-h200-2026-11-27.json"
TASKS = {"passkey": 8, "last_segment": 0}
"""Tokens written behind each text."""


def cell_seconds(measured: Mapping[str, Any], length: int, n: int) -> dict[str, float]:
    """Seconds of a cell of n texts of each task, by what one model under one method took at two lengths."""
    short, long = sorted(int(name) for name in measured if name.isdigit())
    one, other = measured[str(short)], measured[str(long)]
    square = (other["prefill"] / long - one["prefill"] / short) / (long - short)
    reading = length * (one["prefill"] / short + square * (length - short))
    step = one["token"] + (other["token"] - one["token"]) * (length - short) / (long - short)
    return {task: n * (reading + written * step) for task, written in TASKS.items()}


def sweep_hours(cells: Mapping[str, float], methods: int, gpus: int) -> float:
    """Hours until the last GPU ends, where each takes the next whole cell, the long ones first."""
    ends = [0.0] * gpus
    for seconds in sorted((each for each in cells.values() for _ in range(methods)), reverse=True):
        ends[ends.index(min(ends))] += seconds
    return max(ends) / 3600


def cost_table(steps: Mapping[str, Any], models: Sequence[str], length: int, methods: int, n: int) -> Iterator[str]:
    """Lines of Markdown: hours on 1, 8 and 64 GPUs, if all methods were the fastest or the slowest measured one."""
    yield f"| GPUs | {' | '.join(f'{model}, hours' for model in models)} |"
    yield f"| ---: |{' ---: |' * len(models)}"
    for gpus in (1, 8, 64):
        row = [str(gpus)]
        for model in models:
            name = f"measure/models/{model}/"
            others = tuple(f"{name}{loop}" for loop in ("stock", "static"))
            measured = [step for key, step in steps.items() if key.startswith(name) and not key.startswith(others)]
            every = [cell_seconds(step, length, n) for step in measured]
            ends = sorted(sweep_hours(cells, methods, gpus) for cells in every)
            digits = max(0, 1 - math.floor(math.log10(ends[0])))
            row.append(f"{ends[0]:.{digits}f} to {ends[-1]:.{digits}f}")
        yield f"| {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--model", nargs="+", default=["qwen3_8b"])
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--methods", type=int, default=len(changing_methods()))
    parser.add_argument("-n", type=int, default=32, help="texts of a cell")
    options = parser.parse_args()
    steps = json.loads(options.record.read_text())["steps"]
    print("\n".join(cost_table(steps, options.model, options.length, options.methods, options.n)))


if __name__ == "__main__":
    main()

"""Time outside the model's forward passes, as a share of a whole run: python tests/benchmarks/harness_overhead.py

Runs the demo's tasks on lexlet twice into new folders: a first run pays imports, loading and encoding; the second is
what a sweep pays for every further method. Self-checks are forward passes too, and stand in a column of their own.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import lexbench
from lexbench.backends.hf.backend import Hf
from lexbench.runner.verify import Preflight
from tests.benchmarks import sides


def timed(spent: list[float], call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            spent.append(time.perf_counter() - started)

    return wrapped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=16)
    options = parser.parse_args()
    spent: list[float] = []
    checks: list[float] = []
    Hf._score = timed(spent, Hf._score)  # type: ignore[method-assign]
    Hf._write = timed(spent, Hf._write)  # type: ignore[method-assign]
    Preflight.failure = timed(checks, Preflight.failure)  # type: ignore[method-assign]
    sides.header("Time outside the forward passes")
    sides.table(":run", "seconds", "forward passes", "self-checks", "the rest", "its share")
    for name in ("first", "second"):
        spent.clear()
        checks.clear()
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            lexbench.run(
                "lexlet",
                method=["none", "yarn"],
                task=["last_segment", "passkey"],
                multiples=[1, 4, 8],
                n=options.n,
                results=Path(folder),
            )
            whole = time.perf_counter() - started
        rest = whole - sum(spent) - sum(checks)
        sides.row(name, f"{whole:.2f}", f"{sum(spent):.2f}", f"{sum(checks):.2f}", f"{rest:.2f}", f"{rest / whole:.1%}")


if __name__ == "__main__":
    main()

"""Time outside the model's forward passes, as a share of a whole run: python tests/benchmarks/harness_overhead.py

Runs the demo's tasks on lexlet twice into new folders: a first run pays imports, loading and encoding; the second is
what a sweep pays for every further method.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lexbench
from lexbench.backends.hf import Hf


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
    Hf.score = timed(spent, Hf.score)  # type: ignore[method-assign]
    Hf.write = timed(spent, Hf.write)  # type: ignore[method-assign]
    print(f"{'run':8} {'whole s':>8} {'forward s':>10} {'harness':>8}")
    for name in ("first", "second"):
        spent.clear()
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
        print(f"{name:8} {whole:8.2f} {sum(spent):10.2f} {(whole - sum(spent)) / whole:8.1%}")


if __name__ == "__main__":
    main()

"""Time outside the model, as a share of a whole command: python tools/harness_overhead.py

`lexbench run` of two tasks under two methods on lexlet, in a process of its own. The clock starts with the process
and stops with it. The model is what no harness can spare: calls of the network's modules, outermost ones only, and
the likelihoods of its last states. Self-checks call it too, and stand in a column of their own. All else is the rest:
imports, loading, settings, questions, and what the backend does around the calls (caches, masks, batches, argmax). Of
it `fixed` is what the same command takes with one sample of one cell, less its own model and checks: it does not
grow.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides


class Clock:
    """Seconds in calls, each counted once, under the name of the outermost one."""

    def __init__(self) -> None:
        self.seconds = {"model": 0.0, "checks": 0.0}
        self._inside = False

    def watch(self, owner: Any, name: str, kind: str) -> None:
        """Count what a function takes."""
        call: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return call(*arguments, **named)
            self._inside, started = True, time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self._inside = False
                self.seconds[kind] += time.perf_counter() - started

        setattr(owner, name, timed)


def watched(words: list[str]) -> None:
    """What the process does: the command, then one line of JSON."""
    import torch

    from lexbench.commands.main import main
    from lexbench.kernels import likelihood
    from lexbench.runner.verify import Preflight

    clock = Clock()
    clock.watch(torch.nn.Module, "__call__", "model")
    clock.watch(likelihood, likelihood.token_nll.__name__, "model")
    clock.watch(likelihood, likelihood.nll_of_options.__name__, "model")
    clock.watch(Preflight, Preflight.failure.__name__, "checks")
    with redirect_stdout(sys.stderr):
        code = main(words)
    print(json.dumps(clock.seconds))
    sys.exit(code)


def measured(lengths: str, n: int, methods: str, tasks: str) -> tuple[float, dict[str, float]]:
    """Seconds of the process, and those of the model and the checks."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "run",
            "-m",
            f"method={methods}",
            f"task={tasks}",
            f"lengths={lengths.replace(' ', '')}",
            f"n={n}",
            f"results={folder}",
        ]
        ran = sides.run([sys.executable, __file__, "--one", *words])
    return ran.seconds, json.loads(ran.output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    if sys.argv[1:2] == ["--one"]:
        watched(sys.argv[2:])
    options = parser.parse_args()
    sides.header("Time outside the model")
    sides.table(":run", "seconds", "model", "self-checks", "the rest", "its share", "fixed", "the rest that grows")
    least, spent = measured(f"[{options.lengths[0]}]", 1, "none", "passkey")
    fixed = least - sum(spent.values())
    whole, spent = measured(str(options.lengths), options.n, "none,yarn", "last_segment,passkey")
    rest = whole - sum(spent.values())
    row = [f"{whole:.2f}", f"{spent['model']:.2f}", f"{spent['checks']:.2f}", f"{rest:.2f}", f"{rest / whole:.1%}"]
    sides.row("two methods, two tasks", *row, f"{fixed:.2f}", f"{(rest - fixed) / whole:.1%}")


if __name__ == "__main__":
    main()

"""Do the everyday tests notice a random change? python tools/mutants.py --count 91

Draws mutants of central modules: an operator, a comparison, a boolean, or a number in a function is changed, one at a
time, in a copy of the repository. A mutant dies where its module's own everyday tests fail, or do not end in time.
Prints a table in Markdown, and below it the mutants that survive: what stood there, and what stands there. Modules take
turns, so that a draw that SIGTERM ends early is still one of all.
"""

import argparse
import ast
import copy
import importlib
import itertools
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from lexbench.stats.intervals import wilson_interval
from tools import sides

HERE = Path(__file__).parent
ROOT = HERE.parent
LIBRARIES = (
    *("numpy", "scipy.stats", "pandas", "pyarrow", "pyarrow.parquet", "yaml", "tqdm", "hydra", "jsonschema"),
    *(
        "tokenizers",
        "torch",
        "transformers",
        "transformers.models.llama.modeling_llama",
        "matplotlib",
        "pytest_timeout",
    ),
)
MODULES: dict[str, tuple[str, ...]] = {
    "lexbench/stats/intervals.py": ("tests/stats/test_intervals.py",),
    "lexbench/stats/pairs.py": ("tests/stats/test_differences.py", "tests/report/check/test_check.py"),
    "lexbench/stats/regressions.py": ("tests/report/check/test_check.py",),
    "lexbench/stats/compare.py": ("tests/stats/test_compare.py",),
    "lexbench/stats/summaries.py": ("tests/stats/test_summaries.py",),
    "lexbench/store/store.py": ("tests/store",),
    "lexbench/runner/plan.py": (
        "tests/runner/test_plan.py",
        "tests/runner/test_forecast.py",
        "tests/runner/test_price.py",
    ),
    "lexbench/runner/reuse.py": ("tests/runner/test_taken.py", "tests/runner/test_reuse.py"),
    "lexbench/core/task.py": ("tests/core/test_task.py",),
    "lexbench/taskkit/scoring.py": ("tests/taskkit/test_scoring.py", "tests/core/test_task.py"),
    "lexbench/methods/rotary.py": (
        "tests/methods/test_rotary.py",
        "tests/methods/test_yarn.py",
        "tests/methods/test_vectors.py",
        "tests/methods/test_ntk.py",
    ),
}
PATIENCE = 6.0
"""Times of the unchanged tests after which a mutant hangs."""
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change of a module."""

    module: str
    line: int
    before: str
    after: str
    source: str
    """The changed module."""


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """What can be changed: expressions in functions; not annotations, messages of errors, asserts and zip's strict."""
    pending: list[tuple[ast.AST, bool]] = [(node, False) for node in reversed(tree.body)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue
        if (
            inside
            and isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.Constant)
            and _mutated(node) is not None
        ):
            yield node
        notes = ("annotation", "returns", "decorator_list", "type_params")
        below = [each for name, part in ast.iter_fields(node) if name not in notes for each in _nodes(part)]
        function = isinstance(node, ast.FunctionDef | ast.Lambda)
        pending += [(each, inside or function) for each in reversed(below)]


def _nodes(part: object) -> list[ast.AST]:
    return [each for each in (part if isinstance(part, list) else [part]) if isinstance(each, ast.AST)]


def _mutated(node: ast.AST) -> ast.expr | None:
    """The changed node; None where nothing of it is changed."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.BinOp) and type(new.op) in OPERATORS:
        text = any(
            isinstance(side, ast.JoinedStr | ast.Constant) and not _number(side) for side in (new.left, new.right)
        )
        new.op = OPERATORS[type(new.op)]()
        return None if text else new
    if isinstance(new, ast.BoolOp):
        new.op = ast.And() if isinstance(new.op, ast.Or) else ast.Or()
        return new
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARISONS:
        new.ops[0] = COMPARISONS[type(new.ops[0])]()
        return new
    if isinstance(new, ast.Constant) and _number(new):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1  # type: ignore[operator]
        return new
    return None


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)


def drawn(module: str, count: int, rng: random.Random) -> list[Mutant]:
    """Random mutants of a module, each of another place."""
    text = (ROOT / module).read_text(encoding="utf-8")
    known = list(places(ast.parse(text)))
    return [_mutant(module, text, node) for node in rng.sample(known, min(count, len(known)))]


def _mutant(module: str, text: str, node: ast.AST) -> Mutant:
    assert isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole, new = text.encode(), _mutated(node)
    assert new is not None
    said = ast.unparse(new)
    if not isinstance(node, ast.Constant):
        said = f"({said})"
    source = (whole[:begin] + said.encode() + whole[end:]).decode()
    return Mutant(module, node.lineno, ast.unparse(node), said, source)


def fails(folder: Path, tests: tuple[str, ...], limit: float = math.inf) -> bool:
    """Whether the tests fail in a copy of the repository, or do not end within so many seconds.

    They run in a fork of this process, which has loaded the libraries.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        for name in [each for each in sys.modules if each.split(".")[0] in ("lexbench", "tests", "tools")]:
            del sys.modules[name]
        os.chdir(folder)
        sys.path[:] = [str(folder), *(each for each in sys.path if Path(each or ".").resolve() not in (ROOT, HERE))]
        os.environ["PYTHONPATH"], os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = str(folder), "1"
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        words = ["-q", "-x", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        words += ["-m", "not slow", *tests]
        os._exit(int(pytest.main(words)))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def said(mutant: Mutant) -> str:
    """Where a mutant is, what stood there and what stands there."""
    return f"{mutant.module}, line {mutant.line}: `{mutant.before}` -> `{mutant.after}`"


def main() -> int:
    """Print the table; exit code 1 where fewer than 85 % die."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=91, help="mutants, of all modules together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(MODULES), metavar="MODULE", help="of these modules alone")
    asked = parser.parse_args()
    for name in LIBRARIES:
        importlib.import_module(name)
    sides.header("Mutants")
    counts = [asked.count // len(asked.only) + (n < asked.count % len(asked.only)) for n in range(len(asked.only))]
    known = {
        module: drawn(module, count, random.Random(f"{asked.seed} {module}"))
        for module, count in zip(asked.only, counts, strict=True)
    }
    rounds = [each for group in itertools.zip_longest(*known.values()) for each in group if each is not None]
    dead, tried, seconds = Counter[str](), Counter[str](), dict[str, float]()
    alive: list[Mutant] = []
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "copy"
        skipped = shutil.ignore_patterns(".git", ".venv", ".*cache*", "__pycache__", "site", "runs", "shared")
        shutil.copytree(ROOT, folder, ignore=skipped)
        for each in rounds:
            if stopped:
                break
            tests, file = MODULES[each.module], folder / each.module
            if each.module not in seconds:
                start = time.monotonic()
                assert not fails(folder, tests), f"the unchanged tests of {each.module} fail"
                seconds[each.module] = time.monotonic() - start
            unchanged = file.read_text(encoding="utf-8")
            file.write_text(each.source, encoding="utf-8")
            tried[each.module] += 1
            if fails(folder, tests, 10 + PATIENCE * seconds[each.module]):
                dead[each.module] += 1
            else:
                alive.append(each)
                print(f"survives: {said(each)}", file=sys.stderr, flush=True)
            file.write_text(unchanged, encoding="utf-8")
            print(f"{dead.total()} of {tried.total()}", file=sys.stderr, flush=True)
    print("| module | places | mutants | killed | seconds of its tests |\n| --- | ---: | ---: | ---: | ---: |")
    for module, count in tried.items():
        every = len(list(places(ast.parse((ROOT / module).read_text(encoding="utf-8")))))
        print(f"| {module} | {every} | {count} | {dead[module]} | {seconds[module]:.1f} |")
    ends = wilson_interval(dead.total(), tried.total())
    print(f"| all | | {tried.total()} | {dead.total()} | |\n")
    print(f"Killed: {dead.total() / tried.total():.0%}, 95 % interval {ends.low:.0%} to {ends.high:.0%} (Wilson).")
    for each in alive:
        print(f"\n{said(each)}")
    return 0 if dead.total() >= 0.85 * tried.total() else 1


if __name__ == "__main__":
    sys.exit(main())

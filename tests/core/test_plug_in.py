"""The code of a user's class has a hash, which only a change of what it does changes."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lexbench
from lexbench.core.attention import Line, Remap
from lexbench.core.plug_in import code_of

CODE = "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Mine:\n    size: int = 4\n"
SAME = f'"""A docstring."""\n\n{CODE}    # a comment\n    """Of the field."""\n'


def made(folder: Path, name: str, code: str) -> type[Any]:
    """The class Mine of a file."""
    (folder / f"{name}.py").write_text(code)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[Any] = module.Mine
    return found


@dataclass(frozen=True)
class Holding:
    inner: Any


def test_comments_and_docstrings_leave_the_hash_and_code_changes_it(tmp_path: Path) -> None:
    kinds = [made(tmp_path, f"p{k}", code) for k, code in enumerate((CODE, SAME, CODE.replace("4", "5")))]
    hashes = [code_of(kind) for kind in kinds]
    assert [hashes.index(each) for each in hashes] == [0, 0, 2]


def test_what_stands_in_a_field_or_above_a_class_counts(tmp_path: Path) -> None:
    one, other = (made(tmp_path, f"q{size}", CODE.replace("4", size)) for size in "45")
    ways: list[Callable[[Any], Any]] = [Holding, lambda made: Holding((made,)), lambda made: Holding([Holding(made)])]
    for hold in ways:
        hashes = [code_of(hold(kind())) for kind in (one, one, other)]
        assert [hashes.index(each) for each in hashes] == [0, 0, 2]
    below = [type("Below", (kind,), {"__module__": __name__}) for kind in (one, one, other)]
    hashes = [code_of(kind) for kind in below]
    assert [hashes.index(each) for each in hashes] == [0, 0, 2]


@pytest.mark.parametrize("given", [Remap(8, Line(), Line()), lexbench.method("yarn"), lexbench.task("passkey"), int, 5])
def test_what_is_of_lexbench_or_python_has_no_hash(given: Any) -> None:
    assert code_of(given) is None and code_of(type(given)) is None

"""The code of a user's class has a hash, which only a change of what it does changes."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lexbench
from lexbench.core.attention import PositionMap, Remap
from lexbench.core.plug_in import user_code_hash

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
    hashes = [user_code_hash(kind) for kind in kinds]
    assert [hashes.index(each) for each in hashes] == [0, 0, 2]


def test_what_stands_in_a_field_or_above_a_class_counts(tmp_path: Path) -> None:
    one, other = (made(tmp_path, f"q{size}", CODE.replace("4", size)) for size in "45")
    ways: list[Callable[[Any], Any]] = [Holding, lambda made: Holding((made,)), lambda made: Holding([Holding(made)])]
    for hold in ways:
        hashes = [user_code_hash(hold(kind())) for kind in (one, one, other)]
        assert [hashes.index(each) for each in hashes] == [0, 0, 2]
    below = [type("Below", (kind,), {"__module__": __name__}) for kind in (one, one, other)]
    hashes = [user_code_hash(kind) for kind in below]
    assert [hashes.index(each) for each in hashes] == [0, 0, 2]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("import lab.sizes", "sizes"),
        ("from lab import sizes", "sizes"),
        ("import lab.sizes", "__init__"),
        ("from lab.sizes import size", "deep/inner"),  # sizes imports it, relative to itself
        ("def later():\n    from lab.deep.inner import size", "deep/inner"),
    ],
)
def test_users_modules_that_the_file_imports_count(
    line: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {"__init__": "", "sizes": "from .deep.inner import size", "deep/inner": "size = 4", "unused": ""}
    states = [{}, {changed: f"# a comment\n{contents[changed]}"}, {changed: "size = 5"}, {"unused": "size = 5"}]
    hashes = []
    for number, state in enumerate(states):
        folder = tmp_path / str(number)
        for name, code in {**contents, **state}.items():
            file = folder / "lab" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code)
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(folder))
            hashes.append(user_code_hash(made(folder, f"mine_{number}", f"import json\nimport numpy\n{line}\n{CODE}")))
            for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
                del sys.modules[name]
    assert [hashes.index(each) for each in hashes] == [0, 0, 2, 0]


@pytest.mark.parametrize(
    "given", [Remap(8, PositionMap(), PositionMap()), lexbench.method("yarn"), lexbench.task("passkey"), int, 5]
)
def test_what_is_of_lexbench_or_python_has_no_hash(given: Any) -> None:
    assert user_code_hash(given) is None and user_code_hash(type(given)) is None

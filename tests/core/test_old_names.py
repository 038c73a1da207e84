"""Paths of version 0.1: in imports, in a user's yaml, in a folder that was trained before the move."""

import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from lexbench.core import old_names, registry
from lexbench.parts.lab.native import build, naming


@pytest.mark.parametrize("old", old_names.MOVED)
def test_each_old_path_leads_to_something_that_is_there(old: str) -> None:
    present = old_names.present_path(f"lexbench.{old}")
    module, _, name = present.rpartition(".")
    assert present != f"lexbench.{old}"
    assert hasattr(import_module(module), name) or import_module(present)


def test_longer_paths_come_before_their_packages() -> None:
    listed = list(old_names.MOVED)
    for place, old in enumerate(listed):
        assert not any(old.startswith(f"{each}.") for each in listed[:place]), old


@pytest.mark.slow
def test_an_old_module_is_the_present_one_with_a_warning() -> None:
    code = """
import sys, warnings
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import lexbench
    from lexbench.encodings.rope import Rope
    import lexbench.integrations.lm_eval
from lexbench.parts.lab.encodings import rope
assert Rope is rope.Rope and sys.modules["lexbench.encodings.rope"] is rope
assert rope.__spec__.name == rope.__name__ == "lexbench.parts.lab.encodings.rope"
print([str(each.message) for each in found if "lexbench" in str(each.message)][0])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = "lexbench.encodings is now lexbench.parts.lab.encodings; the old path ends with lexbench 0.3"
    assert ended.stdout.strip() == said


def test_a_yaml_with_an_old_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "mine.yaml").write_text("_target_: lexbench.encodings.rope.Rope\nbase: 500000\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls = registry.class_of(registry.read("encoding", "mine"), "encoding")
    assert cls.__module__ == "lexbench.parts.lab.encodings.rope"


def test_a_folder_trained_before_the_move_keeps_its_base() -> None:
    """With another path in the folder, `rope` would be taken for another class, and get base 10,000 instead."""
    kept = build.stored({"_target_": "lexbench.encodings.rope.Rope", "base": 500_000})
    assert naming.continued("rope", kept)["base"] == 500_000
    rope = {"_target_": "lexbench.encodings.rope.Rope", "base": 7e4}
    inner = build.stored({"_target_": "lexbench.encodings.pose.Pose", "over": rope})
    assert inner["over"]["_target_"] == "lexbench.parts.lab.encodings.rope.Rope"

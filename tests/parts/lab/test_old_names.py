"""Paths of version 0.1: in imports, in a user's yaml, in a folder that was trained before the move."""

import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench.backends import capabilities
from lexbench.core import objects, old_names, registry
from lexbench.parts.lab.native import build, naming


@pytest.mark.parametrize("old", old_names.MOVED_PATHS)
def test_each_old_path_leads_to_something_that_is_there(old: str) -> None:
    present = old_names.present_path(f"lexbench.{old}")
    module, _, name = present.rpartition(".")
    assert present != f"lexbench.{old}"
    assert hasattr(import_module(module), name) or import_module(present)


def test_longer_paths_come_before_their_packages() -> None:
    listed = list(old_names.MOVED_PATHS)
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
        cls = objects.class_of(registry.read_named_config("encoding", "mine"), "encoding")
    assert cls.__module__ == "lexbench.parts.lab.encodings.rope"


def test_a_folder_trained_before_the_move_keeps_its_base() -> None:
    """With another path in the folder, `rope` would be taken for another class, and get base 10,000 instead."""
    kept = build.update_stored_spec({"_target_": "lexbench.encodings.rope.Rope", "base": 500_000})
    assert naming.continue_spec("rope", kept)["base"] == 500_000
    rope = {"_target_": "lexbench.encodings.rope.Rope", "base": 7e4}
    inner = build.update_stored_spec({"_target_": "lexbench.encodings.pose.Pose", "over": rope})
    assert inner["over"]["_target_"] == "lexbench.parts.lab.encodings.rope.Rope"


def test_old_names_are_the_present_ones_with_a_warning() -> None:
    for module, present in old_names.RENAMED_NAMES.items():
        place = import_module(module)
        for old, new in present.items():
            with pytest.warns(FutureWarning, match=f"{module}.{old} is now {module}.{new}; .* ends with lexbench 0.3"):
                assert getattr(place, old) is getattr(place, new)
        with pytest.raises(AttributeError, match="no attribute 'never'"):
            place.never  # noqa: B018
    with pytest.warns(FutureWarning, match="lexbench.Write is now lexbench.Generate"):
        assert lexbench.Write is lexbench.Generate  # type: ignore[attr-defined]


def test_old_fields_build_and_read_the_present_ones() -> None:
    with pytest.warns(FutureWarning, match="Generate\\(room=\\) is now max_new_tokens="):
        made = lexbench.Generate(index=0, cluster="", prompt=np.arange(3), room=4)  # type: ignore[call-arg]
    with pytest.warns(FutureWarning, match="Generate.room is now max_new_tokens"):
        assert made.room == made.max_new_tokens == 4  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning, match="Loglikelihood\\(start=\\) is now first_target="):
        assert lexbench.Loglikelihood(index=0, cluster="", tokens=np.arange(3), start=2, bytes=1, words=1).length == 3  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'rooms'"):
        lexbench.Outline(1, 2.0, rooms=3)  # type: ignore[call-arg]


def test_a_backend_with_old_hooks_is_asked_by_the_present_ones() -> None:
    class Old:
        def alike(self, question: object) -> int:
            return 7

        def together(self, questions: object) -> None: ...

    with pytest.warns(FutureWarning, match="Old.alike is now batch_key"):
        assert capabilities(Old()).batches
    assert Old().batch_key(None) == 7  # type: ignore[attr-defined]

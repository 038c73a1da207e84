"""Classes at the places of earlier versions: in a folder that was trained before the move, and in hashes."""

from importlib import import_module

import pytest

from lexbench.core import moved_classes
from lexbench.parts.lab.native import build, naming


@pytest.mark.parametrize("former", moved_classes.PRESENT_PLACES)
def test_each_former_place_leads_to_something_that_is_there(former: str) -> None:
    present = moved_classes.present_path(f"lexbench.{former}")
    module, _, name = present.rpartition(".")
    assert present != f"lexbench.{former}"
    assert hasattr(import_module(module), name) or import_module(present)


def test_a_folder_trained_before_the_move_keeps_its_base() -> None:
    """With another path in the folder, `rope` would be taken for another class, and get base 10,000 instead."""
    kept = build.update_stored_spec({"_target_": "lexbench.encodings.rope.Rope", "base": 500_000})
    assert naming.continue_spec("rope", kept)["base"] == 500_000
    rope = {"_target_": "lexbench.encodings.rope.Rope", "base": 7e4}
    inner = build.update_stored_spec({"_target_": "lexbench.encodings.pose.Pose", "over": rope})
    assert inner["over"]["_target_"] == "lexbench.parts.lab.encodings.rope.Rope"


def test_paths_are_exchanged_in_lists_and_objects_and_nothing_else_is() -> None:
    stored = {"corpus": [{"_target_": "lexbench.corpora.novels.Novels", "words": 3}], "said": "lexbench.encodingsx"}
    assert moved_classes.with_present_paths(stored) == {
        "corpus": [{"_target_": "lexbench.parts.debian.novels.Novels", "words": 3}],
        "said": "lexbench.encodingsx",
    }
    text = '{"_target_": "lexbench.parts.lab.encodings.rope.Rope"}'
    assert moved_classes.with_former_paths(text) == '{"_target_": "lexbench.encodings.rope.Rope"}'

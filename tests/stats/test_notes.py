"""Sentences for people are made in `lexbench.report` alone: `lexbench.stats` computes numbers and kinds of notes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lexbench.core.method_key import parse_label
from lexbench.report.notes import WORDS_OF_NOTE, note_text, notes_text
from lexbench.stats.cell_outcomes import SettingChange
from lexbench.stats.notes import Note, NoteKind

STATS = Path(__file__).parents[2] / "lexbench" / "stats"
FAULTS_OF_FILES = ("invariants.py", "baseline.py", "damages.py", "rescored.py")
"""Modules whose texts are of errors: what is wrong with a user's file."""
PARTS_OF_ERRORS = {
    *("outcomes_of_cell", "_select_cells", "_refuse_duplicate_cells", "cell_name"),
    *("_some_cell_names", "_nothing_judged", "_check_tolerances", "load_cells"),
    *("_still_stopped", "remedy"),
}
"""Functions that make a part of an error's line."""
KEYS = {"nats per token", "as measured", "seconds per token", "bytes per token", "attention of "}
"""Units and a setting, as data name them."""


def sentences(tree: ast.AST, within: str = "") -> Iterator[tuple[str, str]]:
    """Texts of several words, each with the function that makes it; not those of errors, logs, enums and docstrings.

    Nor those in which a summary states itself: name, unit and meaning of a column stand where its number is made.
    """
    for node in ast.iter_child_nodes(tree):
        said = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Assert) or said.endswith("Error") or said.startswith("log.") or said == "Summary":
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            continue
        if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["Enum"]:
            continue
        inside = node.name if isinstance(node, ast.FunctionDef) else within
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"[a-z] | [a-z]", node.value):
            yield inside, node.value
        yield from sentences(node, inside)


def test_every_kind_of_note_has_words_in_one_module() -> None:
    assert set(WORDS_OF_NOTE) == set(NoteKind)


@pytest.mark.parametrize("file", sorted(STATS.glob("*.py")), ids=lambda file: file.stem)
def test_statistics_say_nothing_but_errors(file: Path) -> None:
    annotations = re.compile(r"\w+ \| None")  # of a name that is defined further below
    found = [
        (function, text)
        for function, text in sentences(ast.parse(file.read_text()))
        if function not in PARTS_OF_ERRORS and text not in KEYS and not annotations.fullmatch(text)
    ]
    assert not found or file.name in (*FAULTS_OF_FILES, "notes.py")


def test_a_note_shows_names_of_unknown_origin_in_one_line_and_counts_with_their_noun() -> None:
    assert note_text(Note(NoteKind.NEWLY_REFUSED, ("out of\nmemory",))).endswith(": out of memory")
    failed = [note_text(Note(NoteKind.NEWLY_FAILED, (count, 8, "died"))) for count in (1, 2)]
    assert [each.partition(" of ")[0] for each in failed] == ["1 question", "2 questions"]
    change = SettingChange("task.version", "1", "2")
    assert note_text(Note(NoteKind.SETTINGS_DIFFER, (change,))) == "other questions: task.version 1 -> 2"
    level = Note(NoteKind.BEST_OF_BASELINE, (parse_label("none"), 256))
    both = Note(NoteKind.WITHIN_NATS, (0.1, level)), Note(NoteKind.REFUSED_AT, ((512, 1024),))
    assert notes_text(both) == "within 0.1 nats of the best of none up to 256; refused at 512, 1024"

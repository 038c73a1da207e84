"""Comparisons of methods that compute one function: none against itself is not tested, and twins count once.

At the trained length 256, pi and yarn fit the factor 1, and self_extend the group 1: all three are none.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from lexbench.core.method_key import parse_label
from lexbench.report.check.check import check_runs
from lexbench.report.check.comparison import compared_runs, comparison_data, comparison_markdown
from lexbench.report.check.formats import check_command
from lexbench.report.leaderboard.best import mark_best_rows
from lexbench.report.verdicts import verdict_text
from lexbench.stats.differences import paired_differences
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.records import records_of
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import TRAINED
from tests.report.outcomes import answers, folder, right

OWN = [1.0, 0.1]
GROUPS_OF_1 = {
    "kind": "Remap",
    "window": 64,
    "query": {"divisor": 1, "offset": 0, "floor": True, "cap": "inf"},
    "key": {"divisor": 1, "offset": 0.0, "floor": True, "cap": "inf"},
}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "pi": {"inv_freq": OWN},
    "yarn": {"inv_freq": OWN, "scale": 1.0},
    "self_extend": {"remap": GROUPS_OF_1},
    "rerope": {"remap": {**GROUPS_OF_1, "key": {"divisor": "inf", "offset": 0.0, "floor": False, "cap": "inf"}}},
    "dca": {"remap": {"kind": "Chunks", "size": 96, "limit": 127}},
}


def measured(method: str, scores: list[float], length: int = TRAINED) -> FinishedCell:
    stated = {"name": method, **({"factor": None} if method in ("pi", "yarn") else {})}
    return answers(method, scores, length, identity={"method": stated, "attention": ATTENTIONS[method]})


def test_compare_tests_no_method_that_is_the_other_one(tmp_path: Path) -> None:
    """12 of 16 more at 1,024; at 256, where pi is none, whatever its cell says: p there is no member of the family."""
    none = [measured("none", right(8, 16)), measured("none", right(2, 16), 1024)]
    other = [measured("pi", right(16, 16)), measured("rerope", right(14, 16), 1024)]
    found = compared_runs(folder(tmp_path / "a", *none), folder(tmp_path / "b", *other))
    at = {entry.length: entry for entry in found.tasks[0].entries}
    assert (at[256].tested, at[256].apart) == (None, Note(NoteKind.SAME_ATTENTION))
    assert at[256].found is not None and (at[256].found.difference, at[256].found.p) == (0.5, None)
    shown = re.sub(" +", " ", comparison_markdown(found))
    assert "| 256 (1x) | 50.0 | 100.0 | same attention | | 16 |" in shown
    assert comparison_data(found)["tasks"][0]["entries"][0]["apart"] == "same attention"
    assert at[1024].found is not None and at[1024].found.p_holm == at[1024].found.p == 2 / 2**12
    only = compared_runs(folder(tmp_path / "e", none[0]), folder(tmp_path / "f", other[0]))
    assert verdict_text(only.tasks[0]) == "no difference: the same attention, not tested"
    # Of one method, two measurements are compared: another version or machine may differ.
    again = compared_runs(folder(tmp_path / "c", none[0]), folder(tmp_path / "d", measured("none", right(16, 16))))
    [entry] = again.tasks[0].entries
    assert entry.found is not None and entry.found.p == 2 / 2**8


def test_a_report_counts_methods_of_one_function_once() -> None:
    cells = [
        measured("none", right(8, 16)),
        *(measured(name, right(8, 16)) for name in ("pi", "yarn", "self_extend")),
        measured("rerope", right(16, 16)),
        measured("dca", right(2, 16)),
    ]
    [table] = build_tables(cells)
    found = paired_differences(table, {each.cell.id: each.samples for each in cells})
    assert found is not None
    entries = {str(method): entry for (method, _), entry in found.entries.items()}
    assert {name for name, entry in entries.items() if entry.same_attention} == {"pi", "yarn", "self_extend"}
    assert entries["rerope"].p_holm == 2 * 2 / 2**8 and entries["dca"].p_holm == 2 / 2**6


@pytest.mark.parametrize("top", ["rerope", "none"])
def test_a_leaderboard_tests_no_row_against_itself(top: str) -> None:
    """8 answers more, or 8 less: one comparison, as all other rows are one function."""
    cells = [measured(name, right(8, 16)) for name in ("none", "pi", "yarn")]
    cells.append(measured("rerope", right(16 if top == "rerope" else 0, 16)))
    [table] = build_tables(cells)
    shown = {record.method: record for record in table.at(TRAINED)}
    samples = {each.cell.id: each.samples for each in cells}
    marks = mark_best_rows({row: [record] for row, record in shown.items()}, shown, samples, table.attentions)
    ps = {str(row): mark.p_holm for row, mark in marks.items()}
    if top == "rerope":
        assert ps == {"rerope": None, **dict.fromkeys(("none", "pi", "yarn"), 2 / 2**8)}
    else:
        assert ps == {"rerope": 2 / 2**8, **dict.fromkeys(("none", "pi", "yarn"))}
        assert [mark.best for row, mark in marks.items() if row != parse_label("rerope")] == [True] * 3


def test_a_check_counts_methods_of_one_function_once(tmp_path: Path) -> None:
    """Three methods that lose the same 6 of 16 answers, and one that loses 7: two hypotheses."""
    names = ("none", "pi", "yarn")
    before = [measured(name, right(16, 16)) for name in (*names, "rerope")]
    after = [*(measured(name, right(10, 16)) for name in names), measured("rerope", right(9, 16))]
    file = tmp_path / "base.json"
    check_command(folder(tmp_path / "a", *before), file, update=True)
    found = check_runs(folder(tmp_path / "b", *after), file, {"accuracy": 0})
    ps = {str(each.cell.method): each.p_holm for each in found.verdicts}
    assert ps == {"rerope": 2 / 2**7, **dict.fromkeys(names, 1 / 2**6)}
    assert records_of(after[0])[0].value == 10 / 16

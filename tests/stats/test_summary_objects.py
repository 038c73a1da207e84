"""Each summary states itself, and docs/reading.md lists what they state; this writes the list as a program."""

import re
import sys
from pathlib import Path

import pytest

from lexbench.report.leaderboard.summary_boards import SUMMARY_OF_NAME
from lexbench.stats.summaries import CURVE_SUMMARIES

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
MARKS = re.compile(r"(?<=<!-- summaries: generated -->\n).*?(?=<!-- end of summaries -->)", re.DOTALL)


def list_of_summaries() -> str:
    """The table of all summaries."""
    rows = [f"| `{each.name}` | {each.definition} |" for each in SUMMARY_OF_NAME.values()]
    return "\n".join(["", "| summary | is |", "| --- | --- |", *rows, "", ""])


def test_the_page_lists_every_summary_as_it_states_itself() -> None:
    [shown] = MARKS.findall(PAGE.read_text(encoding="utf-8"))
    assert shown == list_of_summaries(), f"write it anew: python -m {__name__}"


@pytest.mark.parametrize(
    ("name", "of_loss", "of_score"),
    [
        ("effective_length", 1, 1),
        ("area", -1, 1),
        ("price", -1, 1),
        ("context_gain", 0, 0),
        ("seconds_per_token", 0, 0),
    ],
)
def test_a_summary_says_which_side_is_better(name: str, of_loss: int, of_score: int) -> None:
    assert [SUMMARY_OF_NAME[name].direction(side) for side in (-1, 1)] == [of_loss, of_score]


def test_every_place_of_sorting_is_taken_once() -> None:
    assert sorted(each.sorting for each in CURVE_SUMMARIES if each.sorting) == [1, 2, 3]


if __name__ == "__main__":
    PAGE.write_text(MARKS.sub(lambda _: list_of_summaries(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written: {PAGE}", file=sys.stderr)

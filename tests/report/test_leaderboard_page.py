"""The headline of results/README.md, which this writes as a program, and README's figure are what the records give."""

import re
import sys
from pathlib import Path

import pytest

from lexbench.report import formats, headline
from lexbench.stats.headline import build_headlines
from lexbench.stats.records import load_cells
from lexbench.stats.tables import build_tables
from tools import collapse_figure

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "results" / "README.md"
SHOWN = "results/reference/lexlet"
"""Folder whose headline results/README.md has."""
FIGURE = "docs/assets/collapse.svg"


def headline_table() -> str:
    """The headline of one folder: its sentence, its table, what the columns mean."""
    finished = load_cells([ROOT / SHOWN]).finished
    [found] = build_headlines(build_tables(finished), {each.cell.id: each.samples for each in finished})
    grid = headline.grid_of_headline(found)
    sentence, protocol = grid.above
    table = formats.grid_markdown(grid).split("\n\n")
    [rows] = [block for block in table if block.startswith("|")]
    below = [line.rstrip() for line in table[table.index(rows) + 1].splitlines()]
    notes = "<br>\n".join([*below, protocol, f"Records: `{SHOWN}`."])
    return f"\n{sentence}\n\n{rows}\n\n<sub>{notes}</sub>\n\n"


def around() -> tuple[str, str, str]:
    """The page up to its first mark, between the marks, and from the second on."""
    found = re.fullmatch(
        r"(.*<!-- headline: generated -->\n)(.*)(<!-- end of headline -->\n.*)", PAGE.read_text(), re.DOTALL
    )
    assert found, f"{PAGE.relative_to(ROOT)} lacks the marks of its headline"
    return found[1], found[2], found[3]


@pytest.mark.slow
def test_the_page_is_what_the_records_give() -> None:
    assert around()[1] == headline_table(), f"write it anew: python {Path(__file__).relative_to(ROOT)}"


@pytest.mark.slow
def test_the_figure_is_what_the_records_give(tmp_path: Path) -> None:
    collapse_figure.draw(tmp_path / "drawn.svg")
    assert (ROOT / FIGURE).read_bytes() == (tmp_path / "drawn.svg").read_bytes(), "python -m tools.collapse_figure"


@pytest.mark.parametrize(
    ("page", "count", "known"),
    [("results/README.md", 1, 6), ("results/reference/leaderboard.md", 7, 37)],
    ids=["six", "all"],
)
def test_a_page_names_every_method_of_its_records_in_every_table(page: str, count: int, known: int) -> None:
    shown = [block for block in (ROOT / page).read_text().split("\n\n") if block.startswith("| method")]
    methods = [sorted(re.findall(r"^\| ([a-z]\w*) +\|", table, re.MULTILINE)) for table in shown]
    assert len(shown) == count
    assert all(names == methods[0] for names in methods)
    assert len(methods[0]) == 1 + known  # the head is one of them
    assert all(line.isascii() or "≈" in line for table in shown for line in table.splitlines())


if __name__ == "__main__":
    before, _, after = around()
    PAGE.write_text(before + headline_table() + after, encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}", file=sys.stderr)

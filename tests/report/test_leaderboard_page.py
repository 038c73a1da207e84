"""Committed pages and the README's figure are what the records give; run as a program, this makes them anew."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lexbench.report import formats, headline
from lexbench.report.leaderboard.leaderboard import leaderboard
from lexbench.report.plots.paper import write_figure
from lexbench.stats.headline import headlines
from lexbench.stats.records import load
from lexbench.stats.tables import tables

ROOT = Path(__file__).parent.parent.parent
COMMANDS = (
    "lexbench leaderboard results/reference/lexlet",
    "lexbench leaderboard results/reference/lexlet --columns summary",
)
SHOWN = "results/reference/lexlet"
"""Folder whose headline the README has."""
FIGURE = "docs/assets/collapse.svg"
DRAWN = ("none", "ntk", "yarn", "rerope", "self_extend", "streaming_llm")


def boards() -> str:
    """Every command, and what it prints, one heading deeper."""
    parts = []
    for command in COMMANDS:
        words = shlex.split(command)[2:]
        folders = [ROOT / word for word in words if word.startswith("results/")]
        text = leaderboard(folders, columns="summary" if "summary" in words else "length")
        parts.append(f"    {command}\n\n{text}")
    return "\n" + "\n".join(parts) + "\n"


def headline_table() -> str:
    """The headline of one folder: its sentence, its table, what the columns mean."""
    finished = load([ROOT / SHOWN]).finished
    [found] = headlines(tables(finished), {each.cell.id: each.samples for each in finished})
    grid = headline.grid_of(found)
    sentence, protocol = grid.above
    table = formats.markdown(grid).split("\n\n")
    [rows] = [block for block in table if block.startswith("|")]
    below = [line.rstrip() for line in table[table.index(rows) + 1].splitlines()]
    notes = "<br>\n".join([*below, protocol, f"Records: `{SHOWN}`."])
    return f"\n{sentence}\n\n{rows}\n\n<sub>{notes}</sub>\n\n"


def figure() -> bytes:
    """The README's picture."""
    file = ROOT / "runs" / "collapse.svg"
    write_figure([ROOT / SHOWN], [file], DRAWN, ("last_segment", "passkey"), "page")
    made = file.read_bytes()
    file.unlink()
    return made


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "results/README.md": ("leaderboard", boards),
    "README.md": ("headline", headline_table),
}
"""By file: the name in its marks, and what stands between them."""


def around(page: str) -> tuple[str, str, str]:
    """The page up to its first mark, between the marks, and from the second on."""
    name, _ = PAGES[page]
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.fullmatch(rf"(.*<!-- {name}: generated -->\n)(.*)(<!-- end of {name} -->\n.*)", text, re.DOTALL)
    assert found, f"{page} lacks the marks of {name}"
    return found[1], found[2], found[3]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_records_give(page: str) -> None:
    assert around(page)[1] == PAGES[page][1](), f"write it anew: python {Path(__file__).relative_to(ROOT)}"


@pytest.mark.slow
def test_the_figure_is_what_the_records_give() -> None:
    assert (ROOT / FIGURE).read_bytes() == figure(), f"draw it anew: python {Path(__file__).relative_to(ROOT)}"


@pytest.mark.parametrize(
    ("page", "count", "known"),
    [("results/README.md", 5, 6), ("results/reference/leaderboard.md", 7, 37)],
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
    for page, (_, generated) in PAGES.items():
        before, _, after = around(page)
        (ROOT / page).write_text(before + generated() + after, encoding="utf-8")
        print(f"written: {page}", file=sys.stderr)
    (ROOT / FIGURE).write_bytes(figure())
    print(f"drawn: {FIGURE}", file=sys.stderr)

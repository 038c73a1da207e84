"""The committed leaderboard is what the committed records give; run as a program, this writes it anew."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from lexbench.report.leaderboard.leaderboard import leaderboard

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "results" / "README.md"
BEGIN, END = "<!-- leaderboard: generated -->\n", "<!-- end of leaderboard -->\n"
COMMANDS = (
    "lexbench leaderboard results/reference/lexlet results/reference/stories260K",
    "lexbench leaderboard results/reference/lexlet --columns summary",
)


def generated() -> str:
    """Every command, and what it prints, one heading deeper."""
    parts = []
    for command in COMMANDS:
        words = shlex.split(command)[2:]
        folders = [ROOT / word for word in words if word.startswith("results/")]
        text = leaderboard(folders, columns="summary" if "summary" in words else "length")
        parts.append(f"    {command}\n\n{text}")
    return "\n" + "\n".join(parts) + "\n"


def around() -> tuple[str, str, str]:
    """The page before, between and after the marks."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    inside, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} lacks the marks {BEGIN!r} and {END!r}"
    return before, inside, after


@pytest.mark.slow
def test_the_page_is_what_the_records_give() -> None:
    assert around()[1] == generated(), f"write it anew: python {Path(__file__).relative_to(ROOT)}"


def test_the_page_names_every_method_of_its_records_in_every_table() -> None:
    tables = [block for block in around()[1].split("\n\n") if block.startswith("| method")]
    methods = [sorted(re.findall(r"^\| ([a-z]\w*) +\|", table, re.MULTILINE)) for table in tables]
    assert len(tables) == 7
    assert all(names == methods[0] for names in methods)
    assert len(methods[0]) == 1 + 37  # the head is one of them
    assert all(line.isascii() or "≈" in line for table in tables for line in table.splitlines())


if __name__ == "__main__":
    before, _, after = around()
    PAGE.write_text(before + BEGIN + generated() + END + after, encoding="utf-8")
    print(f"written: {PAGE}", file=sys.stderr)

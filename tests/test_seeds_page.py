"""results/seeds.md has every row of the seeds, and its commands end well."""

import re
from pathlib import Path

import pytest

from tools import seeds_page


def test_no_row_of_the_seeds_is_left_out(shared: Path) -> None:
    listed = shared.parent / "reference" / "seeds_rows.md"
    if not listed.exists():
        pytest.skip("the list of the seeds' rows is not here")
    numbers = {int(number) for number in re.findall(r"^\| (\d+) \|", listed.read_text(), re.MULTILINE)}
    assert numbers == set(seeds_page.ROWS) == set(seeds_page.rows())


def test_what_has_no_command_has_a_reason() -> None:
    assert all(row.command or row.state for row in seeds_page.ROWS.values())
    assert all(row.state for row in seeds_page.ROWS.values() if not row.runs)


@pytest.mark.slow
@pytest.mark.parametrize("number", seeds_page.ROWS)
def test_the_page_says_what_its_command_gives(number: int) -> None:
    assert seeds_page.line(number) == seeds_page.rows()[number], "write it anew: python -m tools.seeds_page"

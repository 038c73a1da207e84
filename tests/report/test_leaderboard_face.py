"""The web page of a leaderboard: one row a method, coloured where a test tells it, and a sentence that counts rows."""

import re
from html.parser import HTMLParser
from pathlib import Path

from lexbench.report.leaderboard.leaderboard import leaderboard_text
from tests.report.fake_run import keep
from tests.stats.test_headline import needle, text


class Cells(HTMLParser):
    """Rows of the first table: of each cell its class and its first text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, str]]] = []
        self.feed(page[: page.index("</table>")])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append((dict(attrs).get("class") or "", ""))

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and not self.rows[-1][-1][1]:
            self.rows[-1][-1] = (self.rows[-1][-1][0], data.strip())


def test_a_method_has_one_row_and_red_stands_where_it_is(tmp_path: Path) -> None:
    """Of 12 pairs, 12 or 11 that change one way have a sign-flip p of 2^-11 or 2^-10; one of 12 tells nothing."""
    levels = {"none": (3.5, 4.5), "pi": (3.9, 3.8), "rerope": (3.5, 4.0), "ntk": (3.5, 4.9)}
    right = {"none": (12, 0), "pi": (1, 1), "rerope": (12, 11), "ntk": (12, 0)}
    cells = [text(row, at, level) for row, of in levels.items() for at, level in zip((256, 2048), of, strict=True)]
    cells += [needle(row, at, n) for row, of in right.items() for at, n in zip((256, 2048), of, strict=True)]
    keep(tmp_path, cells)
    page = leaderboard_text([tmp_path], form="html")
    head, *rows = Cells(page).rows
    shown = {row[0][1]: dict(zip([name for _, name in head], row, strict=True)) for row in rows}
    assert [name for _, name in head][:3] == ["method", "loss", "better by"] and len(shown) == len(rows) == 4
    assert next(iter(shown)) == "unmodified (none)" and [*shown][1] == "rerope"
    told = {name: (row["better by"], row["price in loss"], row["price in keys, points"]) for name, row in shown.items()}
    assert told["rerope"] == (("good", "+0.500*"), ("", "0.000"), ("", "0.0"))
    assert told["pi"] == (("good", "+0.700*"), ("bad", "+0.400"), ("bad", "-91.7*"))
    assert told["ntk"][0] == ("bad", "-0.400*")
    said = re.search(r"<h1>.*?</h1>\n<p>(.*?)</p>", page)
    assert said and said[1] == (
        "Of 3 methods, better than the unmodified model at the longest length: 2 in text, 1 in keys, 1 in both; "
        "with a price at the trained length, set as for the longest: 1."
    )


def test_a_model_without_the_unmodified_one_has_no_first_table(tmp_path: Path) -> None:
    keep(tmp_path, [text("pi", 256, 3.5), text("pi", 2048, 3.8)])
    page = leaderboard_text([tmp_path], form="html")
    assert "better by" not in page and "<h2>last_segment on lexlet" in page

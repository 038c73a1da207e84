"""A sheet holds no markup: only its writers know marks, and each escapes every text of it."""

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lexbench.report.formats import sheet_html, sheet_latex, sheet_markdown, sheet_text
from lexbench.report.grid import Grid, GridEntry
from lexbench.report.sheet import Figure, Heading, Link, Paragraph, Remark, Sheet

PACKAGE = Path(__file__).parents[2] / "lexbench"
PAGES = [
    *sorted((PACKAGE / "report").rglob("*.py")),
    *(PACKAGE / f"parts/{name}.py" for name in ("kv/table", "search/trace/page", "exchange/referee/formats")),
]
WRITERS = {"report/formats.py", "report/paper_table.py", "report/titles.py"}
"""Modules that give a form: of sheets, of a table fitted into a paper's column; and one that reads docstrings."""
STILL_WITH_MARKUP = {"report/show/plots.py", "report/show/table.py"}
"""Modules whose pages are no sheets yet; it only shrinks."""
MARKUP = re.compile(r"\*\*|\]\(|^#+ |^\| |^- \w|`|</?[a-z]+[ >]|\\(text|begin|par\b)")
WRITER_NAMES = {"escape_markdown", "escape_html", "escape_tex", "escape_link_text", "markdown_columns"}


def texts(tree: ast.AST) -> Iterator[str]:
    """Texts of a module that are no docstrings and no patterns."""
    skipped = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def markup(file: Path) -> list[str]:
    """Markup in the texts of a module, and the names of writers' helpers that it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names}
    return [*(text for text in texts(tree) if MARKUP.search(text)), *(WRITER_NAMES & names)]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_only_writers_know_marks(file: Path) -> None:
    name = file.relative_to(PACKAGE).as_posix()
    if name not in WRITERS:
        assert bool(markup(file)) == (name in STILL_WITH_MARKUP), markup(file)[:5]


HOSTILE = "a|b **c** <b>d</b> [e](f) `g` $h$ \\i _j_\n## k\x1b[2J"
SHEET: Sheet = [
    Heading(HOSTILE, 1),
    Paragraph(HOSTILE, [Link(HOSTILE, "tables/x.csv")]),
    Paragraph("strong", strong=True),
    Paragraph("amber", warns=True),
    Grid(title=HOSTILE, head=["method", HOSTILE], rows=[[HOSTILE, GridEntry(text="1.0", best=True, notes=(HOSTILE,))]]),
    Remark("one"),
    Remark("two"),
    Figure("plots/x.svg", HOSTILE),
]


class Tags(HTMLParser):
    """Tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_each_writer_gives_blocks_its_own_form() -> None:
    shown = sheet_markdown(SHEET)
    assert shown.startswith("# a\\|b") and "**strong**\n\n> [!WARNING]\n> amber\n\n## " in shown
    assert "- one\n- two\n\n![" in shown and shown.endswith("](plots/x.svg)\n")
    plain = sheet_text(SHEET)
    assert plain.startswith("a|b **c**") and "\nstrong\n\namber\n" in plain and "\none\ntwo\n" in plain
    assert "\x1b[33mamber\x1b[0m" in sheet_text(SHEET, colour=True)
    page = Tags(sheet_html(SHEET))
    assert page.tags.count("h1") == page.tags.count("table") == page.tags.count("img") == page.tags.count("a") == 1
    assert page.tags.count("b") == 1  # the best of the column: the text's own is no tag
    latex = sheet_latex(SHEET)
    assert latex.count("\\begin{tabular}") == 1 and "\\textbf{1.0}" in latex


def test_no_text_of_a_sheet_is_read_as_markup() -> None:
    """What a reader of Markdown and of HTML sees is the text itself."""
    assert Tags(sheet_html([Paragraph(HOSTILE)])).text.split() == HOSTILE.replace("\x1b", " ").split()
    made = sheet_markdown([Paragraph(HOSTILE)])
    assert made.count("\n") == 1 and "\x1b" not in made
    assert not re.search(r"(?<!\\)(\*\*|`|\$|<b>|\|)|\](?<!\\)\(", made)
    assert "\x1b" not in sheet_text(SHEET) + sheet_latex(SHEET)


def test_an_empty_sheet_is_empty() -> None:
    assert sheet_markdown([]) == sheet_text([]) == ""

"""A leaderboard as a page: legend, boards and published tables, as Markdown, LaTeX, HTML, JSON or CSV."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lexbench.report import formats
from lexbench.report.grid import EMPTY_ENTRY, TRUNCATION_NOTE, Grid, GridEntry
from lexbench.report.leaderboard.boards import Board, BoardColumn, BoardValue, RowName
from lexbench.report.leaderboard.published import PublishedTable, published_grid
from lexbench.report.sheet import Block, Paragraph

INTERVALS_SENTENCE = "Brackets hold 95 % intervals."
INTERVALS_BY_LENGTH_SENTENCE = (
    "Brackets hold 95 % intervals: over resampled documents or haystacks (2000 times), Wilson's for independent "
    "answers that are right or wrong, and for means of scores by recovered variances (MOVER)."
)
BEST_MARK_SENTENCE = (
    "Bold: best of its column at the displayed precision; never a value at its floor (chance, or what counting "
    "n-grams reaches on the same targets): one whose interval reaches it."
)
TIE_MARK_SENTENCE = (
    "≈: ties with the best statistically, by a paired two-sided sign-flip test on the same questions at 0.05, after "
    "Holm's correction over the column. The best is picked from the same data, which flatters it: were all rows equal, "
    "one column in eight of 10 rows, and one in three of 37, could still show a row as behind. So ≈ names "
    "candidates; a claim about two methods needs them chosen beforehand, or fresh questions (another seed, "
    "lexbench compare)."
)
NO_TIE_TEST_SENTENCE = "Models share no questions in pairs, so no row is tested against the best."
NOT_TESTED_SENTENCE = "Rows are not tested against the best."
REFUSED_SENTENCE = "Refused: not measurable; reason below."


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """All that a page shows."""

    rows: str
    columns: str
    boards: list[Board]
    headlines: list[Grid] = field(default_factory=list)
    """Grids of the gain from context beyond the trained length; before the boards, in Markdown, LaTeX and HTML."""
    face: Callable[[], list[Block]] = list
    """Makes what a web page shows first: a sentence, and a table of each model (`face`)."""
    published: list[PublishedTable] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Files that cannot be read, one line each."""
    unfinished: list[str] = field(default_factory=list)
    left_out: str = ""
    """Line with the number of boards that are not shown, and the way to have them."""

    @property
    def legend(self) -> list[str]:
        """Explain the marks, one sentence each."""
        if self.columns == "summary":
            return [INTERVALS_SENTENCE, BEST_MARK_SENTENCE, NOT_TESTED_SENTENCE, REFUSED_SENTENCE]
        return [
            INTERVALS_BY_LENGTH_SENTENCE,
            BEST_MARK_SENTENCE,
            TIE_MARK_SENTENCE if self.rows == "method" else NO_TIE_TEST_SENTENCE,
            REFUSED_SENTENCE,
        ]

    @property
    def missing(self) -> list[str]:
        """Name everything relevant that is not shown."""
        left = [self.left_out] if self.left_out else []
        left += [f"Not readable, not shown: {each}" for each in self.unreadable]
        unfinished = "; ".join(self.unfinished)
        return left + ([f"Unfinished, not shown: {unfinished}. Repeat the command to resume."] if unfinished else [])


def leaderboard_sheet(page: Leaderboard) -> list[Block]:
    """Legend, what is missing, headlines, boards, published tables."""
    above: list[Block] = [Paragraph(" ".join(page.legend)), *(Paragraph(each, strong=True) for each in page.missing)]
    return [*above, *page.headlines, *map(_board_grid, page.boards), *map(published_grid, page.published)]


def html_sheet(page: Leaderboard) -> list[Block]:
    """The first view, then the same as in every format."""
    return [*page.face(), *leaderboard_sheet(page)]


def _board_grid(board: Board) -> Grid:
    protocol, *rest = board.caption.split("\n")
    return Grid(
        title=board.title,
        above=[f"Protocol: {protocol}.", f"{' '.join(rest)}."],
        head=[board.corner, *(column.head for column in board.columns)],
        rows=[
            [row, *(_entry(board.entries.get((row, column.name))) for column in board.columns)] for row in board.rows
        ],
        remarks=board.remarks,
        below=[TRUNCATION_NOTE] if any(value.more for value in board.entries.values()) else [],
    )


def _entry(value: BoardValue | None) -> GridEntry:
    if value is None:
        return EMPTY_ENTRY
    mark = value.mark
    return GridEntry(
        text=value.shown, ends=value.ends, best=mark.best, level=mark.level, more=value.more, notes=value.notes
    )


def page_json(page: Leaderboard) -> str:
    """The leaderboard as data.

        {"rows": "method", "columns": "length", "unreadable": [line], "unfinished": [line],
         "boards": [{"title", "caption", "corner", "about": {task, metric, label, better, protocol, n, seed, corpus,
                     backend, dtype, kernel, ...}, "remarks": [line], "rows": [name in order],
                     "columns": [{"name", "head", "length", "multiple"}],
                     "entries": [{"row", "column", "shown", "value", "low", "high", "interval", "n", "clusters",
                                  "truncated", "failed", "refused", "best", "level", "p_holm", "notes": [line]}]}],
         "published": [{"name", "source", "secondary", "protocol", "note", "figures": [{as in results/published}]}]}

    A score, and a difference of scores, is a share: 0.5 is 50 points. `shown` is a share in a column of a length, and
    points in a column of a summary. An infinite value, a length beyond all that was measured, is null, and `shown` says
    which: "> 2048". Of a summary, n, truncated and failed are of all lengths of its row, and null where it is no sum of
    samples: a cost.
    """
    boards = [
        {
            "title": board.title,
            "caption": board.caption,
            "corner": board.corner,
            "about": board.about,
            "remarks": board.remarks,
            "rows": list(map(str, board.rows)),
            "columns": [asdict(column) for column in board.columns],
            "entries": [_data(row, column.name, entry) for row, column, entry in _entries_in_order(board)],
        }
        for board in page.boards
    ]
    whole = {
        "rows": page.rows,
        "columns": page.columns,
        "unreadable": page.unreadable,
        "unfinished": page.unfinished,
        "boards": boards,
        "published": [asdict(table) for table in page.published],
    }
    return formats.as_json(whole, ascii_only=False) + "\n"


def _entries_in_order(board: Board) -> Iterator[tuple[RowName, BoardColumn, BoardValue]]:
    for row in board.rows:
        for column in board.columns:
            if (row, column.name) in board.entries:
                yield row, column, board.entries[row, column.name]


def _data(row: RowName, column: str, value: BoardValue) -> dict[str, Any]:
    # Not asdict, which copies every text: there may be tens of thousands of values.
    known = {key: each for key, each in vars(value).items() if key not in ("mark", "ends", "more")}
    return {"row": str(row), "column": column, **known, **vars(value.mark)}


SETTING_FIELDS = ("task", "model", "method", "metric", "protocol", "n", "seed", "corpus", "backend", "dtype", "kernel")


def page_csv(page: Leaderboard) -> str:
    """One line per entry; `kind` is entry, or unreadable or unfinished with the reason in `notes`."""
    fields = ("row", "column", "length", "multiple", "value", "low", "high", "interval", "samples", "clusters")
    more = ("truncated", "failed", "refused", "best", "level", "p_holm", "notes")
    lines: list[dict[str, Any]] = []
    for board in page.boards:
        about = {name: board.about.get(name) for name in SETTING_FIELDS}
        for row, column, value in _entries_in_order(board):
            known = _data(row, column.name, value)
            known |= {"samples": known.pop("n"), "notes": "; ".join(value.notes)}
            known.pop("shown")
            own = {"length": column.length, "multiple": column.multiple}
            lines.append({"kind": "entry", "board": board.title, **about, **known, **own, board.corner: str(row)})
    for kind, texts in (("unreadable", page.unreadable), ("unfinished", page.unfinished)):
        lines += [{"kind": kind, "notes": text} for text in texts]
    return formats.rows_as_csv(lines, ("kind", "board", *SETTING_FIELDS, *fields, *more), as_is=True)


FORMAT_WRITERS: Mapping[str, Callable[[Leaderboard], str]] = {
    "markdown": lambda page: formats.sheet_markdown(leaderboard_sheet(page)),
    "csv": page_csv,
    "latex": lambda page: formats.sheet_latex(leaderboard_sheet(page)),
    "json": page_json,
    "html": lambda page: formats.html_page("lexbench leaderboard", html_sheet(page)),
}

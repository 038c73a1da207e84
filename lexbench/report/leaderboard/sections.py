"""What a leaderboard shows, board by board and table by table, in the pieces that formats set apart."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lexbench.report.leaderboard.boards import Board, Entry
from lexbench.report.leaderboard.published import Published, grid
from lexbench.report.leaderboard.published import caption as published_caption
from lexbench.stats.entries import noted

INTERVALS = "Brackets hold 95 % intervals."
BY_LENGTH = (
    "Brackets hold 95 % intervals: over resampled documents or haystacks (2000 times), Wilson's for independent "
    "answers that are right or wrong, and for means of scores by recovered variances (MOVER)."
)
BEST = "In **bold**: the best of its column, as far as it is shown."
LEVEL = (
    "`≈`: not distinguishable from the best, by a paired two-sided sign-flip test on the same questions at 0.05, after "
    "Holm's correction over the column. The best is picked from the same data, which flatters it: were all rows equal, "
    "one column in eight of 10 rows, and one in three of 37, would still show a row as behind. So `≈` names "
    "candidates; a claim about two methods needs them chosen beforehand, or fresh questions (another seed, "
    "`lexbench compare`)."
)
NO_LEVEL = "Models share no questions in pairs, so no row is tested against the best."
NOT_TESTED = "Rows are not tested against the best."
REFUSED = "*refused*: there is no honest answer, and the reason stands below."
"""Emphasis as in Markdown, for every format to turn into its own."""


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """All that a page shows."""

    rows: str
    columns: str
    boards: list[Board]
    published: list[Published] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Files, one line each."""
    unfinished: list[str] = field(default_factory=list)

    @property
    def legend(self) -> list[str]:
        """What marks mean, sentence by sentence."""
        if self.columns == "summary":
            return [INTERVALS, BEST, NOT_TESTED, REFUSED]
        return [BY_LENGTH, BEST, LEVEL if self.rows == "method" else NO_LEVEL, REFUSED]

    @property
    def missing(self) -> list[str]:
        """What is not shown and should be known of."""
        left = [f"Not readable, not shown: {each}" for each in self.unreadable]
        unfinished = "; ".join(self.unfinished)
        return left + ([f"Unfinished, not shown: {unfinished}. The same run command goes on."] if unfinished else [])


@dataclass(frozen=True)
class Text:
    """An entry in the pieces that formats set apart."""

    value: str
    best: bool = False
    level: bool = False
    rest: str = ""
    """Interval, truncated share and marks of notes."""


@dataclass(frozen=True)
class Section:
    """A board or a published table, ready to be set."""

    title: str
    lines: list[str]
    head: list[str]
    labels: int
    """How many of the first columns are labels."""
    rows: list[list[Text]]
    below: list[str]


def sections(page: Leaderboard) -> Iterator[Section]:
    """Ours, then those of papers."""
    for board in page.boards:
        notes: dict[str, int] = {}
        rows = [
            [Text(row), *(_text(board.entries.get((row, column.name)), notes) for column in board.columns)]
            for row in board.rows
        ]
        protocol, *rest = board.caption.split("\n")
        cut = any(entry.cut for entry in board.entries.values())
        below = [*board.remarks, *noted(notes), *(["cut: share of the samples that were truncated."] if cut else [])]
        head = [board.corner, *(column.head for column in board.columns)]
        yield Section(board.title, [f"Protocol: {protocol}.", f"{' '.join(rest)}."], head, 1, rows, below)
    for table in page.published:
        text = grid(table)
        made = [[Text(each) for each in row] for row in text.rows]
        yield Section(f"Published: {table.name}", published_caption(table), text.head, text.labels, made, text.notes)


def _text(entry: Entry | None, notes: dict[str, int]) -> Text:
    if entry is None:
        return Text("")
    marks = ", ".join(str(notes.setdefault(note, len(notes) + 1)) for note in entry.notes)
    interval = f"[{entry.ends[0]}, {entry.ends[1]}]" if entry.ends else ""
    rest = " ".join(filter(None, [interval, f"{entry.cut} cut" if entry.cut else "", f"({marks})" if marks else ""]))
    return Text(entry.shown, entry.mark.best, entry.mark.level, rest)

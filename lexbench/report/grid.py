"""A grid of values with intervals, marks and notes, which `formats` writes as Markdown, LaTeX or HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record
from lexbench.report.notes import value_notes
from lexbench.report.wording import format_record_value, format_share, format_signed
from lexbench.stats import metrics
from lexbench.stats.floors import at_floor
from lexbench.stats.pairs import PairedDifference
from lexbench.stats.records import sample_count

TRUNCATION_NOTE = "cut: share of the samples that were truncated."
"""Line below a table whose entries show that share."""


@dataclass(frozen=True, kw_only=True)
class GridEntry:
    """Cell of a printed table: the text of a value, its interval, marks and notes."""

    text: str
    """The rounded value, a label, or the reason for no value."""
    ends: tuple[str, str] | None = None
    """Both ends of the 95 % interval, as text; None: no interval is shown."""
    best: bool = False
    """Whether it is the best of its column, at the displayed precision."""
    level: bool = False
    """Whether a paired test does not tell it from the best of its column."""
    star: bool = False
    """Whether the value is significant: it gets a star."""
    told: int = 0
    """1 where a test tells that it is better than the unmodified model, -1 where it is worse: its colour."""
    more: str = ""
    """Counts and shares that are printed behind the interval."""
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> str:
        """The interval in brackets; empty without one."""
        return f"[{', '.join(self.ends)}]" if self.ends else ""

    @property
    def text_with_interval(self) -> str:
        """The value and its interval."""
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows of entries under a head, with lines above and below."""

    head: Sequence[str]
    rows: Sequence[Sequence[GridEntry | MethodKey | str]]
    labels: int = 1
    """Number of leading columns that hold labels."""
    title: str = ""
    above: Sequence[str] = ()
    remarks: Sequence[str] = ()
    """Lines below the rows, before the notes of entries."""
    below: Sequence[str] = ()
    """Lines below the notes."""

    def entries_with_notes(self) -> tuple[list[list[tuple[GridEntry, str]]], list[str]]:
        """Each entry with the text behind its value: interval, counts, numbers of its notes; and the lines below."""
        notes: dict[str, int] = {}

        def rest(entry: GridEntry) -> str:
            # Equal notes share a number.
            marks = ", ".join(str(notes.setdefault(note, len(notes) + 1)) for note in entry.notes)
            return " ".join(filter(None, [entry.interval, entry.more, f"({marks})" if marks else ""]))

        made = [
            [each if isinstance(each, GridEntry) else GridEntry(text=str(each)) for each in row] for row in self.rows
        ]
        rows = [[(entry, rest(entry)) for entry in row] for row in made]
        return rows, [*self.remarks, *(f"({mark}) {text}" for text, mark in notes.items()), *self.below]


EMPTY_ENTRY = GridEntry(text="")
Line = list[GridEntry | MethodKey | str]
"""A row of a grid; a key or a text alone is a label."""


def value_entry(record: Record | None, *, best: str | None = None, more: str = "", n: int | None = None) -> GridEntry:
    """A value with its interval and notes.

    Args:
        record: None gives an empty entry.
        best: the column's best value as displayed.
        more: counts behind the interval, shown only beside a value.
        n: samples that the cell should have; None: not checked.
    """
    if record is None:
        return EMPTY_ENTRY
    notes = tuple(value_notes(record, n))
    if record.value is None:
        return GridEntry(text="refused" if record.refused else "no value", notes=notes)
    text = format_record_value(record, record.value)
    ends = interval_texts(record.low, record.high, lambda end: format_record_value(record, end))
    return GridEntry(text=text, ends=ends, best=text == best and not at_floor(record), more=more, notes=notes)


def interval_texts(low: float | None, high: float | None, text: Callable[[float], str]) -> tuple[str, str] | None:
    """The ends of an interval as text; None where there is none."""
    return None if low is None or high is None else (text(low), text(high))


def truncated_share(record: Record) -> str:
    """Share of a record's samples that were truncated."""
    return f"{format_share(record.truncated, sample_count(record))} cut"


def best_displayed_value(
    records: Sequence[Record], text: Callable[[Record, float], str] = format_record_value
) -> str | None:
    """Best value of a column as displayed; None where all look equal, are at the floor, or no direction is better."""
    valued = [(record, record.value) for record in records if record.value is not None]
    side = max((metrics.better_direction(record.metric) for record, _ in valued), default=0)
    above = {text(record, value): value for record, value in valued if not at_floor(record)}
    looks = {text(record, value) for record, value in valued}
    return max(above, key=lambda shown: side * above[shown]) if side and above and len(looks) > 1 else None


def difference_entry(
    found: PairedDifference | None,
    digits: str = ".3f",
    scale: float = 1.0,
    *,
    missing: str = "no pairs",
    star: bool = False,
    more: str = "",
    notes: Sequence[str] = (),
) -> GridEntry:
    """A paired difference with its sign, interval, star and notes; `missing` where there is none."""
    if found is None or found.difference is None:
        return GridEntry(text=missing, more=more, notes=tuple(notes))
    ends = interval_texts(found.low, found.high, lambda end: format_signed(scale * end, digits))
    text = format_signed(scale * found.difference, digits)
    return GridEntry(text=text, ends=ends, star=star, more=more, notes=tuple(notes))

"""A grid of values with intervals, marks and notes, which `formats` writes as Markdown, LaTeX or HTML."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record
from lexbench.stats import metrics
from lexbench.stats.floors import at_floor
from lexbench.stats.pairs import Paired
from lexbench.stats.values import notes_of, number, samples_of, share
from lexbench.stats.wording import several, signed

CUT = "cut: share of the samples that were truncated."
"""Below a table whose entries show that share."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a grid."""

    text: str
    """The rounded value, a label, or the reason for no value."""
    ends: tuple[str, str] | None = None
    """The 95 % interval."""
    best: bool = False
    """Best of its column at the displayed precision."""
    level: bool = False
    """Ties with the best statistically."""
    star: bool = False
    """Significant."""
    more: str = ""
    """Counts and shares behind the interval."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows of entries under a head, with lines above and below."""

    head: Sequence[str]
    rows: Sequence[Sequence[Entry | MethodKey | str]]
    labels: int = 1
    """Number of leading columns that hold labels."""
    title: str = ""
    above: Sequence[str] = ()
    remarks: Sequence[str] = ()
    """Below the rows, before the notes of entries."""
    below: Sequence[str] = ()
    """After the notes."""

    def numbered(self) -> tuple[list[list[tuple[Entry, str]]], list[str]]:
        """Each entry with the text behind its value: interval, counts, numbers of its notes; and the lines below."""
        notes: dict[str, int] = {}

        def rest(entry: Entry) -> str:
            interval = f"[{entry.ends[0]}, {entry.ends[1]}]" if entry.ends else ""
            # Equal notes share a number.
            marks = ", ".join(str(notes.setdefault(note, len(notes) + 1)) for note in entry.notes)
            return " ".join(filter(None, [interval, entry.more, f"({marks})" if marks else ""]))

        made = [[each if isinstance(each, Entry) else Entry(text=str(each)) for each in row] for row in self.rows]
        rows = [[(entry, rest(entry)) for entry in row] for row in made]
        return rows, [*self.remarks, *(f"({mark}) {text}" for text, mark in notes.items()), *self.below]


EMPTY = Entry(text="")
Line = list[Entry | MethodKey | str]
"""A row of a grid; a key or a text alone is a label."""


def value_entry(record: Record | None, *, best: str | None = None, more: str = "", n: int | None = None) -> Entry:
    """A value with its interval and notes.

    Args:
        record: None gives an empty entry.
        best: the column's best value as displayed.
        more: counts behind the interval, shown only beside a value.
        n: samples that the cell should have; None: not checked.
    """
    if record is None:
        return EMPTY
    notes = tuple(notes_of(record, n))
    if record.value is None:
        return Entry(text="refused" if record.refused else "no value", notes=notes)
    text = number(record, record.value)
    ends = ends_of(record.low, record.high, lambda end: number(record, end))
    return Entry(text=text, ends=ends, best=text == best and not at_floor(record), more=more, notes=notes)


def ends_of(low: float | None, high: float | None, text: Callable[[float], str]) -> tuple[str, str] | None:
    """The ends of an interval as text; None where there is none."""
    return None if low is None or high is None else (text(low), text(high))


def cut(record: Record) -> str:
    """Share of a record's samples that were truncated."""
    return f"{share(record.truncated, samples_of(record))} cut"


def best_of(records: Sequence[Record], text: Callable[[Record, float], str] = number) -> str | None:
    """Best value of a column as displayed; None where all look equal, are at the floor, or no direction is better."""
    valued = [(record, record.value) for record in records if record.value is not None]
    side = max((metrics.better(record.metric) for record, _ in valued), default=0)
    above = {text(record, value): value for record, value in valued if not at_floor(record)}
    looks = {text(record, value) for record, value in valued}
    return max(above, key=lambda shown: side * above[shown]) if side and above and len(looks) > 1 else None


def difference_entry(
    found: Paired | None,
    digits: str = ".3f",
    scale: float = 1.0,
    *,
    missing: str = "no pairs",
    star: bool = False,
    more: str = "",
    notes: Sequence[str] = (),
) -> Entry:
    """A paired difference with its sign, interval, star and notes; `missing` where there is none."""
    if found is None or found.difference is None:
        return Entry(text=missing, more=more, notes=tuple(notes))
    ends = ends_of(found.low, found.high, lambda end: signed(scale * end, digits))
    text = signed(scale * found.difference, digits)
    return Entry(text=text, ends=ends, star=star, more=more, notes=tuple(notes))


def difference_notes(found: Paired, usual: tuple[int, int], fate: str = "") -> Iterator[str]:
    """Notes on a paired difference.

    Args:
        found: the difference.
        usual: pairs and clusters that need no note.
        fate: how failed pairs count.
    """
    if (found.pairs, found.clusters) != usual:
        yield f"{several(found.pairs, 'pair')} in {several(found.clusters, 'cluster')}"
    if found.failed:
        yield f"{several(found.failed, 'pair')} failed{f', {fate}' if fate else ' on a side'}"
    if found.truncated:
        yield f"{several(found.truncated, 'pair')} truncated"
    if found.unpaired:
        yield f"{several(found.unpaired, 'sample')} on one side only, left out"
    if found.difference is not None and found.interval is None:
        yield f"no interval: {several(found.clusters, 'cluster')}"

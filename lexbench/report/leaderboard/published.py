"""Numbers from papers, as separate tables with their own protocols, never mixed into ours.

results/published/tables.csv describes each table, the other files hold the figures; README.md beside them explains the
columns.
"""

import csv
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.report.grid import Grid

PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
PUBLISHED_FOLDERS = (PACKAGE_FOLDER / "published", PACKAGE_FOLDER.parent / "results" / "published")
"""Folders of published numbers: inside the package in a wheel, beside it in a checkout."""
MAX_TABLE_COLUMNS = 20
"""Maximum columns; a wider table is transposed."""


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """One number as a paper prints it; empty text where something is not stated."""

    table: str
    dataset: str
    model: str
    method: str
    trained_length: int | None
    length: int | None
    """Tokens, where whole tokens are known."""
    printed_length: str
    """Printed in place of tokens: a range, a bucket of words, a mean over lengths."""
    metric: str
    value: str
    """Value with all printed digits."""
    above: str
    """Lower limit, printed in place of a value."""
    note: str

    @property
    def shown(self) -> str:
        """The number, `>100`, or the reason for none."""
        return self.value or (f">{self.above}" if self.above else self.note)

    @property
    def at(self) -> str:
        """The length as text."""
        return self.printed_length if self.length is None else str(self.length)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One table of a paper."""

    name: str
    source: str
    secondary: bool
    """Taken from a citing work, not from the paper or its repository."""
    protocol: str
    note: str
    figures: list[PublishedNumber]


def find_published_tables(names: Iterable[str]) -> list[PublishedTable]:
    """The named tables; ConfigError for an unknown one, with the choices, and where this installation has none."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    folder = next((place for place in PUBLISHED_FOLDERS if (place / "tables.csv").is_file()), None)
    if folder is None:
        raise ConfigError(
            f"published tables are not part of this installation: {PUBLISHED_FOLDERS[-1]} is missing, use a checkout "
            "of lexbench"
        )
    about = {row["table"]: row for row in _rows(folder / "tables.csv")}
    for name in wanted:
        if name not in about:
            close = difflib.get_close_matches(name, about, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(f"unknown published table {name!r}: {hint}choose from {', '.join(about)}")
    return [_table(folder, about[name]) for name in wanted]


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _table(folder: Path, about: dict[str, str]) -> PublishedTable:
    figures = [
        PublishedNumber(
            **{**row, **{name: int(row[name]) if row[name] else None for name in ("trained_length", "length")}}  # type: ignore[arg-type]
        )
        for row in _rows(folder / f"{about['file']}.csv")
        if row["table"] == about["table"]
    ]
    return PublishedTable(
        name=about["table"],
        source=about["source"],
        secondary=bool(about["secondary"]),
        protocol=about["protocol"],
        note=about["note"],
        figures=figures,
    )


COLUMN_HEADS = {"trained_length": "trained length", "at": "length"}
COLUMN_FIELD_CHOICES = (("at",), ("dataset", "metric", "at"), ("dataset", "metric"))
"""Choices for the columns; the other differing fields become rows."""


def published_caption(table: PublishedTable) -> list[str]:
    """Source, protocol, and what all figures share."""
    lines = [f"Source: {table.source}{' (not read in the original)' if table.secondary else ''}."]
    lines += [f"Protocol: {table.protocol}."]
    same = [
        f"{COLUMN_HEADS.get(name, name)} {value}"
        for name in ("dataset", "model", "method", "trained_length", "at", "metric", "note")
        if (value := _single_value(table.figures, name))
    ]
    lines += [f"All of it: {', '.join(same)}."] if same else []
    return [*lines, f"Note: {table.note}."] if table.note else lines


def _single_value(figures: Sequence[PublishedNumber], name: str) -> str:
    values = {str(getattr(figure, name) or "") for figure in figures}
    return values.pop() if len(values) == 1 else ""


def published_grid(table: PublishedTable) -> Grid:
    """The figures below their source and protocol."""
    return replace(narrowest_layout(table), title=f"Published: {table.name}", above=published_caption(table))


def narrowest_layout(table: PublishedTable) -> Grid:
    """The figures as text, in the layout that takes the least room."""
    names = ("dataset", "metric", "model", "method", "trained_length", "at")
    odd = [name for name in names if len({getattr(figure, name) for figure in table.figures}) > 1]
    made = [_pivot(table.figures, odd, [name for name in layout if name in odd]) for layout in COLUMN_FIELD_CHOICES]
    best = min(made, key=lambda each: (len(each.rows) + 1) * len(each.head))
    return (
        _transpose_layout(best)
        if _layout_width(best) > MAX_TABLE_COLUMNS and _layout_width(best) > len(best.rows)
        else best
    )


def _layout_width(each: Grid) -> int:
    return len(each.head) - each.labels


def _pivot(figures: Sequence[PublishedNumber], odd: Sequence[str], across: Sequence[str]) -> Grid:
    down = [name for name in odd if name not in across] or ["method"]
    texts: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    notes: dict[str, int] = {}
    for figure in figures:
        row, column = (tuple(str(getattr(figure, name) or "") for name in side) for side in (down, across))
        odd_note = figure.note if figure.note != figure.shown and not _single_value(figures, "note") else ""
        mark = f" ({notes.setdefault(odd_note, len(notes) + 1)})" if odd_note else ""
        texts.setdefault((row, column), []).append(figure.shown + mark)
    rows, columns = (list(dict.fromkeys(key[side] for key in texts)) for side in (0, 1))
    head = [" ".join(filter(None, column)) or "value" for column in columns]
    return Grid(
        head=[COLUMN_HEADS.get(name, name) for name in down] + head,
        labels=len(down),
        rows=[[*row, *(", ".join(texts.get((row, column), [])) for column in columns)] for row in rows],
        below=[f"({mark}) {text}" for text, mark in notes.items()],
    )


def _transpose_layout(each: Grid) -> Grid:
    """Rows as columns, their labels joined."""
    heads = [" ".join(filter(None, map(str, row[: each.labels]))) for row in each.rows]
    columns = zip(*(row[each.labels :] for row in each.rows), strict=True)
    body = [[head, *column] for head, column in zip(each.head[each.labels :], columns, strict=True)]
    return replace(each, head=["length", *heads], labels=1, rows=body)

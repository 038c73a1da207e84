"""Boards of a leaderboard: rows in order, every entry with its interval, the best of each column marked.

A board holds one setting: with methods as rows a table of the report, with models as rows one task under one method.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lexbench.core.method_key import MethodKey, sort_by_name
from lexbench.core.record import Record
from lexbench.core.text import join_first_few
from lexbench.report.grid import truncated_share, value_entry
from lexbench.report.leaderboard.best import RowMark, Samples, as_perplexity, mark_best_rows, mean_record
from lexbench.report.notes import why_all_alike
from lexbench.report.tables import floor_lines, realised_line
from lexbench.report.wording import metric_label
from lexbench.stats import metrics
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, min_sign_flip_p
from lexbench.stats.metrics import is_token_loss

MEAN_COLUMN, PERPLEXITY_COLUMN = "mean", "perplexity"
NO_MARK = RowMark()


@dataclass(frozen=True, kw_only=True)
class BoardColumn:
    """Column of a board: a length, a multiple of the trained length, a mean or a summary."""

    name: str
    """Name for programs: a length in tokens, a multiple as `2x`, `mean_record`, `perplexity`, or a summary's name."""
    head: str
    """Head for people."""
    length: int | None = None
    """Tokens, in a column of one length."""
    multiple: float | None = None
    """Length as a multiple of the trained length."""


@dataclass(frozen=True, kw_only=True)
class BoardValue:
    """Value of a board in one row and column, as data and as displayed."""

    shown: str
    """The rounded value; or `refused`, `no value`."""
    value: float | None = None
    low: float | None = None
    """Lower end of the 95 % interval; None where there is none."""
    high: float | None = None
    ends: tuple[str, str] | None = None
    """The interval as it is shown."""
    interval: str | None = None
    """Kind of the interval: wilson, cluster_bootstrap, ..."""
    n: int | None = None
    """Samples behind the value."""
    clusters: int | None = None
    truncated: int | None = None
    """Samples; None where a value does not come from samples, as is `failed`."""
    failed: int | None = None
    more: str = ""
    """Share of truncated samples, where the board has any."""
    refused: str | None = None
    mark: RowMark = NO_MARK
    notes: tuple[str, ...] = ()


RowName = MethodKey | str
"""A method, or the name of a model."""
BoardPlace = tuple[RowName, str]
"""Row, and name of the column."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Board:
    """Rows and columns of one setting."""

    title: str
    caption: str
    """Facts that all cells share; the first line is the protocol."""
    about: Mapping[str, object]
    """Facts of `caption` as data: task, model or method, metric, protocol, backend and so on."""
    corner: str
    """Kind of the rows: method or model."""
    rows: list[RowName]
    columns: list[BoardColumn]
    entries: dict[BoardPlace, BoardValue]
    remarks: list[str] = field(default_factory=list)
    """Lines below the board: order, coverage, chance, realised tokens."""


def lengths_board(
    *,
    title: str,
    caption: str,
    about: Mapping[str, object],
    corner: str,
    columns: Sequence[BoardColumn],
    records: Mapping[BoardPlace, Record],
    samples: Samples,
    asked: int,
    forms: Mapping[str, str] | None = None,
) -> Board:
    """Board over lengths, with the mean over all lengths that the rows share; rows by that mean, best first.

    Args:
        title: of the board.
        caption: what all cells share.
        about: the same as data.
        corner: what the rows are; only methods are tested against the best: models share no questions.
        columns: the lengths, ascending.
        records: of each row and column that was measured.
        samples: of each cell id.
        asked: samples that each cell should have.
        forms: of each cell id the normal form of its attention; of rows that share all else.
    """
    shared, coverage = _shared_columns(columns, records)
    named = list(dict.fromkeys(row for row, _ in records))
    sources = {place: [record] for place, record in records.items()}
    heads = list(columns)
    if len(shared) > 1:
        heads.append(BoardColumn(name=MEAN_COLUMN, head=f"mean of {len(shared)}"))
        sources |= {(row, MEAN_COLUMN): whole for row in named if (whole := _complete_records(row, shared, records))}
    shown = {
        place: mean_record(each, samples) if place[1] == MEAN_COLUMN else each[0] for place, each in sources.items()
    }
    entries = _entries(shown, asked)
    limits: list[str] = []
    for column in heads:
        here = {row: record for (row, name), record in shown.items() if name == column.name}
        cells = {row: sources[row, column.name] for row in here}
        found = mark_best_rows(cells, here, samples if corner == "method" else {}, forms)
        entries |= {(row, column.name): replace(entries[row, column.name], mark=mark) for row, mark in found.items()}
        limits += _missing_mark_reasons(column, here, found) if corner == "method" else []
        if why := why_all_alike(here.values()):
            limits.append(f"At {column.head} no row can be told from another: {why}.")
    metric = next((record.metric for record in records.values() if record.metric), None)
    if is_token_loss(metric) and len(shared) > 1:
        heads.append(BoardColumn(name=PERPLEXITY_COLUMN, head="its perplexity"))
        turned = {
            (row, PERPLEXITY_COLUMN): as_perplexity(shown[row, MEAN_COLUMN])
            for row, name in shown
            if name == MEAN_COLUMN
        }
        for (row, name), each in _entries(turned, asked).items():
            entries[row, name] = replace(each, mark=entries[row, MEAN_COLUMN].mark)
    rows, order = _sort_rows(named, shared, shown)
    return Board(
        title=title,
        caption=caption,
        about={
            **about,
            "metric": metric,
            "label": metric_label(metric),
            "better": metrics.better_direction(metric),
        },
        corner=corner,
        rows=rows,
        columns=heads,
        entries=entries,
        remarks=[order, *coverage, *limits, *_floor_and_length_lines(columns, records)],
    )


def _complete_records(
    row: RowName, shared: Sequence[BoardColumn], records: Mapping[BoardPlace, Record]
) -> list[Record]:
    """A row's records of all shared columns; none where one has no value."""
    found = [records[row, column.name] for column in shared if (row, column.name) in records]
    return found if len(found) == len(shared) and all(record.value is not None for record in found) else []


def _shared_columns(
    columns: Sequence[BoardColumn], records: Mapping[BoardPlace, Record]
) -> tuple[list[BoardColumn], list[str]]:
    """Columns to average over: beyond the trained length, if any is, and with a value in every row that has any."""
    valued = {place for place, record in records.items() if record.value is not None}
    rows = sorted({row for row, _ in valued}, key=_row_text)
    beyond = [column for column in columns if (column.multiple or 0) > 1]
    wanted = beyond or list(columns)
    shared = [column for column in wanted if rows and all((row, column.name) in valued for row in rows)]
    if not rows or len(wanted) < 2:
        return shared, []
    lacking = "".join(
        f"; {column.name} is lacking in {join_first_few([row for row in rows if (row, column.name) not in valued], 3)}"
        for column in wanted
        if column not in shared
    )
    where = f"{len(wanted)} lengths {'beyond the trained length' if beyond else 'measured'}"
    if len(shared) < 2:
        return shared, [f"No mean: {len(shared) or 'none'} of {where} has a value in every row{lacking}."]
    over = ", ".join(column.name for column in shared)
    return shared, [f"Mean: over {over}, {len(shared)} of {where}, each with the same weight{lacking}."]


def _entries(shown: Mapping[BoardPlace, Record], asked: int) -> dict[BoardPlace, BoardValue]:
    truncated = any(record.truncated for record in shown.values())
    return {
        (row, name): _entry(record, truncated, None if name in (MEAN_COLUMN, PERPLEXITY_COLUMN) else asked)
        for (row, name), record in shown.items()
    }


def _entry(record: Record, truncated: bool, asked: int | None) -> BoardValue:
    """A record as it stands in a board."""
    shown = value_entry(record, n=asked)
    return BoardValue(
        shown=shown.text,
        value=record.value,
        low=record.low,
        high=record.high,
        ends=shown.ends,
        interval=record.interval,
        n=record.n,
        clusters=record.clusters,
        truncated=record.truncated,
        failed=record.failed,
        more=truncated_share(record) if truncated and record.value is not None else "",
        refused=record.refused,
        notes=shown.notes,
    )


def _missing_mark_reasons(
    column: BoardColumn, shown: Mapping[RowName, Record], found: Mapping[RowName, RowMark]
) -> Iterator[str]:
    """Why rows of a column have no mark, and where marks lack power."""
    untested = [row for row, mark in found.items() if mark.p_holm is None and not (mark.best or mark.level)]
    if untested:
        yield f"At {column.head} not tested, as the questions are not those of the best: {join_first_few(untested, 3)}."
    tests = sum(mark.p_holm is not None for mark in found.values())
    clusters = max((shown[row].clusters for row in found), default=0)
    if (
        tests and tests * min_sign_flip_p(clusters) > SIGNIFICANCE_LEVEL
    ):  # Holm multiplies the smallest p by the number of tests
        named = "1 document or haystack is" if clusters == 1 else f"{clusters} documents or haystacks are"
        yield f"At {column.head}, {named} too few to tell any row from the best."


def _sort_rows(
    named: Sequence[RowName], shared: Sequence[BoardColumn], shown: Mapping[BoardPlace, Record]
) -> tuple[list[RowName], str]:
    """Rows, and their order in a sentence."""
    names = rows_by_name(named)
    side = metrics.better_direction(next((record.metric for record in shown.values() if record.metric), None))
    if not shared or not side:
        return names, "Rows by name."
    by = MEAN_COLUMN if len(shared) > 1 else shared[0].name
    values = {row: shown[row, by].value for row in named if (row, by) in shown}
    known = {row: value for row, value in values.items() if value is not None}
    rows = sorted(known, key=lambda row: (-side * known[row], names.index(row)))
    last = [row for row in names if row not in known]
    below = f"; last, without a value: {join_first_few(last, 3)}" if last else ""
    return (
        rows + last,
        f"Rows by {'the mean' if by == MEAN_COLUMN else f'the value at {shared[0].head}'}, best first{below}.",
    )


def rows_by_name(rows: Iterable[RowName]) -> list[RowName]:
    """Methods, the baseline first, or models, by name."""
    known = list(rows)
    methods = sort_by_name(row for row in known if isinstance(row, MethodKey))
    return [*methods, *sorted(row for row in known if isinstance(row, str))]


def _row_text(row: RowName) -> str:
    return row.text if isinstance(row, MethodKey) else row


def _floor_and_length_lines(columns: Sequence[BoardColumn], records: Mapping[BoardPlace, Record]) -> Iterator[str]:
    """Floors, and realised tokens."""
    found = {
        column.head: [record for (_, name), record in records.items() if name == column.name] for column in columns
    }
    yield from floor_lines(found)
    yield from realised_line(found)

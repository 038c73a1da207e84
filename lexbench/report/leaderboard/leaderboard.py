"""The leaderboard: a board for each setting of run folders, and beside it what papers print, as a table of its own."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell, Record
from lexbench.report.headline import grid_of_headline
from lexbench.report.leaderboard.best import Samples
from lexbench.report.leaderboard.boards import Board, BoardColumn, BoardPlace, RowName, lengths_board
from lexbench.report.leaderboard.face import face_blocks
from lexbench.report.leaderboard.page import FORMAT_WRITERS, Leaderboard
from lexbench.report.leaderboard.published import find_published_tables as published_tables
from lexbench.report.leaderboard.summary_boards import summary_board
from lexbench.report.select import left_out_sentence, named_tasks, tables_to_show
from lexbench.report.titles import corpus_of, differences_in_brackets, length_heading, table_caption
from lexbench.report.wording import format_ratio, metric_label
from lexbench.stats import costs as costs_of_runs
from lexbench.stats.costs import Cost
from lexbench.stats.headline import build_headlines as headlines_of
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.records import load_cells
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.summaries import EFFECTIVE_LENGTH_RULES
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell

ROW_CHOICES = ("method", "model")
COLUMN_CHOICES = ("length", "summary")
FORMATS_FOR_PROGRAMS = ("csv", "json")
BOARDS_REMEDY = "--task NAME shows another task, --format csv or json all."
ROWS_AND_COLUMNS_WITH_HEADLINES = ("method", "length")


def leaderboard_text(
    folders: Sequence[Path],
    rows: str = "method",
    columns: str = "length",
    tasks: Sequence[str] = (),
    form: str = "markdown",
    published: Sequence[str] = (),
    rule: str = EFFECTIVE_LENGTH_RULES[0],
    margin: float | None = None,
) -> str:
    """The leaderboard of run folders in one of the formats; the headline metric of each task.

    With methods by length, Markdown, LaTeX and HTML begin with what context beyond the trained length adds.

    Args:
        folders: run folders, or folders of run folders.
        rows: method, with a board for every model; or model, with a board for every method, of what several models
            were measured by alike: protocol, task, seed, samples, corpus and backend.
        columns: length (tokens; multiples of the trained length where models differ in it), or summary (of each curve).
        tasks: names as in the records, `passkey(digits=7)`, or without their parameters; none: all.
        form: markdown, csv, latex, json or html.
        published: names of published tables (results/published) that follow below.
        rule: of the effective length among the summaries: monotone, any, or fixed (RULER's threshold, of scores).
        margin: of the effective length, nats of likelihoods or points of scores, `fixed`: the threshold; None: 0.1,
            15 or 85.6.

    Raises ConfigError in one line: for a name that is none of the choices, a rule or margin without columns=summary,
    one margin for nats and points, where nothing is measured, and where models share no protocol or no length.
    """
    known = {
        "rows": (rows, ROW_CHOICES),
        "columns": (columns, COLUMN_CHOICES),
        "format": (form, FORMAT_WRITERS),
        "rule": (rule, EFFECTIVE_LENGTH_RULES),
    }
    for noun, (given, choices) in known.items():
        if given not in choices:
            raise ConfigError(f"unknown {noun} {given!r}: choose from {', '.join(choices)}")
    if margin is not None and not 0 <= margin < math.inf:
        raise ConfigError(
            f"--margin must be a finite number of at least 0, got {margin:g}: "
            "give nats of likelihoods or points of scores, e.g. --margin 0.1"
        )
    if columns != "summary" and (rule != EFFECTIVE_LENGTH_RULES[0] or margin is not None):
        raise ConfigError("--rule and --margin are of the effective length, which is a summary: add --columns summary")
    papers = published_tables(published)
    if papers and form == "csv":
        raise ConfigError("published tables do not join ours in one CSV: take results/published/*.csv, or format json")
    loaded = load_cells(folders)
    finished = list(_cells_of_tasks(loaded.finished, tasks)) if loaded.finished else []
    if not finished:
        why = loaded.problems[0] if loaded.problems else f"the run is unfinished: {loaded.remedy}"
        raise ConfigError(f"no cell of {', '.join(map(str, folders))} can be shown: {why}")
    samples = samples_by_cell(finished)
    tables, ruled = build_tables(finished), (rule, margin)
    if (
        margin is not None
        and len({table.scored for table in tables if table.scored or is_token_loss(table.metric)}) > 1
    ):
        raise ConfigError("margin is nats of likelihoods and points of scores: choose tasks of one kind with --task")
    omitted_note = ""
    if rows == "method" and form not in FORMATS_FOR_PROGRAMS:
        tables, omitted_note = _tables_of_page(tables, len(finished))
    if rows == "method":
        boards = boards_by_method(tables, samples, columns, *ruled, costs_of_runs.load_costs(folders))
    else:
        boards = boards_by_model(tables, samples, columns, *ruled)
    if not boards:
        raise ConfigError("these runs hold no likelihood and no score, so no curve to sum up: take --columns length")
    with_headlines = (rows, columns) == ROWS_AND_COLUMNS_WITH_HEADLINES
    return FORMAT_WRITERS[form](
        Leaderboard(
            rows=rows,
            columns=columns,
            boards=boards,
            headlines=list(map(grid_of_headline, headlines_of(tables, samples))) if with_headlines else [],
            face=partial(face_blocks, tables, samples) if with_headlines else list,
            published=papers,
            left_out=omitted_note,
            unreadable=loaded.problems,
            unfinished=[f"{cell.method} {cell.task} at {cell.length} on {cell.model}" for cell in loaded.unfinished],
        )
    )


def leaderboard_of(finished: Sequence[FinishedCell]) -> Leaderboard:
    """Methods by length of some cells, as a page shows them."""
    tables, omitted_note = _tables_of_page(build_tables(finished), len(finished))
    samples = samples_by_cell(finished)
    return Leaderboard(
        rows="method",
        columns="length",
        boards=boards_by_method(tables, samples, "length"),
        face=partial(face_blocks, tables, samples),
        left_out=omitted_note,
    )


def _tables_of_page(tables: Sequence[Table], cells: int) -> tuple[list[Table], str]:
    """Tables of the settings whose boards a page shows, and how many boards it leaves out."""
    boards = headline_metric_tables(tables)
    shown = tables_to_show(boards, cells)
    settings = {table.setting for table in shown}
    return [table for table in tables if table.setting in settings], left_out_sentence(boards, shown, BOARDS_REMEDY)


def _cells_of_tasks(finished: Iterable[FinishedCell], tasks: Sequence[str]) -> Iterator[FinishedCell]:
    """Cells of the named tasks."""
    cells = list(finished)
    labels = named_tasks((each.cell for each in cells), tasks)
    return (each for each in cells if each.cell.task in labels)


def headline_metric_tables(tables: Iterable[Table], instead_of_nll: str | None = None) -> list[Table]:
    """Keep the table of the first metric of each setting; for likelihoods another metric on request."""
    return [
        next((table for table in group if is_token_loss(group[0].metric) and table.metric == instead_of_nll), group[0])
        for group in group_by_key(tables, lambda table: table.setting).values()
    ]


def _about(cell: Cell) -> dict[str, object]:
    """Fields that cells of one setting share, as data."""
    names = ("task", "protocol", "n", "seed", "corpus", "backend", "dtype", "kernel")
    return {name: getattr(cell, name) for name in names}


def boards_by_method(
    tables: Sequence[Table],
    samples: Samples,
    columns: str,
    rule: str = EFFECTIVE_LENGTH_RULES[0],
    margin: float | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> list[Board]:
    """A board for every setting: methods on one model; among summaries what each method cost, where that is known."""
    boards = []
    for table in headline_metric_tables(tables):
        cell = table.cell
        title = f"{cell.task} on {cell.model}: {metric_label(table.metric, table.cell.task_name)}"
        about = {**_about(cell), "model": cell.model, "trained_length": cell.trained_length, "name": table.name}
        if columns == "summary":
            shown: dict[RowName, Table] = dict.fromkeys(table.methods, table)
            boards += summary_board(
                title, table_caption(table), about, "method", shown, samples, rule=rule, margin=margin, costs=costs
            )
            continue
        heads = [
            BoardColumn(
                name=str(length),
                head=length_heading(table, length),
                length=length,
                multiple=length / cell.trained_length,
            )
            for length in table.lengths
        ]
        records: dict[BoardPlace, Record] = {
            (row, str(length)): record for (row, length), record in table.entries.items()
        }
        boards.append(
            lengths_board(
                title=title,
                caption=table_caption(table),
                about=about,
                corner="method",
                columns=heads,
                records=records,
                samples=samples,
                asked=cell.n,
                forms=table.attentions,
            )
        )
    return boards


def boards_by_model(
    tables: Sequence[Table],
    samples: Samples,
    columns: str,
    rule: str = EFFECTIVE_LENGTH_RULES[0],
    margin: float | None = None,
) -> list[Board]:
    """Boards of models, one for every task and method under which several models were measured by one protocol."""
    asked: dict[tuple[str, MethodKey], list[Table]] = {}
    for table in headline_metric_tables(tables, "bits_per_byte" if columns == "length" else None):
        for method in table.methods:
            asked.setdefault((table.cell.task, method), []).append(table)
    several = {key: found for key, found in asked.items() if len({table.cell.model for table in found}) > 1}
    if not several:
        raise ConfigError(_why_no_shared_setting(tables))
    boards = []
    for (task, method), found in several.items():
        groups = group_by_key(found, lambda table: _apart_from_model(table.cell)).values()
        comparable = [group for group in groups if len({table.cell.model for table in group}) > 1]
        if not comparable:
            raise ConfigError(_unshared_settings(task, method, found))
        boards += [
            board for group in comparable for board in _boards_of_models(group, method, samples, columns, rule, margin)
        ]
    return boards


def _why_no_shared_setting(tables: Sequence[Table]) -> str:
    """Why nothing is shared by two models."""
    models: dict[str, dict[str, None]] = {}
    for table in tables:
        models.setdefault(table.cell.model, {})[table.cell.task] = None
    if len(models) == 1:
        return f"--rows model needs two models, these runs hold {next(iter(models))} alone: give a run of another one"
    had = "; ".join(f"{model} has {', '.join(tasks)}" for model, tasks in models.items())
    return f"no task is measured on two models under one method ({had}): run one task under one method on both"


def _apart_from_model(cell: Cell) -> str:
    """All that cells of several models must share, as text."""
    mine = ("model", "method", "attention", "length", "backend")
    shared = {key: value for key, value in cell.identity.items() if key not in mine}
    return json.dumps([shared, _about(cell)], sort_keys=True)


def _unshared_settings(task: str, method: MethodKey, found: Sequence[Table]) -> str:
    """Name what two models do not share, and the remedy."""
    one = found[0].cell
    other = next(table.cell for table in found if table.cell.model != one.model)
    names = ["protocol", *(name for name in _about(one) if name not in ("task", "protocol"))]
    differing_field = next((name for name in names if getattr(one, name) != getattr(other, name)), None)
    said = [f"{cell.model} {getattr(cell, differing_field)!r}" for cell in (one, other)] if differing_field else []
    what = f"{differing_field}: {' and '.join(said)}" if differing_field else "parameters or data"
    return (
        f"{task} under {method} is not one setting on {one.model} and {other.model}, which differ in {what}; "
        "no table mixes them: measure both alike, or choose other tasks with --task"
    )


def _boards_of_models(
    group: Sequence[Table], method: MethodKey, samples: Samples, columns: str, rule: str, margin: float | None
) -> list[Board]:
    """Models of one setting under one method."""
    shown: dict[RowName, Table] = {}
    for table in group:
        twice = table.cell.model in shown
        shown[table.cell.model + (differences_in_brackets(table) if twice else "")] = table
    cell = group[0].cell
    bare = next((table.cell.model for table in group if is_token_loss(table.metric) and columns == "length"), None)
    if bare:
        raise ConfigError(
            f"{cell.task} on {bare} has no bits per byte, and NLL per token cannot be compared across models: measure "
            "it anew, or choose other tasks with --task"
        )
    trained = {name: table.cell.trained_length for name, table in shown.items()}
    title = f"{cell.task} under {method}: {metric_label(group[0].metric, cell.task_name)}"
    text = (
        f"{cell.protocol}\n{cell.n} samples a cell, seed {cell.seed}{corpus_of(cell)}, {cell.backend} in {cell.dtype} "
        f"({cell.kernel}), trained lengths: {', '.join(f'{name} {length}' for name, length in trained.items())}"
    )
    about = {**_about(cell), "method": str(method), "trained_lengths": trained, "name": f"{cell.task}-{method}"}
    if columns == "summary":
        return summary_board(title, text, about, "model", shown, samples, method, rule, margin)
    heads, records = _records_across_models(shown, method)
    return [
        lengths_board(
            title=title,
            caption=text,
            about=about,
            corner="model",
            columns=heads,
            records=records,
            samples=samples,
            asked=cell.n,
        )
    ]


def _records_across_models(
    shown: dict[RowName, Table], method: MethodKey
) -> tuple[list[BoardColumn], dict[BoardPlace, Record]]:
    """Records of several models by length where they share lengths, or else by multiple of the trained length."""
    found = {name: table.of(method) for name, table in shown.items()}
    by_length, by_multiple = (
        set.intersection(*({getattr(record, key) for record in records} for records in found.values()))
        for key in ("length", "multiple")
    )
    if not by_length and not by_multiple:
        grids = "; ".join(f"{name} at {', '.join(str(each.length) for each in of)}" for name, of in found.items())
        raise ConfigError(f"models share no length and no multiple of their trained length under {method} ({grids})")
    lengths = len(by_length) >= len(by_multiple)  # models trained at 2k and 4k may share 2x and no length
    trained = {table.cell.trained_length for table in shown.values()}
    columns, records = {}, {}
    for name, of in found.items():
        for record in of:
            value = record.length if lengths else record.multiple
            label = f"{value:.6g}x" if not lengths else str(record.length)
            multiple = record.multiple if not lengths or len(trained) == 1 else None
            head = f"{label} ({format_ratio(multiple)})" if lengths and multiple else label
            columns[value] = BoardColumn(
                name=label, head=head, length=record.length if lengths else None, multiple=multiple
            )
            records[name, label] = record
    return [columns[value] for value in sorted(columns)], records

"""`lexbench share`: results in a model card, samples as a dataset for `datasets`, both as files of other programs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.text import count_with_noun, join_first_few, plain_text
from lexbench.parts.exchange.files import every_eval_ever, inspect_log, lm_eval_files
from lexbench.parts.exchange.files.common import SharedDetails
from lexbench.parts.exchange.hub.dataset_card import sample_card
from lexbench.parts.exchange.hub.dataset_files import CellHead, configuration_names, read_cell_heads, write_samples
from lexbench.parts.exchange.hub.eval_results import EVAL_RESULTS_FILE, eval_results
from lexbench.parts.exchange.hub.model_card import ModelIndex, model_index, put_on_card
from lexbench.report.select import named_methods, named_tasks
from lexbench.stats.records import LoadedCells, load_cells, run_folders
from lexbench.store.format import FinishedCell

CellT = TypeVar("CellT", FinishedCell, CellHead)
FILES_OF_FORMAT = {
    "every_eval_ever": every_eval_ever.evaluation_files,
    "inspect": inspect_log.log_files,
    "lm_eval": lm_eval_files.harness_files,
}
"""Formats of other programs, by the name that --to takes."""


def share_card(
    folders: Sequence[Path],
    card: str,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    dataset: str | None = None,
) -> tuple[str, list[str]]:
    """Write results into a model card; the file's name, or for `-` the block itself, and notes on omissions.

    With the id of a data set on the hub also into `EVAL_RESULTS_FILE` beside the card.

    Results written by lexbench before are replaced, everything else in the card stays. Raises ConfigError if the card
    cannot be parsed, for an unknown name, and if no cell has a value.
    """
    loaded, chosen = _choose_cells(folders, tasks, methods)
    index = model_index(chosen, every_method=bool(methods))
    notes = [*_omission_notes(index), *_unfinished_notes(loaded)]
    results = None if dataset is None else eval_results(index.models, dataset)
    if card == "-":
        return put_on_card("", index.models).rstrip("\n"), notes
    file = Path(card)
    old = _read_card(file)
    try:
        changed = put_on_card(old, index.models)
    except ValueError as error:
        raise ConfigError(f"card {file} cannot be parsed: {plain_text(error)}") from error
    write_text(file, changed)
    if results is not None:
        write_text(file.parent / EVAL_RESULTS_FILE, results)
        notes.append(f"{file.parent / EVAL_RESULTS_FILE}: the same values for the hub's leaderboards")
    return str(file), notes


def share_samples(
    folders: Sequence[Path], out: Path, tasks: Sequence[str] = (), methods: Sequence[str] = ()
) -> tuple[Path, list[str]]:
    """Write the samples of run folders as a dataset; the path of its card, and notes on omissions.

    The same run gives the same bytes. Raises ConfigError for an unknown name, if no cell has samples, and if the folder
    holds other Parquet files or a card that cannot be parsed.
    """
    problems: list[str] = []
    every = read_cell_heads(folders, problems)
    chosen = _cells_of_names(every, tasks, methods)
    filled = [head for head in chosen if head.samples]
    if not filled:
        raise ConfigError(f"no cell of {join_first_few([str(folder) for folder in folders])} has samples to share")
    readme = out / "README.md"
    old = _read_card(readme)
    folders_of_tasks = configuration_names(head.cell.task for head in filled)
    try:
        text = sample_card(old, chosen, folders_of_tasks)
    except ValueError as error:
        raise ConfigError(f"card {readme} cannot be parsed: {plain_text(error)}") from error
    write_samples(filled, out, folders_of_tasks)
    write_text(readme, text)
    count = sum(head.samples for head in filled)
    notes = [
        f"samples: {count} of {count_with_noun(len(filled), 'cell')}, {count_with_noun(len(folders_of_tasks), 'task')}"
    ]
    refused = sum(head.refused is not None for head in chosen)
    if refused:
        notes.append(f"{count_with_noun(refused, 'cell')} refused, without samples")
    return readme, [*notes, *(f"not readable: {plain_text(problem)}" for problem in problems)]


def share_files(
    folders: Sequence[Path],
    to: str,
    out: Path,
    tasks: Sequence[str] = (),
    methods: Sequence[str] = (),
    by: str | None = None,
    developer: str | None = None,
) -> tuple[Path, list[str]]:
    """Write cells as files of another program, the same files for the same cells; their folder, and notes on omissions.

    Args:
        folders: run folders.
        to: a name of `FILES_OF_FORMAT`.
        out: the folder; other files in it stay.
        tasks: only these.
        methods: only these.
        by: who measured.
        developer: who made the model, where its name is not ORG/NAME.

    Raises ConfigError for an unknown name, if no cell has a value, and where the format asks for what is not known.
    """
    loaded, chosen = _choose_cells(folders, tasks, methods)
    files = [file for folder in run_folders(folders) for file in (folder / "cells").glob("*.parquet")]
    youngest = max((file.stat().st_mtime for file in files), default=0.0)
    about = SharedDetails(measured=datetime.fromtimestamp(youngest, UTC), organization=by, developer=developer)
    written: set[Path] = set()
    for name, content in FILES_OF_FORMAT[to](chosen, about):
        write_text(out / name, content)
        written.add(out / name)
    if not written:
        raise ConfigError(f"no cell of {join_first_few([str(folder) for folder in folders])} has a value to share")
    refused = sum(each.refused is not None for each in chosen)
    notes = [
        f"{count_with_noun(len(written), 'file')} of {count_with_noun(len(chosen) - refused, 'cell')}",
        *_unfinished_notes(loaded),
    ]
    # Names have the date of the youngest cell: what an earlier export of fewer cells has written stands beside them.
    others = sum(file not in written for file in out.rglob("*.json*"))
    if others:
        notes.append(
            f"{count_with_noun(others, 'other file')} in {out}: remove earlier exports, which hold cells twice"
        )
    return out, [*notes, *([f"{count_with_noun(refused, 'cell')} refused: left out"] if refused else [])]


def _choose_cells(
    folders: Sequence[Path], tasks: Sequence[str], methods: Sequence[str]
) -> tuple[LoadedCells, list[FinishedCell]]:
    """All that run folders hold, and the cells of the named tasks and methods; ConfigError for an unknown name."""
    loaded = load_cells(folders)
    return loaded, _cells_of_names(loaded.finished, tasks, methods)


def _cells_of_names(cells: Sequence[CellT], tasks: Sequence[str], methods: Sequence[str]) -> list[CellT]:
    labels = named_tasks((each.cell for each in cells), tasks)
    rules = named_methods((each.cell.method for each in cells), methods)
    return [each for each in cells if each.cell.task in labels and each.cell.method in rules]


def _unfinished_notes(loaded: LoadedCells) -> list[str]:
    count = len(loaded.unfinished)
    return [f"{count_with_noun(count, 'cell')} unfinished: repeat the run command to finish them"] if count else []


def _read_card(file: Path) -> str:
    """A card's text; empty if there is no file yet."""
    if file.is_dir():
        raise ConfigError(f"card {file} is a folder: give a file, e.g. {file / 'README.md'}")
    try:
        return file.read_bytes().decode() if file.exists() else ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"card {file} must be UTF-8 text ({error.reason}): save it as UTF-8") from error


def _omission_notes(index: ModelIndex) -> list[str]:
    """Notes: how many values the card has, and what is left out."""
    notes = [f"card: {count_with_noun(index.values, 'value')} of {count_with_noun(index.curves, 'curve')}"]
    if index.left_out:
        methods = count_with_noun(len(index.left_out), "other method")
        notes.append(
            f"{methods} left out, too many for a card: name them with --method ({join_first_few(index.left_out)})"
        )
    if index.refused:
        notes.append(f"{count_with_noun(index.refused, 'cell')} refused: left out")
    if index.without_value:
        notes.append(f"{count_with_noun(index.without_value, 'cell')} without a value: left out")
    return notes

"""`lexbench import lm_eval`: import results of lm-evaluation-harness as cells of a run folder.

Every logged example becomes a sample with the harness's own scores. A metric is imported if its number can be checked:
each example has a value in [0, 1], higher is better, and the mean over examples is the aggregate that the harness
printed. Other metrics are listed as left out: likelihoods are sums over a text without its tokens, BLEU has no value
per example, an aggregate alone has no interval and cannot be paired.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.core.errors import ConfigError, FetchError
from lexbench.core.files import why_not_a_folder
from lexbench.core.record import Cell, Sample
from lexbench.core.text import plain_text
from lexbench.parts.exchange.lm_eval.results.cells import LoggedTask, PromptLengths, cells_of_task, read_task
from lexbench.parts.exchange.lm_eval.results.examples import RequestTokenCounter
from lexbench.parts.exchange.lm_eval.results.files import (
    find_results_files,
    read_results,
    tasks_of,
    whole_number_or_none,
)
from lexbench.parts.exchange.lm_eval.results.setup import read_setup
from lexbench.report import tables
from lexbench.stats.records import records_of
from lexbench.store.store import Store


@dataclass(frozen=True)
class ImportOutcome:
    """Outcome of an import."""

    into: Path
    cells: Sequence[Cell]
    """Imported cells in the order of the files, with cells that the folder already had."""
    left_out: Sequence[str]
    """Metrics not imported, with the reason, one line each."""
    problems: Sequence[str]
    """Files and tasks that could not be imported, one line each."""

    def text(self) -> str:
        """Text for a terminal: headline tables of the cells, then the metrics that were left out."""
        shown = tables.terminal_tables([(self.into, [cell.id for cell in self.cells])])
        lines = [f"- {line}" for line in self.left_out]
        lines = ["", "Left out:", *lines] if lines else []
        lines += ["", "Not imported:", *(f"- {line}" for line in self.problems)] if self.problems else []
        return "\n".join([shown.rstrip("\n"), *lines])


def import_lm_eval(
    results: Sequence[Path],
    into: Path,
    *,
    trained_length: int | None = None,
    length: int | None = None,
    tokenizer: str | Path | None = None,
) -> ImportOutcome:
    """Import results of lm-evaluation-harness into a run folder; importing the same files again changes nothing.

    Args:
        results: files, or folders of them such as the harness's --output_path; run it with --log_samples.
        into: run folder; may hold other cells.
        trained_length: of the model, in tokens; results of lexbench's own model contain it.
        length: in tokens, for results that do not state it, if no tokenizer is given.
        tokenizer: the model's folder or hub name, to count tokens of prompts; the longest prompt gives the length of
            results that do not state it.

    Raises ConfigError with the first reason if nothing can be imported.
    """
    for name, value in (("trained-length", trained_length), ("length", length)):
        if value is not None and whole_number_or_none(value) is None:
            raise ConfigError(f"--{name} must be a whole number of at least 1 token, got {value}")
    lengths = PromptLengths(
        stated=length, tokens=RequestTokenCounter(_tokenizer_folder(str(tokenizer))) if tokenizer else None
    )
    store, left_out, problems = Store(into), list[str](), list[str]()
    kept: dict[str, Cell] = {}
    for task, made in _tasks_with_cells(find_results_files(results), trained_length, lengths, problems):
        left_out += task.left_out
        for cell, samples in made:
            _store_cell(store, cell, samples)
            kept[cell.id] = cell
    if not kept:
        nothing = [f"nothing to import: {line}" for line in left_out]
        raise ConfigError([*problems, *nothing, "the results have no task: give the files that lm_eval wrote"][0])
    store.write_records(records_of)
    return ImportOutcome(into, list(kept.values()), list(dict.fromkeys(left_out)), problems)


def _tokenizer_folder(path: str) -> Path:
    """The folder of --tokenizer; ConfigError where there is none."""
    try:
        return locate_checkpoint(path, weights=False)
    except FetchError as missing:
        raise ConfigError(f"--tokenizer {path}: {missing}") from None
    except ValueError:
        raise ConfigError(
            f"--tokenizer {path} {why_not_a_folder(Path(path).expanduser())}: give --tokenizer DIR or a hub name like "
            "org/name"
        ) from None


def _tasks_with_cells(
    files: Sequence[Path], trained_length: int | None, lengths: PromptLengths, problems: list[str]
) -> Iterator[tuple[LoggedTask, list[tuple[Cell, list[Sample]]]]]:
    """Each task with its cells; errors go to `problems`, and the next task follows."""
    for file in files:
        try:
            found = read_results(file)
            measured = read_setup(found, trained_length)
        except (ValueError, OSError) as error:
            problems.append(plain_text(error))
            continue
        for name in tasks_of(found):
            try:
                task = read_task(found, measured, name, lengths)
                made = list(cells_of_task(task, lengths))
            except (ValueError, OSError) as error:
                problems.append(plain_text(error))
            else:
                yield task, made


def _store_cell(store: Store, cell: Cell, samples: Sequence[Sample]) -> None:
    if not store.is_finished(cell):
        for sample in samples:
            store.append(cell, sample)
        store.finish(cell, [sample.index for sample in samples])

"""Measure checkpoints on the same questions, each into a run folder of its own."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lexbench.backends import Backend
from lexbench.checkpoints.checkpoint import folder_of, read_model
from lexbench.core.errors import ConfigError
from lexbench.methods.composition import method_config
from lexbench.parts.search.journal import resume_journal
from lexbench.parts.search.trace.checkpoints import Checkpoint, files_of
from lexbench.parts.search.trace.name_numbers import numbers_in
from lexbench.parts.search.trace.settings import Settings
from lexbench.runner.backend_pool import backend_for_job
from lexbench.runner.execute import execute_job
from lexbench.runner.job import Job
from lexbench.stats.cell_outcomes import CellOutcomes, headline_metric, outcomes_of_cell
from lexbench.stats.metrics import metric_sort_key
from lexbench.store.store import Store

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""Files that make a tokenizer."""
JOURNAL_FILE = "trace.jsonl"
MEASURED_FOLDER, FRESH_FOLDER = "measured", "fresh"
"""Folders of the run folders: on the questions that find falls and finalists, and on fresh ones."""

_shared: dict[str, Any] = {}
"""The last tokenizer, by its files: texts are encoded once for each tokenizer object."""


@dataclass(frozen=True)
class Column:
    """A task at one length."""

    task: str
    length: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckpointRow:
    """A checkpoint with its answers."""

    checkpoint: Checkpoint
    kept: Mapping[Column, CellOutcomes]

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.checkpoint.name

    @property
    def label(self) -> str:
        """Name of the checkpoint for sentences."""
        return self.checkpoint.label


class Bench:
    """The cells of checkpoints in one folder.

    Args:
        folder: of the results.
        tasks: configs of the tasks.
        corpus: config of the texts.
        backend: config of the backend.
        settings: of the trace; ConfigError where they have no length.
    """

    def __init__(
        self,
        folder: Path,
        tasks: Sequence[Mapping[str, Any]],
        corpus: Mapping[str, Any],
        backend: Mapping[str, Any],
        settings: Settings,
    ) -> None:
        if not settings.lengths:
            raise ConfigError("trace needs lengths: e.g. lengths=[4096,32768], those inside and beyond the training's")
        self._folder, self._tasks, self._corpus, self._backend = folder, tasks, corpus, backend
        self._settings = settings
        self._journal = folder / JOURNAL_FILE
        self._first: Job | None = None
        self._rows: dict[tuple[str, str], dict[str, Any]] | None = None

    @property
    def _known(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Measured checkpoints by part and name; the journal is begun only with a job that has no mistake."""
        if self._rows is None:
            asked = {name: value for name, value in asdict(self._settings).items() if name not in ("out", "order")}
            header = {"tasks": self._tasks, "corpus": self._corpus, "backend": self._backend, **asked}
            self._rows = {(row["part"], row["name"]): row for row in resume_journal(self._journal, header)}
        return self._rows

    def measure_checkpoint(self, checkpoint: Checkpoint, part: str = MEASURED_FOLDER) -> CheckpointRow:
        """Answers of a checkpoint; missing ones are measured.

        Raises ConfigError for a checkpoint that cannot be read, and where the folder holds another trace.
        """
        job, store = self._job(checkpoint, part), Store(self._folder / part / checkpoint.name)
        state = {"path": checkpoint.path, "revision": checkpoint.revision, "files": files_of(checkpoint)}
        known = self._known.get((part, checkpoint.name))
        if known is None or any(known[name] != value for name, value in state.items()):
            with backend_for_job(job.model, job.backend, max(job.lengths)) as backend:
                self._share_tokenizer(backend)
                cells = [cell.id for cell in execute_job(job, quiet=True, backend=backend)]
            known = {"part": part, "name": checkpoint.name, "step": checkpoint.step, **state, "cells": cells}
            self._keep(known)
        return _row(checkpoint, store, known["cells"])

    def _job(self, checkpoint: Checkpoint, part: str) -> Job:
        """The job of a checkpoint: the first one's tasks and texts, which are read and encoded once for all."""
        settings, results = self._settings, self._folder / part / checkpoint.name
        stated = {
            "name": checkpoint.name,
            "path": checkpoint.path,
            "revision": checkpoint.revision,
            "trained_length": settings.trained_length,
        }
        model, seeds = read_model(stated), [settings.seed + (part == FRESH_FOLDER)]
        if self._first is None:
            self._first = Job.of(
                model=model,
                methods=[method_config("none")],
                tasks=self._tasks,
                corpus=self._corpus,
                backend=self._backend,
                lengths=settings.lengths,
                multiples=None,
                n=settings.n,
                seeds=seeds,
                results=results,
            )
        config = {**self._first.config, "model": model.stated_facts(), "seeds": seeds}
        return replace(self._first, model=model, seeds=seeds, results=results, config=config)

    def _share_tokenizer(self, backend: Backend) -> None:
        """Give a checkpoint the tokenizer of the one before where both are the same."""
        folder = folder_of(backend.model, weights=False)
        files = [(name, (folder / name).read_bytes()) for name in TOKENIZER_FILES if (folder / name).is_file()]
        same = files, backend.tokenizer.bos, tuple(backend.tokenizer.prefix)
        if _shared.get("key") != same:
            _shared.update(key=same, tokenizer=backend.tokenizer)
        backend.tokenizer = _shared["tokenizer"]

    def _keep(self, row: Mapping[str, Any]) -> None:
        with self._journal.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        self._known[row["part"], row["name"]] = dict(row)


def kept_rows(folder: Path) -> list[CheckpointRow]:
    """The checkpoints that a training has kept in a folder (`LengthCurve`), by the alphabet."""
    places = sorted((folder / MEASURED_FOLDER).iterdir()) if (folder / MEASURED_FOLDER).is_dir() else []
    rows = []
    for place in places:
        checkpoint = Checkpoint(path=str(place), step=numbers_in(place.name).step, is_folder=True)
        rows.append(_row(checkpoint, Store(place), None))
    return [row for row in rows if row.kept]


def _row(checkpoint: Checkpoint, store: Store, ids: Sequence[str] | None) -> CheckpointRow:
    """The cells of a checkpoint: tasks in the order of the ids, without these likelihoods first; lengths ascending."""
    cells = [outcomes_of_cell(each) for each in store.load(None if ids is None else set(ids))]
    places: dict[str, Any] = {}
    for cell in cells:
        place = metric_sort_key(headline_metric(cell.outcomes)) if ids is None else ids.index(cell.id)
        places[cell.cell.task] = min(place, places.get(cell.cell.task, place))
    twins = Counter((cell.cell.task, cell.cell.length) for cell in cells)
    if twin := next((each for each, count in twins.items() if count > 1), None):
        raise ConfigError(
            f"{checkpoint.label} has several cells of {twin[0]} at {twin[1]} (methods, seeds or trainings): keep each "
            "training in a folder of its own"
        )
    cells.sort(key=lambda each: (places[each.cell.task], each.cell.task, each.cell.length))
    return CheckpointRow(checkpoint=checkpoint, kept={Column(each.cell.task, each.cell.length): each for each in cells})


def columns_of(rows: Sequence[CheckpointRow]) -> dict[Column, str]:
    """The tasks and lengths with a value in every row, with the metric that the task is judged by."""
    found = {}
    for column in rows[0].kept if rows else ():
        cells = [row.kept.get(column) for row in rows]
        names = [set(cell.outcomes) for cell in cells if cell is not None and cell.refused is None]
        metric = headline_metric(set.intersection(*names)) if len(names) == len(rows) else None
        if metric is not None:
            found[column] = metric
    return found

"""Recompute every number of a ledger's submissions from their samples, and find what does not fit.

A cell is refused, and not shown, where it

    changed      is missing, new, or not the file that was admitted
    unreadable   is truncated, or its checksums or its identity do not hold
    impossible   breaks an invariant (`stats.invariants`): too few samples, a score beyond 1, ...
    scored       has a score that is not that of its own answers, by the task's own rules
    asked        has other questions than the first submission that was asked the same

and marked, shown but not ranked, where

    protocol     it has another protocol, or version of its task, than the board's: that of the first submission
    claims       the records.jsonl beside it says another value
    repeated     an earlier submission has the same cell with other answers, or another model with the same ones
    unchecked    its task is not of lexbench, so nothing can say whether its scores are right
    failed       some of its likelihoods or measures failed: its value is that of the others alone

What no check can find is a likelihood or a text that the model never gave, where nobody else has measured the same
cell.
"""

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core import objects, registry
from lexbench.core.files import read_bytes
from lexbench.core.machine import n_usable_cores
from lexbench.core.record import Cell, Record, Sample
from lexbench.core.task import (
    Choose,
    ChooseAnswer,
    Generate,
    GenerateAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
    Task,
)
from lexbench.core.text import plain_text
from lexbench.parts.web.board.ledger import Submission, admitted_cells, hash_cell_files
from lexbench.stats import invariants, metrics
from lexbench.stats.records import records_of
from lexbench.stats.rescored import EmptyCorpus, derived_scores
from lexbench.store.format import FinishedCell, read_cell_file

FLOAT32_TOLERANCE = 1e-5
"""Relative difference of two numbers that are the same but for float32."""
MIN_FILES_FOR_PROCESSES = 200
"""Files for which a process of its own is worth its start."""
MACHINE_TOLERANCE_NATS = 0.02
"""Largest difference of a sample's mean NLL between two machines, in nats, or as a share of that NLL."""


@dataclass(frozen=True, eq=False)
class CheckedCell:
    """Findings on one cell's file by itself; small, as another process sends them."""

    cell: Cell
    record: Record
    """Record of the headline metric, recomputed; without a value where the run itself refused the cell."""
    values: Mapping[tuple[str | None, str | None], float | None]
    """All values, by metric and part."""
    key: str
    """Key of the settings that decide the questions: equal keys, equal questions."""
    questions: Mapping[int, tuple[object, ...]]
    """Facts of each question that are the same for every model and method, by index."""
    answers: Mapping[int, Mapping[str, float] | None]
    """Scores by name, or the mean NLL in nats, of each sample, by index; None: the sample failed."""
    losses: str | None
    """Hash of the losses of all samples; None: it has none."""
    checkable: bool
    """Whether a task of lexbench can score its answers again, or it has no scores."""


@dataclass(frozen=True, eq=False)
class BoardEntry:
    """A cell of a submission that is shown."""

    submission: Submission
    checked: CheckedCell
    marks: list[str] = field(default_factory=list)
    """Reasons why the cell is not ranked; empty: it is."""


@dataclass(frozen=True)
class AuditFinding:
    """A cell that is not shown."""

    submission: str
    cell: str
    why: str


@dataclass(frozen=True, eq=False)
class AuditedBoard:
    """Content of the board after the audit: entries, and cells that are not shown."""

    submissions: Sequence[Submission]
    entries: list[BoardEntry]
    refused: list[AuditFinding]


def audit_submissions(folder: Path, submissions: Sequence[Submission]) -> AuditedBoard:
    """Read, check and recompute all submissions of a ledger's folder in the order of their admission."""
    entries: list[BoardEntry] = []
    refused: list[AuditFinding] = []
    jobs: list[tuple[Submission, Path]] = []
    latest = {each.folder: each for each in submissions}
    for submission in submissions:
        changed = _changed_files(folder / submission.folder, submission)
        if latest[submission.folder] is submission:
            strays = hash_cell_files(folder / submission.folder).keys() - admitted_cells(submissions, submission.folder)
            changed |= dict.fromkeys(strays, "not in the ledger: it was added afterwards")
        refused += [AuditFinding(submission.name, name, why) for name, why in sorted(changed.items())]
        for name in sorted(submission.cells.keys() - changed.keys()):
            jobs.append((submission, folder / submission.folder / "cells" / f"{name}.parquet"))
    claims = {each.name: _read_claims(folder / each.folder) for each in submissions}
    first = _FirstSubmission()
    for (submission, file), found in zip(jobs, _check_cells([file for _, file in jobs]), strict=True):
        why = found if isinstance(found, str) else next(first.differing_questions(found), None)
        if why is not None or isinstance(found, str):
            refused.append(AuditFinding(submission.name, file.stem, plain_text(str(why).replace(f"{folder}/", ""))))
            continue
        marks = [*first.reasons_not_ranked(found, submission.name), *_wrong_claims(found, claims[submission.name])]
        if not found.checkable:
            marks.append("scores unchecked: the task is not of lexbench, or not of this version")
        if found.record.failed and not metrics.is_score(found.record.metric):  # a failed score counts as 0
            marks.append(f"{found.record.failed} of its answers failed, and are left out of its value")
        entries.append(BoardEntry(submission, found, marks))
    return AuditedBoard(submissions, entries, refused)


def _check_cells(jobs: Sequence[Path]) -> Iterator["CheckedCell | str"]:
    """Findings of `check_cell` on each file, in order; many files are spread over all processors."""
    workers = min(n_usable_cores(), len(jobs) // MIN_FILES_FOR_PROCESSES)
    if workers < 2:
        yield from map(check_cell, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(check_cell, jobs, chunksize=64)


def check_cell(file: Path) -> "CheckedCell | str":
    """Read, check and recompute one cell; the first fault, if there is one."""
    try:
        finished = read_cell_file(file)
        for fault in (*invariants.cell_faults(finished), *wrong_scores(finished)):
            return fault
        records = records_of(finished)
    except ValueError as error:
        return str(error)
    held = finished.samples
    losses = [sample.nll.tobytes() for sample in held if sample.nll is not None]
    headline = min(records, key=lambda each: (each.part is not None, metrics.metric_sort_key(each.metric)))
    return CheckedCell(
        cell=finished.cell,
        record=headline,
        values={(each.metric, each.part): each.value for each in records},
        key=invariants.question_key(finished),
        questions={sample.index: _question_fields(sample) for sample in held if sample.failed is None},
        answers={sample.index: _answer_values(sample) for sample in held},
        losses=hashlib.sha256(b"".join(losses)).hexdigest() if losses else None,
        checkable=_has_checkable_scores(finished),
    )


def _changed_files(run: Path, submission: Submission) -> dict[str, str]:
    """Reason, by cell id, why a file is not the admitted one: missing or changed."""
    now = hash_cell_files(run)
    found = dict.fromkeys(submission.cells.keys() - now.keys(), "missing: the ledger has it")
    changed = [name for name in now.keys() & submission.cells.keys() if now[name] != submission.cells[name]]
    return found | dict.fromkeys(changed, "changed since it was admitted")


# scores of the answers


def wrong_scores(finished: FinishedCell) -> Iterator[str]:
    """Scores that are not those of a sample's own answer."""
    stated = finished.cell.identity.get("task")
    task = _build_task_without_texts(json.dumps(stated, sort_keys=True, default=str))
    earlier = task is not None and isinstance(stated, dict) and stated.get("version") != task.edition
    for sample in finished.samples:
        if sample.failed is not None or sample.nll is not None:
            continue
        derived = derived_scores(finished.cell, sample) if task is not None else {}
        for name, right in {**derived, **_recomputed_scores(task, sample)}.items():
            said = sample.scores.get(name)
            if said is None and earlier:  # an earlier version gave fewer scores
                continue
            if said is None or not math.isclose(said, right, rel_tol=FLOAT32_TOLERANCE, abs_tol=FLOAT32_TOLERANCE):
                yield f"sample {sample.index} with {name} {said}, where its answer has {right:g}"


def _recomputed_scores(task: Task | None, sample: Sample) -> dict[str, float]:
    """The scores of a sample's answer by the rules of its task; nothing where they cannot be told."""
    arrays = sample.statistics
    about: dict[str, Any] = {"index": sample.index, "cluster": sample.cluster, "facts": sample.facts}
    nowhere = np.zeros(max(sample.tokens, 1), np.int64)
    if "right" in arrays:
        right = arrays["right"].astype(np.float64)
        return {"accuracy": float(right.mean()), "exact": float((right == 1).all())}
    if task is None:
        return {}
    if "option_nll" in arrays and sample.hit_room is None:  # a choice alone, not one behind a written answer
        losses = arrays["option_nll"].astype(np.float64)
        if (losses == losses.min()).sum() > 1:  # in float32 alone, perhaps
            return {}
        options = tuple(np.zeros(1, np.int64) for _ in losses)
        place = sample.facts.get("expected_option")
        if not isinstance(place, int) or not 0 <= place < len(options):
            return {"accuracy": math.nan}
        chosen = Choose(**about, prompt=nowhere, options=options, expected=place)
        return dict(task.score(chosen, ChooseAnswer(nll=losses)).scores)
    if sample.output is not None:
        answer = GenerateAnswer(tokens=nowhere[:1], text=sample.output, hit_room=bool(sample.hit_room))
        try:  # the flawless answer is not kept: what depends on it cannot be told
            one, other = (
                task.score(Generate(**about, prompt=nowhere, max_new_tokens=1, answer=flawless), answer).scores
                for flawless in ("", sample.output)
            )
            return {name: value for name, value in one.items() if other[name] == value}
        except (KeyError, TypeError, AttributeError, ValueError, AssertionError):  # facts that are not the task's
            return {"accuracy": math.nan}
    if arrays:
        try:
            found = task.score(
                ProbeAttention(**about, tokens=nowhere),
                ProbeAttentionAnswer(statistics={name: each.astype(np.float64) for name, each in arrays.items()}),
            )
        except (KeyError, TypeError, ValueError):
            return dict.fromkeys(sample.scores, math.nan)
        return dict(found.scores)
    return {}


def _has_checkable_scores(finished: FinishedCell) -> bool:
    """Whether the scores of a cell follow from its answers by a task of lexbench, or it has none."""
    likelihood = finished.refused is not None or any(sample.nll is not None for sample in finished.samples)
    given = json.dumps(finished.cell.identity.get("task"), sort_keys=True, default=str)
    return likelihood or _build_task_without_texts(given) is not None


@functools.cache
def _known_task_names() -> frozenset[str]:
    """Names of the tasks of lexbench and of the user."""
    return frozenset(registry.registered_names("task"))


def _build_task_without_texts(identity: str) -> Task | None:
    """The task of an identity, without its texts; None if it is not of lexbench, or not of this version."""
    built = _build_task(identity)
    return built if built is not None and built.gives_scores_of(json.loads(identity).get("version")) else None


@functools.lru_cache(maxsize=256)
def _build_task(identity: str) -> Task | None:
    """The task of an identity in the version that is here; None if it is not of lexbench, or no longer so."""
    given = json.loads(identity)
    if not isinstance(given, dict) or given.get("name") not in _known_task_names():
        return None
    known = registry.read_named_config("task", str(given["name"]))
    taken = objects.class_parameters(objects.class_of(known, "task"))
    values = {key: value for key, value in given.items() if key in taken and key != "corpus"}
    try:
        built: Task = objects.build_object({**known, **values}, "task", corpus=EmptyCorpus())
    except (ValueError, TypeError, AttributeError):
        return None
    return built


def _has_other_task_version(cell: Cell) -> bool:
    """Whether a task of lexbench has another version here."""
    given = cell.identity.get("task")
    built = _build_task(json.dumps(given, sort_keys=True, default=str))
    return isinstance(given, dict) and built is not None and not built.gives_scores_of(given.get("version"))


# what the first submission has


class _FirstSubmission:
    """Questions, protocols, cells and answers of the first submission that has each, to compare later ones with."""

    def __init__(self) -> None:
        self._questions: dict[str, dict[int, tuple[object, ...]]] = {}
        self._protocols: dict[tuple[str, str], str] = {}
        self._cells: dict[str, tuple[str, CheckedCell]] = {}
        self._answers: dict[str, tuple[str, str]] = {}

    def differing_questions(self, found: CheckedCell) -> Iterator[str]:
        """Report samples whose question differs from the first submission's."""
        known = self._questions.setdefault(found.key, {})
        for index, own in found.questions.items():
            if known.setdefault(index, own) != own:
                yield f"sample {index} with another question than cells that were asked the same"

    def reasons_not_ranked(self, found: CheckedCell, submission: str) -> Iterator[str]:
        """Why a cell is not ranked."""
        cell = found.cell
        protocol = self._protocols.setdefault((cell.model, cell.task), cell.protocol)
        if protocol != cell.protocol:
            yield f"another protocol than the board's: {plain_text(protocol)}"
        if _has_other_task_version(cell):
            yield "another version of the task than this lexbench has"
        whose, before = self._cells.setdefault(cell.id, (submission, found))
        if before is not found and (apart := _count_differing_answers(before.answers, found.answers)):
            yield f"{apart} of its answers are not those of the same cell of {whose}"
        if found.losses:
            model = json.dumps(cell.identity.get("model"), sort_keys=True, default=str)
            other, name = self._answers.setdefault(found.losses, (model, f"{cell.model} of {submission}"))
            if other != model:
                yield f"the same likelihoods as {name}, which is another model"


def _question_fields(sample: Sample) -> tuple[object, ...]:
    """Fields of a question that do not depend on model or method."""
    expected = json.dumps(sample.facts.get("expected"), default=str)
    place = sample.facts.get("expected_option")
    targets = None if sample.nll is None else len(sample.nll)
    about = (sample.cluster, sample.depth, sample.tokens, sample.chance, expected, place, sample.bytes, sample.words)
    return *about, targets


def _answer_values(sample: Sample) -> Mapping[str, float] | None:
    """Scores, or the mean NLL; None where it failed."""
    if sample.failed is not None:
        return None
    return dict(sample.scores) if sample.nll is None else {"nll": float(sample.nll.mean())}


def _count_differing_answers(
    before: Mapping[int, Mapping[str, float] | None], after: Mapping[int, Mapping[str, float] | None]
) -> int:
    """Samples of one cell, measured twice, whose answers differ by more than two machines do."""
    return sum(_answers_differ(before[index], own) for index, own in after.items() if index in before)


def _answers_differ(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> bool:
    if one is None or other is None:
        return one is not other
    return one.keys() != other.keys() or any(
        not math.isclose(value, other[name], rel_tol=MACHINE_TOLERANCE_NATS, abs_tol=MACHINE_TOLERANCE_NATS)
        for name, value in one.items()
    )


# claims


def _read_claims(run: Path) -> dict[tuple[str, str | None, str | None], Any]:
    """Values in records.jsonl by cell, metric and part; empty where there is none, or it cannot be read."""
    found = {}
    try:
        for line in read_bytes(run / "records.jsonl").decode().splitlines():
            row = json.loads(line)
            found[row["cell"], row["metric"], row.get("part")] = row["value"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found


def _wrong_claims(found: CheckedCell, claims: Mapping[tuple[str, str | None, str | None], Any]) -> Iterator[str]:
    """Reasons not to rank a cell: values in records.jsonl that the samples do not give."""
    for (metric, part), value in found.values.items():
        claim = claims.get((found.cell.id, metric, part), value)
        numbers = value is not None and isinstance(claim, int | float)
        near = numbers and math.isclose(claim, value or 0.0, rel_tol=FLOAT32_TOLERANCE, abs_tol=FLOAT32_TOLERANCE)
        if claim != value and not near:
            yield f"records.jsonl claims {metric} {plain_text(claim)}, its samples have {value}"
            return

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

What no check can find is a likelihood or a text that the model never gave, where nobody else has measured the same
cell.
"""

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core import registry
from lexbench.core.record import Record, Sample
from lexbench.core.task import Choose, Chosen, Probe, Probed, Task, Write, Written
from lexbench.report.board.ledger import Submission, hashes
from lexbench.stats import invariants, metrics
from lexbench.stats.records import records_of
from lexbench.stats.wording import plain
from lexbench.store.format import Finished, read

TOLERANCE = 1e-5
"""Relative difference of two numbers that are the same but for float32."""
AGREE = 0.02
"""Nats: how far two machines may differ in the mean NLL of a sample, or as a share of it."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A cell of a submission that is shown."""

    submission: Submission
    finished: Finished
    record: Record
    """Its headline metric, recomputed; without a value where the cell is refused by the run itself."""
    marks: list[str] = field(default_factory=list)
    """Why it is not ranked; empty: nothing is wrong with it."""

    @property
    def asked(self) -> str:
        """A key that cells share if they were asked the same questions."""
        return invariants.question_key(self.finished)


@dataclass(frozen=True)
class Finding:
    """A cell that is not shown."""

    submission: str
    cell: str
    why: str


@dataclass(frozen=True, eq=False)
class Audited:
    """What the board shows."""

    submissions: Sequence[Submission]
    entries: list[Entry]
    refused: list[Finding]


def audit(folder: Path, submissions: Sequence[Submission]) -> Audited:
    """Read, check and recompute all submissions in the order of their admission."""
    entries: list[Entry] = []
    refused: list[Finding] = []
    first = _First()
    for submission in submissions:
        run, claims = folder / submission.folder, _claims(folder / submission.folder)
        for name, why in sorted(_changed(run, submission).items()):
            refused.append(Finding(submission.name, name, why))
        for name in sorted(submission.cells):
            file = run / "cells" / f"{name}.parquet"
            if any(each.cell == name and each.submission == submission.name for each in refused):
                continue
            try:
                finished = read(file)
                faults = [*invariants.faults(finished), *wrongly_scored(finished), *first.asked_otherwise(finished)]
                if faults:
                    raise ValueError(faults[0])
                records = records_of(finished)
            except ValueError as error:
                refused.append(Finding(submission.name, name, plain(str(error).replace(f"{folder}/", ""))))
                continue
            marks = [*first.marks(finished, submission.name), *_claimed(records, claims)]
            if not _checkable(finished):
                marks.append("scores unchecked: the task is not of lexbench")
            entries.append(Entry(submission, finished, min(records, key=lambda each: _headline(each)), marks))
    return Audited(submissions, entries, refused)


def _headline(record: Record) -> tuple[Any, ...]:
    return record.part is not None, metrics.order(record.metric)


def _changed(run: Path, submission: Submission) -> dict[str, str]:
    """Cell files that are not those that were admitted."""
    now = hashes(run)
    found = dict.fromkeys(submission.cells.keys() - now.keys(), "missing: the ledger has it")
    found |= dict.fromkeys(now.keys() - submission.cells.keys(), "not in the ledger: it was added afterwards")
    changed = [name for name in now.keys() & submission.cells.keys() if now[name] != submission.cells[name]]
    return found | dict.fromkeys(changed, "changed since it was admitted")


# scores of the answers


def wrongly_scored(finished: Finished) -> Iterator[str]:
    """Scores that are not those of a sample's own answer."""
    task = _task(json.dumps(finished.cell.identity.get("task"), sort_keys=True, default=str))
    for sample in finished.samples:
        if sample.failed is not None or sample.nll is not None:
            continue
        for name, right in _scores(task, sample).items():
            said = sample.scores.get(name)
            if said is None or not math.isclose(said, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                yield f"sample {sample.index} with {name} {said}, where its answer has {right:g}"


def _scores(task: Task | None, sample: Sample) -> dict[str, float]:
    """The scores of a sample's answer by the rules of its task; nothing where they cannot be told."""
    arrays, about = sample.statistics, {"index": sample.index, "cluster": sample.cluster, "facts": sample.facts}
    nowhere = np.zeros(max(sample.tokens, 1), np.int64)
    if "right" in arrays:
        right = arrays["right"].astype(np.float64)
        return {"accuracy": float(right.mean()), "exact": float((right == 1).all())}
    if task is None:
        return {}
    if "option_nll" in arrays:
        losses = arrays["option_nll"].astype(np.float64)
        if (losses == losses.min()).sum() > 1:  # in float32 alone, perhaps
            return {}
        options = tuple(np.zeros(1, np.int64) for _ in losses)
        place = sample.facts.get("expected_option")
        if not isinstance(place, int) or not 0 <= place < len(options):
            return {"accuracy": math.nan}
        chosen = Choose(**about, prompt=nowhere, options=options, expected=place)
        return dict(task.score(chosen, Chosen(nll=losses)).scores) if task else {}
    if sample.output is not None:
        answer = Written(tokens=nowhere[:1], text=sample.output, hit_room=bool(sample.hit_room))
        try:  # the flawless answer is not kept: what depends on it cannot be told
            one, other = (
                task.score(Write(**about, prompt=nowhere, room=1, answer=flawless), answer).scores
                for flawless in ("", sample.output)
            )
            return {name: value for name, value in one.items() if other[name] == value}
        except (KeyError, TypeError, AttributeError, ValueError, AssertionError):  # facts that are not the task's
            return {"accuracy": math.nan}
    if arrays:
        try:
            found = task.score(Probe(**about, tokens=nowhere), Probed(statistics=dict(arrays)))
        except (KeyError, TypeError, ValueError):
            return dict.fromkeys(sample.scores, math.nan)
        return dict(found.scores)
    return {}


def _checkable(finished: Finished) -> bool:
    """Whether the scores of a cell follow from its answers by a task of lexbench, or it has none."""
    likelihood = finished.refused is not None or any(sample.nll is not None for sample in finished.samples)
    given = json.dumps(finished.cell.identity.get("task"), sort_keys=True, default=str)
    return likelihood or _task(given) is not None


class _NoText:
    """A corpus for tasks that only score."""

    def documents(self) -> Iterator[Any]:
        """None."""
        return iter(())


@functools.cache
def _names() -> frozenset[str]:
    """Names of the tasks of lexbench and of the user."""
    return frozenset(registry.names("task"))


@functools.cache
def _version(name: str) -> int:
    """Version of a task here."""
    cls: type[Task] = registry.class_of(registry.read("task", name), "task")
    return cls.version


@functools.lru_cache(maxsize=256)
def _task(identity: str) -> Task | None:
    """The task of an identity, without its texts; None if it is not of lexbench, or not of this version."""
    given = json.loads(identity)
    if not isinstance(given, dict) or given.get("name") not in _names():
        return None
    known = registry.read("task", str(given["name"]))
    taken = registry.parameters(registry.class_of(known, "task"))
    values = {key: value for key, value in given.items() if key in taken and key != "corpus"}
    try:
        built: Task = registry.build({**known, **values}, "task", corpus=_NoText())
    except (ValueError, TypeError, AttributeError):
        return None
    return built if built.version == given.get("version") else None


def _older(finished: Finished) -> bool:
    """Whether a task of lexbench has another version here."""
    given = finished.cell.identity.get("task")
    known = isinstance(given, dict) and given.get("name") in _names()
    return known and _version(str(given["name"])) != given.get("version")


# what the first submission has


class _First:
    """What the first submission says of a question, a task's protocol, a cell, an answer."""

    def __init__(self) -> None:
        self._questions: dict[str, dict[int, tuple[object, ...]]] = {}
        self._protocols: dict[tuple[str, str], str] = {}
        self._cells: dict[str, tuple[str, Finished]] = {}
        self._answers: dict[str, tuple[str, str]] = {}

    def asked_otherwise(self, finished: Finished) -> Iterator[str]:
        """Questions that differ from those of cells that were asked the same."""
        known = self._questions.setdefault(invariants.question_key(finished), {})
        for sample in finished.samples:
            own = _question(sample)
            if sample.failed is None and known.setdefault(sample.index, own) != own:
                yield f"sample {sample.index} with another question than cells that were asked the same"

    def marks(self, finished: Finished, submission: str) -> Iterator[str]:
        """Why a cell is not ranked."""
        cell = finished.cell
        protocol = self._protocols.setdefault((cell.model, cell.task), cell.protocol)
        if protocol != cell.protocol:
            yield f"another protocol than the board's: {plain(protocol)}"
        if _older(finished):
            yield "another version of the task than this lexbench has"
        before = self._cells.setdefault(cell.id, (submission, finished))
        if before[1] is not finished and (apart := _apart(before[1].samples, finished.samples)):
            yield f"{apart} of its answers are not those of the same cell of {before[0]}"
        losses = [sample.nll.tobytes() for sample in finished.samples if sample.nll is not None]
        if losses:
            model = json.dumps(cell.identity.get("model"), sort_keys=True, default=str)
            answers = hashlib.sha256(b"".join(losses)).hexdigest()
            whose = self._answers.setdefault(answers, (model, f"{cell.model} of {submission}"))
            if whose[0] != model:
                yield f"the same likelihoods as {whose[1]}, which is another model"


def _question(sample: Sample) -> tuple[object, ...]:
    """What is the same for every model and method that was asked it."""
    expected = json.dumps(sample.facts.get("expected"), default=str)
    place = sample.facts.get("expected_option")
    return sample.cluster, sample.depth, sample.tokens, sample.chance, expected, place, sample.bytes, sample.words


def _apart(before: Iterable[Sample], after: Iterable[Sample]) -> int:
    """Samples of one cell, measured twice, whose answers differ by more than two machines do."""
    known = {sample.index: sample for sample in before}
    return sum(_differ(known[each.index], each) for each in after if each.index in known)


def _differ(one: Sample, other: Sample) -> bool:
    if one.failed or other.failed:
        return (one.failed is None) != (other.failed is None)
    if one.nll is not None and other.nll is not None:
        means = float(one.nll.mean()), float(other.nll.mean())
        return not math.isclose(*means, rel_tol=AGREE, abs_tol=AGREE)
    return dict(one.scores).keys() != dict(other.scores).keys() or any(
        not math.isclose(value, other.scores[name], rel_tol=AGREE, abs_tol=AGREE) for name, value in one.scores.items()
    )


# claims


def _claims(run: Path) -> dict[tuple[str, str | None, str | None], Any]:
    """Values in records.jsonl by cell, metric and part; empty where there is none, or it cannot be read."""
    found = {}
    try:
        for line in (run / "records.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["cell"], row["metric"], row.get("part")] = row["value"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found


def _claimed(records: Sequence[Record], claims: dict[tuple[str, str | None, str | None], Any]) -> Iterator[str]:
    """Where records.jsonl says another value than the samples."""
    for record in records:
        claim = claims.get((record.cell, record.metric, record.part), record.value)
        same = claim == record.value or (
            isinstance(claim, int | float)
            and record.value is not None
            and math.isclose(claim, record.value, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        )
        if not same:
            yield f"records.jsonl claims {record.metric} {plain(claim)}, its samples have {record.value}"
            return

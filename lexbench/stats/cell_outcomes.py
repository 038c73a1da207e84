"""A cell as comparisons across runs need it: what asked its questions, and what each of them gave."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexbench.core.record import Cell, Sample
from lexbench.stats import metrics
from lexbench.stats.pairs import Outcome, outcomes
from lexbench.stats.tables import leaves
from lexbench.stats.wording import plain
from lexbench.store.format import Finished


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """A cell without its samples: plain data, so that a baseline file can hold it."""

    id: str
    """Of the cell that was measured."""
    cell: Cell
    """With its identity; there a hash stands for the attention."""
    outcomes: Mapping[str, Sequence[Outcome]]
    """By metric: nll, or every score and measure; empty where it is refused."""
    refused: str | None = None
    failure: str | None = None
    """Why the first sample failed that did."""


@dataclass(frozen=True, order=True)
class Change:
    """Something that two cells have of each other's kind, and not alike; as text."""

    name: str
    one: str
    other: str

    def __str__(self) -> str:
        return f"{plain(self.name)} {plain(self.one)} -> {plain(self.other)}"


def kept(finished: Finished, expected: Iterable[str] = ()) -> Kept:
    """A cell with what each question gave. Where every sample failed, `expected` says what they would have given.

    A likelihood or score that is not finite is a failure, too. ValueError where a sample lacks a score of the others.
    """
    cell, samples = finished.cell, finished.samples
    names = metrics_of(samples)
    if samples and all(sample.failed is not None for sample in samples):
        names = sorted({*names, *expected}, key=metrics.order)
    attention = hashlib.sha256(json.dumps(cell.identity.get("attention"), sort_keys=True).encode()).hexdigest()[:16]
    try:
        found = {name: [_finite(each, name) for each in outcomes(samples, name)] for name in names}
    except KeyError as error:
        said = f"{plain(cell.task)} gave no {plain(error)} for some samples"
        raise ValueError(f"{said}: score it, or say failed") from error
    return Kept(
        id=cell.id,
        cell=replace(cell, identity={**cell.identity, "attention": attention}),
        outcomes=found,
        refused=finished.refused,
        failure=next((sample.failed for sample in samples if sample.failed is not None), None),
    )


def metrics_of(samples: Sequence[Sample]) -> list[str]:
    """What samples were measured by: nll, from which other likelihoods follow; or their scores and measures."""
    if any(sample.nll is not None for sample in samples):
        return ["nll"]
    return sorted({name for sample in samples for name in sample.scores}, key=metrics.order)


def headline(names: Collection[str]) -> str | None:
    """The metric that a task is judged by: nll, else accuracy, else resolution, else its first score."""
    return min(names, key=metrics.order, default=None)


def _finite(outcome: Outcome, metric: str) -> Outcome:
    if outcome.amount is None or math.isfinite(outcome.amount):
        return outcome
    return replace(outcome, amount=0.0 if metrics.is_score(metric) else None, failed=True)


Key = Callable[[Cell], Hashable]


def matched(
    left: Sequence[Kept], right: Sequence[Kept], keys: Sequence[Key]
) -> tuple[list[tuple[Kept, Kept]], list[Kept], list[Kept]]:
    """Cells of two sides that belong together, and what is left of each side.

    Those of one key belong together; then, of what is left, those of one second key, in order of seed and corpus.
    Within a side no two cells have one first key.
    """
    found: list[tuple[Kept, Kept]] = []
    rest = [_ordered(left), _ordered(right)]
    for key in keys:
        groups = [_grouped(side, key) for side in rest]
        pairs = [pair for name in groups[0] for pair in zip(groups[0][name], groups[1].get(name, []), strict=False)]
        taken = {id(each) for pair in pairs for each in pair}
        rest = [[each for each in side if id(each) not in taken] for side in rest]
        found += pairs
    return found, rest[0], rest[1]


def doubled(cells: Iterable[Kept], key: Key) -> list[Kept]:
    """The first cells of one key that are several; empty where there are none."""
    return next((group for group in _grouped(cells, key).values() if len(group) > 1), [])


def _grouped(cells: Iterable[Kept], key: Key) -> dict[Hashable, list[Kept]]:
    groups: dict[Hashable, list[Kept]] = {}
    for each in cells:
        groups.setdefault(key(each.cell), []).append(each)
    return groups


def _ordered(cells: Iterable[Kept]) -> list[Kept]:
    def place(each: Kept) -> tuple[Any, ...]:
        cell = each.cell
        return cell.model, cell.task, cell.method, cell.length, cell.seed, cell.corpus or "", each.id

    return sorted(cells, key=place)


def unlike_questions(one: Cell, other: Cell) -> Change | None:
    """Why questions of two cells of one task cannot be the same in kind; None where they can.

    The protocol, the task's version and parameters, the corpus by name, and what begins the model's texts must agree;
    what only one version of lexbench knows of is not compared.
    """
    if one.protocol != other.protocol:
        return Change("protocol", one.protocol, other.protocol)
    for change in _differing(one, other, ("model", "task")):
        if change.name.startswith(("task.", "model.begins_with")):
            return change
    (corpus, print_), (other_corpus, other_print) = _corpus(one), _corpus(other)
    if corpus != other_corpus and (print_ is None or print_ != other_print):
        return Change("corpus", str(corpus), str(other_corpus))
    return None


def other_questions(one: Cell, other: Cell) -> Change | None:
    """Why two cells drew other questions of one kind: another seed, or another state of the corpus."""
    if one.seed != other.seed:
        return Change("seed", str(one.seed), str(other.seed))
    left, right = _corpus(one)[1], _corpus(other)[1]
    return Change("corpus.fingerprint", str(left), str(right)) if left != right else None


def _corpus(cell: Cell) -> tuple[str | None, str | None]:
    """Its name, and the hash of its texts; equal texts are one corpus, wherever they lie."""
    corpus = cell.identity.get("corpus")
    return (corpus["name"], corpus.get("fingerprint")) if isinstance(corpus, Mapping) else (cell.corpus, None)


def changes(pairs: Iterable[tuple[Kept, Kept]]) -> list[Change]:
    """In what cells that are compared differ beside their questions, each once: what made the difference, if any."""
    return sorted({change for one, other in pairs for change in _changes(one.cell, other.cell)})


def _changes(one: Cell, other: Cell) -> Iterator[Change]:
    """In what measured two cells, where they differ."""
    asked = ("task", "corpus", "seed", "length")
    for change in _differing(one, other, one.identity.keys() - set(asked)):
        if one.method == other.method or not change.name.startswith(("method.", "attention")):
            yield replace(change, name=f"attention of {one.method}") if change.name == "attention" else change
    for name, here, there in (("method", one.method, other.method), ("lexbench", one.version, other.version)):
        if here != there:
            yield Change(name, here, there)


def _differing(one: Cell, other: Cell, parts: Iterable[str]) -> list[Change]:
    """What both cells have in these parts of their identities, and not alike, by name."""
    left, right = one.identity, other.identity
    unlike = [name for name in parts if name in left and name in right and repr(left[name]) != repr(right[name])]
    here, there = (leaves({name: side[name] for name in unlike}) for side in (left, right))
    both = sorted(here.keys() & there.keys())
    return [Change(name, here[name], there[name]) for name in both if here[name] != there[name]]

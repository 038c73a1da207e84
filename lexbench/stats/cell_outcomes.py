"""Outcomes of a cell's questions, for comparisons across runs; matching of cells between two sides."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Cell, Sample
from lexbench.core.text import plain_text
from lexbench.stats import floors, metrics
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.notes import Note
from lexbench.stats.pairs import Outcome, outcomes_of_samples
from lexbench.stats.rescore import rescore_cell
from lexbench.stats.tables import flatten_leaves
from lexbench.store.format import FinishedCell


@dataclass(frozen=True, kw_only=True, eq=False)
class CellOutcomes:
    """A cell with outcomes in place of samples: plain data that a baseline file can hold."""

    id: str
    """Hash of the measured cell."""
    cell: Cell
    """Cell with its identity, the attention replaced by a hash."""
    outcomes: Mapping[str, Sequence[Outcome]]
    """Outcomes by metric: nll, or every score and measure; empty where the cell is refused."""
    floors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Floors by metric, then by name (`stats.floors`); a baseline file holds none."""
    refused: str | None = None
    failure: str | None = None
    """Reason of the first failed sample."""
    attention: Mapping[str, Any] | None = None
    """The attention as data (`Attention.as_data`); None: refused, or a baseline of a version that kept hashes alone."""
    deferred: bool = False
    """Deferred: refused for now, and measured by the next run."""


@dataclass(frozen=True, order=True)
class SettingChange:
    """A setting that two cells both have, with different values, as text."""

    name: str
    one: str
    other: str


def outcomes_of_cell(finished: FinishedCell, expected: Iterable[str] = ()) -> CellOutcomes:
    """A cell with the outcome of each question. Where every sample failed, `expected` names the metrics.

    A likelihood or score that is not finite counts as failed. ConfigError where a sample lacks a score of the others.
    """
    cell, samples = finished.cell, rescore_cell(finished).samples
    names = metrics_of(samples)
    if samples and all(sample.failed is not None for sample in samples):  # failed samples name no score
        names = sorted({*names, *expected}, key=metrics.metric_sort_key)
    # Thousands of numbers, of which a comparison only asks whether they are the same.
    attention = hashlib.sha256(json.dumps(cell.identity.get("attention"), sort_keys=True).encode()).hexdigest()[:16]
    try:
        found = {name: [_fail_if_infinite(each, name) for each in outcomes_of_samples(samples, name)] for name in names}
    except KeyError as error:
        said = f"{plain_text(cell.task)} gave no {plain_text(error)} for some samples"
        raise ConfigError(f"{said}: score it, or say failed") from error
    return CellOutcomes(
        id=cell.id,
        cell=replace(cell, identity={**cell.identity, "attention": attention}),
        outcomes=found,
        floors={name: floors.floors_of_samples(samples, name) for name in found},
        refused=finished.refused,
        failure=next((sample.failed for sample in samples if sample.failed is not None), None),
        attention=cell.identity.get("attention"),
        deferred=finished.deferred,
    )


def limit_of_pair(one: CellOutcomes, other: CellOutcomes, metric: str) -> Note | None:
    """Why nothing can be told of two cells with the same questions: both at a floor or at the ceiling; None: it can."""
    known = other.floors.get(metric) or one.floors.get(metric) or {}
    left, right = (floors.standing_of_outcomes(side.outcomes[metric], metric, known) for side in (one, other))
    return floors.shared_limit([left, right])


Text = tuple[str, str, str | None]
"""Model, task and corpus of a likelihood."""


def text_of(cell: Cell) -> Text:
    """The text whose likelihood a cell measures."""
    return cell.model, cell.task, cell.corpus


def texts_not_learned(pairs: Iterable[tuple[CellOutcomes, CellOutcomes]]) -> dict[Text, Note]:
    """Reason why likelihoods are not compared, by text of the second cells: no model of both has learned its language.

    Asked at the longest length within the trained one, of `none` where the first side has it there
    (`floors.language_not_learned`).
    """
    found = {}
    for text, group in group_by_key(pairs, lambda pair: text_of(pair[1].cell)).items():
        inside = [pair for pair in group if all(_is_within_trained_length(side) for side in pair)]
        last = max((pair[1].cell.length for pair in inside), default=0)
        asked = [pair for pair in inside if pair[1].cell.length == last]
        asked = [pair for pair in asked if pair[0].cell.method == BASELINE_METHOD] or asked
        reasons = [_text_not_learned(side, pair) for pair in asked for side in pair]
        if reasons and reasons[0] is not None and all(reasons):
            found[text] = reasons[0]
    return found


def _is_within_trained_length(each: CellOutcomes) -> bool:
    """Whether a cell has likelihoods within the trained length."""
    return any(map(is_token_loss, each.outcomes)) and each.cell.length <= each.cell.trained_length


def _text_not_learned(each: CellOutcomes, pair: tuple[CellOutcomes, CellOutcomes]) -> Note | None:
    levels = pair[1].floors.get("nll") or pair[0].floors.get("nll") or {}  # of the same targets; a baseline has none
    cell = each.cell
    return floors.language_not_learned_by_outcomes(cell.model, cell.method, cell.length, each.outcomes["nll"], levels)


def metrics_of(samples: Sequence[Sample]) -> list[str]:
    """Metrics of samples: nll, from which other likelihoods follow, or all scores and measures."""
    if any(sample.nll is not None for sample in samples):
        return ["nll"]
    return sorted({name for sample in samples for name in sample.scores}, key=metrics.metric_sort_key)


def headline_metric(names: Collection[str]) -> str | None:
    """The metric that a task is judged by: nll, else accuracy, else resolution, else its first score."""
    return min(names, key=metrics.metric_sort_key, default=None)


def _fail_if_infinite(outcome: Outcome, metric: str) -> Outcome:
    if outcome.amount is None or math.isfinite(outcome.amount):
        return outcome
    return replace(outcome, amount=0.0 if metrics.is_score(metric) else None, failed=True)


Key = Callable[[Cell], Hashable]


def match_cells(
    left: Sequence[CellOutcomes], right: Sequence[CellOutcomes], keys: Sequence[Key]
) -> tuple[list[tuple[CellOutcomes, CellOutcomes]], list[CellOutcomes], list[CellOutcomes]]:
    """Matching cells of two sides, and the unmatched cells of each side.

    Cells match by the first key; the remaining ones by the next key, in order of seed and corpus. Within a side the
    first key is unique.
    """
    found: list[tuple[CellOutcomes, CellOutcomes]] = []
    rest = [_sort_cells(left), _sort_cells(right)]
    for key in keys:
        groups = [group_by_key(side, _of_cell(key)) for side in rest]
        # Of groups of two sizes the rest of the larger one waits for the next key.
        pairs = [pair for name in groups[0] for pair in zip(groups[0][name], groups[1].get(name, []), strict=False)]
        taken = {id(each) for pair in pairs for each in pair}
        rest = [[each for each in side if id(each) not in taken] for side in rest]
        found += pairs
    return found, rest[0], rest[1]


def find_duplicates(cells: Iterable[CellOutcomes], key: Key) -> list[CellOutcomes]:
    """The first group of several cells with one key; empty without one."""
    return next((group for group in group_by_key(cells, _of_cell(key)).values() if len(group) > 1), [])


def _of_cell(key: Key) -> Callable[[CellOutcomes], Hashable]:
    return lambda each: key(each.cell)


def _sort_cells(cells: Iterable[CellOutcomes]) -> list[CellOutcomes]:
    def place(each: CellOutcomes) -> tuple[Any, ...]:
        cell = each.cell
        return cell.model, cell.task, cell.method, cell.length, cell.seed, cell.corpus or "", each.id

    return sorted(cells, key=place)


def difference_in_kind(one: Cell, other: Cell) -> SettingChange | None:
    """Why questions of two cells of one task differ in kind; None where they do not.

    The protocol, the task's version and parameters, the corpus by name, and the start of the model's texts must agree;
    a field that only one of them has is not compared.
    """
    if one.protocol != other.protocol:
        return SettingChange("protocol", one.protocol, other.protocol)
    for change in _changed_values(one, other, ("model", "task")):
        if change.name.startswith(("task.", "model.begins_with")):
            return change
    (corpus, print_), (other_corpus, other_print) = _corpus(one), _corpus(other)
    if corpus != other_corpus and (print_ is None or print_ != other_print):
        return SettingChange("corpus", str(corpus), str(other_corpus))
    return None


def difference_in_questions(one: Cell, other: Cell) -> SettingChange | None:
    """Why two cells have different questions of one kind: another seed, or another state of the corpus."""
    if one.seed != other.seed:
        return SettingChange("seed", str(one.seed), str(other.seed))
    left, right = _corpus(one)[1], _corpus(other)[1]
    return SettingChange("corpus.fingerprint", str(left), str(right)) if left != right else None


def is_changed_protocol(one: Cell, other: Cell) -> bool:
    """Whether cells that differ in kind have equal settings, so that lexbench, the task or the tokenizer is another."""
    changes = {each.name for each in _changed_values(one, other, ("model", "task"))}
    settings = {name for name in changes if name.startswith("task.") and name != "task.version"}
    return not settings and _corpus(one)[0] == _corpus(other)[0]


def _corpus(cell: Cell) -> tuple[str | None, str | None]:
    """Name of the corpus and hash of its texts; equal texts are one corpus, wherever they are stored."""
    corpus = cell.identity.get("corpus")
    return (corpus["name"], corpus.get("fingerprint")) if isinstance(corpus, Mapping) else (cell.corpus, None)


def changed_settings(
    pairs: Iterable[tuple[CellOutcomes, CellOutcomes]], left_out: Collection[str] = ()
) -> list[SettingChange]:
    """Settings in which compared cells differ, apart from their questions and these parts of identities, each once."""
    return sorted({change for one, other in pairs for change in _changed_settings(one.cell, other.cell, left_out)})


def _changed_settings(one: Cell, other: Cell, left_out: Collection[str]) -> Iterator[SettingChange]:
    """Settings in which two cells differ."""
    asked = {"task", "corpus", "seed", "length", *left_out}
    for change in _changed_values(one, other, one.identity.keys() - asked):
        if one.method == other.method or not change.name.startswith(("method.", "attention")):
            yield replace(change, name=f"attention of {one.method}") if change.name == "attention" else change
    for name, here, there in (("method", str(one.method), str(other.method)), ("lexbench", one.version, other.version)):
        if here != there:
            yield SettingChange(name, here, there)


def _changed_values(one: Cell, other: Cell, parts: Iterable[str]) -> list[SettingChange]:
    """Different values in these parts of two identities, by name."""
    left, right = one.identity, other.identity
    unlike = [name for name in parts if name in left and name in right and repr(left[name]) != repr(right[name])]
    here, there = (flatten_leaves({name: side[name] for name in unlike}) for side in (left, right))
    both = sorted(here.keys() & there.keys())
    return [SettingChange(name, here[name], there[name]) for name in both if here[name] != there[name]]

"""Contrasts of arms by octave, controls, and verdicts on five claims, from the samples of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Sample
from lexbench.metrics import declare_metrics
from lexbench.parts.anatomy.arms import ARM_CONTRASTS, Contrast, arm_of
from lexbench.parts.anatomy.tasks.anatomy import FIXED_ROOM, Anatomy
from lexbench.parts.anatomy.wordings import KEY_WORDINGS, N_CANDIDATES
from lexbench.runner.job import MAX_SAMPLES_PER_CELL
from lexbench.stats.intervals import Interval, cluster_bootstrap, wilson_interval
from lexbench.stats.pairs import PairedDifference, correct_by_holm, outcomes_of_samples, paired_difference
from lexbench.store.format import FinishedCell

LOSS_METRIC = "nats"
MIN_ADJACENT_SHARE = 0.95
"""Share of right choices at distance zero below which a wording is dropped."""
MAX_PACKED_NATS = 1e-4
"""Largest difference of a key's loss between a text read by explicit positions and the same read as any other."""
Arms = Mapping[str, Sequence[Sample]]
"""Samples of each arm at one length under one method."""
FORM_DEFAULTS = {each.name: each.default for each in fields(Anatomy) if each.name in Anatomy.form}
"""Parameters of the task's form at their defaults."""


@dataclass(frozen=True)
class Measured:
    """Samples of a run by method, longest distance of the octave in tokens, and arm."""

    trained_length: int
    cells: Mapping[tuple[MethodKey, int], Arms]
    refused: Mapping[str, int] = field(default_factory=dict)
    """Reasons, and how many cells have each."""

    @property
    def methods(self) -> list[MethodKey]:
        """Methods in the order of their cells."""
        return list(dict.fromkeys(method for method, _ in self.cells))

    def octaves(self, method: MethodKey) -> list[int]:
        """Longest distances of a method, ascending."""
        return sorted(octave for own, octave in self.cells if own == method)

    def without(self, wordings: Sequence[str]) -> "Measured":
        """The same without some wordings."""
        left = {
            place: {arm: [each for each in found if each.cluster not in wordings] for arm, found in arms.items()}
            for place, arms in self.cells.items()
        }
        return Measured(self.trained_length, left, self.refused)


def collect_cells(finished: Sequence[FinishedCell]) -> Measured:
    """The cells of the task anatomy among those of a run.

    Questions of another seed, text or haystack are other questions: their samples get indices of their own.
    """
    sets: dict[str, int] = {}
    found: dict[tuple[MethodKey, int], dict[str, Sequence[Sample]]] = {}
    refused: dict[str, int] = {}
    length = 0
    for each in finished:
        cell = each.cell
        stated = cell.identity["task"]
        if not FORM_DEFAULTS.keys() <= stated.keys():  # of another task
            continue
        arm = arm_of({name: stated[name] for name, usual in FORM_DEFAULTS.items() if stated[name] != usual})
        if arm is None:
            continue
        length = cell.trained_length
        if each.refused is not None:
            refused[each.refused] = refused.get(each.refused, 0) + 1
            continue
        arms = found.setdefault((cell.method, cell.length - FIXED_ROOM), {})
        asked = json.dumps([cell.seed, cell.identity["corpus"], stated["haystack"]], sort_keys=True)
        first = MAX_SAMPLES_PER_CELL * sets.setdefault(asked, len(sets))
        samples = (replace(sample, index=first + sample.index) for sample in each.samples if sample.failed is None)
        arms[arm] = [*arms.get(arm, ()), *samples]
    return Measured(length, found, refused)


# controls


@dataclass(frozen=True)
class Control:
    """A check that must hold before a contrast means anything."""

    name: str
    passed: bool | None
    """None: not measured."""
    words: str


def dropped_wordings(found: Measured) -> list[str]:
    """Wordings that the unmodified model does not choose right at distance zero, over all lengths."""
    asked = [
        sample
        for (method, _), arms in found.cells.items()
        if method == BASELINE_METHOD
        for sample in arms.get("adjacent", ())
    ]
    groups = group_by_key(asked, lambda sample: sample.cluster)
    return [
        each.name
        for each in KEY_WORDINGS
        if each.name in groups and np.mean([s.scores["accuracy"] for s in groups[each.name]]) < MIN_ADJACENT_SHARE
    ]


def controls(found: Measured, dropped: Sequence[str]) -> list[Control]:
    """All controls, over all methods and wordings; chance under the unmodified model, as questions count once."""
    left = {sample.cluster for arms in found.cells.values() for sample in arms.get("adjacent", ())} - {*dropped}
    kept = Control(
        "adjacent", bool(left), f"{len(left)} of {len(KEY_WORDINGS)} wordings are chosen right at distance zero in 95 %"
    )
    own = [arms for (method, _), arms in found.cells.items() if method == BASELINE_METHOD]
    rights = [sample for arms in own for sample in arms.get("keyless", ())]
    chance: Control = Control("no key", None, "not measured")
    if rights:
        hits = round(sum(sample.scores["accuracy"] for sample in rights))
        at = wilson_interval(hits, len(rights))
        words = f"{hits} of {len(rights)} chosen [{at.low:.3f}, {at.high:.3f}], chance {1 / N_CANDIDATES:.4f}"
        chance = Control("no key", at.low <= 1 / N_CANDIDATES <= at.high, words)
    return [
        kept,
        _equal(found, "packed as stock", "adjacent", "stock"),
        _equal(found, "gap as masked", "gap", "masked"),
        chance,
    ]


def _equal(found: Measured, name: str, one: str, other: str) -> Control:
    """Whether two arms give each key the same loss."""
    gaps = [
        abs(samples[sample.index].scores[LOSS_METRIC] - sample.scores[LOSS_METRIC])
        for arms in found.cells.values()
        if one in arms and other in arms
        for samples in ({sample.index: sample for sample in arms[one]},)
        for sample in arms[other]
        if sample.index in samples
    ]
    if not gaps:
        return Control(name, None, "not measured")
    return Control(name, bool(max(gaps) <= MAX_PACKED_NATS), f"at most {max(gaps):.1g} nats apart, {len(gaps)} keys")


# contrasts


def contrasts(found: Measured, method: MethodKey) -> dict[tuple[str, int], PairedDifference]:
    """Contrasts of a method by name and octave, tested over wordings; Holm's correction over the octaves of each."""
    known: dict[tuple[str, int], PairedDifference] = {}
    for each in ARM_CONTRASTS:
        family = {
            (each.name, octave): difference
            for octave in found.octaves(method)
            if (difference := contrast(found.cells[method, octave], each)) is not None
        }
        known |= correct_by_holm(family)
    return known


def contrast(arms: Arms, each: Contrast) -> PairedDifference | None:
    """One contrast at one octave; None where an arm is missing."""
    if not arms.get(each.arm) or not arms.get(each.base):
        return None
    declare_metrics(Anatomy.metrics)  # nats, not shares: kept samples may be read where no task was built
    one, other = (outcomes_of_samples(arms[name], LOSS_METRIC) for name in (each.base, each.arm))
    return paired_difference(one, other, LOSS_METRIC)


def by_wording(arms: Arms, arm: str, base: str) -> dict[str, float]:
    """Mean difference of two arms for each wording, nats a key; empty where one is missing."""
    known = {sample.index: sample for sample in arms.get(base, ())}
    pairs = [
        (sample.cluster, sample.scores[LOSS_METRIC] - known[sample.index].scores[LOSS_METRIC])
        for sample in arms.get(arm, ())
        if sample.index in known
    ]
    groups = group_by_key(pairs, lambda pair: pair[0])
    return {wording: float(np.mean([gap for _, gap in group])) for wording, group in groups.items()}


@dataclass(frozen=True)
class Mean:
    """A mean over wordings with its 95 % interval."""

    value: float
    interval: Interval | None
    n: int
    """Wordings."""

    def __str__(self) -> str:
        ends = "" if self.interval is None else f" [{self.interval.low:+.2f}, {self.interval.high:+.2f}]"
        return f"{self.value:+.2f}{ends}"


def mean_of(values: Mapping[str, float]) -> Mean | None:
    """Mean over wordings; None without any."""
    if not values:
        return None
    numbers = list(values.values())
    return Mean(float(np.mean(numbers)), cluster_bootstrap(numbers, [1.0] * len(numbers), [*values]), len(numbers))


def minus(one: Mapping[str, float], other: Mapping[str, float], share: float = 1.0) -> dict[str, float]:
    """one - share * other, for the wordings of both."""
    return {name: one[name] - share * other[name] for name in one if name in other}

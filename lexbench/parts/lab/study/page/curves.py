"""Curves of an encoding over length: means over seeds, with intervals from seeds and documents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record
from lexbench.parts.lab.study.page.measured import Documents, MeasuredRow, document_difference
from lexbench.stats.combine import Estimate
from lexbench.stats.intervals import CONFIDENCE_LEVEL
from lexbench.stats.metrics import is_score, is_token_loss

CellPlace = tuple[str, str, MethodKey, int]
"""Model, task, method and length."""
HEADLINE_METRICS = ("nll", "accuracy", "resolution")
"""Metrics on the page, one for each task."""


def name_with_method(entry: str, method: MethodKey) -> str:
    """An encoding under a method, as tables show it."""
    return entry if method == BASELINE_METHOD else f"{entry} + {method}"


@dataclass(frozen=True)
class CurvePoint:
    """Value of a curve at one length."""

    length: int
    multiple: float
    """Multiple of the trained length."""
    value: Estimate | None
    """Value at the length; None if refused, or if nothing was scored."""
    change: Estimate | None
    """Difference from the trained length on the same questions; only for likelihoods and resolution."""
    refused: str | None = None
    seeds: Mapping[int, float] = field(default_factory=dict)
    """The value of each seed, by its number."""
    documents: Documents | None = None
    """Nats and targets by document, for likelihoods; nats are means over seeds."""
    floor: float | None = None
    """NLL of a bigram on the same tokens, or score of guessing; mean over seeds."""


@dataclass(frozen=True)
class Curve:
    """Values of one metric over lengths, of one encoding under one method."""

    entry: str
    family: str
    method: MethodKey
    task: str
    """Label of the task."""
    metric: str
    protocol: str
    points: Sequence[CurvePoint]
    asked: str = ""
    """Number of questions that each model was asked, and the score of guessing, in words."""
    stated: Mapping[str, Any] = field(kw_only=True)
    """Name and parameters of the task."""

    @property
    def label(self) -> str:
        """`rope`, or `rope + bca`."""
        return name_with_method(self.entry, self.method)

    @property
    def task_name(self) -> str:
        """The task without its parameters: `last_segment` of `last_segment(targets=16)`."""
        return str(self.stated["name"])

    def at(self, multiple: float) -> CurvePoint | None:
        """The point at a multiple of the trained length."""
        return next((point for point in self.points if math.isclose(point.multiple, multiple)), None)


def build_curves(
    rows: Sequence[MeasuredRow], about: Mapping[str, Any], metrics: Sequence[str] = HEADLINE_METRICS
) -> list[Curve]:
    """All curves of these metrics, in the study's order of encodings; a curve joins the seeds of one entry."""
    models = {model["name"]: model for model in about["models"]}
    seeds = {name: model["seed"] for name, model in models.items()}
    order = {entry: place for place, entry in enumerate(dict.fromkeys(m["entry"] for m in about["models"]))}
    refusals = {_cell_place(row): row.record.refused for row in rows if row.record.refused}
    groups: dict[tuple[str, str, MethodKey, str], list[MeasuredRow]] = {}
    shown = {row.record.task: row.record.metric for row in rows if row.record.metric in metrics}
    for row in rows:
        # A refused cell has no metric: it goes to the curve that other cells of its task have.
        metric = row.record.metric or shown.get(row.record.task)
        if row.record.model in models and metric is not None and metric in metrics:
            entry = models[row.record.model]["entry"]
            groups.setdefault((entry, row.record.task, row.record.method, metric), []).append(row)
    made = [
        Curve(
            entry=entry,
            family=next(m["family"] for m in about["models"] if m["entry"] == entry),
            method=method,
            task=task,
            metric=metric,
            protocol=group[0].record.protocol,
            points=[_build_point(each, refusals, seeds) for each in _group_by_length(group)],
            asked=_asked_note([row.record for row in group]),
            stated=group[0].task,
        )
        for (entry, task, method, metric), group in groups.items()
    ]
    return sorted(
        made, key=lambda curve: (order[curve.entry], curve.task, curve.method != BASELINE_METHOD, curve.method)
    )


def _cell_place(row: MeasuredRow) -> CellPlace:
    return row.record.model, row.record.task, row.record.method, row.record.length


def _group_by_length(rows: Sequence[MeasuredRow]) -> list[list[MeasuredRow]]:
    lengths = sorted({row.record.length for row in rows})
    return [[row for row in rows if row.record.length == length] for length in lengths]


def _asked_note(records: Sequence[Record]) -> str:
    """`n = 48 in 45 documents; guessing has 0.028`; empty where nothing was scored."""
    known = [record for record in records if record.value is not None]
    if not known:
        return ""
    n, clusters = (
        " to ".join(f"{end}" for end in dict.fromkeys((min(each), max(each))))
        for each in ([record.n for record in known], [record.clusters for record in known])
    )
    chances = [record.chance for record in known if record.chance is not None]
    guess = (
        f"; guessing has {' to '.join(dict.fromkeys(f'{end:.2g}' for end in (min(chances), max(chances))))}"
        if chances
        else ""
    )
    return f"n = {n}{f' in {clusters} documents' if clusters != n else ''}{guess}"


def _build_point(
    rows: Sequence[MeasuredRow], refusals: Mapping[CellPlace, str | None], numbers: Mapping[str, int]
) -> CurvePoint:
    """The point of one length from its seeds, whose `numbers` go by model; refused seeds do not count."""
    record = rows[0].record
    values = [(r.record.value, r.record.low, r.record.high) for r in rows if r.record.value is not None]
    changes = [(r.change, r.change_low, r.change_high) for r in rows if r.change is not None]
    value = mean_over_seeds(values)
    if value is not None:
        # Spread added in squares may lead beyond what a score or a likelihood can be.
        most = 1.0 if is_score(record.metric) else math.inf
        low, high = (None if end is None else min(most, max(0.0, end)) for end in (value.low, value.high))
        value = Estimate(value.value, low, high)
    reasons = [refusals.get(_cell_place(row)) for row in rows]
    return CurvePoint(
        length=record.length,
        multiple=record.multiple,
        value=value,
        change=mean_over_seeds(changes),
        refused=next((reason for reason in reasons if reason), None),
        seeds={numbers[r.record.model]: r.record.value for r in rows if r.record.value is not None},
        documents=_shared_documents(rows),
        floor=_mean_floor([row.record for row in rows]),
    )


def _mean_floor(records: Sequence[Record]) -> float | None:
    floors = [record.bigram if is_token_loss(record.metric) else record.chance for record in records]
    known = [floor for floor in floors if floor is not None]
    return math.fsum(known) / len(known) if known else None


def _shared_documents(rows: Sequence[MeasuredRow]) -> dict[str, tuple[float, float]] | None:
    """Nats and targets by document, of documents that all seeds have."""
    known = [row.documents for row in rows if row.documents is not None]
    if not known:
        return None
    shared = [name for name in known[0] if all(name in each for each in known)]
    return {name: (math.fsum(each[name][0] for each in known) / len(known), known[0][name][1]) for name in shared}


def likelihood_difference(left: CurvePoint, right: CurvePoint) -> Estimate | None:
    """Difference right - left of two likelihoods at one length, paired by document, and by seed where seeds are equal.

        difference -+ sqrt(e^2 + d^2)

    with d the distance to this end of the interval over resampled documents, and e that of seeds. Equal seeds are pairs
    (the same rows in the same order, initial weights where encodings share them; of two methods the same model): of S
    pairs whose differences have the deviation s, e = t s / sqrt(S), Student's t with S - 1 degrees of freedom. Other
    seeds are independent: e = t sqrt(s_l^2 / S_l + s_r^2 / S_r), t of the smaller S; for a side of one seed stands the
    other's s. With one seed on each side e = 0.
    """
    if left.documents is None or right.documents is None:
        return None
    found = document_difference(left.documents, right.documents)
    if found is None:
        return None
    value, interval = found
    if interval is None:
        return Estimate(value)
    spread = _seed_halfwidth(left.seeds, right.seeds)
    below, above = (math.hypot(spread, gap) for gap in (value - interval.low, interval.high - value))
    return Estimate(value, value - below, value + above)


def _seed_halfwidth(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    """Part e of the interval of a difference, that of seeds (`likelihood_difference`)."""
    from scipy.special import stdtrit

    sides = [list(left.values()), list(right.values())]
    if left.keys() == right.keys():
        sides = [[right[seed] - value for seed, value in left.items()]]
    several = [each for each in sides if len(each) > 1]
    if not several:
        return 0.0
    variances = [float(np.var(each if len(each) > 1 else several[0], ddof=1)) / len(each) for each in sides]
    freedom = min(map(len, several)) - 1
    return float(stdtrit(freedom, (1 + CONFIDENCE_LEVEL) / 2)) * math.sqrt(sum(variances))


def mean_over_seeds(values: Sequence[tuple[float | None, float | None, float | None]]) -> Estimate | None:
    """The mean of (value, low, high) over seeds with the same questions.

        mean -+ sqrt((t s / sqrt(S))^2 + d^2)

    with S seeds of standard deviation s, Student's t with S - 1 degrees of freedom, and d the mean distance from a
    seed's value to this end of its own interval over documents: all seeds share the documents, so more seeds do not
    make d smaller. With one seed: only d.
    """
    from scipy.special import stdtrit

    known = [(value, low, high) for value, low, high in values if value is not None]
    if not known:
        return None
    means = np.array([value for value, _, _ in known], np.float64)
    mean, count = float(means.mean()), len(known)
    spread = 0.0
    if count > 1:
        spread = float(stdtrit(count - 1, (1 + CONFIDENCE_LEVEL) / 2) * means.std(ddof=1)) / math.sqrt(count)
    lows = [value - low for value, low, _ in known if low is not None]
    highs = [high - value for value, _, high in known if high is not None]
    if not (lows and highs) and count < 2:
        return Estimate(mean)
    below, above = (math.hypot(spread, float(np.mean(side)) if side else 0.0) for side in (lows, highs))
    return Estimate(mean, mean - below, mean + above)


def unpaired_difference(left: Estimate, right: Estimate) -> Estimate:
    """left - right, as if both had other questions: distances of ends add up in squares, wider than a paired one."""
    value = left.value - right.value
    below = math.hypot(left.value - left.ends[0], right.ends[1] - right.value)
    above = math.hypot(left.ends[1] - left.value, right.value - right.ends[0])
    return Estimate(value, value - below, value + above)

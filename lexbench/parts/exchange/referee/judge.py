"""Rule on two files of samples: which is better, whether the second one lost, or whether a loss is excluded.

A ruling holds whatever the missing samples would have been (`pairs.TaskPair.fill_missing`), or none is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lexbench.core.errors import ConfigError
from lexbench.parts.exchange.referee.pairs import TaskPair
from lexbench.stats.certificates import Proof, prove_small_loss
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import better_direction, display_factor, is_score
from lexbench.stats.pairs import PairedDifference, correct_by_holm, detectable_difference, paired_difference
from lexbench.stats.reach import smallest_found_loss
from lexbench.stats.regressions import TOLERANCE_ROUNDING_SLACK


class FilesQuestion(Enum):
    """What is asked of two files; its value is the command."""

    COMPARE = "compare"
    CHECK = "check"
    CERTIFY = "certify"


class Ruling(Enum):
    """Ruling on one task and metric, from the second file's side; its value is the word that outputs print."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference found"
    HELD = "no loss found"
    LOST = "lost"
    PROVEN = "proven"
    UNTOLD = "cannot be told"
    NOT_PROVEN = "not proven"


class Doubt(Enum):
    """Why nothing is ruled on a task and metric."""

    MISSING = "missing samples"
    PROMPTS = "other prompts"
    NOTHING_TO_LOSE = "nothing to lose"
    TOO_FEW = "too few clusters"
    SKEWED = "perhaps skewed"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Ruling on one task and metric, with its numbers in the metric's own unit."""

    pair: TaskPair
    found: PairedDifference
    """Over the samples that both files hold."""
    worst: PairedDifference | None
    """With what is missing at its worst for the second file; None: no bound."""
    best: PairedDifference | None
    ruling: Ruling
    doubt: Doubt | None = None
    margin: float | None = None
    """Loss that is allowed, in nats per token or points; None: nothing is asked about a loss."""
    detectable: float = 0.0
    """The difference that may be missed (`stats.pairs.detectable_difference`)."""
    smallest: float | None = None
    """The smallest loss that nine runs of ten show (`stats.reach`); None: not asked, or not even the loss of all."""
    proof: Proof | None = None
    """Of a loss below the margin, with what is missing at its worst."""

    @property
    def is_whole(self) -> bool:
        """Whether both files hold every sample."""
        return not any(self.pair.missing)


@dataclass(frozen=True, kw_only=True)
class FilesVerdict:
    """The rulings on all tasks and metrics of two files."""

    question: FilesQuestion
    rows: Sequence[Judged]
    absent: Sequence[str]
    """Tasks of the first file that the second lacks."""
    added: Sequence[str]
    """Tasks of the second file that the first lacks."""

    def of(self, *rulings: Ruling) -> list[Judged]:
        """Rows of these rulings."""
        return [row for row in self.rows if row.ruling in rulings]

    @property
    def code(self) -> int:
        """Exit code: 1 where something is lost, 2 where something cannot be told or is not proven, else 0."""
        if self.of(Ruling.LOST):
            return 1
        gate = self.question is not FilesQuestion.COMPARE
        return 2 if self.of(Ruling.UNTOLD, Ruling.NOT_PROVEN) or (gate and self.absent) else 0


Differences = tuple[PairedDifference, PairedDifference | None, PairedDifference | None]


def compare_pairs(pairs: Sequence[TaskPair]) -> list[Judged]:
    """Which file is better on each task and metric, two-sided, after Holm's correction over all of them."""
    rows = []
    for pair, (found, low, high) in zip(pairs, _differences(pairs, [None] * len(pairs)), strict=True):
        sides = [better_direction(pair.metric) * _told_side(each) for each in (low, high) if each]
        ruling = {1: Ruling.BETTER, -1: Ruling.WORSE}.get(sides[0] if len({*sides}) == 1 else 0, Ruling.NO_DIFFERENCE)
        row = Judged(pair=pair, found=found, worst=low, best=high, ruling=ruling)
        if not row.is_whole and ruling is Ruling.NO_DIFFERENCE:
            row = replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.MISSING)
        rows.append(replace(row, detectable=detectable_difference(found, pair.metric, SIGNIFICANCE_LEVEL / len(pairs))))
    return rows


def _told_side(found: PairedDifference) -> int:
    """1 where a difference above 0 is significant, -1 below, 0 where none is."""
    return (1 if (found.difference or 0.0) > 0 else -1) if found.significant else 0


def check_pairs(pairs: Sequence[TaskPair], margins: Sequence[float]) -> list[Judged]:
    """Whether the second file lost more than a margin, in its unit: one-sided, after Holm's correction."""
    level, rows = SIGNIFICANCE_LEVEL / len(pairs), []
    for pair, margin, (found, low, high) in zip(pairs, margins, _differences(pairs, margins), strict=True):
        allowed = margin / display_factor(pair.metric)
        size = smallest_found_loss(pair.before, pair.metric, allowed, level, found.error)
        row = Judged(pair=pair, found=found, worst=low, best=high, ruling=Ruling.HELD, margin=margin, smallest=size)
        rows.append(_check_row(row, len(pairs)))
    return rows


def _check_row(row: Judged, comparisons: int) -> Judged:
    if row.pair.other_prompts:
        return replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.PROMPTS)
    if row.worst is None or row.best is None:
        return replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.MISSING)
    if _is_lost(row.best):
        return replace(row, ruling=Ruling.LOST)
    if _is_lost(row.worst):
        return replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.MISSING)
    if loss_of(row, row.worst) > (row.margin or 0.0) + TOLERANCE_ROUNDING_SLACK:
        if row.worst.min_p * comparisons > SIGNIFICANCE_LEVEL:
            return replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.TOO_FEW)
        if row.worst.p_flips is not None and row.worst.p_flips <= SIGNIFICANCE_LEVEL:
            return replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.SKEWED)
    return row


def _is_lost(found: PairedDifference) -> bool:
    return found.p_holm is not None and found.p_holm <= SIGNIFICANCE_LEVEL


def loss_of(row: Judged, found: PairedDifference) -> float:
    """What the second file loses, in the margin's unit; negative: it gains."""
    return -better_direction(row.pair.metric) * (found.difference or 0.0) * display_factor(row.pair.metric)


def certify_pairs(pairs: Sequence[TaskPair], margins: Sequence[float]) -> list[Judged]:
    """Whether a loss above a margin is excluded (`stats.certificates`), and if not, whether it is lost."""
    return [_certify_row(row) for row in check_pairs(pairs, margins)]


def _certify_row(row: Judged) -> Judged:
    if row.ruling is Ruling.LOST or row.doubt is Doubt.PROMPTS or row.worst is None:
        return row
    allowed = (row.margin or 0.0) / display_factor(row.pair.metric)
    if is_score(row.pair.metric) and (row.worst.baseline_value or 0.0) <= allowed:
        return replace(row, ruling=Ruling.NOT_PROVEN, doubt=Doubt.NOTHING_TO_LOSE)
    sides = row.pair.fill_missing(lost=True) or (row.pair.before, row.pair.after)
    proof = prove_small_loss(*sides, row.pair.metric, allowed)
    proven = proof is not None and proof.at is not None and loss_of(row, row.worst) <= (row.margin or 0.0)
    if not proven and not row.is_whole:
        return replace(row, ruling=Ruling.UNTOLD, doubt=Doubt.MISSING, proof=proof)
    return replace(row, ruling=Ruling.PROVEN if proven else Ruling.NOT_PROVEN, doubt=None, proof=proof)


def _differences(pairs: Sequence[TaskPair], margins: Sequence[float | None]) -> list[Differences]:
    """Of each pair the difference of shared samples, with the missing ones at their worst, and at their best.

    Each of the three is a family of its own in Holm's correction. A loss with samples missing has no worst and no best.
    """
    shared, worst, best = dict[int, PairedDifference](), dict[int, PairedDifference](), dict[int, PairedDifference]()
    for place, (pair, margin) in enumerate(zip(pairs, margins, strict=True)):
        scaled = None if margin is None else margin / display_factor(pair.metric)
        shared[place] = paired_difference(pair.before, pair.after, pair.metric, scaled)
        if not any(pair.missing):
            worst[place] = best[place] = shared[place]
            continue
        for family, lost in ((worst, True), (best, False)):
            sides = pair.fill_missing(lost)
            family[place] = paired_difference(*sides, pair.metric, scaled) if sides else shared[place]
    families = map(correct_by_holm, (shared, worst, best))
    found, *bounds = ([family[place] for place in range(len(pairs))] for family in families)
    low, high = ([each if pair.is_bounded else None for pair, each in zip(pairs, side, strict=True)] for side in bounds)
    return list(zip(found, low, high, strict=True))


def margin_of(metric: str, given: Mapping[str, float]) -> float | None:
    """The margin of a metric: that of its own name, else `accuracy` for a score; None: none is given."""
    return given.get(metric, given.get("accuracy") if is_score(metric) else None)


def choose_margins(pairs: Sequence[TaskPair], given: Mapping[str, float]) -> tuple[list[TaskPair], list[float]]:
    """The pairs that have a margin, and their margins; ConfigError for a name that no pair has."""
    known = {pair.metric for pair in pairs}
    names = {*known, *(["accuracy"] if any(map(is_score, known)) else [])}
    if odd := next((name for name in given if name not in names), None):
        raise ConfigError(f"margin {odd} is of no metric of these files: choose from {', '.join(sorted(names))}")
    found = [(pair, margin) for pair in pairs if (margin := margin_of(pair.metric, given)) is not None]
    return [pair for pair, _ in found], [margin for _, margin in found]

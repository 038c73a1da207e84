"""Rank candidates on the same questions by the joint loss of text and needles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lexbench.parts.search.tune.space import Candidate
from lexbench.stats.intervals import Interval
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, paired_difference


@dataclass(frozen=True, kw_only=True)
class CandidateOutcomes:
    """Outcomes of a candidate: text and needles at the length, text inside the trained length."""

    text: Sequence[Outcome]
    needles: Sequence[Outcome]
    """Empty where the model finds no needles."""
    inside: Sequence[Outcome]

    @property
    def failed(self) -> int:
        """Texts without a finite likelihood."""
        return sum(outcome.failed for outcome in (*self.text, *self.inside))

    def losses(self, worth: float) -> list[Outcome]:
        """Outcomes whose mean is the loss: NLL of the text plus `worth` times the share of needles missed, in nats.

        Text and needles each have their own weight, whatever the number of targets and questions.
        """
        # Scaled by all outcomes over targets, or over needles, so that the mean of all amounts is the loss.
        total = len(self.text) + len(self.needles)
        targets = sum(outcome.units for outcome in self.text)
        text = [
            replace(each, cluster=f"text {each.cluster}", amount=each.amount * total / targets, targets=None)
            for each in self.text
            if each.amount is not None
        ]
        needles = [
            replace(
                each,
                index=len(text) + place,
                cluster=f"needle {each.cluster}",
                amount=worth * (1 - (each.amount or 0.0)) * total / len(self.needles),
            )
            for place, each in enumerate(self.needles)
        ]
        return [*(replace(each, index=place) for place, each in enumerate(text)), *needles]

    def loss(self, worth: float) -> float:
        """Nats per token; lower is better."""
        amounts = [outcome.amount or 0.0 for outcome in self.losses(worth)]
        return math.fsum(amounts) / len(amounts)


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """A finalist on the fresh questions. Differences are its value minus that of the other."""

    candidate: Candidate
    loss: float
    """NLL plus worth times the share of needles missed, nats per token."""
    text: PairedDifference
    """NLL minus that of `none`, at the length."""
    needles: PairedDifference | None
    """Accuracy of needles minus that of `none`, at the length; for `none` itself without an interval."""
    inside: PairedDifference
    """Price: NLL minus that of `none`, inside the trained length."""
    behind: PairedDifference
    """Loss minus that of the best; for the best itself without an interval. `p_holm` is set for its rivals alone."""
    dear: bool = False
    """Whether its price is above the stated limit."""

    doubtful: bool = False
    """Whether the interval of its price contains the limit, so that `dear` is uncertain."""
    rival: bool = False
    """Whether its price is within the limit, as the best one's is, and it was compared with the best."""

    @property
    def tied(self) -> bool:
        """Whether it cannot be told from the best: no significant test, or an interval that holds 0, or no interval."""
        return self.rival and not (self.behind.significant and self.behind.low is not None and self.behind.low > 0)


def rank_finalists(
    measured: Sequence[tuple[Candidate, CandidateOutcomes]], none: CandidateOutcomes, price: float, worth: float
) -> list[Finalist]:
    """Finalists, the best first, those above the price last."""
    rows = [_build_finalist(candidate, found, none, price, worth) for candidate, found in measured]
    rows.sort(key=lambda row: (row.dear, row.loss))
    answers = {candidate.label: found for candidate, found in measured}
    best = answers[rows[0].candidate.label]
    rows = [replace(row, behind=_loss_behind_best(best, answers[row.candidate.label], worth)) for row in rows]
    rivals = correct_by_holm({row.candidate.label: row.behind for row in rows[1:] if not row.dear and not rows[0].dear})
    return [
        replace(row, behind=rivals[row.candidate.label], rival=True) if row.candidate.label in rivals else row
        for row in rows
    ]


def price_of_candidate(none: CandidateOutcomes, found: CandidateOutcomes) -> PairedDifference:
    """Price of a candidate: its NLL minus that of `none` inside the trained length, in nats per token."""
    return paired_difference(none.inside, found.inside, "nll")


def _build_finalist(
    candidate: Candidate, found: CandidateOutcomes, none: CandidateOutcomes, price: float, worth: float
) -> Finalist:
    inside = price_of_candidate(none, found)
    assert inside.difference is not None, "none and a finalist without failures have a difference"
    dear, interval = inside.difference > price, inside.interval
    needles = paired_difference(none.needles, found.needles, "accuracy") if found.needles else None
    if needles is not None and found is none:  # right and wrong answers have a width even where none differs
        needles = replace(needles, interval=None)
    return Finalist(
        candidate=candidate,
        loss=found.loss(worth),
        text=paired_difference(none.text, found.text, "nll"),
        needles=needles,
        inside=inside,
        behind=PairedDifference(),
        dear=dear,
        doubtful=interval is not None and (interval.low <= price if dear else interval.high > price),
    )


def _loss_behind_best(best: CandidateOutcomes, other: CandidateOutcomes, worth: float) -> PairedDifference:
    """Loss of a candidate minus that of the best. Its p-value flips signs of the clusters of texts and of needles.

    The interval is put together from those of both parts, which are independent, as Zou and Donner do (2008, Statistics
    in Medicine 27:1693): each end is as far from the sum as the root of the squared ways of the parts to theirs.
    """
    whole = paired_difference(best.losses(worth), other.losses(worth), "nll")
    if other is best:
        return replace(whole, interval=None)
    text = paired_difference(best.text, other.text, "nll")
    if not other.needles or whole.difference is None:
        return replace(whole, interval=text.interval)
    needles = paired_difference(best.needles, other.needles, "accuracy")
    if text.interval is None or needles.interval is None:
        return replace(whole, interval=None)
    assert text.difference is not None and needles.difference is not None, "an interval has a middle"
    below = math.hypot(text.difference - text.interval.low, worth * (needles.interval.high - needles.difference))
    above = math.hypot(text.interval.high - text.difference, worth * (needles.difference - needles.interval.low))
    kind = f"{text.interval.kind}+{needles.interval.kind}"
    return replace(whole, interval=Interval(whole.difference - below, whole.difference + above, kind))

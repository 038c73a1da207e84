"""Has a run lost quality against a baseline, beyond a tolerance and beyond chance? Cell by cell, with tests and rules.

Each cell and metric of the baseline is compared with the run's cell of the same name. Its loss L is how much worse the
run is, in nats per token or points. The null hypothesis is L <= tolerance; the alternative is that more is lost.

- The same questions: the run is given the tolerance as a gift on every question, and what is still missing is tested by
  sign flips over clusters (`pairs.paired`). The flips are symmetric, so the one-sided p-value is half of the two-sided
  one. It is exact where the clusters' losses scatter alike to both sides of the tolerance. Where most lose a little
  and a few gain much, a mean loss of just the tolerance alarms more often than it should, the less so the larger n.
- Other questions (another seed, another state of the corpus): Welch's test over clusters. Of scores each side gets a
  cluster of 1 and one of 0 (Agresti and Caffo 2000, The American Statistician 54:280), so that all right has a width.
- Holm's correction over all comparisons of the check: models, methods, tasks, lengths and seeds. With nothing lost
  beyond the tolerance, a false alarm comes in at most 5 % of checks, as far as each test is exact.

What no test can say is decided by rule. A cell that was measured and is refused now, or a likelihood that fails where
it did not, is regressed. A cell that the run lacks, questions that it left out or that changed, another protocol or
task version, fewer questions: not comparable, since a gate that skips what it cannot compare passes everything in the
end. So is a loss beyond the tolerance that has too few clusters to be significant whatever its size, or that other
questions show and cannot prove: the baseline's own could. A loss within the tolerance needs no test: it holds. New
cells and gains are said, and fail nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.core.record import Cell
from lexbench.stats import metrics
from lexbench.stats.cell_outcomes import Change, Kept, headline, matched, other_questions, unlike_questions
from lexbench.stats.intervals import EXACT, FLIPS, LEVEL, Floats, cluster_sums, holm, unpaired_interval, unpaired_p
from lexbench.stats.pairs import Outcome, Paired, paired
from lexbench.stats.wording import plain, scale, several, some

TOLERANCES = {"nll": 0.02}
"""Nats per token: 2 % of perplexity."""
POINTS = 2.0
"""Of a score without a tolerance of its own."""
GONE = "the run has no such cell: run what the baseline was made from, or --update"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One metric of one cell, against the baseline."""

    cell: Cell
    """The run's; the baseline's where the run has none."""
    metric: str | None
    """None: the cell has no metric that is compared."""
    status: str
    """held, improved, regressed, not comparable or new."""
    reason: str = ""
    """Why, where the numbers do not say it."""
    tolerance: float = 0.0
    """As the metric is shown: nats per token or points."""
    found: Paired | None = None
    """The run minus the baseline."""
    unpaired: Change | None = None
    """Why the questions are others; None: they are the same."""
    p: float | None = None
    """One-sided, of a loss beyond the tolerance; 1 where the loss is not beyond it; None: nothing is tested."""
    p_holm: float | None = None
    """Adjusted for all comparisons of the check."""
    p_gain: float = 1.0
    """Likewise of a gain beyond the tolerance, not adjusted."""
    least: float = 0.0
    """What no p of these clusters is below."""


def same_cell(cell: Cell) -> tuple[Any, ...]:
    """What names a cell in a check: a run and its baseline hold one of each."""
    return cell.model, cell.method, cell.task, cell.length, cell.seed, cell.corpus


KEYS = (same_cell, lambda cell: same_cell(cell)[:5], lambda cell: same_cell(cell)[:4])
"""By name; then whatever the corpus is called; then whatever the seed."""


def judge(
    old: Sequence[Kept], new: Sequence[Kept], tolerances: Mapping[str, float]
) -> tuple[list[Verdict], list[tuple[Kept, Kept]]]:
    """The verdicts on all cells of a baseline and a run, and the cells that were compared.

    ValueError for a tolerance that makes no sense, and where there is nothing to compare.
    """
    _sensible(tolerances, old)
    pairs, gone, added = matched(old, new, KEYS)
    if not pairs:
        raise ValueError(f"run has no cell of the baseline: it holds {_some(new)}, the baseline {_some(old)}")
    found = [verdict for one, other in pairs for verdict in _verdicts(one, other, tolerances)]
    if all(verdict.p is None and verdict.status in ("held", "new") for verdict in found):
        raise ValueError("run and baseline share no likelihood and no score: give e.g. --tolerance resolution=0.1")
    found += [_whole(each, "not comparable", GONE) for each in gone]
    found += [_whole(each, "new", "not in the baseline") for each in added]
    tested = [place for place, verdict in enumerate(found) if verdict.p is not None]
    losses, gains = holm([found[place].p or 0.0 for place in tested]), holm([found[place].p_gain for place in tested])
    for place, loss, gain in zip(tested, losses, gains, strict=True):
        found[place] = _settled(found[place], loss, gain, len(tested))
    return sorted(found, key=_order), pairs


def _order(verdict: Verdict) -> tuple[Any, ...]:
    cell = verdict.cell
    return (
        cell.model,
        cell.task,
        metrics.order(verdict.metric),
        cell.method != "none",
        cell.method,
        *same_cell(cell)[3:5],
    )


def _some(cells: Sequence[Kept]) -> str:
    names = sorted({plain(f"{each.cell.method} {each.cell.task} on {each.cell.model}") for each in cells})
    return some(names, 3)


def _sensible(tolerances: Mapping[str, float], old: Sequence[Kept]) -> None:
    """ValueError for a tolerance of what is not there, or cannot be better or worse."""
    known = sorted({name for each in old for name in each.outcomes if metrics.better(name)}, key=metrics.order)
    for name, tolerance in tolerances.items():
        if name not in known:
            follows = " (it follows from nll)" if name in metrics.LIKELIHOODS and name != "nll" else ""
            raise ValueError(f"unknown metric {name}{follows}: choose from {', '.join(known) or 'none'}")
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ValueError(f"tolerance of {name} must be a number of at least 0, got {tolerance}: e.g. {name}=0.02")


def _whole(each: Kept, status: str, reason: str) -> Verdict:
    return Verdict(cell=each.cell, metric=headline(each.outcomes), status=status, reason=reason)


def _verdicts(one: Kept, other: Kept, tolerances: Mapping[str, float]) -> Iterator[Verdict]:
    """What is said of one cell, before Holm's correction."""
    unlike = unlike_questions(one.cell, other.cell)
    cell = replace(other, outcomes=one.outcomes or other.outcomes)
    if unlike:
        yield _whole(cell, "not comparable", f"{unlike}: run it as the baseline was, or --update")
    elif one.refused is not None and other.refused is not None:
        yield _whole(cell, "held", f"refused, as in the baseline: {plain(other.refused)}")
    elif other.refused is not None:
        yield _whole(cell, "regressed", f"refused, and measured in the baseline: {plain(other.refused)}")
    elif one.refused is not None:
        yield _whole(cell, "new", f"refused in the baseline: {plain(one.refused)}")
    else:
        gated = [name for name in one.outcomes if _gated(name, headline(one.outcomes), tolerances)]
        for metric in gated:
            yield _compared(one, other, metric, tolerances.get(metric, TOLERANCES.get(metric, POINTS)))
        short = [said for name in one.outcomes if (said := _fewer(one.outcomes[name], other.outcomes.get(name, ())))]
        if not gated and short:
            yield Verdict(cell=other.cell, metric=None, status="not comparable", reason=short[0])
        elif not gated:
            yield Verdict(cell=other.cell, metric=None, status="held", reason="nothing that is compared by default")


def _gated(metric: str, first: str | None, tolerances: Mapping[str, float]) -> bool:
    """Whether a metric is compared: named, or the task's headline where it has a tolerance of its own accord."""
    return metric in tolerances or (metric == first and (metric == "nll" or metrics.is_score(metric)))


def _compared(one: Kept, other: Kept, metric: str, tolerance: float) -> Verdict:
    """One metric of one cell that both sides measured."""
    blank = Verdict(cell=other.cell, metric=metric, status="held", tolerance=tolerance)
    if metric not in other.outcomes:
        return replace(blank, status="not comparable", reason=f"the run has no {metric}: --update")
    before, after = one.outcomes[metric], other.outcomes[metric]
    margin = tolerance / scale(metric)
    others = other_questions(one.cell, other.cell)
    if others:
        if reason := _fewer(before, after):
            return replace(blank, status="not comparable", unpaired=others, reason=reason)
        blank = replace(blank, unpaired=others)
        lost = sum(each.failed for each in after) - sum(each.failed for each in before)
    else:
        found = paired(before, after, metric)
        reason = _apart(found, before, after)
        if reason:
            return replace(blank, status="not comparable", reason=reason)
        blank = replace(blank, found=found)
        answered = {each.index for each in before if not each.failed}
        lost = sum(each.failed for each in after if each.index in answered)
    if lost > 0 and not metrics.is_score(metric):
        said = f"{several(lost, 'question')} of {len(after)} failed that the baseline answers: {plain(other.failure)}"
        return replace(blank, status="regressed", reason=said)
    return _unpaired(blank, before, after, margin) if others else _tested(blank, before, after, margin)


def _apart(found: Paired, before: Sequence[Outcome], after: Sequence[Outcome]) -> str:
    """Why questions that should be the same make no pairs."""
    if found.unlike is not None:
        changed = f"question {found.unlike} is another one, though task version, seed and corpus agree"
        return f"{changed} (another tokenizer?): --update"
    missing = len({each.index for each in before} - {each.index for each in after})
    return _left_out(missing, len(before)) if missing else ""


def _fewer(before: Sequence[Outcome], after: Sequence[Outcome]) -> str:
    """Why fewer questions than the baseline's are not enough; empty where there are as many."""
    missing = len(before) - len(after)
    return _left_out(missing, len(before)) if missing > 0 else ""


def _left_out(missing: int, count: int) -> str:
    asked = several(count, "question")
    return f"{missing} of the baseline's {asked} were not asked: run with n={count}, or --update"


def _tested(verdict: Verdict, before: Sequence[Outcome], after: Sequence[Outcome], margin: float) -> Verdict:
    """With the p-values of a loss and of a gain beyond the margin, on the same questions."""
    found, metric = verdict.found, verdict.metric or ""
    if found is None or found.difference is None:
        return replace(verdict, status="not comparable", reason="no question has a value on both sides: --update")
    loss = -metrics.better(metric) * found.difference

    def beyond(side: int) -> float:
        """One-sided p of what is beyond the margin on the side of losses (1) or gains (-1)."""
        if side * loss <= margin:
            return 1.0
        gift = side * metrics.better(metric) * margin
        given = [
            each if each.amount is None else replace(each, amount=each.amount + gift * each.units) for each in after
        ]
        return (paired(before, given, metric).p or 1.0) / 2

    least = 2.0**-found.clusters if found.clusters <= EXACT else 0.5 / (FLIPS + 1)
    return replace(verdict, p=beyond(1), p_gain=beyond(-1), least=least)


def _unpaired(verdict: Verdict, before: Sequence[Outcome], after: Sequence[Outcome], margin: float) -> Verdict:
    """The same over questions that differ from side to side."""
    metric = verdict.metric or ""
    sides = [_sums(side) for side in (before, after)]
    if not all(side[:, 1].sum() > 0 for side in sides):
        return replace(verdict, status="not comparable", reason="no question has a value on one side: --update")
    old, new = (float(side[:, 0].sum() / side[:, 1].sum()) for side in sides)
    clusters = min(len(side) for side in sides)
    if metrics.is_score(metric):
        sides = [np.concatenate([side, side[:, 1].mean() * np.array([[1.0, 1.0], [0.0, 1.0]])]) for side in sides]
    found = Paired(
        baseline_value=old,
        value=new,
        difference=new - old,
        interval=unpaired_interval(*sides),
        clusters=clusters,
        failed=sum(each.failed for each in (*before, *after)),
        truncated=sum(each.truncated for each in (*before, *after)),
    )
    loss = -metrics.better(metric) * (new - old)
    worse = [side * np.array([-metrics.better(metric), 1.0]) for side in sides]  # the larger, the worse
    p, p_gain = unpaired_p(worse[0], worse[1], margin), unpaired_p(worse[1], worse[0], margin)
    return replace(
        verdict,
        found=found,
        p=p if p is not None and loss > margin else 1.0,
        p_gain=p_gain if p_gain is not None and -loss > margin else 1.0,
        least=1.0 if p is None else 0.0,
    )


def _sums(outcomes: Sequence[Outcome]) -> Floats:
    used = [(each.amount, each.units, each.cluster) for each in outcomes if each.amount is not None]
    amounts, units, clusters = ([each[column] for each in used] for column in range(3))
    return cluster_sums(amounts, units, [str(cluster) for cluster in clusters])


def _settled(verdict: Verdict, p_holm: float, p_gain: float, comparisons: int) -> Verdict:
    """The verdict on a comparison among others."""
    found, metric = verdict.found, verdict.metric or ""
    assert found is not None and found.difference is not None
    verdict = replace(verdict, p_holm=p_holm)
    if p_holm <= LEVEL:
        return replace(verdict, status="regressed")
    if -metrics.better(metric) * found.difference * scale(metric) <= verdict.tolerance:
        return replace(verdict, status="improved") if p_gain <= LEVEL else verdict
    if verdict.least * comparisons > LEVEL:
        few = f"{several(found.clusters, 'cluster')} are too few to test it among {several(comparisons, 'comparison')}"
        return replace(verdict, status="not comparable", reason=f"a loss beyond the tolerance, and {few}: raise n")
    if other := verdict.unpaired:
        remedy = f"run with seed={other.one}" if other.name == "seed" else "run on the baseline's corpus"
        reason = f"a loss beyond the tolerance, which other questions cannot prove: {remedy}, or raise n"
        return replace(verdict, status="not comparable", reason=reason)
    return replace(verdict, reason="a loss beyond the tolerance, not significant")

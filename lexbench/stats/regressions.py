"""Test each cell of a run for a loss against a baseline that exceeds a tolerance and chance.

Each cell and metric of the baseline is compared with the run's cell of the same name. Its loss L is how much worse the
run is, in nats per token or points. The null hypothesis is L <= tolerance; the alternative is that more is lost.

- The same questions: sign flips over clusters, after the tolerance is added to every question (`pairs.paired`). Exact
  where the clusters' losses are symmetric about the tolerance. Where most clusters lose a little and a few gain much,
  a mean loss of just the tolerance would alarm too often: the loss must also be significant under noise as skewed as a
  lognormal one (`intervals.guard_against_skew`).
- Other questions (another seed, another state of the corpus): Welch's test over clusters (`pairs.unpaired`).
- Holm's correction over all comparisons of the check: models, methods, tasks, lengths and seeds. Where no
  loss exceeds the tolerance, at most 5 % of checks alarm, as far as each test is exact.

Rules decide the rest. Regressed: a measured cell that is now refused, or a likelihood that newly fails. Not comparable,
because a gate that skips such cells would pass everything in the end: a missing cell, missing questions, another
corpus; and a loss beyond the tolerance with too few clusters to be significant at any size, on other questions without
significance, or significant by sign flips alone. Changed, and not compared either: another protocol, version of a task
or start of the model's texts, or other questions, under equal settings: lexbench, the task or the tokenizer is another
one. Held: a loss within the tolerance, or beyond it and not significant by any test. New cells and gains are reported
and fail nothing.
Where run and baseline are both at a floor or at the ceiling (`stats.floors`), a verdict other than regressed is held,
and says so; but not of a likelihood that lost more than the tolerance, as a loss has no end beyond its floor.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Cell
from lexbench.core.text import join_first_few, join_lengths, plain_text
from lexbench.stats import metrics
from lexbench.stats.cell_outcomes import (
    CellOutcomes,
    SettingChange,
    difference_in_kind,
    difference_in_questions,
    headline_metric,
    is_changed_protocol,
    limit_of_pair,
    match_cells,
    text_of,
    texts_not_learned,
)
from lexbench.stats.certificates import Proof, prove_small_loss
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import (
    Outcome,
    PairedDifference,
    correct_by_holm,
    paired_difference,
    unpaired_difference,
)
from lexbench.stats.reach import smallest_found_loss

DEFAULT_TOLERANCE_OF_METRIC = {"nll": 0.02}
"""Default tolerance of metrics that are no scores, in nats per token: 0.02 is 2 % of perplexity."""
DEFAULT_SCORE_TOLERANCE_POINTS = 2.0
"""Default tolerance of a score, in points."""
TOLERANCE_ROUNDING_SLACK = 1e-9
"""Slack for rounding, in the tolerance's unit: a loss of 7 points may be computed as 7.000000000000001."""
MAX_TOLERANCE = 1e9
"""Largest tolerance."""


class VerdictStatus(Enum):
    """Verdict on one metric of one cell; its value is the word that outputs print."""

    HELD = "held"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    NOT_COMPARABLE = "not comparable"
    CHANGED = "changed"
    """Questions or protocol differ under equal settings."""
    NEW = "new"
    PROVEN = "proven"
    """Verdict in place of held and improved, where a proof is asked."""
    NOT_PROVEN = "not proven"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one metric of one cell, against the baseline."""

    cell: Cell
    """Cell of the run, or of the baseline where the run has no such cell."""
    metric: str | None
    """None: no metric of the cell is compared."""
    status: VerdictStatus
    reason: Note | None = None
    """Reason beside the numbers, or for none."""
    smallest: float | None = None
    """The smallest loss that this comparison finds in nine runs of ten (`stats.reach`), in nats per token or points;
    None: not compared, or not even the loss of all."""
    doubted: bool = False
    """Whether a loss beyond the tolerance is held for want of significance."""
    tolerance: float = 0.0
    """Largest loss that is no regression, in nats per token or points."""
    found: PairedDifference | None = None
    """Difference: the run minus the baseline."""
    unpaired: SettingChange | None = None
    """Why the questions differ; None: they are the same."""
    proof: Proof | None = None
    """Proof that the loss is below the tolerance, where it is asked."""
    before: Sequence[Outcome] = field(default=(), repr=False, compare=False)
    """Outcomes of the baseline."""

    @property
    def p(self) -> float | None:
        """One-sided p-value of a loss beyond the tolerance; 1 where the loss is within it; None: not tested."""
        return self.found.p if self.found else None

    @property
    def p_holm(self) -> float | None:
        """The p-value `p`, adjusted for all comparisons of the check."""
        return self.found.p_holm if self.found else None


def check_cell_key(cell: Cell) -> tuple[Any, ...]:
    """Key of a cell in a check; unique in a run and in its baseline."""
    return cell.model, cell.method, cell.task, cell.length, cell.seed, cell.corpus


MATCHING_CELL_KEYS = (check_cell_key, lambda cell: check_cell_key(cell)[:5], lambda cell: check_cell_key(cell)[:4])
"""Full key; then without the corpus; then without the seed."""


def judge_cells(
    old: Sequence[CellOutcomes],
    new: Sequence[CellOutcomes],
    tolerances: Mapping[str, float],
    certify: bool = False,
    forms: Mapping[str, str] | None = None,
) -> tuple[list[Verdict], list[tuple[CellOutcomes, CellOutcomes]]]:
    """Verdicts on all cells of a baseline and a run, and the compared pairs of cells.

    With `certify` a cell holds only if a loss below the tolerance is proven (`stats.certificates`); the run may then
    have fewer questions than the baseline. `forms` are those of the run's attentions (`stats.same_attention`), by cell
    id: methods that are one function at a length are compared with the baseline once in the family.

    ConfigError for an invalid tolerance, and where there is nothing to compare.
    """
    _check_tolerances(tolerances, old)
    pairs, gone, added = match_cells(old, new, MATCHING_CELL_KEYS)
    if not pairs:
        raise ConfigError(
            f"run has no cell of the baseline: it holds {_some_cell_names(new)}, the baseline {_some_cell_names(old)}"
        )
    judged = [(verdict, pair) for pair in pairs for verdict in _verdicts(*pair, tolerances, certify)]
    found = [verdict for verdict, _ in judged]
    functions = {
        place: (verdict.metric, verdict.tolerance, function)
        for place, (verdict, pair) in enumerate(judged)
        if (function := _function_of_pair(*pair, forms or {}))
    }
    if all(verdict.p is None and verdict.status in (VerdictStatus.HELD, VerdictStatus.NEW) for verdict in found):
        raise ConfigError(_nothing_judged(pairs))
    absent, added_since = Note(NoteKind.NO_SUCH_CELL), Note(NoteKind.NOT_IN_BASELINE)
    found += [_verdict_on_cell(each, VerdictStatus.NOT_COMPARABLE, absent) for each in gone]
    found += [_verdict_on_cell(each, VerdictStatus.NEW, added_since) for each in added]
    family = {place: verdict.found for place, verdict in enumerate(found) if verdict.found and verdict.p is not None}
    hypotheses = len({functions.get(place, place) for place in family})
    for place, each in correct_by_holm(family, functions).items():
        tested = replace(found[place], found=each, smallest=_smallest_loss(found[place], hypotheses))
        found[place] = _judge_among_others(tested, each, hypotheses)
    if certify:
        silent = texts_not_learned(pairs)
        found = [_judge_by_proof(verdict, silent.get(text_of(verdict.cell))) for verdict in found]
    return sorted(found, key=_verdict_sort_key), pairs


def _smallest_loss(verdict: Verdict, comparisons: int) -> float | None:
    """The smallest loss that one of so many comparisons finds, in the tolerance's unit; None: not even that of all."""
    metric, found = verdict.metric or "", verdict.found
    if not (metrics.is_token_loss(metric) or metrics.is_score(metric)) or found is None:
        return None
    scale, level = display_factor(metric), SIGNIFICANCE_LEVEL / comparisons
    size = smallest_found_loss(verdict.before, metric, verdict.tolerance / scale, level, found.error)
    return None if size is None else scale * size


def _function_of_pair(one: CellOutcomes, other: CellOutcomes, forms: Mapping[str, str]) -> str | None:
    """What both sides compute, the method's name apart; None where it is not known, or where they differ in it."""
    form, mine, theirs = forms.get(other.id), one.cell.identity, other.cell.identity
    if form is None or mine.get("attention") != theirs.get("attention"):
        return None
    rest = [{key: side[key] for key in side if key not in ("method", "attention")} for side in (mine, theirs)]
    return json.dumps([form, *rest, one.cell.version, other.cell.version], sort_keys=True)


def _verdict_sort_key(verdict: Verdict) -> tuple[Any, ...]:
    cell = verdict.cell
    about = cell.model, cell.task, metrics.metric_sort_key(verdict.metric), cell.method != BASELINE_METHOD, cell.method
    return *about, cell.length, cell.seed


def _some_cell_names(cells: Sequence[CellOutcomes]) -> str:
    names = sorted({plain_text(f"{each.cell.method} {each.cell.task} on {each.cell.model}") for each in cells})
    return join_first_few(names, 3)


def _nothing_judged(pairs: Sequence[tuple[CellOutcomes, CellOutcomes]]) -> str:
    for name, side in (("baseline", 0), ("run", 1)):
        if all(pair[side].refused is not None for pair in pairs):
            reason = plain_text(pairs[0][side].refused)
            return f"{name} has refused all cells that both hold ({reason}): measure lengths or tasks that it answers"
    return "run and baseline share no likelihood and no score: give e.g. --tolerance resolution=0.1"


def _check_tolerances(tolerances: Mapping[str, float], old: Sequence[CellOutcomes]) -> None:
    """ConfigError for a tolerance of an absent metric, or of one without a better direction."""
    known = sorted(
        {name for each in old for name in each.outcomes if metrics.better_direction(name)}, key=metrics.metric_sort_key
    )
    lengths = sorted({each.cell.length for each in old})
    for given, tolerance in tolerances.items():
        name, at, length = given.partition("@")
        if at and length not in map(str, lengths):
            raise ConfigError(f"tolerance {given} names no length of the baseline: choose from {join_lengths(lengths)}")
        if name not in known:
            follows = f" (it follows from {first})" if (first := metrics.facts_of(name).follows) else ""
            raise ConfigError(f"unknown metric {name}{follows}: choose from {', '.join(known) or 'none'}")
        if tolerance and not TOLERANCE_ROUNDING_SLACK <= tolerance <= MAX_TOLERANCE:
            example = "2" if metrics.is_score(name) else "0.02"
            raise ConfigError(
                f"tolerance of {name} must be 0 or from {TOLERANCE_ROUNDING_SLACK:g} to {MAX_TOLERANCE:g}, got "
                f"{tolerance:g}: "
                f"e.g. {name}={example}"
            )


def _verdict_on_cell(each: CellOutcomes, status: VerdictStatus, reason: Note) -> Verdict:
    return Verdict(cell=each.cell, metric=headline_metric(each.outcomes), status=status, reason=reason)


def _verdicts(
    one: CellOutcomes, other: CellOutcomes, tolerances: Mapping[str, float], certify: bool
) -> Iterator[Verdict]:
    """Verdicts on one cell, before Holm's correction."""
    unlike = difference_in_kind(one.cell, other.cell)
    cell = replace(other, outcomes=one.outcomes or other.outcomes)
    if unlike:
        status = VerdictStatus.CHANGED if is_changed_protocol(one.cell, other.cell) else VerdictStatus.NOT_COMPARABLE
        yield _verdict_on_cell(cell, status, Note(NoteKind.OTHER_SETTING, (unlike,)))
    elif other.deferred:
        yield _verdict_on_cell(cell, VerdictStatus.NOT_COMPARABLE, Note(NoteKind.NOT_MEASURED_YET, (other.refused,)))
    elif one.refused is not None and other.refused is not None:
        yield _verdict_on_cell(cell, VerdictStatus.HELD, Note(NoteKind.REFUSED_ON_BOTH_SIDES, (other.refused,)))
    elif other.refused is not None:
        yield _verdict_on_cell(cell, VerdictStatus.REGRESSED, Note(NoteKind.NEWLY_REFUSED, (other.refused,)))
    elif one.refused is not None:
        yield _verdict_on_cell(cell, VerdictStatus.NEW, Note(NoteKind.REFUSED_IN_BASELINE, (one.refused,)))
    else:
        gated = compared_metrics(one, tolerances)
        for metric in gated:
            yield _compare_metric(one, other, metric, tolerance_of(tolerances, metric, other.cell.length), certify)
        if not gated:
            why = (_why_too_few_questions(found, other.outcomes.get(name, ())) for name, found in one.outcomes.items())
            short = next(filter(None, why), None)
            status = VerdictStatus.NOT_COMPARABLE if short else VerdictStatus.HELD
            reason = short or Note(NoteKind.NOTHING_COMPARED)
            yield Verdict(cell=other.cell, metric=None, status=status, reason=reason)


def compared_metrics(each: CellOutcomes, tolerances: Mapping[str, float]) -> list[str]:
    """Metrics of a baseline's cell that are compared."""
    first, length = headline_metric(each.outcomes), each.cell.length
    return [name for name in each.outcomes if _is_compared(name, length, first, tolerances)]


def tolerance_of(tolerances: Mapping[str, float], metric: str, length: int) -> float:
    """The tolerance at a length (`nll@2048`), else the metric's, else the default."""
    given = tolerances.get(f"{metric}@{length}", tolerances.get(metric))
    return DEFAULT_TOLERANCE_OF_METRIC.get(metric, DEFAULT_SCORE_TOLERANCE_POINTS) if given is None else given


def _is_compared(metric: str, length: int, first: str | None, tolerances: Mapping[str, float]) -> bool:
    """Whether a metric is compared at a length: named, or the task's headline with a default tolerance.

    NLL and scores that are named for one length are compared at the others by their default; other metrics have none.
    """
    if metrics.is_token_loss(metric) or metrics.is_score(metric):
        return metric == first or any(name.partition("@")[0] == metric for name in tolerances)
    return metric in tolerances or f"{metric}@{length}" in tolerances


def _compare_metric(one: CellOutcomes, other: CellOutcomes, metric: str, tolerance: float, certify: bool) -> Verdict:
    """Verdict on one metric of one cell that both sides measured."""
    blank = Verdict(cell=other.cell, metric=metric, status=VerdictStatus.HELD, tolerance=tolerance)
    if metric not in other.outcomes:
        return replace(blank, status=VerdictStatus.NOT_COMPARABLE, reason=Note(NoteKind.METRIC_MISSING, (metric,)))
    before, after = one.outcomes[metric], other.outcomes[metric]
    if certify and len(after) < len(before):
        asked = {each.index for each in after}
        before = [each for each in before if each.index in asked]
    margin = tolerance / display_factor(metric)
    found: PairedDifference | None
    others = difference_in_questions(one.cell, other.cell)
    if others:
        if reason := _why_too_few_questions(before, after):
            return replace(blank, status=VerdictStatus.NOT_COMPARABLE, unpaired=others, reason=reason)
        blank, found = replace(blank, unpaired=others), unpaired_difference(before, after, metric, margin)
        missing = NoteKind.NO_VALUE_ON_A_SIDE
        lost = sum(each.failed for each in after) - sum(each.failed for each in before)
    else:
        found = paired_difference(before, after, metric, margin)
        missing = NoteKind.NO_VALUE_ON_BOTH_SIDES
        if reason := _why_no_pairs(found, before, after):
            changed = reason.kind is NoteKind.QUESTION_REPLACED
            status = VerdictStatus.CHANGED if changed else VerdictStatus.NOT_COMPARABLE
            return replace(blank, status=status, reason=reason)
        answered = {each.index for each in before if not each.failed}
        lost = sum(each.failed for each in after if each.index in answered)
    if lost > 0 and not metrics.is_score(metric):
        failed = Note(NoteKind.NEWLY_FAILED, (lost, len(after), other.failure))
        untested = None if others or found is None else replace(found, p=None)
        return replace(blank, status=VerdictStatus.REGRESSED, reason=failed, found=untested)
    if found is None or found.difference is None:
        return replace(blank, status=VerdictStatus.NOT_COMPARABLE, reason=Note(missing), found=found)
    proof = prove_small_loss(before, after, metric, margin) if certify and not others else None
    found = replace(found, limit=limit_of_pair(one, other, metric))
    return replace(blank, found=found, proof=proof, before=before)


def _why_no_pairs(found: PairedDifference, before: Sequence[Outcome], after: Sequence[Outcome]) -> Note | None:
    """Why questions make no pairs."""
    if found.first_mismatch is not None:
        return Note(NoteKind.QUESTION_REPLACED, (found.first_mismatch,))
    missing = len({each.index for each in before} - {each.index for each in after})
    return Note(NoteKind.QUESTIONS_MISSING, (missing, len(before))) if missing else None


def _why_too_few_questions(before: Sequence[Outcome], after: Sequence[Outcome]) -> Note | None:
    """Why a run with fewer questions than the baseline is not comparable; None otherwise."""
    missing = len(before) - len(after)
    return Note(NoteKind.QUESTIONS_MISSING, (missing, len(before))) if missing > 0 else None


def _judge_among_others(verdict: Verdict, found: PairedDifference, comparisons: int) -> Verdict:
    """The verdict on a comparison among others."""
    assert found.difference is not None
    # In this order: a significant loss counts even where both sides are at a floor or the ceiling; nothing else does.
    if found.p_holm is not None and found.p_holm <= SIGNIFICANCE_LEVEL:
        return replace(verdict, status=VerdictStatus.REGRESSED)
    lost = _loss(verdict) > verdict.tolerance + TOLERANCE_ROUNDING_SLACK
    if lost and not metrics.is_score(verdict.metric):  # beyond its floor a loss goes on growing
        found = replace(found, limit=None)
        verdict = replace(verdict, found=found)
    if found.limit:
        return replace(verdict, reason=Note(NoteKind.CANNOT_TELL, (found.limit,)))
    if not lost:
        return replace(verdict, status=VerdictStatus.IMPROVED) if found.p_gain <= SIGNIFICANCE_LEVEL else verdict
    if found.min_p * comparisons > SIGNIFICANCE_LEVEL:
        why = Note(NoteKind.TOO_FEW_TO_TEST, (found.clusters, comparisons))
    elif verdict.unpaired:
        other_seed = verdict.unpaired.name == "seed"
        why = Note(NoteKind.OTHER_SEED, (verdict.unpaired.one,)) if other_seed else Note(NoteKind.OTHER_CORPUS)
    elif found.p_flips is not None and found.p_flips <= SIGNIFICANCE_LEVEL:
        why = Note(NoteKind.PERHAPS_SKEWED, (found.clusters,))
    else:
        return replace(verdict, doubted=True, reason=Note(NoteKind.NOT_SIGNIFICANT))
    return replace(verdict, status=VerdictStatus.NOT_COMPARABLE, reason=why)


def _loss(verdict: Verdict) -> float:
    """Loss of the run against the baseline, in the tolerance's unit; negative: the run is better."""
    metric, found = verdict.metric or "", verdict.found
    return -metrics.better_direction(metric) * ((found and found.difference) or 0.0) * display_factor(metric)


def _judge_by_proof(verdict: Verdict, silent: Note | None) -> Verdict:
    """Judge a verdict of held or improved by its proof; others stay. `silent`: why likelihoods prove nothing here."""
    if verdict.status not in (VerdictStatus.HELD, VerdictStatus.IMPROVED) or verdict.found is None:
        return verdict
    proof, limited = verdict.proof, verdict.found.limit
    if proof is None:
        why = Note(NoteKind.UNPAIRED_PROOF if verdict.unpaired else NoteKind.NO_TOLERANCE)
        return replace(verdict, status=VerdictStatus.NOT_PROVEN, doubted=False, reason=why)
    lost = proof.clusters, proof.mean * display_factor(verdict.metric or "")
    if _loss(verdict) > verdict.tolerance + TOLERANCE_ROUNDING_SLACK:
        why = Note(NoteKind.LOSS_ABOVE_TOLERANCE, lost)
    elif silent and metrics.is_token_loss(verdict.metric):
        why = Note(NoteKind.NOT_CERTIFIED, (silent,))
    elif limited and limited.kind is not NoteKind.CEILING and metrics.is_score(verdict.metric):
        why = Note(NoteKind.CANNOT_TELL, (limited,))
    elif proof.at is not None:
        why = Note(NoteKind.PROVEN, (proof.at, proof.clusters, proof.above, proof.cap, proof.unseen_share, limited))
        return replace(verdict, status=VerdictStatus.PROVEN, reason=why)
    elif proof.more is None:
        why = Note(NoteKind.UNPROVABLE, lost)
    else:
        why = Note(NoteKind.NOT_YET_PROVEN, (*lost, proof.more))
    return replace(verdict, status=VerdictStatus.NOT_PROVEN, doubted=False, reason=why)

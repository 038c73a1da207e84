"""Summarize the curve of each method in a few numbers, with intervals and the lengths they cover.

Values are NLL in nats per token, averaged as nats (a perplexity is exp of a level, taken once at the end), or points,
hundredths of a score. An area goes over all that a method answered; all that is compared with `none`, over what both
did. A length has a value where the cell was measured and not refused; shared are the lengths at which
every method has one (methods without any value aside). Trained length: T.
`CURVE_SUMMARIES` defines each.

**The level** at length L is what the unmodified model, `none`, reaches at its best measured length up to min(L, T). So
a method that is worse everywhere never looks long; a model that falters inside its own trained length does not hand on
the low level at its end; and short contexts are not blamed for what only longer ones can give. Where `none` has no
value up to T, the level is the method's own, and the note says so. The collapse in `positions.py` is another one:
inside one window, from the method's own level.

Lengths whose cells share clusters are resampled together, methods always. The intervals of effective length and
collapse invert those of the differences to the level at each length: low and high are what the curve would say were
every difference at its worse and at its better end. A statistic that jumps has no honest width by resampling alone.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Sample
from lexbench.stats import metrics
from lexbench.stats.combine import (
    Estimate,
    MethodCurves,
    Summary,
    SummaryValue,
    combine_level_pairs,
    combine_levels,
    curves_of,
    group_levels,
    shared_lengths,
    split_gains_and_losses,
)
from lexbench.stats.gain import context_gains
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import Outcome, outcomes_of_samples, paired_difference, question_gaps
from lexbench.stats.prices import setting_of
from lexbench.stats.tables import Place, Table

__all__ = ["SummaryValue", "curve_summaries", "effective_lengths", "method_prices", "shared_lengths"]

EFFECTIVE_LENGTH_MARGIN_NATS = 0.1
"""Nats per token, a tenth of the perplexity: more than the noise of some dozens of paired documents, and about what
half of the training compute is worth (exponents near 0.05 of Kaplan et al., arXiv 2001.08361, at 2 to 3 nats)."""
EFFECTIVE_LENGTH_MARGIN_POINTS = 15.0
"""Points of a score: what NoLiMa (arXiv 2502.05167, 85 % of the base score) lets a model lose that starts at 100."""
COLLAPSE_RISE_NATS = 0.5
"""Nats per token above the level that are a collapse; of a score, half of what the level has above chance is lost."""
COLLAPSE_SCORE_SHARE = 0.5
"""Share of the level of a score below which it has collapsed, where chance is 0."""
RULER_THRESHOLD_POINTS = 85.6
"""RULER's threshold in points (arXiv 2404.06654): Llama 2 7B at its own 4096 tokens, mean of 13 tasks."""
OUTER_DEPTH_SHARE = 0.25
"""Share of the depth at either end."""
EFFECTIVE_LENGTH_RULES = ("monotone", "any", "fixed")
MARGIN_ROUNDING_SLACK = 1e-9
"""Slack of a comparison with a margin, in the metric's unit: a difference of exactly 0.1 is within 0.1."""


def curve_summaries(table: Table, samples: Mapping[str, Sequence[Sample]]) -> list[SummaryValue]:
    """All methods of one table of NLL or of a score, method by method; none of other metrics.

    `samples` are those of each cell id. Names that make no sense for the metric are left out: context gain of scores,
    position bias without depths.
    """
    if not metrics.is_token_loss(table.metric) and not table.scored:
        return []
    curves = curves_of(table, samples)
    whole = _losses(curves, 1.0)
    half = _losses(curves, COLLAPSE_SCORE_SHARE) if table.scored else whole
    biases = {(each.method, each.name): each for each in _position_biases(curves)}
    view = _Summarised(curves, samples, whole, half, biases)
    made = (each.of(view, row) for row in table.methods for each in CURVE_SUMMARIES)
    return [each for each in made if each is not None]


def method_prices(table: Table, samples: Mapping[str, Sequence[Sample]]) -> dict[MethodKey, SummaryValue]:
    """The price of each method of a table of NLL or of a score; `samples` are those of each cell id."""
    curves = curves_of(table, samples)
    return {row: _price(curves, samples, row) for row in table.methods}


def effective_lengths(
    table: Table, samples: Mapping[str, Sequence[Sample]], rule: str = "monotone", margin: float | None = None
) -> list[SummaryValue]:
    """The effective length of each method by another rule or margin.

    Args:
        table: of NLL or of a score.
        samples: of each cell id.
        rule: monotone: up to which every measured length is within the margin; any: the largest that is, whatever
            happens before it; fixed: the largest with a score of 85.6 points or more, as RULER has it.
        margin: in nats per token or points; of `fixed` the threshold. None: 0.1, 15 or 85.6.

    Raises ConfigError for another rule, and for `fixed` without a score.
    """
    if rule not in EFFECTIVE_LENGTH_RULES:
        raise ConfigError(f"effective length by {rule!r}: known rules are {', '.join(EFFECTIVE_LENGTH_RULES)}")
    if rule == "fixed" and not table.scored:
        raise ConfigError(
            f"effective length by a fixed threshold needs a score, not {table.metric}: use monotone or any"
        )
    if not metrics.is_token_loss(table.metric) and not table.scored:
        return []
    curves = curves_of(table, samples)
    usual = (
        RULER_THRESHOLD_POINTS
        if rule == "fixed"
        else EFFECTIVE_LENGTH_MARGIN_POINTS
        if table.scored
        else EFFECTIVE_LENGTH_MARGIN_NATS
    )
    losses = _losses(curves, 0.0 if rule == "fixed" else 1.0)
    return [_effective_length(curves, losses, row, rule, usual if margin is None else margin) for row in table.methods]


Losses = Mapping[Place, Estimate]
"""Loss of a method at each length that has a level."""
Judged = list[tuple[int, Estimate | None]]
"""Losses of one method by length; None: no value there, and later lengths do not count."""


def _losses(curves: MethodCurves, share: float) -> Losses:
    """Losses of all methods against `share` of the level.

    The level is the best of its references, so the loss is the largest to any of them, and its interval has the largest
    lower and upper end of theirs: the upper end is too low in 2.5 % of cases, the lower one in about that many.
    """
    better = curves.table.better
    if not share:
        return {place: combine_levels([(-better, level)], curves.scored) for place, level in curves.levels.items()}
    known = curves.paired
    if not known:
        return {}
    pairs = [pair for found in known.values() for pair in found]
    whole = set(curves.levels.values())  # others are of a part of the questions, and know no common families
    usual = [number for number, (level, _) in enumerate(pairs) if level in whole]
    ends = np.empty((3, len(pairs)))
    ends[:, usual] = combine_level_pairs([pairs[number] for number in usual], (better * share, -better), curves.scored)
    for number in set(range(len(pairs))) - set(usual):
        one, other = pairs[number]
        each = combine_levels([(better * share, one), (-better, other)], curves.scored)
        ends[:, number] = each.value, _interval_end(each, "low"), _interval_end(each, "high")
    starts = np.cumsum([0, *map(len, known.values())])[:-1]
    largest = np.maximum.reduceat(ends, starts, axis=1)  # NaN where one of them has no interval
    return {
        place: Estimate(value, *((None, None) if math.isnan(low) else (low, high)))
        for place, (value, low, high) in zip(known, largest.T.tolist(), strict=True)
    }


def _losses_by_length(curves: MethodCurves, losses: Losses, row: MethodKey) -> Judged:
    """Loss of a method at each length.

    Refused lengths before the first judged one, too short for the task, are left out.
    """
    found: Judged = []
    for length in curves.table.lengths:
        if loss := losses.get((row, length)):
            found.append((length, loss))
        elif found and (row, length) in curves.table.entries:
            found.append((length, None))
    return found


def _last_answered_length(judged: Judged) -> int:
    """The longest length that has an answer."""
    return max(length for length, behind in judged if behind)


def _interval_end(behind: Estimate, side: str) -> float:
    """A value, or an end; NaN where there is none."""
    end = getattr(behind, side)
    return math.nan if end is None else float(end)


def _length_with_interval(
    row: MethodKey, name: str, judged: Judged, says: Callable[[str], float], notes: Sequence[Note]
) -> SummaryValue:
    """A length that a curve says with its values, its worse ends (`high`: far behind) and its better ones."""
    value, *ends = (says(side) for side in ("value", "high", "low"))
    low, high = (None, None) if any(map(math.isnan, ends)) else ends
    return SummaryValue(
        method=row,
        name=name,
        value=value,
        low=low,
        high=high,
        interval=None if low is None else "inversion",
        unit="tokens",
        notes=(*notes, *(() if low is not None else (Note(NoteKind.TOO_FEW_CLUSTERS),))),
        limit=_last_answered_length(judged),
    )


def _effective_length(curves: MethodCurves, losses: Losses, row: MethodKey, rule: str, margin: float) -> SummaryValue:
    # Against a level of 0 the loss is minus the score: 85.6 points or more are a loss of -85.6 or less.
    slack = (-margin if rule == "fixed" else margin) / (100.0 if curves.scored else 1.0)
    judged = _losses_by_length(curves, losses, row)
    if why := _why_no_level(curves, row, judged, slack):
        return SummaryValue(method=row, name="effective_length", value=None, unit="tokens", notes=(why,))

    def reach(side: str) -> float:
        reached = 0.0
        for length, behind in judged:
            end = math.inf if behind is None else _interval_end(behind, side)
            if end <= slack + MARGIN_ROUNDING_SLACK:
                reached = length
            elif rule == "monotone" or math.isnan(end):
                return math.nan if math.isnan(end) else reached
        return math.inf if reached == judged[-1][0] else reached

    first, last = judged[0][0], _last_answered_length(judged)
    value = reach("value")
    fixed = Note(NoteKind.SCORE_AT_LEAST, (margin,))
    notes = [Note(NoteKind.LONGEST_MEASURED, (last,))] if value == math.inf else []
    notes += [Note(NoteKind.BELOW_SHORTEST, (first,))] if value == 0.0 else []
    within = Note(NoteKind.WITHIN_POINTS if curves.scored else NoteKind.WITHIN_NATS, (margin, _level(curves)))
    notes += [fixed if rule == "fixed" else within]
    notes += [] if rule == "monotone" else [Note(NoteKind.RULE, (rule,))]
    notes += _coverage(curves, row, judged)
    notes += [] if curves.base or rule == "fixed" else [Note(NoteKind.NO_BASELINE_VALUE)]
    return _length_with_interval(row, "effective_length", judged, reach, notes)


def _collapse(curves: MethodCurves, losses: Losses, row: MethodKey) -> SummaryValue:
    share, rise = (COLLAPSE_SCORE_SHARE, 0.0) if curves.scored else (1.0, COLLAPSE_RISE_NATS)
    judged = _losses_by_length(curves, losses, row)
    if why := _why_no_level(
        curves, row, judged, EFFECTIVE_LENGTH_MARGIN_POINTS / 100 if curves.scored else COLLAPSE_RISE_NATS
    ):
        return SummaryValue(method=row, name="collapse", value=None, unit="tokens", notes=(why,))

    def begin(side: str) -> float:
        begins = math.inf
        for length, behind in reversed(judged):
            end = None if behind is None else _interval_end(behind, side)
            if end is not None and math.isnan(end):
                return math.nan
            # Of a score: at least the middle between chance and the level.
            if end is not None and end <= rise - (1 - share) * curves.chance(length) + MARGIN_ROUNDING_SLACK:
                break
            begins = begins if end is None else length
        return begins

    never = Note(NoteKind.NEVER_UP_TO, (_last_answered_length(judged),))
    lost = Note(NoteKind.COLLAPSED_SCORE, (_level(curves),))
    risen = Note(NoteKind.COLLAPSED_LOSS, (COLLAPSE_RISE_NATS, _level(curves)))
    notes = [*([never] if begin("value") == math.inf else []), lost if curves.scored else risen]
    notes += [*_coverage(curves, row, judged), *([] if curves.base else [Note(NoteKind.NO_BASELINE_VALUE)])]
    return _length_with_interval(row, "collapse", judged, begin, notes)


def _why_no_level(curves: MethodCurves, row: MethodKey, judged: Judged, slack: float) -> Note | None:
    """Why a method has no summary; None where it has one."""
    if not curves.has_value(row):
        return Note(NoteKind.NO_VALUE)
    if not judged:
        return Note(NoteKind.NO_LEVEL, (curves.trained,))
    if not curves.scored or slack < 0:
        return None
    best = max(curves.levels[place].value for place in curves.reference_cells(row, curves.trained))
    chance = max(curves.chance(length) for length in curves.table.lengths)
    if best - slack > chance + MARGIN_ROUNDING_SLACK:
        return None
    return Note(NoteKind.LEVEL_NEAR_CHANCE, (_level(curves), 100 * best, 100 * chance))


def _level(curves: MethodCurves) -> Note:
    if curves.base is None:
        return Note(NoteKind.BEST_OF_ITS_OWN, (curves.trained,))
    return Note(NoteKind.BEST_OF_BASELINE, (curves.base, curves.trained))


def _coverage(curves: MethodCurves, row: MethodKey, judged: Judged) -> Iterator[Note]:
    """Coverage of the judged lengths."""
    lengths = [length for length, behind in judged if behind]
    if len(lengths) < len(curves.table.lengths):
        yield Note(NoteKind.LENGTHS, (len(lengths), len(curves.table.lengths)))
    ended = [length for length, behind in judged if behind is None]
    if ended:
        refused = any(curves.table.entries[row, length].refused for length in ended)
        yield Note(NoteKind.REFUSED_AT if refused else NoteKind.NO_VALUE_AT, (tuple(ended),))
    if lengths[-1] <= curves.trained:
        yield Note(NoteKind.NOTHING_BEYOND, (curves.trained,))


def _coverage_note(lengths: Sequence[int], of: Sequence[int]) -> Note:
    if len(lengths) == 1:
        return Note(NoteKind.ONE_LENGTH, (1, len(of), lengths[0]))
    return Note(NoteKind.LENGTHS_FROM_TO, (len(lengths), len(of), lengths[0], lengths[-1]))


def _mean_height(
    curves: MethodCurves, row: MethodKey, name: str, lengths: Sequence[int], of: Sequence[int]
) -> SummaryValue:
    if not curves.has_value(row):
        return curves.summary(row, name, Note(NoteKind.NO_VALUE))
    if len(lengths) < 2:
        return curves.summary(row, name, Note(NoteKind.TOO_FEW_LENGTHS, (len(lengths),)))
    weights = _trapezoids(lengths)
    terms = [(weight, curves.levels[row, length]) for length, weight in weights.items()]
    mean = combine_levels(terms, curves.scored)
    if metrics.is_likelihood(curves.table.metric) and mean.low is not None:
        mean = replace(mean, low=max(mean.low, 0.0))  # no NLL is below 0
    found = curves.summary(row, name, mean, [_coverage_note(lengths, of)])
    floors = [curves.floor(row, length) for length in weights]
    known = [weight * floor for weight, floor in zip(weights.values(), floors, strict=True) if floor is not None]
    scale = 100.0 if curves.scored else 1.0
    return replace(found, floor=scale * math.fsum(known) if len(known) == len(floors) else None)


def _trapezoids(lengths: Sequence[int]) -> dict[int, float]:
    """Weights of heights in the mean over log2 length."""
    places = np.log2(lengths)
    spans = np.diff(places) / (places[-1] - places[0])
    # A length has half of the span to each of its neighbours.
    weights = (np.append(spans, 0.0) + np.insert(spans, 0, 0.0)) / 2
    return dict(zip(lengths, weights.tolist(), strict=True))


def _price(curves: MethodCurves, samples: Mapping[str, Sequence[Sample]], row: MethodKey) -> SummaryValue:
    """Method - none on the same questions: as deployed, where that was measured."""
    record = curves.table.price_of(row)
    if record is None and row in curves.table.follows:
        return curves.summary(row, "price", Note(NoteKind.PRICE_NOT_MEASURED))
    if record is None:
        return _local_price(curves, row, "price")
    setting = setting_of(curves.table.deployed[row]), record.length
    base = curves.outcomes.get((BASELINE_METHOD, record.length), [])
    if record.value is None or not base:
        kind = NoteKind.SETTING_REFUSED if record.refused else NoteKind.SETTING_WITHOUT_VALUE
        return curves.summary(row, "price", Note(kind, setting))
    other = outcomes_of_samples(samples.get(record.cell, ()), curves.table.metric or "")
    sides = {record.length: (base, other)}
    return _paired_price(curves, row, "price", sides, {record.length: 1.0}, Note(NoteKind.SETTING, setting))


def _local_price(curves: MethodCurves, row: MethodKey, name: str) -> SummaryValue:
    """Method - none on the same questions, mean of the shared lengths up to the trained one."""
    weights = {length: 1 / len(curves.inside) for length in curves.inside}
    missing = [each for each in (BASELINE_METHOD, row) if not curves.has_value(each)]
    if missing:
        return curves.summary(row, name, Note(NoteKind.METHOD_WITHOUT_VALUE, (missing[0],)))
    if not weights:
        return curves.summary(row, name, Note(NoteKind.NO_SHARED_LENGTH, (curves.trained,)))
    if row == BASELINE_METHOD:
        return replace(curves.summary(row, name, Note(NoteKind.BASELINE)), value=0.0)
    sides = {length: (curves.outcomes[BASELINE_METHOD, length], curves.outcomes[row, length]) for length in weights}
    up_to = [length for length in curves.table.lengths if length <= curves.trained]
    return _paired_price(curves, row, name, sides, weights, _coverage_note(list(weights), up_to))


def _paired_price(
    curves: MethodCurves,
    row: MethodKey,
    name: str,
    sides: Mapping[int, tuple[list[Outcome], list[Outcome]]],
    weights: Mapping[int, float],
    covers: Note,
) -> SummaryValue:
    """The weighted mean of the differences of several lengths, with its interval and p."""
    found = {length: question_gaps(*pair) for length, pair in sides.items()}
    if not all(found.values()):
        return curves.summary(row, name, Note(NoteKind.NO_PAIRS, (BASELINE_METHOD,)))
    baseline, other = (_pool_lengths(sides, side, found, weights) for side in (0, 1))
    whole = paired_difference(baseline, other, curves.table.metric or "")
    if whole.first_mismatch is not None:
        index, place = divmod(whole.first_mismatch, len(weights))
        where = index, list(weights)[place], BASELINE_METHOD
        return curves.summary(row, name, Note(NoteKind.OTHER_QUESTION_AT, where))
    # Gained and lost apart: so a difference has a width even where no question changed.
    parts: dict[tuple[int, int], list[Outcome]] = {}
    for length, each in found.items():
        parts[length, 1], parts[length, -1] = split_gains_and_losses(each)
    known = group_levels(parts, curves.right_or_wrong)
    terms = [(sign * weights[length], level) for (length, sign), level in known.items()]
    price = combine_levels(terms, curves.right_or_wrong)
    if curves.scored and price.low is not None and price.high is not None:  # no score changes by more than 1
        price = replace(price, low=max(-1.0, price.low), high=min(1.0, price.high))
    return curves.summary(row, name, price, (covers, Note(NoteKind.PAIRS, (whole.pairs,))), whole.p)


def _pool_lengths(
    sides: Mapping[int, tuple[list[Outcome], list[Outcome]]],
    side: int,
    pairs: Mapping[int, list[Outcome]],
    weights: Mapping[int, float],
) -> list[Outcome]:
    """The questions of several lengths as those of one cell, their amounts such that its mean is the weighted one."""
    pooled = []
    count = sum(map(len, pairs.values()))
    for place, (length, pair) in enumerate(sides.items()):
        scale = count * weights[length] / math.fsum(each.units for each in pairs[length])
        for each in pair[side]:
            amount = None if each.amount is None else scale * each.amount
            # Question i of one length is another than question i of the next: each gets an index of its own.
            pooled.append(replace(each, index=each.index * len(sides) + place, amount=amount, targets=None))
    return pooled


def _context_gain(curves: MethodCurves, samples: Mapping[str, Sequence[Sample]], row: MethodKey) -> SummaryValue:
    if not curves.has_value(row):
        return curves.summary(row, "context_gain", Note(NoteKind.NO_VALUE))
    if not curves.inside or curves.shared[-1] <= curves.trained:
        return curves.summary(row, "context_gain", Note(NoteKind.ONE_SIDE_OF_TRAINED))
    ends = [curves.inside[-1], curves.shared[-1]]
    entries = {
        (row, length): record
        for (name, length), record in curves.table.entries.items()
        if name == row and length in ends
    }
    found = context_gains(replace(curves.table, methods=[row], lengths=ends, entries=entries), samples)
    change = found[0].gain if found else None
    if change is None:
        return curves.summary(row, "context_gain", Note(NoteKind.OTHER_TARGETS, tuple(ends)))
    kind = None if change.low is None else "cluster_bootstrap"
    estimate = Estimate(change.value, change.low, change.high, kind)
    targets = NoteKind.TARGETS_WITH_FAILED if change.left_out else NoteKind.TARGETS
    return curves.summary(row, "context_gain", estimate, [Note(targets, (*ends, change.targets, change.left_out))])


def _position_biases(curves: MethodCurves) -> Iterator[SummaryValue]:
    """Inside the trained length and beyond it, where needles of any cell have depths."""
    parts: dict[tuple[MethodKey, int, bool], list[Outcome]] = {}
    for (row, length), group in curves.outcomes.items():
        for each in group:
            if each.depth is not None:
                outer = not OUTER_DEPTH_SHARE <= each.depth < 1 - OUTER_DEPTH_SHARE
                parts.setdefault((row, length, outer), []).append(each)
    known = group_levels(parts, True) if curves.scored else {}
    rows = {row for row, _, _ in known}
    both = [at for at in curves.shared if all((row, at, outer) in known for row in rows for outer in (True, False))]
    inside = [length for length in both if length <= curves.trained]
    beyond = [length for length in both if length > curves.trained]
    every = curves.table.lengths
    for row in curves.table.methods if known else []:
        for name, lengths, of in (
            ("position_bias", inside, [at for at in every if at <= curves.trained]),
            ("position_bias_beyond", beyond, [at for at in every if at > curves.trained]),
        ):
            if lengths and row in rows:
                terms = [
                    (sign / len(lengths), known[row, length, outer])
                    for length in lengths
                    for sign, outer in ((1, True), (-1, False))
                ]
                yield curves.summary(row, name, combine_levels(terms, True), [_coverage_note(lengths, of)])
            else:
                yield curves.summary(row, name, Note(NoteKind.NO_SHARED_DEPTHS))


@dataclass(frozen=True, eq=False)
class _Summarised:
    """A table's curves, and what several summaries need of them."""

    curves: MethodCurves
    samples: Mapping[str, Sequence[Sample]]
    whole: "Losses"
    """Losses against the level."""
    half: "Losses"
    """Losses against the share of the level at which a curve has collapsed."""
    biases: Mapping[tuple[MethodKey, str], SummaryValue]

    def effective_length(self, row: MethodKey) -> SummaryValue:
        """By the usual rule and margin."""
        margin = EFFECTIVE_LENGTH_MARGIN_POINTS if self.curves.scored else EFFECTIVE_LENGTH_MARGIN_NATS
        return _effective_length(self.curves, self.whole, row, EFFECTIVE_LENGTH_RULES[0], margin)

    def area(self, row: MethodKey, name: str, start: int = 0) -> SummaryValue:
        """Of the shared lengths from a start on."""
        lengths = ([at for at in of if at >= start] for of in (self.curves.shared, self.curves.table.lengths))
        return _mean_height(self.curves, row, name, *lengths)


CURVE_SUMMARIES = (
    Summary(
        "effective_length",
        "the largest length up to which every measured length is within "
        f"{EFFECTIVE_LENGTH_MARGIN_NATS} nats, or {EFFECTIVE_LENGTH_MARGIN_POINTS:g} points, of the level",
        "up to it every length is",
        _Summarised.effective_length,
        better="higher",
        sorting=3,
    ),
    Summary(
        "collapse",
        f"the first length from which every length is more than {COLLAPSE_RISE_NATS} nats above the level, or below "
        "half of the level's distance above chance",
        "from it on every length is",
        lambda view, row: _collapse(view.curves, view.half, row),
        better="higher",
    ),
    Summary(
        "area",
        "mean height of the curve over log2(length / T), by trapezoids, over all shared lengths",
        "mean height of the curve over log2 of the length",
        lambda view, row: view.area(row, "area"),
        better="metric",
        signed=False,
        sorting=2,
    ),
    Summary(
        "area_beyond",
        "the same from T on",
        "the same from the trained length on",
        lambda view, row: view.area(row, "area_beyond", view.curves.trained),
        better="metric",
        signed=False,
        sorting=1,
    ),
    Summary(
        "price",
        "how much worse texts of up to T tokens get when the method is set up for the longest length, as a deployment "
        "is; of a method that does not follow the length, the mean over the shared lengths up to T",
        "what the method changes up to the trained length, with the factor of its longest length",
        lambda view, row: _price(view.curves, view.samples, row),
        better="metric",
    ),
    Summary(
        "price_local",
        "the same, set for each length anew, mean of the shared lengths up to T, as in Su's tables: 0 by construction "
        "where the factor follows the length",
        "the same with the factor of each length",
        lambda view, row: _local_price(view.curves, row, "price_local") if _follows_length(view.curves.table) else None,
        better="metric",
    ),
    Summary(
        "context_gain",
        "NLL at T (or the longest below) - NLL at the longest shared length, same targets: positive if context helps",
        "NLL at the first length minus NLL at the second",
        lambda view, row: None if view.curves.scored else _context_gain(view.curves, view.samples, row),
    ),
    Summary(
        "position_bias",
        "score with the needle in the outer half of depths (below 1/4, from 3/4) - in the inner half, mean of the "
        "shared lengths up to T: positive is lost in the middle",
        "needle in the outer half of depths minus needle in the inner half, up to the trained length",
        lambda view, row: view.biases.get((row, "position_bias")),
    ),
    Summary(
        "position_bias_beyond",
        "the same beyond T",
        "the same beyond the trained length",
        lambda view, row: view.biases.get((row, "position_bias_beyond")),
    ),
)
"""Summaries of a curve, in the order of their columns."""


def _follows_length(table: Table) -> bool:
    """Whether the factor of a row follows the length, or a row is set as one that does for its longest."""
    return bool(table.deployed or table.follows)

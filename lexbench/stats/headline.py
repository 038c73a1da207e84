"""The headline of a perplexity task: what context beyond the trained length adds, beside level, retrieval and price.

    level      NLL at the longest length L at which any method has a value
    gain       NLL of none at T - NLL of the method at L, on the same targets; T: the longest measured length within the
               trained one. Where none has no value there: the method's own NLL at T
    retrieval  accuracy at L, mean of the tasks that hide a needle at a depth, measured on the same model alike; without
               those at which every method is at its floor at the shortest measured length, too
    price      method - none at T, set as for L (`stats.summaries`)
    control    NLL of none at T/2, or the longest measured length below it, - NLL of none at T, on the same targets:
               what more context brings where the model can use it

Without a control above 0, as on a text that needs no far context, more context can only show harm: no gain is claimed,
and rows are in the order of retrieval and level. Against none at T, which any user has at hand by cutting the text,
forgetting cannot win: a window that keeps the level has a gain of 0, and a method that is worse inside the trained
length has no easy start. A gain is claimed where its interval is above 0, its two-sided p by sign flips over documents
is up to 0.05 after Holm's correction over the methods, and the level is above its floor (`stats.floors`); never of a
text that the model does not speak.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record, Sample
from lexbench.stats.combine import combine_levels, group_levels
from lexbench.stats.floors import at_floor, language_not_learned, shared_limit
from lexbench.stats.gain import NllDrop, nll_drop
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, adjust_by_holm
from lexbench.stats.metrics import is_headline_score, is_token_loss
from lexbench.stats.notes import Note
from lexbench.stats.pairs import PairedDifference, correct_by_holm, outcomes_of_samples, paired_difference
from lexbench.stats.summaries import SummaryValue, method_prices
from lexbench.stats.tables import Table

Samples = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadlineRow:
    """Level, gain, retrieval and price of one method."""

    method: MethodKey
    level: Record | None
    gain: NllDrop | None
    """None: a cell is refused or failed, or the two lengths do not score the same targets."""
    gains: bool
    """Whether the gain is claimed."""
    retrieval: Record | None
    """A mean over tasks as a record of accuracy."""
    price: SummaryValue | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Headline:
    """All methods of one perplexity task on one model, claimed gains first."""

    table: Table
    inside: int
    """T: longest length within the trained one, in tokens."""
    longest: int
    """L: longest length beyond the trained one, in tokens."""
    needles: list[Table]
    """Tables of retrieval behind the mean."""
    unable: list[str]
    """Retrieval tasks left out of it: the model cannot do them at a short length either."""
    half: int | None
    """Length at which the control begins; None: none was measured at T/2 or below it, or not on the same targets."""
    control: NllDrop | None
    """Gain of the unmodified model from `half` to T; None: without `half`."""
    rows: list[HeadlineRow]
    unspoken: Note | None
    """Note that the model has not learned the text's language."""
    blind: MethodKey | None
    """Method whose loss cannot be told from that of the best one at retrieval, and which is right less often.

    None: none, or several tasks.
    """
    blind_gap: PairedDifference | None
    """Its loss minus that of the best one at retrieval, nats per token; None: without `blind`."""

    @property
    def retrievals(self) -> dict[MethodKey, Record]:
        """Retrieval of each method that has a value."""
        found = {row.method: row.retrieval for row in self.rows}
        return {method: each for method, each in found.items() if each is not None and each.value is not None}

    @property
    def above_floor(self) -> dict[MethodKey, float]:
        """Values of retrieval that are above their floor."""
        return {method: each.value or 0.0 for method, each in self.retrievals.items() if not at_floor(each)}

    @property
    def idle(self) -> bool:
        """Whether the control was measured and shows no gain."""
        return _control_gains_nothing(self.control)


def _control_gains_nothing(control: NllDrop | None) -> bool:
    return control is not None and (control.low is None or control.low <= 0)


def build_headlines(every: Sequence[Table], samples: Samples) -> list[Headline]:
    """Headlines: gains from context, retrieval and prices, one for each table of NLL that allows them.

    It needs a length beyond the trained one, one within it, and the same targets at both. Of the tables of one task on
    one model, the one with the most samples comes first.

    Args:
        every: all tables of a report.
        samples: of each cell id.
    """
    found = [_headline(table, every, samples) for table in every if is_token_loss(table.metric)]
    alike = group_by_key(filter(None, found), lambda each: (each.table.cell.model, each.table.cell.task))
    return [each for group in alike.values() for each in sorted(group, key=lambda each: -each.table.cell.n)]


def _headline(table: Table, every: Sequence[Table], samples: Samples) -> Headline | None:
    inside = [length for length in table.lengths if length <= table.cell.trained_length]
    longest = max((at for at in table.lengths if any(_has_value(table, row, at) for row in table.methods)), default=0)
    if not inside or longest <= table.cell.trained_length:
        return None
    silent = language_not_learned(table.of(table.methods[0]))  # none, where it was measured
    start = inside[-1]
    half, control = _control(table, samples, start)
    gains = {row: _gain(table, samples, row, start, longest) for row in table.methods}
    if not any(gains.values()):
        return None
    priced = method_prices(table, samples)
    hidden = _retrieval_tables(table, every, samples, longest)
    # Without a task that the model can do: those of which no shorter length tells that it cannot.
    needles = [each for each in hidden if _is_above_floor(each, longest)] or [
        each for each in hidden if _has_no_shorter_value(each, longest)
    ]
    known = {row: each for row, each in gains.items() if each is not None and each.p is not None}
    tested = dict(zip(known, adjust_by_holm([each.p or 0.0 for each in known.values()]), strict=True))
    rows = []
    for method, gain in gains.items():
        level = table.entries.get((method, longest))
        positive = gain is not None and gain.low is not None and gain.low > 0
        claimed = (
            positive
            and not silent
            and tested.get(method, 1.0) <= SIGNIFICANCE_LEVEL
            and level is not None
            and not at_floor(level)
        ) and not _control_gains_nothing(control)
        rows.append(
            HeadlineRow(
                method=method,
                level=level,
                gain=gain,
                gains=claimed,
                retrieval=_mean_accuracy([each.entries.get((method, longest)) for each in needles], samples),
                price=None if method == BASELINE_METHOD else priced[method],
            )
        )
    rows.sort(key=_headline_sort_key)
    unable = [each.cell.task for each in hidden if each not in needles]
    found = Headline(
        table=table,
        inside=start,
        longest=longest,
        needles=needles,
        unable=unable,
        half=half,
        control=control,
        rows=rows,
        unspoken=silent,
        blind=None,
        blind_gap=None,
    )
    above = found.above_floor
    if len(needles) != 1 or not above or shared_limit(found.retrievals.values()):
        return found
    blind, gap = _blind(table, needles[0], samples, max(above, key=above.__getitem__), longest) or (None, None)
    return replace(found, blind=blind, blind_gap=gap)


def _control(table: Table, samples: Samples, start: int) -> tuple[int | None, NllDrop | None]:
    """The length at which the control begins, and what the unmodified model gains from there to `start`."""
    half = max((at for at in table.lengths if 2 * at <= start and _has_value(table, BASELINE_METHOD, at)), default=None)
    if half is None or not _has_value(table, BASELINE_METHOD, start):
        return None, None
    found = nll_drop(table, samples, (BASELINE_METHOD, half), (BASELINE_METHOD, start))
    return (None, None) if found is None else (half, found)


def _headline_sort_key(row: HeadlineRow) -> tuple[bool, float, float]:
    """Claimed gains first, the largest before others; then the best retrieval, then the largest gain."""
    gain = math.inf if row.gain is None else -row.gain.value
    found = row.retrieval.value if row.retrieval is not None and row.retrieval.value is not None else 0.0
    return (not row.gains, gain if row.gains else -found, gain)


def _gain(table: Table, samples: Samples, row: MethodKey, start: int, longest: int) -> NllDrop | None:
    base = BASELINE_METHOD if _has_value(table, BASELINE_METHOD, start) else row
    if not (_has_value(table, base, start) and _has_value(table, row, longest)):
        return None
    return nll_drop(table, samples, (base, start), (row, longest))


def _has_value(table: Table, row: MethodKey, length: int) -> bool:
    record = table.entries.get((row, length))
    return record is not None and record.value is not None


def _retrieval_tables(table: Table, every: Sequence[Table], samples: Samples, length: int) -> list[Table]:
    """Tables of accuracy whose samples have a needle's depth, of the same model and backend, with this length.

    Of tables that differ in their samples alone, that with the most.
    """
    names = ("model", "trained_length", "seed", "backend", "dtype", "kernel")
    found = [
        each
        for each in every
        if is_headline_score(each.metric)
        and all(getattr(each.cell, name) == getattr(table.cell, name) for name in names)
        and any(sample.depth is not None for record in each.at(length) for sample in samples.get(record.cell, ()))
    ]
    alike = group_by_key(found, lambda each: (each.cell.task, each.cell.protocol, each.cell.corpus))
    return [max(group, key=lambda each: each.cell.n) for group in alike.values()]


def _is_above_floor(table: Table, longest: int) -> bool:
    """Whether a method is above its floor at the shortest length with a value."""
    known = _lengths_with_value(table, longest)
    return bool(known) and not all(at_floor(record) for record in table.at(known[0]))


def _has_no_shorter_value(table: Table, longest: int) -> bool:
    """Whether no shorter length has a value."""
    return _lengths_with_value(table, longest) == [longest]


def _lengths_with_value(table: Table, longest: int) -> list[int]:
    """Lengths with a value, up to the longest."""
    return [at for at in table.lengths if at <= longest and any(_has_value(table, row, at) for row in table.methods)]


def _mean_accuracy(records: Sequence[Record | None], samples: Samples) -> Record | None:
    """The mean accuracy of one method over tasks; None unless every task has a value."""
    valued = [record for record in records if record is not None and record.value is not None]
    if not valued or len(valued) < len(records):
        return None
    if len(valued) == 1:
        return valued[0]
    known = group_levels(
        {n: outcomes_of_samples(samples[each.cell], "accuracy") for n, each in enumerate(valued)}, True
    )
    found = combine_levels([(1 / len(valued), level) for level in known.values()], True)
    chances = [each.chance for each in valued if each.chance is not None]
    return replace(
        valued[0],
        value=found.value,
        low=found.low,
        high=found.high,
        interval=found.kind,
        chance=math.fsum(chances) / len(valued) if len(chances) == len(valued) else None,
        n=sum(each.n for each in valued),
        failed=sum(each.failed for each in valued),
        truncated=sum(each.truncated for each in valued),
    )


def _blind(
    table: Table, needle: Table, samples: Samples, best: MethodKey, longest: int
) -> tuple[MethodKey, PairedDifference] | None:
    """Method that is right least often at a loss that cannot be told from that of `best`, and its loss minus that one.

    Of several the one with the nearest loss. It is right less often than `best` by a paired test, after Holm's
    correction over the methods; a loss is told by a paired test, or by an interval that leaves out 0.
    """
    others = [row for row in table.methods if row != best and _has_value(table, row, longest)]
    others = [row for row in others if _has_value(needle, row, longest)]
    if not _has_value(table, best, longest):
        return None
    forms = {row: needle.attentions.get(needle.entries[row, longest].cell, row) for row in (best, *others)}
    others = [row for row in others if forms[row] != forms[best]]

    def against(found: Table, row: MethodKey) -> PairedDifference:
        sides = [
            outcomes_of_samples(samples[found.entries[each, longest].cell], found.metric or "") for each in (best, row)
        ]
        return paired_difference(sides[0], sides[1], found.metric or "")

    apart = correct_by_holm({row: against(needle, row) for row in others}, forms)
    fewer = [row for row, each in apart.items() if each.significant and (each.difference or 0.0) < 0]
    gaps = {row: gap for row in fewer if _cannot_be_told(gap := against(table, row))}
    return min(
        gaps.items(),
        key=lambda each: (needle.entries[each[0], longest].value or 0.0, abs(each[1].difference or 0.0)),
        default=None,
    )


def _cannot_be_told(gap: PairedDifference) -> bool:
    """Whether a test was made, and neither it nor the interval tells a difference from 0."""
    if gap.p is None or gap.interval is None:
        return False
    return gap.p > SIGNIFICANCE_LEVEL and gap.interval.low <= 0 <= gap.interval.high

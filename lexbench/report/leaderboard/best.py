"""Best row of a column, rows that tie with it statistically, and means over shared lengths."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lexbench.core.record import Record, Sample
from lexbench.report.wording import format_record_value
from lexbench.stats import metrics
from lexbench.stats.combine import combine_levels, group_levels
from lexbench.stats.floors import NGRAM_FLOOR_NAMES, at_floor
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, outcomes_of_samples, paired_difference

Samples = Mapping[str, Sequence[Sample]]
Row = TypeVar("Row", bound=Hashable)
"""Samples by cell id."""


@dataclass(frozen=True, kw_only=True)
class RowMark:
    """Mark of a row in a column."""

    best: bool = False
    """Best at the displayed precision."""
    level: bool = False
    """Ties with the best statistically."""
    p_holm: float | None = None
    """p value of the difference to the best, adjusted over the column; None if not tested."""

    @property
    def behind(self) -> bool:
        """Whether the best is better, by a significant difference."""
        return self.p_holm is not None and not (self.best or self.level)


def mean_record(records: Sequence[Record], samples: Samples) -> Record:
    """The mean of the values of one row's records, each with the same weight: in nats where they are likelihoods.

    Its interval is that of `combine.combine_levels`; a document at several lengths stays one cluster. An interval of
    likelihoods has no end below 0. Its floors are the means of the records' floors.
    """
    metric = records[0].metric or ""
    scored = metrics.is_score(metric)
    known = group_levels({record.length: outcomes_of(record, samples) for record in records}, scored)
    found = combine_levels([(1 / len(records), known[record.length]) for record in records], scored)
    limits: dict[str, Any] = {name: _mean_floor(records, name) for name in ("chance", *NGRAM_FLOOR_NAMES)}
    return replace(
        records[0],
        value=found.value,
        low=max(found.low, 0.0) if found.low is not None and metrics.is_likelihood(metric) else found.low,
        high=found.high,
        interval=found.kind,
        **limits,
        n=sum(record.n for record in records),
        clusters=max(record.clusters for record in records),
        truncated=sum(record.truncated for record in records),
        failed=sum(record.failed for record in records),
    )


def _mean_floor(records: Sequence[Record], name: str) -> float | None:
    """The mean of a floor, where all records have it."""
    known = [getattr(record, name) for record in records]
    return None if None in known else math.fsum(known) / len(known)


def as_perplexity(record: Record) -> Record:
    """A mean in nats as a perplexity, exponentiated once, at the end; no value beyond float64."""

    def turned(nats: float | None) -> float | None:
        return None if nats is None or nats > 709 else math.exp(nats)

    values: dict[str, Any] = {
        name: turned(getattr(record, name)) for name in ("value", "low", "high", *NGRAM_FLOOR_NAMES)
    }
    return replace(record, metric="perplexity", **values)


def outcomes_of(record: Record, samples: Samples) -> list[Outcome]:
    """Outcomes of a record's cell; bits per byte as amounts in bits over units in bytes."""
    metric, cell = record.metric or "", samples.get(record.cell, ())
    facts = metrics.facts_of(metric)
    if facts.per != "bytes":
        return outcomes_of_samples(cell, metric)
    nats = outcomes_of_samples(cell, facts.follows)
    return [
        replace(each, amount=each.amount / math.log(2), targets=each.bytes) if each.amount is not None else each
        for each in nats
    ]


def mark_best_rows(
    rows: Mapping[Row, Sequence[Record]],
    shown: Mapping[Row, Record],
    samples: Samples,
    forms: Mapping[str, str] | None = None,
) -> dict[Row, RowMark]:
    """The best of a column, and the rows that tie with it statistically.

    Args:
        rows: of each row the cells that its value comes from: one, or those that the value is the mean of.
        shown: of each row the value.
        samples: of each cell id; empty: nothing is tested.
        forms: of each cell id the normal form of its attention (`stats.same_attention`); the other settings agree.

    The row that stands for the best is the first with the best value; every other row is compared with it alone, with
    Holm's correction over the column. A row at its floor is never the best. Empty where all values
    are shown alike, where no side is better, and where every row is at its floor.
    """
    asked = {row: [outcomes_of(record, samples) for record in of] for row, of in rows.items()} if samples else {}
    known = forms or {}
    functions = {
        row: tuple((record.length, known[record.cell]) for record in of)
        for row, of in rows.items()
        if all(record.cell in known for record in of)
    }
    return marks_of(shown, asked, functions)


def marks_of(
    shown: Mapping[Row, Record],
    asked: Mapping[Row, Sequence[Sequence[Outcome]]],
    functions: Mapping[Row, Hashable] | None = None,
) -> dict[Row, RowMark]:
    """`mark_best_rows` of outcomes: of each row those of its cells; none: nothing is tested.

    Rows of one function, as `functions` names it, are one: not tested against each other, and counted once.
    """
    texts = {
        row: format_record_value(record, record.value) for row, record in shown.items() if record.value is not None
    }
    side = max((metrics.better_direction(shown[row].metric) for row in texts), default=0)
    above = [row for row in texts if not at_floor(shown[row])]
    if not side or not above or len(set(texts.values())) < 2:
        return {}
    top = max(above, key=lambda row: side * (shown[row].value or 0.0))
    tested: dict[Row, PairedDifference] = {}
    known = functions or {}
    same = {row for row in texts if row != top and row in known and known[row] == known.get(top)}
    if asked:
        metric = shown[top].metric or ""
        found = correct_by_holm(
            {row: difference_from_best(asked[top], asked[row], metric) for row in texts if row not in (top, *same)},
            known,
        )
        tested = {row: each for row, each in found.items() if each.p_holm is not None}
    return {
        row: RowMark(
            best=text == texts[top] and row in above,
            level=(row in same or (row in tested and not tested[row].significant)) and text != texts[top],
            p_holm=tested[row].p_holm if row in tested else None,
        )
        for row, text in texts.items()
    }


def difference_from_best(
    best: Sequence[Sequence[Outcome]], other: Sequence[Sequence[Outcome]], metric: str
) -> PairedDifference:
    """The other row minus the best: at one length, or as the difference of their means over several.

    Of several lengths every question weighs as in its own length's value, sum of amounts / sum of units. Documents that
    stand at several lengths stay one cluster.
    """
    if len(best) == 1:
        return paired_difference(best[0], other[0], metric)
    pooled: tuple[list[Outcome], list[Outcome]] = ([], [])
    for left, right in zip(best, other, strict=True):
        found = paired_difference(left, right, metric)
        if found.difference is None:
            return found
        for side, part in zip(pooled, _weighted_outcomes(left, right, len(pooled[0])), strict=True):
            side.extend(part)
    # A length's amounts sum to its value, and `paired_difference` divides by the questions of all: so the result is the
    # mean.
    scale = len(pooled[0]) / len(best)
    one, two = ([replace(each, amount=scale * (each.amount or 0.0)) for each in side] for side in pooled)
    return paired_difference(one, two, metric)


def _weighted_outcomes(left: Sequence[Outcome], right: Sequence[Outcome], start: int) -> Iterator[list[Outcome]]:
    """The questions that both sides have an amount of, numbered from `start`, amounts as shares of the value."""
    known = [{each.index: each for each in side if each.amount is not None} for side in (left, right)]
    indexes = sorted(known[0].keys() & known[1].keys())
    units = math.fsum(known[0][index].units for index in indexes)
    for side in known:
        yield [
            replace(side[index], index=start + place, amount=(side[index].amount or 0.0) / units, targets=None)
            for place, index in enumerate(indexes)
        ]

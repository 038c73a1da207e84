"""Paired differences of methods to a baseline method at each length, with Holm's correction."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record, Sample
from lexbench.stats.floors import both_at_ceiling, both_at_floor
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, Interval, min_sign_flip_p
from lexbench.stats.metrics import LIKELIHOOD_LABELS, better_direction
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, outcomes_of_samples, paired_difference
from lexbench.stats.tables import Place, Table
from lexbench.stats.wording import count_with_noun, display_factor, display_unit

SAME_ATTENTION_REASON = "same attention"
"""Reason to test nothing: both cells have one attention, so they differ by rounding alone."""


@dataclass(frozen=True, kw_only=True)
class Difference(PairedDifference):
    """A method minus the baseline at one length, in the table's unit."""

    method: MethodKey
    length: int
    cell: str
    """Id of the method's cell."""
    baseline_cell: str | None = None
    refused: str | None = None
    """Why the method's cell has no samples."""
    apart: str | None = None
    """Why its samples make no pairs with the baseline's, or why these are not tested."""
    same_attention: bool = False
    """Whether both have the same attention: a difference of 0 by construction, which is not tested."""


@dataclass(frozen=True, eq=False)
class Differences:
    """The methods of a table against one of them."""

    table: Table
    baseline: MethodKey
    entries: dict[Place, Difference]

    @property
    def empty(self) -> bool:
        """Whether nothing could be paired."""
        return all(each.difference is None for each in self.entries.values())

    @property
    def unit(self) -> str:
        """Unit of values and differences; a point is a hundredth of a score."""
        return display_unit(self.table.metric or "")


def paired_differences(
    table: Table,
    samples: Mapping[str, Sequence[Sample]],
    baseline: MethodKey = BASELINE_METHOD,
    only: Collection[MethodKey] | None = None,
) -> Differences | None:
    """Every method of a table, or only those named, minus the baseline, at each length.

    `samples` are those of each cell id. Cells of a table share all of their identity but method and length, so the
    samples of one length and index answer one question. None where the table lacks the baseline or another method, and
    for what follows from NLL: perplexities and bits per byte.
    """
    others = [row for row in table.methods if row != baseline and (only is None or row in only)]
    follows = table.metric in LIKELIHOOD_LABELS and table.metric != "nll"
    if table.metric is None or follows or not others or baseline not in table.methods:
        return None
    known = {
        place: outcomes_of_samples(samples.get(each.cell, ()), table.metric) for place, each in table.entries.items()
    }
    found = {
        (row, length): _difference(table, known, baseline, row, length)
        for row in others
        for length in table.lengths
        if (row, length) in table.entries
    }
    return Differences(table, baseline, correct_by_holm(found))


def leads(table: Table, samples: Mapping[str, Sequence[Sample]], method: MethodKey) -> Differences | None:
    """The lead of one method over every other method of its table, at each length: above 0 where the method is better.

    Entries stand at the other method's place; of a metric without a better side, the method minus the other one.
    Holm's correction counts all other methods and all lengths. None as of `paired_differences`.
    """
    found = paired_differences(table, samples, method)
    if found is None:
        return None
    side = better_direction(table.metric) or 1
    return replace(found, entries={place: _with_sign(entry, -side) for place, entry in found.entries.items()})


def _with_sign(entry: Difference, side: int) -> Difference:
    """The difference times 1 or -1; both values stay."""
    at = entry.interval
    return replace(
        entry,
        difference=None if entry.difference is None else side * entry.difference,
        interval=at and (at if side > 0 else Interval(-at.high, -at.low, at.kind)),
    )


def _difference(
    table: Table, known: Mapping[Place, Sequence[Outcome]], baseline: MethodKey, row: MethodKey, length: int
) -> Difference:
    """Difference of a row to the baseline at one length, not yet corrected for the others."""
    record, base = table.entries[row, length], table.entries.get((baseline, length))
    about: dict[str, Any] = {"method": row, "length": length, "cell": record.cell}
    about["baseline_cell"] = base.cell if base else None
    if record.refused:
        return Difference(**about, refused=record.refused)
    if base is None or base.refused:
        return Difference(**about, apart=f"{baseline} is {'refused' if base else 'not measured'} at {length}")
    metric = table.metric or ""
    found = paired_difference(known[baseline, length], known[row, length], metric)
    if found.first_mismatch is not None:
        reason = f"sample {found.first_mismatch} is not the question that {baseline} was asked: run both anew"
        return Difference(**about, apart=reason)
    stated = table.attentions.get(record.cell)
    if stated is not None and stated == table.attentions.get(base.cell):
        # Not tested, so that it takes no part in Holm's correction.
        about |= {"apart": SAME_ATTENTION_REASON, "same_attention": True}
        found = replace(found, p=None, interval=None)
    # A cell of which every sample failed has no record of the metric: its zeros make no difference.
    if not (_has_value(table, base) and _has_value(table, record)):
        found = PairedDifference(failed=found.failed, truncated=found.truncated, unpaired=found.unpaired)
    limit = both_at_floor(base, record) or both_at_ceiling(base, record)
    return Difference(**about, **{**vars(found.in_unit(display_factor(metric))), "limit": limit})


def _has_value(table: Table, record: Record) -> bool:
    return record.metric == table.metric and record.value is not None


def usual_counts(found: Differences) -> tuple[int, int]:
    """Pairs and clusters of most entries."""
    counts = Counter((each.pairs, each.clusters) for each in found.entries.values() if each.pairs)
    return max(counts, key=counts.__getitem__, default=(0, 0))


def coverage_sentences(found: Differences) -> Iterator[str]:
    """Pairs and clusters of most entries; and whether they are too few for any entry to be significant."""
    usual = usual_counts(found)
    tested = [each.clusters for each in found.entries.values() if each.p is not None]
    if tested:
        yield (
            f"{count_with_noun(usual[0], 'pair')} in {count_with_noun(usual[1], 'cluster')} per entry, unless a note "
            "says otherwise."
        )
        least = min_sign_flip_p(max(tested))
        if least * len(tested) > SIGNIFICANCE_LEVEL:
            limit = f"with {count_with_noun(max(tested), 'cluster')} no p is below {least:.2g}"
            yield (
                f"No entry can be significant: {limit}, before correction for "
                f"{count_with_noun(len(tested), 'comparison')}."
            )


def difference_format(found: Differences) -> str:
    """Decimals of a difference; for a measure, enough to show four digits of its largest value."""
    if found.table.scored or found.table.metric == "nll":
        return ".1f" if found.table.scored else ".3f"
    level = max((abs(record.value) for record in found.table.entries.values() if record.value), default=1.0)
    return f".{max(0, 3 - math.floor(math.log10(level)))}f"


def rows_of(found: Sequence[Differences]) -> list[dict[str, Any]]:
    """All comparisons of a report as rows, in full precision."""
    rows = []
    for each in found:
        for (_, length), entry in each.entries.items():
            cell = each.table.cell
            shared = {name: getattr(cell, name) for name in ("model", "task", "seed", "trained_length")}
            about = {"metric": each.table.metric, "unit": each.unit, "baseline": str(each.baseline)}
            setting = {name: getattr(cell, name) for name in ("protocol", "backend", "dtype", "kernel", "corpus", "n")}
            multiple = length / cell.trained_length
            numbers = {"cell": entry.cell, "baseline_cell": entry.baseline_cell, **entry.numbers()}
            tests = {"interval": entry.interval.kind if entry.interval else None, **entry.tests()}
            reasons = {"refused": entry.refused, "apart": entry.apart, "limit": entry.limit and str(entry.limit)}
            own = {"method": str(entry.method), "length": length, **numbers, **tests, **entry.counts(), **reasons}
            rows.append({**shared, **about, "multiple": multiple, **own, **setting, "version": cell.version})
    return rows

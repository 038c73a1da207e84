"""Paired differences of methods to a baseline method at each length, with Holm's correction."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record, Sample
from lexbench.stats.floors import shared_limit
from lexbench.stats.intervals import Interval
from lexbench.stats.metrics import better_direction, display_factor, display_unit, follows_another
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, outcomes_of_samples, paired_difference
from lexbench.stats.tables import Place, Table


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
    apart: Note | None = None
    """Why its samples make no pairs with the baseline's, or why these are not tested."""

    @property
    def same_attention(self) -> bool:
        """Whether both have the same attention: they differ by rounding alone, which is not tested."""
        return self.apart is not None and self.apart.kind is NoteKind.SAME_ATTENTION


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
    if table.metric is None or follows_another(table.metric) or not others or baseline not in table.methods:
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
    functions = {
        place: (place[1], table.attentions[each.cell]) for place, each in found.items() if each.cell in table.attentions
    }
    return Differences(table, baseline, correct_by_holm(found, functions))


def leads(table: Table, samples: Mapping[str, Sequence[Sample]], method: MethodKey) -> Differences | None:
    """The lead of one method over every other method of its table, at each length: above 0 where the method is better.

    Entries stand at the other method's place; of a metric without a better side, the method minus the other one.
    Holm's correction counts all other methods and all lengths. None as of `paired_differences`.
    """
    found = paired_differences(table, samples, method)
    if found is None:
        return None
    side = better_direction(table.metric) or 1
    return replace(found, entries={place: with_sign(entry, -side) for place, entry in found.entries.items()})


def with_sign(entry: Difference, side: int) -> Difference:
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
        why = NoteKind.BASELINE_REFUSED if base else NoteKind.BASELINE_NOT_MEASURED
        return Difference(**about, apart=Note(why, (baseline, length)))
    metric = table.metric or ""
    found = paired_difference(known[baseline, length], known[row, length], metric)
    if found.first_mismatch is not None:
        return Difference(**about, apart=Note(NoteKind.OTHER_QUESTION, (found.first_mismatch, baseline)))
    stated = table.attentions.get(record.cell)
    if stated is not None and stated == table.attentions.get(base.cell):
        # Not tested, so that it takes no part in Holm's correction.
        about["apart"] = Note(NoteKind.SAME_ATTENTION)
        found = replace(found, p=None, interval=None)
    # A cell of which every sample failed has no record of the metric: its zeros make no difference.
    if not (_has_value(table, base) and _has_value(table, record)):
        found = PairedDifference(failed=found.failed, truncated=found.truncated, unpaired=found.unpaired)
    return Difference(**about, **{**vars(found.in_unit(display_factor(metric))), "limit": shared_limit([base, record])})


def _has_value(table: Table, record: Record) -> bool:
    return record.metric == table.metric and record.value is not None


def usual_counts(found: Differences) -> tuple[int, int]:
    """Pairs and clusters of most entries."""
    counts = Counter((each.pairs, each.clusters) for each in found.entries.values() if each.pairs)
    return max(counts, key=counts.__getitem__, default=(0, 0))

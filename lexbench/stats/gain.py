"""Context gain: the drop in NLL that longer context brings on the same target tokens, and the length where it hurts.

    gain(L) = NLL at the table's shortest length - NLL at L        nats per token, over the same targets

Positive: the added context helps. Paired by token: every task that scores the same tokens of its documents at all
lengths has a gain, in one window or in many (last segment, sliding, non-overlapping, key tokens). Intervals resample
documents with their pairs kept together. A length hurts where the step to it, from the measured length before, has an
interval wholly below 0, without correction for the number of lengths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.stats.intervals import Floats, cluster_bootstrap, cluster_sums, difference_p
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.reach import QUANTILE_OF_FOUND_SHARE
from lexbench.stats.tables import Place, Table


@dataclass(frozen=True)
class NllDrop:
    """NLL at one length minus NLL at another, in nats per token over the same targets."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None for one document."""
    high: float | None
    targets: int
    clusters: int
    left_out: int
    """Targets that failed at either length."""
    p: float | None = None
    """Two-sided, over documents (`intervals.difference_p`), uncorrected; only of a `nll_drop`."""


@dataclass(frozen=True)
class Gain:
    """Gain of a method at one length."""

    method: MethodKey
    length: int
    cell: str
    refused: str | None
    """Why the cell has no samples."""
    gain: NllDrop | None
    """Drop of the NLL from the shortest length to this one; None without pairs."""
    step: NllDrop | None
    """Drop of the NLL from the measured length before to this one."""


def context_gains(table: Table, samples: Mapping[str, Sequence[Sample]]) -> list[Gain]:
    """Gains of every method at every length beyond the shortest; empty unless all cells score the same tokens.

    `samples` are those of each cell id.
    """
    if not is_token_loss(table.metric):
        return []
    known = {place: _targets(samples.get(record.cell, ())) for place, record in table.entries.items()}
    if not _have_same_targets([targets for targets in known.values() if targets]):
        return []
    found = []
    for row in table.methods:
        shortest = before = known.get((row, table.lengths[0]), {})
        for length in table.lengths[1:]:
            record, here = table.entries.get((row, length)), known.get((row, length), {})
            if record:
                changes = _nll_drop(shortest, here), _nll_drop(before, here)
                found.append(Gain(row, length, record.cell, record.refused, *changes))
            before = here or before
    return found


def nll_drop(table: Table, samples: Mapping[str, Sequence[Sample]], before: Place, after: Place) -> NllDrop | None:
    """NLL of one cell of a table minus NLL of another; None unless they score the same targets."""
    sides = [_targets(samples.get(table.entries[place].cell, ())) for place in (before, after)]
    return _nll_drop(sides[0], sides[1], tested=True) if all(sides) and _have_same_targets(sides) else None


Targets = dict[tuple[str, str], tuple[NDArray[np.int64], Floats]]
"""Places of the targets, ascending, and their NLL in nats, by cluster and document; NaN where the sample failed."""


def _targets(samples: Sequence[Sample]) -> Targets:
    """Targets of a cell; empty where their positions are unknown."""
    pieces: dict[tuple[str, str], list[tuple[NDArray[np.int64], Floats]]] = {}
    for sample in samples:
        facts = sample.facts
        if "document" not in facts or not ({"first_target", "end"} <= facts.keys() or "targets" in facts):
            return {}
        places = np.asarray(facts.get("targets", ()), np.int64)
        if "targets" not in facts:
            places = np.arange(facts["first_target"], facts["end"])
        nll = np.full(len(places), math.nan)  # failed: its targets keep their places, so that cells stay comparable
        if sample.nll is not None and not sample.failed:
            nll[:] = sample.nll
        pieces.setdefault((sample.cluster, facts["document"]), []).append((places, nll))
    found = {}
    for name, several in pieces.items():
        places, nll = (np.concatenate([each[part] for each in several]) for part in (0, 1))
        order = np.argsort(places, kind="stable")
        found[name] = (places[order], nll[order])
    return found


def _have_same_targets(cells: Sequence[Targets]) -> bool:
    """Whether all cells have the same targets."""
    return len(cells) > 1 and all(
        each.keys() == cells[0].keys() and all(np.array_equal(each[name][0], cells[0][name][0]) for name in each)
        for each in cells[1:]
    )


def _nll_drop(left: Targets, right: Targets, tested: bool = False) -> NllDrop | None:
    """NLL on the left minus NLL on the right, over targets with both."""
    gaps = {name: left[name][1] - right[name][1] for name in left if name in right}
    paired = {name: gap[~np.isnan(gap)] for name, gap in gaps.items() if not np.isnan(gap).all()}
    if not paired:
        return None
    sums, targets = [math.fsum(gap) for gap in paired.values()], [len(gap) for gap in paired.values()]
    clusters = [cluster for cluster, _ in paired]
    interval = cluster_bootstrap(sums, targets, clusters)
    return NllDrop(
        value=math.fsum(sums) / sum(targets),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        targets=sum(targets),
        clusters=len(set(clusters)),
        left_out=sum(map(len, gaps.values())) - sum(targets),
        p=difference_p(cluster_sums(sums, targets, clusters)[:, 0]) if tested else None,
    )


def first_harmful_length(found: Sequence[Gain]) -> int | None:
    """First length of a method that is worse than the one before it; None without one. Lengths ascend."""
    return next((each.length for each in found if each.step and (each.step.high or 0.0) < 0), None)


def rows_of(table: Table, found: Sequence[Gain]) -> list[dict[str, Any]]:
    """One row per method and length, in full precision."""
    rows = []
    for each in found:
        row = {"method": str(each.method), "length": each.length, "multiple": each.length / table.cell.trained_length}
        row |= {"from_length": table.lengths[0], "cell": each.cell}
        for name, change in (("gain", each.gain), ("step", each.step)):
            ends = {name: "value", f"{name}_low": "low", f"{name}_high": "high"}
            row |= {column: getattr(change, attribute, None) for column, attribute in ends.items()}
        counts = {name: getattr(each.gain, name, 0) for name in ("targets", "clusters", "left_out")}
        rows.append({**row, **counts, "refused": each.refused})
    return rows


def smallest_found_step(found: Sequence[Gain]) -> float | None:
    """The loss from one length to the next that each of these steps would have shown nine times of ten, nats per token.

    The interval of a step is wholly below 0 in nine runs of ten where the step is 1.96 + 1.28 standard errors, half its
    width being 1.96. None where a step has no interval.
    """
    widths = [None if each.low is None or each.high is None else each.high - each.low for each in _steps(found)]
    known = [width for width in widths if width is not None]
    return max(known) / 2 * (1 + QUANTILE_OF_FOUND_SHARE / 1.96) if known and len(known) == len(widths) else None


def _steps(found: Sequence[Gain]) -> list[NllDrop]:
    return [each.step for each in found if each.step]

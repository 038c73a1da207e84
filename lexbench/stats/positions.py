"""NLL of tokens, or accuracy of marks, by position in the window, and the position where NLL collapses.

A position is the number of tokens before a target in its window, BOS counted. Positions are grouped in bins that grow
with the position; one bin begins at the trained length.

    in-range level       NLL per target over the second half of the trained length
    collapse position    start of the first bin from which every bin up to the end of the window has an NLL more than
                         0.5 nats above the in-range level; never, if the last bin has not

The level is the method's own at that length: a method that is worse everywhere does not collapse, so tables show both.
Texts that become easier towards their end hide a collapse, and the reverse; methods of one table read the same texts.
Intervals are those of clusters (`intervals.interval_halfwidths`), here documents. The interval of the collapse position
goes from its 2.5th to its 97.5th percentile over resampled documents; the level is resampled with them.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Sample
from lexbench.stats.intervals import CONFIDENCE_LEVEL, Floats, interval_halfwidths, resample_totals
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.tables import Table

COLLAPSE_RISE_NATS = 0.5
"""Nats above the in-range level beyond which NLL has collapsed."""
BINS_PER_DOUBLING = 4
"""Bins per doubling of the position."""
MIN_BIN_POSITIONS = 16
"""Minimum number of positions in a bin."""


@dataclass(frozen=True)
class BinValue:
    """A value and its 95 % interval over clusters; NaN where missing."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, eq=False)
class PositionCurve:
    """NLL or accuracy of one method at one length, by position in the window."""

    method: MethodKey
    length: int
    edges: NDArray[np.int64]
    """[bins + 1] first position of each bin, and the window's end."""
    targets: NDArray[np.int64]
    """[bins] number of targets."""
    values: list[BinValue]
    """[bins] NLL in nats per token, or the share of right marks; NaN without targets."""
    level: BinValue
    """Value over the second half of the trained length."""
    beyond: BinValue
    """Value over all positions past the trained length."""
    collapse: BinValue | None
    """Position of the collapse, inf: never; None for marks, and without targets on both sides of the trained length."""
    samples: int
    """Samples that did not fail; for marks all samples with marks, failed ones counted as wrong."""
    clusters: int


def curves_by_position(table: Table, samples: Mapping[str, Sequence[Sample]]) -> list[PositionCurve]:
    """Every method at every length by position, lengths ascending; or none.

    `samples` are those of each cell id. A table of NLL has curves, and one of a score whose samples have marks, where
    targets span more than half of the window at the longest measured length; shorter ones where they do there, too.
    """
    cells = {place: record.cell for place, record in table.entries.items()}
    found = {place: _targets(table, samples.get(cell, ())) for place, cell in cells.items()}
    measured = {place: targets for place, targets in found.items() if targets is not None}
    wide = {place: targets for place, targets in measured.items() if targets.span > place[1] / 2}
    longest = max((length for _, length in measured), default=0)
    if longest not in {length for _, length in wide}:
        return []
    rows = [(row, length) for length in table.lengths for row in table.methods if (row, length) in wide]
    return [_curve(*place, table.cell.trained_length, wide[place], is_token_loss(table.metric)) for place in rows]


@dataclass(frozen=True, eq=False)
class _Targets:
    """The targets of a cell, by position."""

    positions: NDArray[np.int64]
    values: Floats
    owners: NDArray[np.int64]
    """Number of each target's cluster."""
    samples: int
    clusters: int

    @property
    def span(self) -> int:
        """Positions from the first to the last."""
        return int(self.positions[-1] - self.positions[0]) + 1


def _targets(table: Table, samples: Sequence[Sample]) -> _Targets | None:
    """NLL of samples that did not fail; or marks of all samples, failed ones as wrong."""
    used: list[tuple[NDArray[np.int64], Floats, str]] = []
    for sample in samples:
        if table.scored and "right" in sample.statistics:
            right = sample.statistics["right"].astype(np.float64) * (sample.failed is None)
            used.append((sample.statistics["place"].astype(np.int64), right, sample.cluster))
        elif (
            is_token_loss(table.metric)
            and sample.nll is not None
            and len(sample.nll)
            and not sample.failed
            and "targets" not in sample.facts  # here and there in the window, not its last tokens
        ):
            positions = np.arange(sample.tokens - len(sample.nll), sample.tokens)
            used.append((positions, sample.nll.astype(np.float64), sample.cluster))
    if not used:
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(cluster for *_, cluster in used))}
    positions, values = (np.concatenate([each[place] for each in used]) for place in (0, 1))
    owners = np.concatenate([np.full(len(positions), numbers[cluster]) for positions, _, cluster in used])
    order = np.argsort(positions, kind="stable")  # bins are found by bisection
    return _Targets(positions[order], values[order], owners[order], len(used), len(numbers))


def bin_edges(length: int, trained_length: int) -> NDArray[np.int64]:
    """[bins + 1] first positions of the bins of a window, and its end.

    Bins begin at 0 and at trained_length 2^(k / 4), k any whole number, so far as each has at least 16 positions.
    """
    edges = [0]
    for quarter in range(-BINS_PER_DOUBLING * trained_length.bit_length(), BINS_PER_DOUBLING * length.bit_length()):
        edge = round(trained_length * 2 ** (quarter / BINS_PER_DOUBLING))
        widths = [edge - edges[-1], length - edge] + [trained_length - edge] * (edge < trained_length < length)
        if min(widths) >= MIN_BIN_POSITIONS:
            edges.append(edge)
    return np.asarray([*edges, length], np.int64)


def _curve(row: MethodKey, length: int, trained: int, targets: _Targets, likelihood: bool) -> PositionCurve:
    edges = bin_edges(length, trained)
    sums = _sums(
        targets, [*itertools.pairwise(edges.tolist()), (trained // 2, trained), (trained, max(trained, length))]
    )
    whole = _ratios(sums.sum(axis=0))
    several = len(sums) > 1
    *values, level, beyond = _bin_values(whole, sums)
    collapse = None
    if likelihood and np.isfinite(whole[-2:]).all():
        draws = (
            _ratios(resample_totals(sums.reshape(len(sums), -1)).reshape(-1, *sums.shape[1:]))
            if several
            else whole[None]
        )
        place, places = (collapse_position(each[..., :-2], each[..., -2], edges[:-1]) for each in (whole, draws))
        collapse = _with_percentiles(float(place), places, several)
    counts = sums[:, :-2, 1].sum(axis=0).astype(np.int64)
    return PositionCurve(row, length, edges, counts, values, level, beyond, collapse, targets.samples, targets.clusters)


def _sums(targets: _Targets, ranges: Sequence[tuple[int, int]]) -> Floats:
    """[clusters, ranges, 2] sum and number of the values at positions begin to end - 1."""
    sums = np.zeros((targets.clusters, len(ranges), 2))
    for number, (begin, end) in enumerate(ranges):
        inside = slice(*np.searchsorted(targets.positions, (begin, end)))
        for column, weights in enumerate((targets.values[inside], None)):
            sums[:, number, column] = np.bincount(targets.owners[inside], weights, targets.clusters)
    return sums


def _ratios(sums: Floats) -> Floats:
    """[..., ranges] means of [..., ranges, 2] sums and numbers; NaN of nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[..., 0] / sums[..., 1])


def collapse_position(values: Floats, level: ArrayLike, begins: NDArray[np.int64]) -> Floats:
    """[...] start of the first bin from which all values [..., bins] exceed level [...] by 0.5; inf: never.

    A bin without targets (NaN) is skipped, and is no start; NaN where there is no level.
    """
    stays = ~(
        values <= np.asarray(level)[..., None] + COLLAPSE_RISE_NATS
    )  # not `>`: NaN, a bin without targets, must stay
    # From the back: a bin stays where it and all bins behind it do.
    stays = np.logical_and.accumulate(stays[..., ::-1], axis=-1)[..., ::-1] & ~np.isnan(values)
    places = np.where(stays.any(axis=-1), begins[stays.argmax(axis=-1)], math.inf)
    return np.where(np.isnan(level), math.nan, places)


def _bin_values(whole: Floats, sums: Floats) -> list[BinValue]:
    """[ranges] values of sums [clusters, ranges, 2]; without an interval where fewer than 2 clusters have targets.

    No NLL and no share is below 0, so no interval reaches lower.
    """
    several = (sums[..., 1] > 0).sum(axis=0) > 1
    own = (sums[..., 0] - np.where(several, whole, 0.0) * sums[..., 1])[:, several] / sums[..., 1].sum(axis=0)[several]
    ends = np.full((2, len(whole)), math.nan)
    if several.any():
        below, above = interval_halfwidths([own])
        ends[:, several] = np.maximum(whole[several] - below, 0.0), whole[several] + above
    return [BinValue(*map(float, each)) for each in zip(whole, *ends, strict=True)]


def _with_percentiles(value: float, draws: Floats, several: bool) -> BinValue:
    """A value with the percentile interval of its draws; without one for a single cluster or a draw without a value."""
    if not several or np.isnan(draws).any():
        return BinValue(float(value))
    tail = (1 - CONFIDENCE_LEVEL) / 2 * (len(draws) - 1)
    ordered = np.sort(draws)  # not interpolated: an end may be inf
    return BinValue(float(value), float(ordered[math.floor(tail)]), float(ordered[-1 - math.floor(tail)]))


def format_position(value: float, digits: str = "") -> str:
    """A number as text: `never` for infinity, nothing for NaN."""
    return "" if math.isnan(value) else "never" if math.isinf(value) else f"{value:{digits}}"


def rows_of(table: Table, curves: Sequence[PositionCurve]) -> list[dict[str, Any]]:
    """One row per method and length with a collapse position, in full precision."""
    rows = []
    for curve in curves:
        if curve.collapse is not None:
            cell = table.entries[curve.method, curve.length].cell
            row = {
                "method": str(curve.method),
                "length": curve.length,
                "multiple": curve.length / table.cell.trained_length,
            }
            row |= {"cell": cell, "samples": curve.samples, "clusters": curve.clusters}
            places = ("collapse_position", curve.collapse, ".0f")
            for name, each, digits in (("in_range", curve.level, ""), ("beyond", curve.beyond, ""), places):
                ends = {name: each.value, f"{name}_low": each.low, f"{name}_high": each.high}
                row |= {column: format_position(value, digits) for column, value in ends.items()}
            rows.append(row)
    return rows

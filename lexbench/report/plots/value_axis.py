"""The value axis of a figure: the baseline is never cut off, and a collapsed method does not squash the others.

An axis on which lower is better ends where `value_limits` says for the methods besides the baseline. If the baseline
goes on beyond that, the axis goes on with it; where this would leave the others less than half of the height, the part
beyond is compressed into a quarter of it, behind a dotted line. What lies beyond the baseline, too, leaves the axis
with an arrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.report.plots.style import value_limits
from lexbench.stats.metrics import facts_of, is_measure
from lexbench.stats.tables import Table

Ends = tuple[float, float | None, float | None]
"""A value and the ends of its interval."""
MIN_METHODS_HEIGHT_SHARE = 0.5
"""Share of the height that the methods besides the baseline keep."""
UNCOMPRESSED_HEIGHT_SHARE = 0.75
"""Share of the height below the compressed part."""


@dataclass(frozen=True)
class ValueScale:
    """Ends of a value axis, and from where on it is compressed; all in nats where it is logarithmic."""

    low: float
    top: float
    fold: float | None = None
    logarithmic: bool = False

    def base(self, values: ArrayLike) -> NDArray[np.float64]:
        """Values in the unit of the ends."""
        found = np.asarray(values, np.float64)
        return np.log(np.maximum(found, 1e-300)) if self.logarithmic else found

    def value(self, place: float) -> float:
        """The value at a place between the ends."""
        return float(np.exp(place)) if self.logarithmic else place

    def forward(self, values: ArrayLike) -> NDArray[np.float64]:
        """Heights of values: compressed beyond the fold."""
        found = self.base(values)
        if self.fold is None:
            return found
        return np.where(found <= self.fold, found, self.fold + (found - self.fold) * self._slope)

    def inverse(self, heights: ArrayLike) -> NDArray[np.float64]:
        """Values at heights."""
        found = np.asarray(heights, np.float64)
        if self.fold is not None:
            found = np.where(found <= self.fold, found, self.fold + (found - self.fold) / self._slope)
        return np.exp(found) if self.logarithmic else found

    @property
    def _slope(self) -> float:
        # What lies beyond the fold gets the rest of the height: (1 - UNCOMPRESSED_HEIGHT_SHARE) /
        # UNCOMPRESSED_HEIGHT_SHARE of what lies below it.
        assert self.fold is not None
        return (self.fold - self.low) * (1 / UNCOMPRESSED_HEIGHT_SHARE - 1) / (self.top - self.fold)

    def is_above_axis(self, value: float | None) -> bool:
        """Whether a value lies above the axis."""
        return value is not None and bool(self.base(value) > self.top)

    def is_below_axis(self, value: float) -> bool:
        """Whether a value lies below the axis."""
        return bool(self.base(value) < self.low)


def scale_of(curves: Mapping[MethodKey, Sequence[Ends]], scored: bool, logarithmic: bool) -> ValueScale:
    """The axis of curves on which lower is better, or of scores.

    Args:
        curves: of each method the values with the ends of their intervals.
        scored: values lie in [0, 1].
        logarithmic: values are exponentials of nats.
    """
    unit = ValueScale(0.0, 1.0, logarithmic=logarithmic)
    spans = {
        name: [unit.base([end for end in each if end is not None]) for each in ends] for name, ends in curves.items()
    }
    spans = {name: each for name, each in spans.items() if each}
    if scored or not spans:
        return ValueScale(-0.04, 1.04)
    worst = {name: max(float(unit.base(value)) for value, _, _ in curves[name]) for name in spans}
    low = min(float(span.min()) for each in spans.values() for span in each)
    tops = {name: max(float(span.max()) for span in each) for name, each in spans.items()}
    rest = [name for name in spans if name != BASELINE_METHOD] or list(spans)
    _, top = value_limits([worst[name] for name in rest], low, max(tops[name] for name in rest))
    bottom, own = low - 0.05 * (top - low), tops.get(BASELINE_METHOD, top)
    if own <= top:
        return ValueScale(bottom, top, logarithmic=logarithmic)
    folded = (top - low) / (own - low) < MIN_METHODS_HEIGHT_SHARE
    end = own + 0.05 * (own - (top if folded else low))
    return ValueScale(bottom, end, top if folded else None, logarithmic)


def full_scale(curves: Mapping[MethodKey, Sequence[Ends]]) -> ValueScale:
    """The axis that shows all of the values."""
    ends = [end for each in curves.values() for value in each for end in value if end is not None]
    margin = 0.05 * (max(ends) - min(ends)) or 0.05 * abs(ends[0]) or 1.0
    return ValueScale(min(ends) - margin, max(ends) + margin)


def scale_of_table(table: Table) -> ValueScale:
    """The axis of a table's values."""
    curves = {
        method: [(each.value, each.low, each.high) for each in table.of(method) if each.value is not None]
        for method in table.methods
    }
    if any(curves.values()) and (is_measure(table.metric) or not (table.scored or table.better < 0)):
        return full_scale(curves)
    return scale_of(curves, table.scored, facts_of(table.metric).logarithmic)


def draw_value_axis(axes: Axes, scale: ValueScale) -> None:
    """Set up the y axis: ends, ticks, and a dotted line where the compressed part begins."""
    # Made of functions even where it is logarithmic: matplotlib's own logarithmic scale cannot be folded.
    axes.set_yscale("function", functions=(scale.forward, scale.inverse))
    axes.set_ylim(scale.value(scale.low), scale.value(scale.top))
    bend = scale.top if scale.fold is None else scale.fold
    places = _ticks(scale, scale.low, bend, 6)
    if scale.fold is not None:
        gap = 0.06 * (scale.top - scale.fold)
        places += [place for place in _ticks(scale, scale.fold, scale.top, 3) if scale.base(place) > scale.fold + gap]
        axes.axhline(scale.value(scale.fold), color="0.6", linewidth=0.8, linestyle=(0, (1, 2)), zorder=-2)
        axes.annotate(
            "compressed",
            xy=(0.5, scale.value(scale.fold)),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            horizontalalignment="center",
            verticalalignment="bottom",
            color="0.45",
            fontsize=7,
            zorder=6,
        )
    axes.yaxis.set_major_locator(mpl.ticker.FixedLocator(places))
    axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())


def _ticks(scale: ValueScale, low: float, top: float, count: int) -> list[float]:
    """Round values between two places."""
    if scale.logarithmic:
        steps = (1.0, 2.0, 5.0) if top - low > 3 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
        found = mpl.ticker.LogLocator(subs=steps, numticks=20).tick_values(scale.value(low), scale.value(top))
        kept = [float(value) for value in found if low <= scale.base(value) <= top]
        return kept[:: -(-len(kept) // (count + 2))] if kept else []
    found = mpl.ticker.MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, top)
    return [float(value) for value in found if low <= value <= top]

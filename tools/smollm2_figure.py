"""The figure of results/reference/smollm2.md: keys reached and copied whole, and loss against cutting the text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lexbench.report.plots.style import MATPLOTLIB_STYLE, save_figure_as
from lexbench.stats.pairs import PairedDifference

TWICE = 16384
METHODS = ("rerope", "self_extend", "yarn", "ntk", "pi", "none")
"""From above."""
SIZE_INCHES = (9.0, 3.3)
DARK, LIGHT = "#1b4f8a", "#d9822b"
LOSS_LIMITS = (-0.07, 0.12)
"""Nats per token that the right panel shows; what lies beyond is named at its edge."""


class Counted(Protocol):
    """A measured share."""

    @property
    def ends(self) -> tuple[float, float, float]:
        """Value, low and high."""


def name_rows(axes: Axes) -> None:
    """Name the methods at the left, from above."""
    names = ["unmodified" if each == "none" else each for each in METHODS]
    axes.set_yticks(range(len(METHODS)), names)
    axes.set_ylim(len(METHODS) - 0.5, -0.5)
    axes.grid(axis="y", color="0.93")
    axes.set_axisbelow(True)


def draw_keys(axes: Axes, found: Mapping[str, Mapping[tuple[str, int], Counted]]) -> None:
    """Draw keys reached and copied whole of 64, a row a method."""
    for metric, shift, colour, label in (
        ("reached", -0.16, DARK, "reached: any key of the text"),
        ("accuracy", 0.16, LIGHT, "copied whole: the right one of four"),
    ):
        for row, method in enumerate(METHODS):
            value, low, high = (64 * each for each in found[metric][method, TWICE].ends)
            axes.barh(row + shift, value, height=0.3, color=colour, label=label if row == 0 else None)
            axes.plot([low, high], [row + shift] * 2, color="0.25", linewidth=1)
            place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{value:.0f}", (max(high, value), row + shift), color=colour, fontsize=9, **place)
    name_rows(axes)
    axes.set_xlim(0, 72)
    axes.set_xticks([0, 16, 32, 48, 64])
    axes.set_xlabel("answers of 64, at twice the trained length")
    axes.set_title("Reached: an order. The right key: alike", fontsize="large", fontweight="bold")
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def draw_losses(axes: Axes, gaps: Mapping[str, PairedDifference], none: float) -> None:
    """Draw loss at twice the length minus that of the unmodified model on the text cut to the trained one.

    Args:
        axes: panel to draw into.
        gaps: paired differences by method; under `none` the control.
        none: that of the unmodified model itself, which is far outside.
    """
    for row, method in enumerate(METHODS):
        each = gaps[method]
        far = none if method == "none" else each.difference or 0.0
        place: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 9, "color": DARK}
        if far > LOSS_LIMITS[1]:
            axes.annotate(f"{far:+.2f} →", (LOSS_LIMITS[1] - 0.002, row), **place)
            continue
        assert each.interval is not None
        axes.plot([each.interval.low, each.interval.high], [row, row], color=DARK, linewidth=2)
        axes.plot([far], [row], "o", color=DARK)
        axes.annotate(f"{far:+.3f}", (LOSS_LIMITS[1] - 0.002, row), **place)
    control = gaps["none"]
    assert control.difference is not None
    axes.axvline(0, color="0.25", linewidth=1)
    axes.axvline(control.difference, color=LIGHT, linestyle="--", linewidth=1.5)
    axes.text(control.difference - 0.003, 2.5, "control:\nT/2 to T", color=LIGHT, ha="right", va="center", fontsize=9)
    axes.annotate("better", (-0.066, 5.0), (-0.030, 5.0), va="center", ha="right", fontsize=9, color="0.35")
    axes.annotate("", (-0.066, 4.6), (-0.040, 4.6), arrowprops={"arrowstyle": "-|>", "color": "0.35"})
    name_rows(axes)
    axes.set_xlim(*LOSS_LIMITS)
    axes.set_xticks([-0.05, 0, 0.05, 0.1])
    axes.set_xlabel("loss at 2T minus unmodified at T, nats per token")
    axes.set_title("Loss: none shown to beat cutting to T", fontsize="large", fontweight="bold")


def draw_figure(found: Mapping[str, Mapping[tuple[str, int], Counted]], gaps: Mapping[str, PairedDifference]) -> Figure:
    """Draw both panels.

    Args:
        found: places by metric, then by method and length.
        gaps: as `draw_losses` takes them.
    """
    losses = found["nll"]
    made = Figure(figsize=SIZE_INCHES, layout="constrained")
    left, right = made.subplots(1, 2)
    draw_keys(left, found)
    draw_losses(right, gaps, losses["none", TWICE].ends[0] - losses["none", TWICE // 2].ends[0])
    return made


def draw(
    file: Path, found: Mapping[str, Mapping[tuple[str, int], Counted]], gaps: Mapping[str, PairedDifference]
) -> None:
    """Write the figure as one file."""
    with mpl.rc_context({**MATPLOTLIB_STYLE, "font.size": 10.0}):
        save_figure_as(draw_figure(found, gaps), file)

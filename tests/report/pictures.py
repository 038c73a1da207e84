"""What a reader of a figure would complain of: words cut off at its edge, labels on one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lexbench.report.plots.style import PNG_DOTS_PER_INCH


@contextmanager
def drawn() -> Iterator[list[Figure]]:
    """The figures that are saved meanwhile, each once; their files stay empty."""
    figures: list[Figure] = []

    def savefig(figure: Figure, *given: Any, **named: Any) -> None:
        if figure not in figures:
            figures.append(figure)

    with patch.object(Figure, "savefig", savefig):
        yield figures


def assert_legible(figure: Figure) -> None:
    """Nothing is cut off at the canvas, and no label of an axis touches the next one."""
    figure.set_dpi(PNG_DOTS_PER_INCH)
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.01 and box.y0 >= -0.01, f"cut off by {-box.x0:.2f} and {-box.y0:.2f} inches: left, bottom"
    assert box.x1 <= width + 0.01 and box.y1 <= height + 0.01, f"{box} is cut off at {width} x {height}"
    for axes in figure.axes:
        _assert_apart(axes, figure)
        if axes.get_label() == "<colorbar>":
            continue
        inner = axes.get_window_extent()
        assert min(inner.width, 5 * inner.height) > 0.1 * figure.dpi, f"{axes} has no room"


def _assert_apart(axes: Axes, figure: Figure) -> None:
    if not axes.axison:
        return
    (low, high), labels = sorted(axes.get_xlim()), axes.get_xticklabels()
    shown = [
        label.get_window_extent()
        for place, label in zip(axes.get_xticks(), labels, strict=False)  # panels above others have ticks, no labels
        if low <= place <= high and label.get_text() and label.get_visible()
    ]
    for one, other in pairwise(shown):
        assert one.x1 < other.x0 + 0.5, f"labels {one} and {other} of {axes} touch"
    rows = [label.get_window_extent() for label in axes.get_yticklabels() if label.get_text() and label.get_visible()]
    for one, other in pairwise(rows):
        assert one.y0 >= other.y1 - 1.5 or other.y0 >= one.y1 - 1.5, f"labels {one} and {other} of {axes} touch"

"""The first figure of a report: how much better methods predict the text, and how many keys they find, over length.

Left, paired differences of the loss to the unmodified model; right, the shares of keys copied whole (dashed), and
chosen or else reached (solid). Up is better in both, and grey is the trained length.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.metrics import chosen, reached
from lexbench.report import looks
from lexbench.report.plots import over_length, value_axis
from lexbench.report.plots.style import MATPLOTLIB_STYLE, draw_legend, line_style, pairs_for, save_figure
from lexbench.report.wording import metric_label
from lexbench.stats.differences import Differences
from lexbench.stats.headline import Headline
from lexbench.stats.tables import Table

WHOLE_KEYS_DASHES = (4, 2)
"""Dashes and gaps of keys copied whole, in widths of the line."""
PARTIAL_METRICS = (chosen.METRIC.name, reached.METRIC.name)
"""What is shown beside keys copied whole: the first that was measured."""


def key_tables(found: Headline, every: Sequence[Table]) -> tuple[Table, ...]:
    """The table of keys copied whole, and that of keys chosen or reached, where it was measured; none without keys."""
    if not found.needles:
        return ()
    whole = found.needles[0]
    beside = {table.metric: table for table in every if table.setting == whole.setting}
    return (whole, *[beside[name] for name in PARTIAL_METRICS if name in beside][:1])


def plot_first_screen(
    found: Headline, compared: Differences, keys: Sequence[Table], stem: Path, png: bool = False
) -> None:
    """Draw the figure as stem.svg, and as stem.png if asked for.

    Args:
        found: the headline whose methods are drawn, the first eight.
        compared: differences of its losses to the unmodified model.
        keys: of `key_tables`, at least one.
        stem: of the files.
        png: whether to draw it as PNG, too.
    """
    methods = _drawn_methods(found)
    known = looks.looks_of_methods(found.table.methods, found.table.highlight)
    words = [metric_label(each.metric, each.cell.task_name).partition(" (")[0] for each in keys]
    label = f"keys {words[-1]}" + (f" (dashed: {words[0]})" if len(keys) > 1 else "")
    with mpl.rc_context(MATPLOTLIB_STYLE):
        title = f"{found.table.cell.model}, trained at {found.table.cell.trained_length:,} tokens"
        better = over_length.better_upwards(compared)
        axis = over_length.LENGTH_AXIS_LABEL
        made, [(left, right)] = pairs_for(
            [("", methods)], title, axis, f"text {over_length.difference_label(better)}", label
        )
        over_length.difference_panel(left, better, methods, known)
        scale = value_axis.scale_of_table(keys[-1])
        over_length.draw_panel(right, keys[-1], [each for each in methods if each in keys[-1].methods], known, scale)
        for method in methods if len(keys) > 1 else ():
            shown = [each for each in keys[0].of(method) if each.value is not None]
            style = {**line_style(known[method]), "marker": "none", "linestyle": (0, WHOLE_KEYS_DASHES)}
            right.plot([each.multiple for each in shown], [each.value or 0.0 for each in shown], **style)
        handles = over_length.handles_of(keys[-1], methods, known, scale)
        draw_legend(right, [*handles, *over_length.difference_handles(better, methods)], "bars", alone=True)
        save_figure(made, stem, png)


def _drawn_methods(found: Headline) -> list[MethodKey]:
    """The unmodified model, the reader's own, and the first of the headline's other rows."""
    rows = looks.order_methods([row.method for row in found.rows], found.table.highlight)
    return [each for each in rows if each in (BASELINE_METHOD, *rows[: looks.MAX_PANEL_LINES])][: looks.MAX_PANEL_LINES]

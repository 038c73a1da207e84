"""Pictures of a method at one length: everything that it changes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from lexbench.checkpoints.structure import format_ranges
from lexbench.core.attention import Attention
from lexbench.core.method_key import MethodKey
from lexbench.core.model import Model
from lexbench.report.plots.style import LEGEND_LINE_CHARACTERS, MATPLOTLIB_STYLE, save_figure_as, wrap_name, wrap_text
from lexbench.report.show.panels import Panel, Row, ShownAttention, legend_columns, panels_of
from lexbench.report.show.table import attention_data, attention_title, slot_lines

MAX_PANEL_COLUMNS = 3
"""Panels side by side, at most."""
SLOTS_IN_WORDS = ("scale", "keep_first", "dynamic")
"""Slots that are told in words."""


def plot_attention(model: Model, method: MethodKey, attention: Attention, length: int, file: Path) -> None:
    """Write all that there is to see of one method into one file.

    Raises ConfigError unless the file's suffix is .png, .svg or .pdf.
    """
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure_as(attention_figure(model, method, attention, length)[0], file)


def parts_of(label: str, attention: Attention) -> dict[str, Attention]:
    """Split an Attention into those of its passes, or of its groups of layers, by name with numbers."""
    if attention.mixture is not None:
        return {f"{label}, pass {number}": one for number, one in enumerate(attention.mixture, 1)}
    if attention.layers is None:
        return {label: attention}
    found: dict[str, Attention] = {}
    rest = attention
    while rest.layers is not None:
        found[f"{label}, layers {format_ranges(rest.layers)}"] = replace(rest, layers=None, otherwise=None)
        rest = rest.otherwise or Attention()
    return {**found, f"{label}, other layers": rest}


def attention_figure(model: Model, method: MethodKey, attention: Attention, length: int) -> tuple[Figure, list[Row]]:
    """The figure of one method, and the numbers drawn in it."""
    label = str(method)
    parts = parts_of(label, attention)
    lines = [attention_title(model, label, length).replace("**", "")]
    for name, part in parts.items():
        words = (
            line
            for line in slot_lines(model, part, attention_data(model, name, part, length))
            if line.startswith(SLOTS_IN_WORDS)
        )
        lines += [line if len(parts) == 1 else f"{name}: {line}" for line in words]
    shown = ShownAttention(model, method, length, parts)
    return _figure(shown, panels_of(shown), "\n".join(lines))


def _figure(shown: ShownAttention, panels: Sequence[Panel], heading: str) -> tuple[Figure, list[Row]]:
    columns = min(MAX_PANEL_COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    width = 0.4 + 3.6 * max(columns, 1.4)
    heads = wrap_text(heading, width - 0.3, 9.5, lines=3)
    labels = [wrap_name(name, LEGEND_LINE_CHARACTERS) for name in shown.parts]
    beside = legend_columns(labels)
    entries = math.ceil((sum(1 + label.count("\n") for label in labels) + 5) / beside)
    height = 0.4 + 0.17 * (1 + heads.count("\n")) + lines * (2.9 + 0.16 * entries)
    made = Figure(figsize=(width, height), layout="constrained")
    places = made.subplots(lines, columns, squeeze=False).ravel()
    rows = [row for axes, panel in zip(places, panels, strict=False) for row in panel(axes, shown)]
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    made.suptitle(heads, fontsize=9.5)
    return made, rows

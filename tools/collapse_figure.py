"""README's figure: loss and keys over length of the committed cells; `python -m tools.collapse_figure`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record
from lexbench.report import looks
from lexbench.report.plots.style import MARKER_OF_SHAPE, MATPLOTLIB_STYLE, save_figure_as
from lexbench.report.tables import headline_tables
from lexbench.stats import records
from tools.recompute import lexlet_keys

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "reference" / "lexlet"
FILE = ROOT / "docs" / "assets" / "collapse.svg"
METHODS = {name: MethodKey.of_method(name) for name in ("none", "yarn", "rerope")}
SIZE_INCHES = (9.0, 3.5)


def read_curves(folder: Path, task: str, metric: str) -> dict[str, list[Record]]:
    """Return the records of each method, sorted by length."""
    finished = [each for each in records.load_cells([folder]).finished if each.cell.method in METHODS.values()]
    [table] = [each for each in headline_tables(finished) if (each.cell.task, each.metric) == (task, metric)]
    found = [[table.entries[key, length] for length in table.lengths] for key in METHODS.values()]
    return dict(zip(METHODS, found, strict=True))


def draw_panel(axes: Axes, curves: dict[str, list[float]], multiples: Sequence[float], ends: dict[str, str]) -> None:
    """Draw a line a method over multiples of the trained length, named at its right end.

    Args:
        axes: panel to draw into.
        curves: values of each method, one a length.
        multiples: lengths, divided by the trained one.
        ends: words at the end of each line; lines that end close together get them one below the other.
    """
    known, below = looks.looks_of_methods(list(METHODS.values())), 0.0
    top = max(map(max, curves.values()))
    for method, values in curves.items():
        look = known[METHODS[method]]
        line: dict[str, Any] = {"color": look.colour, "marker": MARKER_OF_SHAPE[look.marker], "clip_on": False}
        axes.plot(multiples, values, markersize=5, linewidth=2, **line)
    for method in sorted(ends, key=lambda each: -curves[each][-1]):
        height = curves[method][-1]
        crowded = any(abs(curves[each][-1] - height) < 0.06 * top for each in ends if each != method)
        shift = 0.0 if not crowded else (6.0 if not below else -7.0)
        below += crowded
        place: dict[str, Any] = {"xytext": (9, shift), "textcoords": "offset points", "va": "center"}
        axes.annotate(ends[method], (multiples[-1], height), color=known[METHODS[method]].colour, **place)
    axes.axvspan(multiples[0], 1, color="0.94", zorder=0, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(multiples, [f"{each:g}x" for each in multiples])
    axes.set_xlim(multiples[0], multiples[-1])
    axes.set_xlabel("length of the text (grey: as trained)")


def point_at_better(axes: Axes, upwards: bool) -> None:
    """Draw an arrow with the word `better`, inside the panel's left edge."""
    low, high = 0.42, 0.66
    start, tip = (low, high) if upwards else (high, low)
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": "0.35"}
    axes.annotate("", (0.03, tip), (0.03, start), xycoords="axes fraction", arrowprops=arrow)
    axes.text(0.05, (low + high) / 2, "better", transform=axes.transAxes, color="0.35", va="center")


def keys_over_length(lengths: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Percent of keys that are chosen, and copied whole, of each method at some lengths."""
    return {
        metric: {name: [100 * lexlet_keys(metric, name, each).mean for each in lengths] for name in METHODS}
        for metric in ("chosen", "copied whole")
    }


def draw_keys(axes: Axes, lengths: Sequence[int], multiples: Sequence[float]) -> None:
    """Draw the keys that are chosen, and dashed those copied whole."""
    known, found = looks.looks_of_methods(list(METHODS.values())), keys_over_length(lengths)
    draw_panel(axes, found["chosen"], multiples, {})
    for name, values in found["copied whole"].items():
        axes.plot(multiples, values, color=known[METHODS[name]].colour, linewidth=1.5, linestyle=(0, (4, 2)))
        place: dict[str, Any] = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
        for kind, curve in found.items():
            said = f"{name} {curve[name][-1]:.0f} % {kind}"
            if name == "none":
                said = f"unmodified {curve[name][-1]:.0f}" if kind == "chosen" else ""
                place["xytext"] = (9, -9)
            axes.annotate(said, (multiples[-1], curve[name][-1]), color=known[METHODS[name]].colour, **place)
    axes.set_title("... yarn chooses keys that it does not copy", fontsize="large", fontweight="bold")
    axes.set_ylabel("% of keys (solid: chosen, dashed: copied)")
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_ylim(-6, 102)  # below 0: the name of a line there stays off the axis


def draw_figure(folder: Path = FOLDER) -> Figure:
    """Draw two panels, loss and keys, of three methods on the model of a run folder."""
    loss = read_curves(folder, "last_segment", "nll")
    levels = {method: [each.value or 0.0 for each in found] for method, found in loss.items()}
    multiples = [each.length / each.trained_length for each in loss["none"]]
    made = Figure(figsize=SIZE_INCHES, layout="constrained")
    left, right = made.subplots(1, 2)
    names = {method: "unmodified" if method == "none" else method for method in METHODS}
    draw_panel(left, levels, multiples, {method: f"{name} {levels[method][-1]:.2f}" for method, name in names.items()})
    left.set_title("yarn and rerope are alike in loss ...", fontsize="large", fontweight="bold")
    left.set_ylabel("loss, nats per token")
    point_at_better(left, upwards=False)
    draw_keys(right, [each.length for each in loss["none"]], multiples)
    return made


def draw(file: Path) -> None:
    """Write the figure as one file."""
    with mpl.rc_context({**MATPLOTLIB_STYLE, "font.size": 10.0}):
        save_figure_as(draw_figure(), file)


if __name__ == "__main__":
    draw(FILE)
    print(f"drawn: {FILE.relative_to(ROOT)}", file=sys.stderr)

"""Curves of a trace: a panel for each task, a line for each length, over the steps of the training."""

from pathlib import Path

import matplotlib as mpl

from lexbench.parts.search.trace.trace import Traced
from lexbench.report.plots.style import MATPLOTLIB_STYLE, NotebookFigure, save_figure, series_style
from lexbench.report.wording import metric_label
from lexbench.stats.floors import standing_of_outcomes
from lexbench.stats.metrics import display_factor


def draw(found: Traced, stem: Path) -> None:
    """Draw the figure as stem.svg."""
    with mpl.rc_context(MATPLOTLIB_STYLE):
        save_figure(figure(found), stem, png=False)


def figure(found: Traced) -> NotebookFigure:
    """Lines with 95 % bands; a dotted line marks the checkpoint after which a length falls."""
    tasks = list(dict.fromkeys(column.task for column in found.columns))
    places = found.steps or [*range(len(found.rows))]
    made = NotebookFigure(figsize=(6.4, 0.4 + 2.9 * len(tasks)), layout="constrained")
    for axes, task in zip(made.subplots(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        columns = [(column, metric) for column, metric in found.columns.items() if column.task == task]
        for rank, (column, metric) in enumerate(columns):
            known = [standing_of_outcomes(row.kept[column].outcomes[metric], metric, {}) for row in found.rows]
            values, low, high = (
                [
                    float("nan") if (end := getattr(each, name)) is None else display_factor(metric) * end
                    for each in known
                ]
                for name in ("value", "low", "high")
            )
            look = series_style(rank)
            axes.plot(places, values, label=f"{column.length:,}", **look)
            axes.fill_between(places, low, high, color=look["color"], alpha=0.12, linewidth=0)
            for fall in found.falls:
                if fall.column == column:
                    axes.axvline(places[fall.before], color=look["color"], linewidth=1.0, linestyle=":")
        axes.set_title(f"{task} (dotted: a length falls after it)", fontsize=10)
        unit = " (points)" if display_factor(columns[0][1]) != 1 else ""
        axes.set_ylabel(f"{metric_label(columns[0][1])}{unit}")
        axes.legend(title="tokens", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        if found.steps is None:
            axes.set_xticks(places, [row.name for row in found.rows])
    axes.set_xlabel("checkpoint" if found.steps is None else "step")
    return made

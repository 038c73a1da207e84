"""Draw the picture of the first page: two views of the same methods, from the committed records."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from mkdocs.structure.files import File

from lexbench.report.looks import looks
from lexbench.report.plots import style
from lexbench.stats.records import load
from lexbench.stats.tables import Table, tables

RUN = Path(__file__).parents[2] / "results" / "reference" / "lexlet"
METHODS = ("none", "ntk", "yarn", "sliding_window", "rerope")
PANELS = (("last_segment", "nll", "NLL: nats per token, lower is better"), ("passkey", "accuracy", "passkeys found"))


def on_files(files: Any, config: Any) -> Any:
    """Add the picture to the site."""
    files.append(File.generated(config, "assets/two_views.svg", content=two_views()))
    return files


def drawn(draw: Callable[[Path], None]) -> bytes:
    """Return the SVG that a function draws."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture.svg"
        draw(file)
        return file.read_bytes()


def two_views() -> bytes:
    """NLL and passkeys of the same methods, side by side."""
    finished = [each for each in load([RUN]).finished if each.cell.method in METHODS]
    known = {(table.cell.task, table.metric): table for table in tables(finished)}

    def draw(file: Path) -> None:
        with rc_context(style.STYLE):
            figure = Figure(figsize=(9.0, 3.4), layout="constrained")
            for axes, (task, metric, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
                _panel(axes, known[task, metric])
                axes.set_title(title)
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right center", frameon=False)
            style.save(figure, file.with_suffix(""))

    return drawn(draw)


def _panel(axes: Any, table: Table) -> None:
    for method, look in looks(METHODS).items():
        records = table.of(method)
        lengths = [record.length for record in records]
        axes.plot(lengths, [record.value for record in records], label=method, **style.line(look))
        low, high = ([getattr(record, end) for record in records] for end in ("low", "high"))
        axes.fill_between(lengths, low, high, color=look.colour, alpha=0.12, linewidth=0)
    axes.axvline(table.cell.trained_length, color="0.55", linestyle=(0, (4, 3)), linewidth=1.0)
    axes.annotate(
        "trained length",
        (table.cell.trained_length, 0.5),
        xycoords=("data", "axes fraction"),
        rotation=90,
        ha="right",
        va="center",
        color="0.4",
        fontsize=7.5,
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(table.lengths, [str(length) for length in table.lengths])
    axes.set_xlabel("length (tokens)")

"""What all figures share: their looks, and files that are the same bytes every time."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lexbench.files import write_bytes, write_text

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lexbench",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
}


def save(figure: Figure, stem: Path) -> None:
    """The figure as stem.svg and stem.png, without dates or random ids."""
    FigureCanvasAgg(figure)
    for suffix, metadata in ((".svg", {"Date": None, "Creator": "lexbench"}), (".png", {"Software": "lexbench"})):
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix[1:], dpi=160, metadata=metadata)
        write_bytes(stem.with_name(stem.name + suffix), stream.getvalue())


def save_numbers(stem: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """The numbers of a figure as stem.csv."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    write_text(stem.with_name(stem.name + ".csv"), stream.getvalue())

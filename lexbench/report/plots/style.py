"""Shared style of figures: colours, lines, limits, and byte-identical files."""

import csv
import hashlib
import io
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path as MarkerPath
from matplotlib.transforms import Affine2D
from numpy.typing import ArrayLike

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_bytes, write_text
from lexbench.core.method_key import MethodKey
from lexbench.report.formats import csv_value
from lexbench.report.looks import DASH_PATTERNS, HIGHLIGHT_COLOUR, INK_COLOUR, Look

SERIES_COLOURS = (INK_COLOUR, "#0072B2", HIGHLIGHT_COLOUR, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D31")
"""Colours of lines that are no methods, in their order."""
MARKER_OF_SHAPE = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "cross": "P", "x": "X",
    "star": "*", "pentagon": "p", "triangle-left": "<", "triangle-right": ">",
}  # fmt: skip
"""Markers by the names of `report.looks`."""
SERIES_MARKERS = tuple(MARKER_OF_SHAPE.values())[:8]
SERIES_STROKES = ("-", "--", "-.", ":")
Field = tuple[float, float, float, float]
"""x, y, width and height in data units."""
TRAINED_GROUND = "0.94"
"""Grey of lengths within the trained one; no other part of a figure has it."""
BACKGROUND_LINE: dict[str, Any] = {"color": "0.82", "linewidth": 0.8, "zorder": 1}
"""A line in the background."""
ARROW_MARKER = MarkerPath([(0, 1), (-0.7, 0.1), (-0.2, 0.1), (-0.2, -1), (0.2, -1), (0.2, 0.1), (0.7, 0.1), (0, 1)])
"""Marker where a curve leaves the axis: no method has it."""
OFF_AXIS_ARROW: dict[str, Any] = {"marker": ARROW_MARKER, "markersize": 8, "linestyle": "none", "markeredgewidth": 0.0}
DOWN_ARROW: dict[str, Any] = {**OFF_AXIS_ARROW, "marker": ARROW_MARKER.transformed(Affine2D().rotate_deg(180))}
MATPLOTLIB_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lexbench",  # without it the ids of clip paths are random
    "pdf.fonttype": 42,  # text stays text
    "text.parse_math": False,
    "text.hinting": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
}
"""A dollar in a name is a dollar, no mathematics. So a logarithmic axis needs a formatter of its own. Words
without hints have one width in all formats (with hints a PNG's are up to 5 % wider), so one layout serves them all."""
METADATA_OF_SUFFIX: dict[str, dict[str, str | None]] = {
    ".svg": {"Date": None, "Creator": "lexbench"},
    ".png": {"Software": "lexbench"},
    ".pdf": {"CreationDate": None, "Creator": "lexbench", "Producer": None},
}
REFUSED_CELL_FILL: dict[str, Any] = {"facecolor": "0.95", "edgecolor": "0.7", "hatch": "/////", "linewidth": 0.0}
"""Fill of a refused cell."""
REFUSED_TEXT_BOX: dict[str, Any] = {"facecolor": "0.95", "edgecolor": "none", "boxstyle": "square,pad=0.15"}
"""Box behind words on a refused cell."""
TOTAL_BAND_OPACITY = 0.35
"""Opacity of the bands of all methods together."""
PNG_DOTS_PER_INCH = 160
"""Resolution of PNG files."""
FAMILY_PANEL_COLUMNS = 2
"""Panels of families side by side."""
PANEL_SIZE_INCHES = (5.2, 2.7)
"""Inches of one of several panels, with its legend."""
LEGEND_LINE_CHARACTERS = 32
"""Characters of a line of a legend."""
NARROW_LEGEND_CHARACTERS = 17
"""Characters of a legend's line beside one of several panels: as many as in the longest name of a method."""
CHARACTER_WIDTH_SHARE = 0.6
"""Width of a character in names, as a share of the font size; names have more small letters than capitals."""


def save_figure(figure: Figure, stem: Path, png: bool = False) -> None:
    """Save a figure as stem.svg and, if asked for, as stem.png, without dates or random ids.

    Its layout is fixed from here on.
    """
    FigureCanvasAgg(figure)  # the layout measures words with its renderer, whatever the format
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine(None)  # otherwise each format is laid out again, with a drawing of its own
    save_figure_as(figure, stem.with_name(f"{stem.name}.svg"))
    if png:
        save_figure_as(figure, stem.with_name(f"{stem.name}.png"))
    else:
        stem.with_name(f"{stem.name}.png").unlink(missing_ok=True)  # an older figure's


def save_figure_as(figure: Figure, file: Path) -> None:
    """The figure as one file; ConfigError unless its suffix is .svg, .png or .pdf."""
    suffix = file.suffix.lower()
    if suffix not in METADATA_OF_SUFFIX:
        raise ConfigError(f"plot must end in .png, .svg or .pdf, got {file.name}: rename it")
    write_bytes(file, _figure_bytes(figure, suffix), durable=False)


def _figure_bytes(figure: Figure, suffix: str) -> bytes:
    FigureCanvasAgg(figure)
    stream = io.BytesIO()
    figure.savefig(stream, format=suffix[1:], dpi=PNG_DOTS_PER_INCH, metadata=METADATA_OF_SUFFIX[suffix])
    return shorten_svg(stream.getvalue()) if suffix == ".svg" else stream.getvalue()


def shorten_svg(svg: bytes) -> bytes:
    """An SVG without what no reader sees: coordinates below a tenth of a point, indents, repeated `L`, metadata, ids
    that nothing refers to; a style that several elements have stands once, as a class named by its hash."""
    svg = _with_style_classes(LONG_COORDINATE.sub(_round_number, svg))
    lines, command = list[bytes](), b""
    for line in map(bytes.strip, METADATA_BLOCK.sub(b"", svg).split(b"\n")):
        if line.startswith(b"L ") and command in (b"M", b"L"):  # a line goes on without its letter
            line, command = line[2:], b"L"
        else:
            last = PATH_COMMAND.search(line)
            command = last[1] if last else b""
        lines.append(line)
    return b"\n".join(lines)


def _with_style_classes(svg: bytes) -> bytes:
    used = set(ID_REFERENCE.findall(svg))
    svg = ID_ATTRIBUTE.sub(lambda found: b"" if found[1] and found[1] not in used else found[0], svg)
    counts = Counter(found[1] for found in STYLE_ATTRIBUTE.finditer(svg))
    classes = {
        style: b"c" + hashlib.sha256(style).hexdigest()[:6].encode()
        for style, count in counts.items()
        if style and count > 1
    }

    def classed(found: re.Match[bytes]) -> bytes:
        return b' class="%b"' % classes[found[1]] if found[1] in classes else found[0]

    rules = b"".join(b".%b{%b}" % (name, style) for style, name in classes.items())
    return STYLE_ATTRIBUTE.sub(classed, svg).replace(b"</style>", rules + b"</style>", 1) if b"</style>" in svg else svg


def _round_number(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] is None else f"{float(found[1]):.1f}".rstrip("0").rstrip(".").encode()


LONG_COORDINATE = re.compile(rb"<!--.*?-->|(?<![\w.#])([1-9]\d*\.\d{2,})(?![\w.])")
"""A comment, which holds a text as it is shown, or a number of at least 1: smaller ones are scales of letters."""
ID_REFERENCE = re.compile(rb"#([\w.-]+)")
ID_ATTRIBUTE = re.compile(rb'<!--.*?-->| id="([^"]*)"')
STYLE_ATTRIBUTE = re.compile(rb'<!--.*?-->| style="([^"]*)"')
"""A comment, or the attribute with its value."""
METADATA_BLOCK = re.compile(rb"\s*<metadata>.*?</metadata>", re.DOTALL)
PATH_COMMAND = re.compile(rb'(?:d="|^)([MLQCz])[ "]?[^MLQC]*$')
"""The last command of a line of a path."""


class NotebookFigure(Figure):
    """A figure that a notebook shows by itself; one that pyplot has not made it would only name."""

    def _repr_png_(self) -> bytes:
        return _figure_bytes(self, ".png")


def save_numbers(stem: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write the numbers of a figure to stem.csv."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(csv_value, names))
    writer.writerows([csv_value(each) for each in row] for row in rows)
    write_text(stem.with_name(stem.name + ".csv"), stream.getvalue(), durable=False)


def wrap_name(name: object, width: int, lines: int = 3) -> str:
    """A name or title in lines of at most so many characters; of one that needs more lines, the middle is left out.

    Names are others' text: what cannot be printed becomes a replacement character.
    """
    text = " ".join("".join(each if each.isprintable() or each.isspace() else "\ufffd" for each in str(name)).split())
    room = width * lines * 3 // 4  # lines are not filled to their ends
    # "better" stays beside its arrow.
    text = re.sub("(?<=[\N{UPWARDS ARROW}\N{DOWNWARDS ARROW}]) ", "\N{NO-BREAK SPACE}", text)
    if len(found := textwrap.wrap(text, width)) > lines:
        found = textwrap.wrap(f"{text[: room // 2]}\N{HORIZONTAL ELLIPSIS}{text[-(room // 2) :]}", width)
    return "\n".join(found).replace("\N{NO-BREAK SPACE}", " ")


def fitting_characters(inches: float, points: float) -> int:
    """Count the characters of a name that fit into a line, at a font size."""
    return int(inches * 72 / (CHARACTER_WIDTH_SHARE * points))


def wrap_text(text: str, inches: float, points: float, lines: int = 2) -> str:
    """A text whose lines fit into so many inches at a font size, each broken into a few lines at most."""
    width = fitting_characters(inches, points)
    return "\n".join(wrap_name(line, width, lines) for line in text.split("\n"))


def draw_title(axes: Axes, text: str, pad: float = 6.0) -> None:
    """Over the axes and what is beside them; each of the text's lines wrapped."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.set_title(wrap_text(text, figure.get_figwidth() - 0.8, 10.0), pad=pad)


def pairs_for(
    shown: Sequence[tuple[str, Sequence[MethodKey]]], heading: str, x: str, left: str, right: str
) -> tuple["NotebookFigure", Sequence[tuple[Axes, Axes]]]:
    """A figure with two panels side by side for each title: differences, and levels beside them.

    Args:
        shown: title and methods of each pair.
        heading: over all of them.
        x: name of the axis that they share.
        left: name of the value axis on the left.
        right: the same on the right.
    """
    alone = len(shown) == 1
    size = (
        (10.4, 4.2) if alone else (PANEL_SIZE_INCHES[0] * FAMILY_PANEL_COLUMNS, 0.8 + PANEL_SIZE_INCHES[1] * len(shown))
    )
    figure = NotebookFigure(figsize=size, layout="constrained")
    pairs = [(row[0], row[1]) for row in figure.subplots(len(shown), 2, squeeze=False)]
    for pair, (name, _) in zip(pairs, shown, strict=True):
        for axes, label in zip(pair, (left, right), strict=True):
            axes.set_ylabel(wrap_name(label, 40 if alone else 26), fontsize=9 if alone else 8)
            axes.set_title(name, fontsize=9, pad=12)
    figure.supxlabel(x, fontsize=9)
    heading += "" if alone else "\ngrey: the methods of the other panels"
    figure.suptitle(wrap_text(heading, figure.get_figwidth() - 0.4, 10.0), fontsize=10)
    return figure, pairs


def panels_for(
    shown: Sequence[tuple[str, Sequence[MethodKey]]], heading: str, x: str, y: str
) -> tuple["NotebookFigure", Sequence[Axes]]:
    """A figure with one panel, or with several side by side, of so many titles.

    Args:
        shown: title and methods of each panel.
        heading: over all of them.
        x: name of the axis that they share.
        y: the same.
    """
    if len(shown) == 1:
        figure = NotebookFigure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(wrap_name(y, 44))
        draw_title(axes, heading, pad=14)
        return figure, [axes]
    lines = -(-len(shown) // FAMILY_PANEL_COLUMNS)
    figure = NotebookFigure(
        figsize=(PANEL_SIZE_INCHES[0] * FAMILY_PANEL_COLUMNS, 0.8 + PANEL_SIZE_INCHES[1] * lines), layout="constrained"
    )
    panels = list(figure.subplots(lines, FAMILY_PANEL_COLUMNS, squeeze=False).ravel())
    for axes, (name, _) in zip(panels, shown, strict=False):
        axes.set_title(name, fontsize=9, pad=12)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    place_empty_labels(panels)
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    heading += "\ngrey: the methods of the other panels"
    figure.suptitle(wrap_text(heading, figure.get_figwidth() - 0.4, 10.0), fontsize=10)
    return figure, panels[: len(shown)]


def draw_fields(axes: Axes, fields: Sequence[tuple[Field, Any]]) -> None:
    """Fields with their colours and white edges as one artist: each by itself would take half a millisecond."""
    boxes = [((x, y), (x + width, y), (x + width, y + height), (x, y + height)) for (x, y, width, height), _ in fields]
    colours = [colour for _, colour in fields]
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors="white"), autolim=False)


def place_empty_labels(panels: Iterable[Axes]) -> None:
    """Fix the places of axis labels that stay empty.

    To find a place for one, matplotlib measures all tick labels of its axis, several times a drawing.
    """
    for axes in panels:
        axes.xaxis.set_label_coords(0.5, 0.0)
        axes.yaxis.set_label_coords(0.0, 0.5)


def draw_background_curves(axes: Axes, curves: Sequence[ArrayLike]) -> None:
    """Curves in the background, each [points, 2], as one artist: each by itself would take a millisecond."""
    axes.add_collection(
        LineCollection([curve for curve in curves if len(np.asarray(curve))], **BACKGROUND_LINE), autolim=False
    )


def band_opacity(count: int) -> float:
    """Opacity of one band, so that many overlapping ones stay readable."""
    return float(1 - (1 - TOTAL_BAND_OPACITY) ** (1 / count))


def line_style(look: Look, size: float = 5.0, width: float = 1.5) -> dict[str, Any]:
    """A method's line for matplotlib; thicker, with a larger marker, and above others where it is in front."""
    grown = 1.5 if look.front else 1.15 if look.tone == 0 else 1.0
    star = 1.5 if look.marker == "star" else 1.0
    return {
        "color": look.colour,
        "marker": MARKER_OF_SHAPE[look.marker],
        "linestyle": (0, DASH_PATTERNS[look.dash]) if DASH_PATTERNS[look.dash] else "-",
        "markersize": size * star * (1.2 if look.front else 1.0),
        "linewidth": width * grown,
        "markerfacecolor": "white" if look.hollow else look.colour,
        "zorder": 5 if look.front else 4 if look.tone == 0 else 3,
    }


def marker_style(look: Look, size: float = 5.0) -> dict[str, Any]:
    """A method's marker alone."""
    return {**line_style(look, size), "linestyle": "none"}


def series_style(place: int) -> dict[str, Any]:
    """Looks of a line that is no method: the ninth has the first one's colour, with another marker and stroke."""
    again = place + place // len(SERIES_COLOURS)
    return {
        "color": SERIES_COLOURS[place % len(SERIES_COLOURS)],
        "marker": SERIES_MARKERS[again % len(SERIES_MARKERS)],
        "linestyle": SERIES_STROKES[again % len(SERIES_STROKES)],
        "markersize": 5,
        "linewidth": 1.5,
    }


def draw_legend(axes: Axes, handles: Sequence[Line2D], interval: str, alone: bool | None = None) -> None:
    """The methods and marks, to the right of the axes; the figure grows where they are many or long.

    Args:
        axes: beside which it stands.
        handles: lines with their names.
        interval: how 95 % intervals are drawn, `bars` or `band_opacity`; empty: they are not.
        alone: whether no other axes stand below; None: the figure has these alone.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    alone = len(figure.axes) == 1 if alone is None else alone
    for handle in handles:
        handle.set_label(
            wrap_name(str(handle.get_label()), LEGEND_LINE_CHARACTERS if alone else NARROW_LEGEND_CHARACTERS)
        )
    labels = [str(handle.get_label()).split("\n") for handle in handles]
    longest = max((len(line) for lines in labels for line in lines), default=0)
    points = sum(4.5 + 10.8 * len(lines) for lines in labels)
    # An axes alone gives the legend room by a larger figure, instead of becoming narrow beside it.
    if alone:
        width, height = figure.get_size_inches()
        figure.set_size_inches(
            width + max(0, longest - 20) * CHARACTER_WIDTH_SHARE * 9 / 72, max(height, points / 72 + 1.2)
        )
    made = axes.legend(
        handles=handles,
        title=f"method{f' ({interval}: 95 %)' if interval else ''}",
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        alignment="left",
        handlelength=3.0,
    )
    made.get_title().set_fontsize(8.5)


def value_limits(worst: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Ends of an axis where lower is better, which one collapsed method must not stretch.

    It ends half as far again above the lowest value as the middle method's worst one, but at least 1 (nat or bit)
    above the best method's worst one, and never above all values.
    """
    top = min(high, max(low + 1.5 * (float(np.median(worst)) - low), min(worst) + 1.0))
    margin = 0.05 * max(top - low, 0.02)
    return low - margin, top + margin


def mark_trained_length(axes: Axes, place: float, low: bool) -> None:
    """A grey ground up to a place on the x axis, its name at the lower or upper end of its edge."""
    axes.axvspan(axes.get_xlim()[0], place, color=TRAINED_GROUND, linewidth=0, zorder=-3)
    axes.annotate(
        "trained length",
        xy=(place, 0.02 if low else 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 0),
        textcoords="offset points",
        rotation=90,
        horizontalalignment="right",
        verticalalignment="bottom" if low else "top",
        color="0.4",
        fontsize=7.5,
        zorder=5,
        bbox={"facecolor": TRAINED_GROUND, "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
    )

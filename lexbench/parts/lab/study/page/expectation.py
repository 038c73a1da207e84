"""LEX's figure 2: the expected logit of rotary encodings by distance, from their formula alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lexbench.core import registry
from lexbench.parts.lab.study.page.plots import TRAINED_LENGTH_LINE
from lexbench.report.formats import markdown_columns
from lexbench.report.plots.style import MATPLOTLIB_STYLE, save_figure, save_numbers, series_style

Floats = NDArray[np.float64]
TABLE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LEX_FIGURE_2_NOTE = """\
The expected logit of a query and a key that are alike, by their distance n (LEX, figure 2):
g[n] = mean over pairs p of zeta_p^(n/B) cos(n theta_p), where RoPE has zeta = 1. It is a formula: no model is asked.
LEX reads a smooth fall as a high resolution. *climbs*: all rises of g from one distance to the next, added up, from
the trained length on to 8 times of it.
"""


def expected_logits(inv_freq: Floats, decay: Floats | None, distances: Floats) -> Floats:
    """[distances] g[n] of pairs that turn by inv_freq and grow by e^decay at each token."""
    faded = 0.0 if decay is None else distances[:, None] * decay
    found: Floats = (np.exp(faded) * np.cos(distances[:, None] * inv_freq)).mean(1)
    return found


def expectation_curves(about: Mapping[str, Any]) -> dict[str, Floats]:
    """g at distances 0 .. 8 L of every rotary encoding beside a row of LEX, at the constants of the study's recipe."""
    from lexbench.parts.lab.encodings.base import RotaryEncoding  # loads torch
    from lexbench.parts.lab.native import build
    from lexbench.parts.lab.native.decoder import DecoderShape

    if about["recipe"] not in registry.registered_names("recipe"):
        return {}
    recipe = registry.read_named_config("recipe", about["recipe"])
    if not recipe.get("shape") or not recipe.get("vocabulary"):
        return {}
    shape, length = DecoderShape(vocabulary=recipe["vocabulary"], **recipe["shape"]), about["trained_length"]
    beside = {row["entry"] for row in about["published"] if row["table"].startswith("lex-")}
    known = {model["entry"]: model.get("encoding") for model in about["models"] if model["entry"] in beside}
    found = {}
    for entry, spec in known.items():
        encoding = build.build_stated_encoding(spec, shape, length) if spec else None
        if isinstance(encoding, RotaryEncoding):
            decay = None if encoding.decay is None else encoding.decay.numpy()
            found[entry] = expected_logits(encoding.inv_freq.numpy(), decay, np.arange(8 * length + 1.0))
    return found


def expectation_section(about: Mapping[str, Any], folder: Path) -> list[str]:
    """A table of g at multiples of the trained length, and a figure."""
    found, length = expectation_curves(about), about["trained_length"]
    if not found:
        return []
    _plot_expectation(found, length, folder / "plots" / "expectation")
    rows = []
    for entry, values in found.items():
        climbs = np.diff(values[length:]).clip(0).sum()
        rows.append([entry, *(f"{values[round(at * length)]:.3f}" for at in TABLE_MULTIPLES), f"{climbs:.3f}"])
    head = ["encoding", *(f"g at {at:g}x" for at in TABLE_MULTIPLES), "climbs"]
    said = ["![expected logit by distance](plots/expectation.svg)", ""]
    return ["### Expected logits by distance", "", LEX_FIGURE_2_NOTE, *markdown_columns(head, rows), "", *said]


def _plot_expectation(found: Mapping[str, Floats], length: int, stem: Path) -> None:
    with mpl.rc_context(MATPLOTLIB_STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
        axes.axvline(length, **TRAINED_LENGTH_LINE)
        for place, (entry, values) in enumerate(found.items()):
            axes.plot(range(1, len(values)), values[1:], color=series_style(place)["color"], linewidth=1.0, label=entry)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("distance from query to key (tokens)")
        axes.set_ylabel("expected logit g, over that at 0")
        axes.legend(fontsize=7, frameon=False)
        save_figure(figure, stem)
    # Six digits: the last bits of exp and cos differ between processors.
    rows = ((entry, n, f"{value:.6f}") for entry, values in found.items() for n, value in enumerate(values))
    save_numbers(stem, ("encoding", "distance", "expected"), rows)

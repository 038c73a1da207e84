"""Draw the TeX of `math` fences as SVG, which needs no script and no font."""

import html
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

LETTERS = FontProperties(math_fontfamily="stix")
SIZE = 17
"""Font size of formulas, in pixels."""
STEPS = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C", Outline.CLOSEPOLY: "Z"}


def on_config(config: Any) -> Any:
    """Register fences named math as formulas."""
    fences = config["mdx_configs"].setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "formula", "format": formulas})
    return config


def formulas(source: str, *_: Any, **__: Any) -> str:
    """Draw each line of a fence."""
    return "".join(f'<p class="formula">{drawing(line.strip())}</p>' for line in source.splitlines() if line.strip())


def drawing(tex: str) -> str:
    """SVG of one line of TeX (the part that matplotlib's mathtext knows) in the text colour; its label is the TeX."""
    outline = TextPath((0, 0), f"${tex}$", size=SIZE, prop=LETTERS)
    (left, bottom), (right, top) = outline.get_extents().get_points().tolist()
    pieces = []
    for points, code in outline.iter_segments(curves=True, simplify=False):
        places = [] if code == Outline.CLOSEPOLY else [f"{round(value, 2):g}" for value in points]
        pieces.append(STEPS[code] + " ".join(places))
    width, height = right - left + 2, top - bottom + 2
    box = f"{left - 1:.1f} {-top - 1:.1f} {width:.1f} {height:.1f}"
    return (
        f'<svg role="img" aria-label="{html.escape(tex)}" width="{width:.0f}" height="{height:.0f}" viewBox="{box}">'
        f'<path transform="scale(1 -1)" fill="currentColor" d="{"".join(pieces)}"/></svg>'
    )

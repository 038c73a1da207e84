"""Positional encodings that a model is trained with: part of a model, never a method.

One file each; `base` has the hooks, `wrappers` has encodings around another one. Plug-ins import the names below.
"""

from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import (
    Encoding,
    Rotary,
    angles,
    apart,
    frequencies,
    heads_apart,
    of_distance,
    rows,
    turned,
)
from lexbench.parts.lab.encodings.wrappers import Attending, Drawn, Layered, Over, Unrotated

__all__ = [
    "Attending",
    "Drawn",
    "Encoding",
    "Layered",
    "Over",
    "Rotary",
    "Rotate",
    "Unrotated",
    "angles",
    "apart",
    "frequencies",
    "heads_apart",
    "of_distance",
    "rows",
    "turned",
]

"""Positional encodings that a model is trained with: part of a model, never a method.

One file each; `base` has the hooks, `wrappers` has encodings around another one. Plug-ins import the names below.
"""

from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import (
    Encoding,
    RotaryEncoding,
    bias_by_distance,
    insert_head_axis,
    relative_positions,
    rope_frequencies,
    rotate_half,
    rotation_angles,
    table_rows,
)
from lexbench.parts.lab.encodings.wrappers import (
    EncodingPerLayer,
    EncodingWrapper,
    LayerWithSlots,
    RandomPositions,
    UnrotatedLayer,
)

__all__ = [
    "Encoding",
    "EncodingPerLayer",
    "EncodingWrapper",
    "LayerWithSlots",
    "RandomPositions",
    "RotaryEncoding",
    "Rotate",
    "UnrotatedLayer",
    "bias_by_distance",
    "insert_head_axis",
    "relative_positions",
    "rope_frequencies",
    "rotate_half",
    "rotation_angles",
    "table_rows",
]

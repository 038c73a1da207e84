"""Tables of cos and sin in the modules of engines and trainers, found by the names and shapes of their buffers.

    vLLM, SGLang  cos_sin_cache                [rows, 2 pairs]         cos of all pairs, then sin
    torchtune     cache                        [rows, pairs, 2]        cos and sin of each pair
    torchtitan    cache, freqs_cis             [rows, pairs] complex   cos + i sin
    torchtitan    cache, rope_cache            [rows, 4 pairs]         cos of all pairs twice, then sin twice
    LitGPT        cos, sin                     [rows, 2 pairs]         all pairs twice
    LitGPT        cos, sin                     [rows, 2 pairs, 2]      the same, of layers without and with a window

A row is a position.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

CACHE_BUFFER_NAMES = ("cache", "rope_cache", "freqs_cis")
"""Names of torchtune's and torchtitan's buffers."""


@dataclass(frozen=True, eq=False)
class RopeTable:
    """Cos and sin by position, in the dtype that the module holds them in."""

    cos: Tensor
    """[rows, pairs], or each pair twice."""
    sin: Tensor


def cos_sin_cache(module: Any) -> Tensor | None:
    """[rows, rotated] table that a module of vLLM's kind uses, cos then sin; None if it has none."""
    # LongRoPE of vLLM: the short table, then the long one.
    both = getattr(module, "long_short_cos_sin_cache", None)
    if isinstance(both, Tensor):
        short = int(module.original_max_position_embeddings)
        return both[short:] if module.use_long_rope else both[:short]
    table = getattr(module, "cos_sin_cache", None)
    return table if isinstance(table, Tensor) else None


def tables_of(module: Any) -> list[RopeTable]:
    """The tables of a module, views of its buffers; none where it has none of a known name and shape."""
    if (table := cos_sin_cache(module)) is not None:
        return [RopeTable(*table.chunk(2, dim=-1))]
    for name in CACHE_BUFFER_NAMES:
        table = getattr(module, name, None)
        if isinstance(table, Tensor) and (found := _of_cache(table)) is not None:
            return [found]
    cos, sin = (getattr(module, name, None) for name in ("cos", "sin"))
    if not (isinstance(cos, Tensor) and isinstance(sin, Tensor) and cos.shape == sin.shape and cos.dim() in (2, 3)):
        return []
    if cos.dim() == 2:
        return [RopeTable(cos, sin)]
    return [RopeTable(cos[..., index], sin[..., index]) for index in range(cos.shape[-1])]


def _of_cache(table: Tensor) -> RopeTable | None:
    """A buffer of torchtune's or torchtitan's; None for another shape, and for what is no cos and sin at position 0."""
    if table.is_complex() and table.dim() == 2:
        return RopeTable(table.real, table.imag)
    if not table.is_floating_point() or not len(table):
        return None
    if table.dim() == 3 and table.shape[-1] == 2:
        found = RopeTable(table[..., 0], table[..., 1])
    elif table.dim() == 2 and table.shape[-1] % 4 == 0:
        found = RopeTable(*table.chunk(2, dim=-1))
    else:
        return None
    return found if table.is_meta or not found.sin[0].any() else None

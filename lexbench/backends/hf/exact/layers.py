"""A model's own layers: their rotation of queries and keys, and the keys that they see.

Both are read from the loaded model. A layer's rotation is found by comparing its queries with and without the model's
rotary module. So partial and decoupled rotation, layers without positions, and kinds of layers with a RoPE each are
what the model's code does, whatever its family calls them.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lexbench.core.attention import Attention, Blocks, Positions, Remap, Segments, TopKMask, Window
from lexbench.core.layer_types import has_attention, is_chunked, is_windowed
from lexbench.core.record import Refused

WINDOW_CONFIG_ENTRIES = ("sliding_window", "attention_chunk_size")
"""Entries of configs for the sizes of windows and chunks, in tokens."""
ENDLESS_TEXT_TOKENS = 1 << 60
"""Tokens, more than any text has."""
ROTATION_FUNCTION_NAME = "apply_rotary_pos_emb"
"""Function of a modeling file that rotates queries and keys by cos and sin."""
TRIAL_WINDOW_TOKENS = 8
"""Window of a trial, in tokens."""


# rotary modules: one table of frequencies, or one for each kind of layers


def rotary_kinds(rotary: Any) -> list[str | None]:
    """Kinds of layers with frequencies of their own in a rotary module; [None] if all share them, [] if it has none."""
    if hasattr(rotary, "inv_freq"):
        return [None]
    # transformers names the buffers of a kind KIND_inv_freq, and keeps copies under two further endings.
    ends = ("_inv_freq", "_original_inv_freq", "_long_inv_freq")
    found = [name for name, _ in rotary.named_buffers(recurse=False)]
    return [name.removesuffix(ends[0]) for name in found if name.endswith(ends[0]) and not name.endswith(ends[1:])]


def attribute_of_kind(kind: str | None, name: str) -> str:
    """Name of a rotary module's attribute for a kind of layers."""
    return name if kind is None else f"{kind}_{name}"


def rotary_frequencies(rotary: Any, kind: str | None) -> Tensor:
    """[pairs] radians per token."""
    found: Tensor = getattr(rotary, attribute_of_kind(kind, "inv_freq"))
    return found


def rotary_scale(rotary: Any, kind: str | None) -> float:
    """Scale of cos and sin."""
    return float(getattr(rotary, attribute_of_kind(kind, "attention_scaling"), 1.0))


def rope_types(rotary: Any) -> list[str]:
    """Names of the scalings of a rotary module, one for each kind of layers."""
    found = getattr(rotary, "rope_type", "default")
    return [str(each) for each in found.values()] if isinstance(found, Mapping) else [str(found)]


def call_rotary(rotary: Any, x: Tensor, positions: Tensor, kind: str | None) -> Any:
    """Call a rotary module; returns cos and sin, or both as one complex tensor."""
    return rotary(x, positions) if kind is None else rotary(x, positions, kind)


def as_cos_sin(made: Any) -> tuple[Tensor, Tensor] | None:
    """[B, T, width] cos and sin of text; None for anything else."""
    if isinstance(made, Tensor) and made.is_complex():
        return made.real, made.imag
    if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(each, Tensor) for each in made)):
        return None
    cos, sin = (each[0] if each.dim() == 4 else each for each in made)  # of three axes, text has one
    return cos, sin


class IdentityRotary(nn.Module):
    """A rotary module that does not rotate: cos 1, sin 0, in the shapes of the model's own."""

    def __init__(self, own: Mapping[str | None, Any]) -> None:
        super().__init__()
        self._complex = any(isinstance(made, Tensor) for made in own.values())
        self._shapes = {kind: (made if isinstance(made, Tensor) else made[0]).shape for kind, made in own.items()}

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Cos and sin, [1, T, width]."""
        *leading, _, width = self._shapes[layer_type]
        shape = (*leading, position_ids.shape[-1], width)
        if self._complex:
            return torch.ones(shape, dtype=torch.complex64, device=x.device)
        return x.new_ones(shape), x.new_zeros(shape)


# rotation of a layer


@dataclass(frozen=True)
class Turn:
    """Rotation of a layer's queries and keys by cos and sin."""

    pairs: int
    layout: str
    """half or interleaved, as the vectors reach the attention function."""
    offset: int
    """First rotated dimension of a head."""
    alternating: bool
    """Whether the tables repeat each number, not the whole row."""
    apply: Callable[..., tuple[Tensor, Tensor]] | None = None
    """`apply_rotary_pos_emb` of the modeling file; None: the same in ours."""
    known: bool = True
    """Whether the layout alone tells how to rotate."""
    fused: bool = False
    """Whether a Triton kernel rotates, by the layout, where numbers are of half precision."""

    @property
    def row(self) -> int:
        """Numbers of a table from that of the first pair to that of the last one."""
        return 2 * self.pairs if self.alternating else self.pairs

    def with_wrong_pairs(self) -> "Turn":
        """Rotation by the same angles of the wrong pairs: neighbours in place of halves, or the reverse."""
        return replace(self, layout="interleaved" if self.layout == "half" else "half", apply=None)

    def __call__(self, vectors: Tensor, made: Any) -> Tensor:
        """Rotate [B, H, T, D] by what a rotary module returned."""
        fused = self.fused and self.known and vectors.dtype in (torch.bfloat16, torch.float16)
        if self.apply is not None and not fused:
            cos, sin = (table.to(vectors.device) for table in made)
            width = cos.shape[-1]
            rotated, _ = self.apply(vectors[..., :width], vectors[:, :0, :, :width], cos, sin)  # no heads as keys
            return rotated if width == vectors.shape[-1] else torch.cat([rotated, vectors[..., width:]], dim=-1)
        tables = as_cos_sin(made)
        assert tables is not None, "the rotary module returns what it returned before"
        # Tables hold the number of a pair twice: side by side, or in two halves.
        places = slice(0, None, 2) if self.alternating else slice(self.pairs)
        cos, sin = (t[..., places][..., : self.pairs].to(vectors.device) for t in tables)
        if fused:  # in float32, whatever the dtype of the tables: some families keep them in float32
            from lexbench.kernels import triton_rotate

            return triton_rotate.rotate_pairs(vectors, cos, sin, self.layout == "half", self.offset)
        cos, sin = (each[:, None].to(vectors.dtype) for each in (cos, sin))
        end = self.offset + 2 * self.pairs
        inside = vectors[..., self.offset : end]
        half = self.layout == "half"
        one, two = inside.chunk(2, dim=-1) if half else (inside[..., ::2], inside[..., 1::2])
        # Pair (x, y) at angle t: (x cos t - y sin t, y cos t + x sin t).
        spun = one * cos - two * sin, two * cos + one * sin
        joined = torch.cat(spun, dim=-1) if half else torch.stack(spun, dim=-1).flatten(-2)
        whole = joined.shape[-1] == vectors.shape[-1]
        return joined if whole else torch.cat([vectors[..., : self.offset], joined, vectors[..., end:]], dim=-1)


def plain_turn(before: Tensor, after: Tensor, made: Any, pairs: int, tolerance: float) -> Turn | None:
    """The Turn by layout that makes vectors `after` [B, H, T, D] from those `before`; None if none does."""
    # Rotated dimensions stand first in a head, or last.
    ends = dict.fromkeys([0, before.shape[3] - 2 * pairs])
    turns = (
        Turn(pairs, layout, offset, alternating)
        for offset in ends
        for layout in ("half", "interleaved")
        for alternating in (False, True)
        if offset >= 0
    )
    return next((turn for turn in turns if _turn_agrees(turn, before, after, made, tolerance)), None)


def turn_of(module: nn.Module, before: Tensor, after: Tensor, made: Any, pairs: int, tolerance: float) -> Turn | None:
    """The Turn that makes queries `after` [B, H, T, D] from those `before`; None if none does."""
    found = plain_turn(before, after, made, pairs, tolerance)
    theirs = vars(sys.modules[type(module).__module__]).get(ROTATION_FUNCTION_NAME)
    # The family's own function rounds as the model does: it goes first where it fits.
    if theirs is not None:
        family = replace(found or Turn(pairs, "half", 0, False), apply=theirs, known=found is not None)
        if _turn_agrees(family, before, after, made, tolerance):
            return family
    return found


def _turn_agrees(turn: Turn, before: Tensor, after: Tensor, made: Any, tolerance: float) -> bool:
    try:
        found = turn(before, made)
    except (RuntimeError, TypeError, ValueError, IndexError):  # another signature, or other sizes
        return False
    # As a share of what the rotation has moved: beside whole queries, errors of small angles would not show.
    moved = after - before
    return found.shape == after.shape and bool((found - after).std() <= tolerance * moved.std())


@dataclass
class Recorder:
    """An attention function that gives zeros, so that queries depend on the rotary module through one layer only."""

    def __post_init__(self) -> None:
        self.seen: dict[int, tuple[nn.Module, Tensor]] = {}
        """Module and queries of each layer."""

    def begin(self, prompt: int | None) -> None:
        """Nothing to reset."""

    def mask(self, attention_mask: Tensor | None, **unused: Any) -> None:
        """No mask: a layer's queries do not depend on it."""

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *unused: Any, **named: Any
    ) -> tuple[Tensor, None]:
        """[B, T, H, D] zeros."""
        self.seen[int(module.layer_idx)] = module, query.clone()  # type: ignore[arg-type]
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


# which keys a layer sees


@dataclass(frozen=True)
class Both:
    """The keys that two masks allow."""

    one: Window | Segments
    other: Window | Blocks | Segments

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key may be seen; causality is understood."""
        return self.one.allowed(queries, keys) & self.other.allowed(queries, keys)


def types_of(config: Any) -> Sequence[str] | None:
    """Kind of each layer, as far as the config states it."""
    found = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return None if found is None else [str(each) for each in found]


def stated_size(config: Any, name: str) -> int | None:
    """A size in a config; None if it has none, or not one for all layers."""
    try:
        found = getattr(config, name, None)
    except RuntimeError:  # transformers' error for a size that layers differ in
        return None
    return found if isinstance(found, int) else None


def is_set(config: Any, name: str) -> bool:
    """Whether a config, or a layer in it, sets an entry to a value other than null, false and 0."""
    try:
        return bool(getattr(config, name, None))
    except RuntimeError:  # transformers' error for an entry that layers differ in
        return True


def views_of(config: Any) -> list[Window | Segments | None]:
    """Keys that each layer sees by itself, in the order of the layers; None: all keys."""
    window, chunk = (stated_size(config, name) for name in WINDOW_CONFIG_ENTRIES)
    kinds = types_of(config) or ["sliding" if window else "full"] * config.num_hidden_layers
    return [_layer_view(kind, window, chunk) for kind in kinds]


def _layer_view(kind: str, window: int | None, chunk: int | None) -> Window | Segments | None:
    if not is_windowed(kind):
        return None
    if is_chunked(kind):
        return Segments(chunk) if chunk else None
    return Window(window) if window else None


@contextmanager
def small_windows(*configs: Any) -> Iterator[None]:
    """Windows of a few tokens inside the block, so that a short text is longer."""
    before = [
        (config, name, size)
        for config in configs
        for name in WINDOW_CONFIG_ENTRIES
        if (size := stated_size(config, name))
    ]
    try:
        for config, name, size in before:
            setattr(config, name, min(TRIAL_WINDOW_TOKENS, size))
        yield
    finally:
        for config, name, size in before:
            setattr(config, name, size)


def attention_within_view(attention: Attention, view: Window | Segments | None, total: int) -> Attention:
    """An Attention in a layer that sees a part of `total` keys by itself."""
    if view is None or total <= view.size:
        return attention
    remap, mask = attention.remap, attention.mask
    if isinstance(remap, Remap) and remap.window >= view.size:  # all keys in view are near
        remap = None
    if isinstance(mask, Window) and mask.size >= view.size:
        mask = None
    if isinstance(mask, TopKMask):
        raise Refused(f"keys chosen among all do not fit layers that see {view.size} tokens: leave middle out")
    both: Any = view if mask is None else Both(view, mask)
    return replace(attention, remap=remap, mask=both)


def changes_nothing(attention: Attention, view: Window | Segments | None, rotates: bool) -> bool:
    """Whether a layer that sees `view` by itself computes the same under an Attention, however long the text."""
    inside = attention_within_view(attention, view, ENDLESS_TEXT_TOKENS)
    left = set(inside.slots()) - ({"mask"} if inside.mask is view else set())
    return not (left if rotates else left - {"inv_freq", "scale", "keep_first", "head_ratios", "remap"})


def is_relative(attention: Attention) -> bool:
    """Whether only distances count, so that a cache may have dropped the first keys."""
    absolute = (attention.remap, attention.query_scale, attention.head_ratios, attention.keep_first, attention.cache)
    return all(slot is None for slot in absolute) and (
        attention.mask is None or (isinstance(attention.mask, Window) and not attention.mask.sinks)
    )


def without_attention(config: Any) -> frozenset[int]:
    """Layers that have no attention to change: recurrent and convolutional ones, by their kinds."""
    return frozenset(layer for layer, kind in enumerate(types_of(config) or []) if not has_attention(kind))

"""Attention of one token of each text of a batch, over keys that are kept rotated.

A query at position i sees ranges of keys, each under one rotation of the query and of the keys (`KeyRange`). Keys
rotated to the same positions are a view, which a cache keeps and extends by one key a step (`Views`). Texts of a batch
stand padded on the left, so that all end in the last column; their lengths, and so their ranges, may differ.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Attention, Blocks, Chunks, PositionMap, Positions, Segments
from lexbench.kernels import chunked, flash, near_far
from lexbench.kernels.chunked import Places
from lexbench.kernels.heads import Rotate
from lexbench.kernels.near_far import Sides
from lexbench.kernels.rotations import scale_of
from lexbench.kernels.spans import is_constant

MadeValue = TypeVar("MadeValue")
Edge = Callable[[Positions], Positions]
"""Function from [B] positions of queries to [B] places of keys."""


@dataclass(frozen=True)
class KeyRange:
    """Keys from `begin` to `end` (excluded), with the positions to which query and keys are rotated for them."""

    query: Places
    key: Places
    begin: Edge
    end: Edge


@dataclass
class DecodeStep:
    """Numbers that all layers share while they read one token of each text."""

    lengths: Positions
    """[B] number of tokens of each text, with the one being read."""
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def make_once(self, name: Hashable, make: Callable[[], MadeValue]) -> MadeValue:
        """Result of `make`, computed for the first layer that asks and kept for the others."""
        if name not in self.memo:
            self.memo[name] = make()
        found: MadeValue = self.memo[name]
        return found

    def places(self, line: Places, device: torch.device) -> Tensor:
        """[B] or [B, bands] rotary positions of the tokens being read, on a layer's device."""
        return self.make_once((line, device), lambda: torch.from_numpy(line(self.lengths - 1)).to(device))


class Views(Protocol):
    """Keys of one layer, as a cache keeps them."""

    values: Tensor
    """[B, KV, K, D] values."""

    def view(self, line: Places | None, turn: Callable[[Tensor, int], Tensor]) -> Tensor:
        """[B, KV, K, D] keys rotated to line(j), kept under the line; None: as they arrived.

        Args:
            line: positions to rotate to.
            turn: rotates keys [B, KV, k, D] of the columns from the given one on.
        """


# Cached so that the maps of positions stay the same objects: a cache keeps rotated keys under them (`Views.view`).
@lru_cache(maxsize=256)
def key_ranges(attention: Attention) -> Sequence[KeyRange] | None:
    """Ranges of keys that the last query sees under an Attention of one layer; None: too many to list."""
    if attention.bias is not None:
        return None
    if (found := near_far.sides(attention)) is not None:
        return _near_and_far(found)
    plain = PositionMap()
    match attention.remap, attention.mask:
        case None, None:
            return (KeyRange(plain, plain, np.zeros_like, _after),)
        case None, Segments(size):
            return (KeyRange(plain, plain, lambda i: i // size * size, _after),)
        case (None, Blocks() as rule) | (Chunks() as rule, None):
            return _blocks(rule)
    return None


def _near_and_far(rule: Sides) -> Sequence[KeyRange]:
    """A window, and the far keys before it."""
    plain, window = PositionMap(), rule.window
    near = KeyRange(plain, plain, lambda i: np.maximum(0, i - window + 1), _after)
    if rule.count == 0:
        return (near,)
    return near, KeyRange(rule.query, rule.key, np.zeros_like, lambda i: np.clip(i - window + 1, 0, rule.count))


def _blocks(rule: Blocks | Chunks) -> Sequence[KeyRange]:
    """The query's own block, the one before, and, of chunks, all older ones."""
    size = rule.size
    own, before, older, key = chunked.block_positions(rule)
    found = [
        KeyRange(own, key, lambda i: i // size * size, _after),
        KeyRange(before, key, lambda i: np.maximum(0, i // size - 1) * size, lambda i: i // size * size),
    ]
    if older is not None:
        found.append(KeyRange(older, key, np.zeros_like, lambda i: np.maximum(0, i // size - 1) * size))
    return tuple(found)


def _after(positions: Positions) -> Positions:
    return positions + 1


def attend(
    queries: Tensor,
    kept: Views,
    step: DecodeStep,
    attention: Attention,
    rotate: Rotate | None,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend as `dense.attend`, from the last token of each text.

    Args:
        queries: [B, H, 1, D], before rotation.
        kept: keys and values of the layer, with those of this token.
        step: lengths of the texts.
        attention: of the layer; `key_ranges` gives its ranges.
        rotate: rotates vectors to positions; None: what arrives is rotated.
        scaling: factor on the logits.
        sinks: [H] logits that take weight and add no value.

    Returns:
        [B, H, 1, D] in the dtype of `queries`.
    """
    found = key_ranges(attention)
    assert found is not None, "the caller has asked for the ranges"
    total = kept.values.shape[2]
    queries = scale_queries(queries, step, attention)
    parts = []
    for reach in found:
        name = reach, total, queries.device
        columns = step.make_once(name, lambda: _columns(reach, step, total, queries.device))  # noqa: B023
        if columns is None:
            continue
        seen, mask = columns
        asking, keys = rotate_for_range(queries, kept, step, reach, rotate)
        parts.append(flash.attend_to_all(asking, keys[:, :, seen], kept.values[:, :, seen], scaling, mask))
    return merge_parts(parts, sinks).to(queries.dtype)


def merge_parts(parts: Sequence[flash.PartialAttention], sinks: Tensor | None) -> Tensor:
    """Outputs over the keys of all parts; the first part is changed."""
    whole, *others = parts  # at least one: each query sees its own key
    for part in others:
        whole.add(slice(None), part)
    return whole.with_sinks(sinks).out


def scale_queries(queries: Tensor, step: DecodeStep, attention: Attention) -> Tensor:
    """Queries times the Attention's `query_scale`."""
    if attention.query_scale is None:
        return queries
    precise = torch.promote_types(queries.dtype, torch.float32)
    scale = step.places(attention.query_scale, queries.device).to(precise)
    # In float32: a factor rounded to bfloat16 would change all logits of the query by up to 0.4 %.
    return (queries.to(precise) * scale[:, None, None, None]).to(queries.dtype)


def _columns(reach: KeyRange, step: DecodeStep, total: int, device: torch.device) -> tuple[slice, Tensor | None] | None:
    """The columns that some text sees, and [B, n] which of them each does (None: all); None where none sees any."""
    # Text b is padded on the left by pads[b] columns, so its key j is in column j + pads[b].
    here, pads = step.lengths - 1, total - step.lengths
    begin, end = reach.begin(here) + pads, reach.end(here) + pads
    some = end > begin
    if not some.any():
        return None
    seen = slice(int(begin[some].min()), int(end[some].max()))
    # No mask where it would hide nothing.
    if some.all() and (begin == seen.start).all() and (end == seen.stop).all():
        return seen, None
    places = torch.arange(seen.start, seen.stop, device=device)
    low, high = (torch.from_numpy(edge).to(device)[:, None] for edge in (begin, end))
    return seen, (places >= low) & (places < high)


def rotate_for_range(
    queries: Tensor, kept: Views, step: DecodeStep, reach: KeyRange, rotate: Rotate | None
) -> tuple[Tensor, Tensor]:
    """Queries and keys, rotated for a reach."""
    device = queries.device
    if rotate is None:
        return queries, kept.view(None, _zero_unused_keys)
    if is_constant(reach.key):
        # All keys at one position: the query turns relative to it, and keys stay, but for the scale of cos and sin.
        there = reach.key
        apart = step.make_once(
            ("apart", reach, device), lambda: step.places(reach.query, device) - step.places(there, device)
        )
        name = "scale", rotate, queries.shape[1], queries.shape[3], device
        by = step.make_once(name, lambda: scale_of(rotate, queries))
        return rotate_rows(queries, apart, rotate) * by, kept.view(None, _zero_unused_keys)

    def turn(keys: Tensor, first: int) -> Tensor:
        """Keys of the columns from `first` on."""
        total = first + keys.shape[2]
        # One new key of each text, the last one: the step's own positions.
        if keys.shape[2] == 1:
            return rotate_rows(keys, step.places(reach.key, device), rotate)
        pads = total - step.lengths
        if not pads.any():
            return rotate(keys, torch.from_numpy(reach.key(np.arange(first, total))).to(device))
        rows = []
        for row, pad in enumerate(pads.tolist()):  # padding stands at the first position
            places = np.maximum(0, np.arange(first, total) - pad)
            rows.append(rotate(keys[row : row + 1], torch.from_numpy(reach.key(places)).to(device)))
        return torch.cat(rows)

    return rotate_rows(queries, step.places(reach.query, device), rotate), kept.view(reach.key, turn)


def _zero_unused_keys(keys: Tensor, first: int) -> Tensor:
    raise AssertionError("keys that stay as they are need no rotation")


def rotate_rows(vectors: Tensor, positions: Tensor, rotate: Rotate) -> Tensor:
    """[B, H, 1, D] vectors, each row rotated to its own position [B] or [B, bands]."""
    if len(vectors) == 1:
        return rotate(vectors, positions)
    # `rotate` has one position a token, not a text: so the texts become the tokens of one text.
    return rotate(vectors.permute(2, 1, 0, 3), positions).permute(2, 1, 0, 3)

"""Compressed caches as data: the slot `cache` of the methods `kv`."""

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lexbench.core.attention import Floats, Positions
from lexbench.core.layer_cache import LayerCache
from lexbench.parts.kv.compressor import Compressor, compressor_named
from lexbench.parts.kv.forms import BITS_OF_FORMAT, Rounding

if TYPE_CHECKING:
    from torch import Tensor

    from lexbench.kernels.heads import Rotate


@dataclass(frozen=True)
class Compression:
    """A compressed cache: numbers of few bits, or fewer tokens, or both.

    Uniform quantisation of a group x, in which `lowest` and `step` are of 16 bits (float16):

        lowest = min x,  step = (max x - min x) / (2^bits - 1),  kept = lowest + step round((x - lowest) / step)

    A group is `group` numbers of one token and head, or `group` tokens of one channel (KIVI, arXiv 2402.02750: keys by
    channel, values by token). Groups of tokens count from the first token; one that is not full is kept exactly.
    """

    bits: int | None
    """Bits of uniform quantisation; None: no quantisation."""
    format: str | None
    """Name of a stored format, a key of `BITS_OF_FORMAT`; None: no format."""
    keys: str
    """Direction of a group of keys: channel or token."""
    values: str
    group: int
    """Numbers of a group; a token's groups are at most as wide as a head."""
    hadamard: bool
    """Whether numbers of a head are mixed by a Hadamard matrix with random signs before they are rounded."""
    residual: int
    """Number of last tokens that a query sees exactly, at least."""
    keep: float
    """Share of the prompt's tokens that each key head holds behind it."""
    by: str
    """Name of the compressor that chooses tokens."""
    in_prompt: bool
    """Whether the prompt's own queries see rounded keys, too."""
    version: int = field(default=1, metadata={"new": True})
    """Version of the choice of tokens, of `keep` below 1: 2 takes the first of equal tokens, and in a layer with a
    window a share of the tokens in it."""
    file: str | None = field(default=None, metadata={"new": True})
    """Hash of the code of a compressor of another package or of the user; None: it is one of ours."""

    @property
    def drops_tokens(self) -> bool:
        """Whether heads hold a part of the prompt only."""
        return self.keep < 1

    @functools.cached_property
    def compressor(self) -> Compressor:
        """The rule by which tokens are chosen."""
        return compressor_named(self.by)

    @property
    def choosing_queries(self) -> int | None:
        """Number of the prompt's last queries by which tokens are chosen; None: all."""
        return self.compressor.choosing_queries

    @property
    def needs_rotation(self) -> bool:
        """Whether the choice asks for queries before their rotation."""
        return self.drops_tokens and self.compressor.needs_rotation

    @property
    def rounding(self) -> Rounding:
        """Form to which numbers are rounded: bits or format, group, Hadamard matrix."""
        return Rounding(self.bits, self.format, self.group, self.hadamard)

    @property
    def rounds(self) -> bool:
        """Whether the cache rounds numbers."""
        return self.rounding.rounds

    def kept_before(self, queries: Positions) -> Positions:
        """[n] number of first keys that each query sees rounded: whole groups in front of the last `residual` ones."""
        if not self.rounds:
            return np.zeros_like(queries)
        seen = np.maximum(0, queries + 1 - self.residual)
        by_channel = self.bits is not None and "channel" in (self.keys, self.values)
        return seen // self.group * self.group if by_channel else seen

    def kept_keys_and_values(self, keys: "Tensor", values: "Tensor", layer: int) -> "tuple[Tensor, Tensor]":
        """Keys and values [B, KV, K, D] of a text's first K tokens in one layer, rounded as the cache holds them."""
        from lexbench.parts.kv import rounding

        form = self.rounding
        return rounding.round_numbers(keys, form, self.keys), rounding.round_numbers(values, form, self.values)

    def by_definition(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Check for `kept_keys_and_values`: the same in NumPy's float64, of [KV, K, D], group by group."""
        from lexbench.parts.kv import definition

        form = self.rounding
        return definition.round_numbers(keys, form, self.keys), definition.round_numbers(values, form, self.values)

    def held_tokens(
        self, queries: "Tensor", keys: "Tensor", values: "Tensor", rotate: "Rotate", scaling: float
    ) -> "Tensor":
        """[B, KV, P] whether a head holds each token of the prompt."""
        from lexbench.parts.kv import eviction

        scores = self.compressor.score(keys, values, queries, rotate, scaling)
        return eviction.best(scores, int(keys.shape[2] * self.keep), keys.dtype)

    def bits_a_number(self, key_dim: int, value_dim: int) -> tuple[float, float]:
        """Bits of a number of keys, and of values, with their group's share of scales, at full precision 16 each."""
        if self.format is not None:
            return (BITS_OF_FORMAT[self.format],) * 2
        if self.bits is None:
            return 16.0, 16.0
        sides = (self.keys, key_dim), (self.values, value_dim)
        sizes = [self.group if way == "channel" else min(self.group, width) for way, width in sides]
        keys, values = (self.bits + 32 / size for size in sizes)
        return keys, values

    def bits_of_text(self, layer: LayerCache, length: int) -> float:
        """Bits that a layer stores of a text of `length` tokens: its last tokens have 16 bits a number.

        A layer with a window stores the tokens in it, and `keep` is a share of these.
        """
        held = layer.tokens(length)
        old = int(self.kept_before(np.array([length - 1]))[0])
        rounded = min(held, max(0, old - (length - held)))
        keys, values = self.bits_a_number(layer.key_dim, layer.value_dim)
        small = layer.heads * (keys * layer.key_dim + values * layer.value_dim)
        return self.keep * (rounded * small + (held - rounded) * 16 * layer.numbers)

    def words(self) -> str:
        """The meaning of a cell under this cache, in one line."""
        parts = []
        if self.bits is not None:
            parts.append(f"{self.bits} bits in groups of {self.group}, keys by {self.keys}, values by {self.values}")
        if self.format is not None:
            parts.append(f"format {self.format}")
        if self.hadamard:
            parts.append("mixed by a Hadamard matrix before")
        if self.rounds:
            sees = "prompt and answer see rounded keys" if self.in_prompt else "the prompt reads exact keys"
            last = f"; the last {self.residual} tokens exact" if self.residual else ""
            parts.append(f"rounded as the cache holds them; {sees}{last}")
        if self.keep < 1:
            parts.append(f"{self.keep:g} of the prompt's tokens held by each key head, by {self.by}")
        return "; ".join(parts)

"""Read a text piece by piece, under the Attention of a method."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from lexbench.core.attention import Attention
from lexbench.core.record import Refused
from lexbench.core.task import Layout
from lexbench.kernels import dense, kept, likelihood, rotations
from lexbench.kernels.heads import Rotate
from lexbench.kernels.observed import Observer
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderCache

Settle = Callable[[Attention, int], tuple[Attention, Rotate]]
"""(method's slots, layer) -> the layer's slots, encoding included, and its rotation."""


class AttentionPass:
    """Reading of a text in pieces, under one Attention.

    Args:
        decoder: the network.
        whole: the method's slots, for all layers.
        settle: gives the slots and the rotation of a layer.
        prompt: tokens before the answer; the first piece holds them.
        length: final length of the text in tokens.
        offset: position of the first token.
        layout: positions of its tokens, where they jump.
    """

    def __init__(
        self,
        decoder: Decoder,
        whole: Attention,
        settle: Settle,
        prompt: int,
        length: int,
        offset: int = 0,
        layout: Layout | None = None,
    ) -> None:
        self._decoder, self._prompt, self._offset, self._layout = decoder, prompt, offset, layout
        self._settled = cache(partial(settle, whole))  # by layer, once for all tokens
        self._cache = DecoderCache(length)
        self._ratios: dict[int, tuple[float, ...]] = {}
        self._held: dict[int, Tensor | None] = {}

    def __call__(self, tokens: Tensor, observer: Observer | None = None) -> Tensor:
        """[T, vocabulary] logits of the next T tokens."""

        def attend(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
            attention, rotate = self._settled(layer)
            if self._layout is not None:
                begin, end = k.shape[2] - q.shape[2], k.shape[2]
                places = self._layout.positions(end) + self._offset
                seen = dense.Places(places[begin:], places, self._layout.visibility(begin, end))
                turn = rotate if attention.remap is None else rotations.per_band(rotate)
                return dense.attend_at(*encoding.prepare(q, k), v, seen, attention, turn, encoding.scaling(q.shape[-1]))
            if attention.head_ratios is not None:
                if layer not in self._ratios:  # heads are ranked once, by the prompt's last query
                    asking, known = encoding.prepare(q[:, :, self._prompt - 1 : self._prompt], k[:, :, : self._prompt])
                    scaling, rule = encoding.scaling(q.shape[-1]), attention.head_ratios
                    self._ratios[layer] = rotations.ranked_ratios(asking, known, rotate, scaling, rule)
                # Ranks stay for the whole answer, as Ms-PoE ranks heads once a prompt.
                rotate = rotations.rotate_per_head(self._ratios[layer], rotate)
            if attention.cache is not None:
                if observer is not None:
                    raise Refused("native cannot probe a compressed cache: its weights are of keys in two forms")
                return self._over_cache(layer, attention, rotate, encoding.scaling(q.shape[-1]), q, k, v)
            settled = EncodingAttention(
                encoding, attention, q, k, positions, rotate, partial(self._cache.rotated_keys, layer)
            )
            if observer is not None and encoding.weighs:
                observer(layer, *settled.statistics_inputs())
            return settled.attention_output(v)

        positions = self._shifted_positions(tokens[None])
        return self._decoder(tokens[None], attend, cache=self._cache, positions=positions)[0]  # type: ignore[no-any-return]

    def _shifted_positions(self, tokens: Tensor) -> Tensor | None:
        """Positions of all tokens so far, these included, where they do not begin at the encoding's own."""
        if not self._offset:
            return None
        before = self._cache.tokens
        known = tokens if before is None else torch.cat([before, tokens], dim=1)
        return self._decoder.encoding.positions(known, self._cache.length) + self._offset

    def _over_cache(
        self, layer: int, attention: Attention, rotate: Rotate, scaling: float, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """[B, H, T, D] under the slot `cache`, of keys as they are kept: rotated, unless a remap rotates them anew."""
        total = k.shape[2]
        keeping = attention.cache
        assert keeping is not None, "the slot is set"
        if keeping.drops_tokens and layer not in self._held:
            if q.shape[2] != total or total < self._prompt:
                raise Refused("native drops tokens of a prompt that is read at once: give reuse=false")
            asking, known, content = (each[:, :, : self._prompt] for each in (q, k, v))
            self._held[layer] = keeping.held_tokens(asking, known, content, rotate, scaling)
        if attention.remap is None:
            here, there = torch.arange(total - q.shape[2], total), torch.arange(total)
            q, k, rotate = rotate(q, here.to(q.device)), rotate(k, there.to(k.device)), _leave_unrotated

        def plain(queries: Tensor, keys: Tensor, values: Tensor, rest: Attention) -> Tensor:
            places = torch.arange(keys.shape[2] - queries.shape[2], keys.shape[2])
            return dense.attend(queries, keys, values, places.to(queries.device), rest, rotate, scaling)

        held = self._held.get(layer)
        return kept.attend(q, k, v, attention, rotate, scaling, layer, self._prompt, held, plain)

    def fork(self) -> "AttentionPass":
        """A copy, to continue the text in another way."""
        other = copy.copy(self)
        other._cache = self._cache.fork()
        return other

    def take_over_prefix(self, other: "AttentionPass", count: int) -> None:
        """Start with the first `count` tokens of another text, which ends here.

        Exact only where later tokens do not change them.
        """
        self._cache.take_over_prefix(other._cache, count)


def _leave_unrotated(vectors: Tensor, positions: Tensor) -> Tensor:
    return vectors


@dataclass(frozen=True)
class TextReading:
    """Reading of a text under all passes of a mixture; most methods have one pass."""

    passes: Sequence[AttentionPass]

    def __call__(self, tokens: Tensor) -> Tensor:
        """[T, vocabulary] logits of the next T tokens."""
        return likelihood.mix_passes(torch.stack([one(tokens) for one in self.passes]))

    def fork(self) -> "TextReading":
        """A copy, to continue the text in another way."""
        return TextReading([one.fork() for one in self.passes])

    def take_over_prefix(self, other: "TextReading", count: int) -> None:
        """Start with the first `count` tokens of another text, as each `AttentionPass` does."""
        for one, theirs in zip(self.passes, other.passes, strict=True):
            one.take_over_prefix(theirs, count)

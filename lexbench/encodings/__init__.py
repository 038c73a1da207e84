"""Positional encodings that a model is trained with: part of a model, never a method.

An encoding is a small module with the hooks that it needs; the decoder calls all of them and never asks for a name. Its
constructor takes sizes of the network by name (`head_dim`, `heads`, `kv_heads`, `width`, `layers`, `vocabulary`,
`trained_length`), as far as it needs them, and parameters of its own. An encoding over another one takes it as `over`.

Shapes everywhere: B texts, H query heads, T tokens, Q queries (the last of K tokens), D = head_dim. Positions are
float64, possibly fractional or random: [T] where they are those of all texts, else [B, T].
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from lexbench.core.attention import Attention
from lexbench.core.task import Tokenizer

Rotate = Callable[[Tensor, Tensor], Tensor]
"""(vectors [B, H, T, D], positions) -> vectors at those positions."""


F64 = torch.float64
HOOKS = ("positions", "embed", "enter", "prepare", "rotate", "decay", "bias", "rescore", "meet", "attention")
"""Through which an encoding may act."""


class Encoding(nn.Module):
    """The hooks through which positions enter the decoder; each does nothing unless an encoding overrides it.

        logit(i, j) = rescore(scaling query_scale(i) e^(decay (i - j)) query(i) . key(j)) + bias(i, j)

    with query and key as they `meet`, query_scale and what is seen from `attention`.
    """

    shared = True
    """One for all layers; False: every layer gets its own, with weights of its own."""
    remaps = False
    """Whether methods may ask for distances other than i - j: queries and keys are rotated alike, at any position."""
    rescores = False
    """Whether `rescore` is more than adding the bias; all scores of some queries are held then."""
    counts = False
    """Whether it knows whole positions only, from 0 on."""
    held = 1
    """Numbers that `rescore` holds for each score."""
    reach: int | None = None
    """Tokens of the texts that training on shorter ones stands for; None: those of its rows."""

    # the whole model

    @property
    def hooks(self) -> frozenset[str]:
        """Those through which it acts, itself or by what stands within."""
        return _overridden(self, Encoding)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text that it has positions for; None: any."""
        return None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a config.json says of it, in transformers' words: `rope_parameters`, for encodings with angles."""
        return {}

    @classmethod
    def settled(cls, parameters: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
        """Its parameters, those that speak of text in words of the tokenizer; before construction."""
        return parameters

    def initialise(self, generator: Generator) -> None:
        """Draw the weights that begin at random; called once, after construction."""

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """Where each of the tokens [B, T] of texts that will have `length` stands; random only with a generator."""
        return torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float64)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] before the first layer, of token embeddings; always of whole texts so far."""
        return embedded

    @property
    def used(self) -> "Encoding":
        """What a trained folder needs: the inner encoding, for one around another that matters in training only."""
        return self

    def at(self, layer: int) -> "Encoding":
        """What holds in one layer; the hooks below are called on it."""
        return self

    # one layer

    @property
    def attention(self) -> Attention:
        """Its own mask, query_scale and remap, now: `self.training` tells training from use."""
        return Attention()

    def enter(self, stream: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] what enters the layer."""
        return stream

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """[B, H, Q, D] queries and [B, KV, K, D] keys as projected, changed in a way that knows no positions."""
        return queries, keys

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] prepared queries or keys at their positions."""
        return vectors

    def rotating(self, attention: Attention) -> Rotate:
        """`rotate` under the inv_freq and scale of an Attention; ValueError where it has no such angles."""
        if attention.inv_freq is not None or attention.scale is not None:
            raise ValueError(f"{self.name} has no angles to change: use a method that changes none, or method=none")
        return self.rotate

    @property
    def decay(self) -> Tensor | None:
        """[D / 2] by how much the logarithm of what pair (p, p + D/2) adds to a logit changes per token of distance."""
        return None

    def scaling(self, head_dim: int) -> float:
        """Of the logits."""
        return float(head_dim**-0.5)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """[H, Q, K] or [B, H, Q, K] added to the logits, or None."""
        return None

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] logits of scaled products, bias and all.

        Args:
            scores: [B, H, Q, K]; 0 where a key is not seen.
            seen: [Q, K] bool.
            queries: [B, H, Q, D] as they met, before scaling.
            query_positions: of the last Q of K tokens.
            key_positions: of all K.
        """
        bias = self.bias(query_positions, key_positions)
        return scores if bias is None else scores + bias.to(scores.dtype)

    def meet(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> tuple[Tensor, Tensor]:
        """Prepared queries and keys whose plain dot products are the scores, before scaling.

            e^(decay (i - j)) = e^(decay (i - c)) e^(-decay (j - c)),  c the middle of the queries' positions

        Raises ValueError where the queries are too far apart for such factors in the vectors' dtype: with xPos's own
        parameters float16 ends at 4,532 tokens, float32 and bfloat16 at 36,000.
        """
        queries, keys = rotate(queries, query_positions), rotate(keys, key_positions)
        if self.decay is None or not query_positions.numel():
            return queries, keys
        both, middle = torch.cat([self.decay, self.decay]), (query_positions.min() + query_positions.max()) / 2
        grown = (query_positions - middle).to(torch.float64)[..., None] * both
        faded = (middle - key_positions).to(torch.float64)[..., None] * both
        # The product of two factors is above 1 where the key comes later: masked, but it must be finite.
        largest = max(float(grown.abs().max()), float(faded.max()))
        if largest > (limit := math.log(torch.finfo(queries.dtype).max) / 2):
            raise ValueError(
                f"{self.name} over {query_positions.shape[-1]} tokens needs factors of e^{largest:.0f}, "
                f"{queries.dtype} has room for e^{limit:.0f}: take fewer tokens, or a dtype of larger range"
            )
        return queries * heads_apart(grown.exp()).to(queries.dtype), keys * heads_apart(faded.exp()).to(keys.dtype)

    @property
    def name(self) -> str:
        """Of its file."""
        return type(self).__module__.rpartition(".")[2]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As of any module, but float64 constants (frequencies, slopes) stay so in a network of another dtype."""
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None and buffer.dtype == F64}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            changed = self._buffers[name]
            assert changed is not None
            self._buffers[name] = buffer.to(changed.device)
        return self


def _overridden(encoding: Encoding, base: type[Encoding]) -> frozenset[str]:
    return frozenset(name for name in HOOKS if getattr(type(encoding), name) is not getattr(base, name))


class Rotary(Encoding):
    """An encoding that turns pairs (p, p + D/2) of queries and keys by t inv_freq[p]: RoPE and its kin.

    Args:
        inv_freq: [D / 2] radians per token.
        base: b, where inv_freq[p] = b^(-2p/D): then methods may start from it. None: angles of another rule.
    """

    remaps = True
    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor, base: float | None = None) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inv_freq.to(torch.float64), persistent=False)
        self.base = base

    @property
    def facts(self) -> Mapping[str, Any]:
        """Plain angles by their base; others by the encoding's name, so that no method takes them for plain ones."""
        kind = {"rope_type": "default", "rope_theta": self.base} if self.base else {"rope_type": self.name}
        return {"rope_parameters": kind}

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] turned; cos and sin are made in float64."""
        return turned(vectors, angles(self.inv_freq, positions))

    def rotating(self, attention: Attention) -> Rotate:
        """`rotate` at the Attention's frequencies, times its scale."""
        if attention.inv_freq is None and attention.scale is None:
            return self.rotate
        own = self.inv_freq
        changed = own if attention.inv_freq is None else torch.from_numpy(attention.inv_freq.copy()).to(own.device)
        return lambda vectors, positions: turned(vectors, angles(changed, positions), attention.scale or 1.0)


class Over(Encoding):
    """An encoding around another one, whose hooks it passes on where it does not override them.

    Raises ValueError where the inner one acts through a hook that is in `excludes`.
    """

    excludes: frozenset[str] = frozenset()
    """Hooks that an encoding beneath must not have: together they would not be what either says."""

    def __init__(self, over: Encoding) -> None:
        super().__init__()
        if clash := sorted(self.excludes & over.hooks):
            raise ValueError(
                f"{self.name} cannot stand over {over.name}, which has {', '.join(clash)} of its own: "
                "use another encoding beneath"
            )
        self.over, self.reach = over, over.reach

    @property
    def hooks(self) -> frozenset[str]:
        """Its own, and the inner one's."""
        return _overridden(self, Over) | self.over.hooks

    # Attributes of the class elsewhere, the inner encoding's here.
    @property
    def remaps(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.over.remaps

    @property
    def rescores(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.over.rescores

    @property
    def counts(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.over.counts

    @property
    def held(self) -> int:  # type: ignore[override]
        """As the inner one."""
        return self.over.held

    @property
    def longest(self) -> int | None:
        """As the inner one."""
        return self.over.longest

    @property
    def facts(self) -> Mapping[str, Any]:
        """As the inner one."""
        return self.over.facts

    @property
    def attention(self) -> Attention:
        """As the inner one."""
        return self.over.attention

    @property
    def decay(self) -> Tensor | None:
        """As the inner one."""
        return self.over.decay

    def initialise(self, generator: Generator) -> None:
        """As the inner one."""
        self.over.initialise(generator)

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """As the inner one."""
        return self.over.positions(tokens, length, generator)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """As the inner one."""
        return self.over.embed(embedded, tokens, positions)

    def at(self, layer: int) -> Encoding:
        """Itself around what the inner one is there."""
        inner = self.over.at(layer)
        return self if inner is self.over else self.around(inner)

    def around(self, inner: Encoding) -> Self:
        """Itself, weights and all, around another one."""
        other = copy.copy(self)
        other._modules = {**self._modules, "over": inner}
        return other

    def enter(self, stream: Tensor, positions: Tensor) -> Tensor:
        """As the inner one."""
        return self.over.enter(stream, positions)

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """As the inner one."""
        return self.over.prepare(queries, keys)

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """As the inner one."""
        return self.over.rotate(vectors, positions)

    def rotating(self, attention: Attention) -> Rotate:
        """As the inner one."""
        return self.over.rotating(attention)

    def scaling(self, head_dim: int) -> float:
        """As the inner one."""
        return self.over.scaling(head_dim)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """As the inner one."""
        return self.over.bias(query_positions, key_positions)

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """As the inner one."""
        return self.over.rescore(scores, seen, queries, query_positions, key_positions)

    def meet(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> tuple[Tensor, Tensor]:
        """As the inner one."""
        return self.over.meet(queries, keys, query_positions, key_positions, rotate)


class Drawn(Over):
    """An encoding whose positions are drawn in training and plain at use, where nothing of it is left."""

    excludes = frozenset({"positions"})

    @property
    def used(self) -> Encoding:
        """The inner one."""
        return self.over.used

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """[T] at use, [B, T] in training."""
        plain = self.over.positions(tokens, length, generator)
        return plain if generator is None else self.drawn(plain, tokens, generator)

    def drawn(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T] in place of the plain positions [T] of tokens [B, T]."""
        raise NotImplementedError


class Unrotated(Over):
    """A layer without positions among others that have them: vectors do not turn, no bias is added.

    What knows no positions (how vectors are prepared, the mask, the scaling) is as in the other layers. Methods may
    change angles, or ask for distances: nothing changes here.
    """

    remaps = True
    rescores = False
    held = 1
    decay = None
    rotate = Encoding.rotate
    bias = Encoding.bias
    rescore = Encoding.rescore

    def rotating(self, attention: Attention) -> Rotate:
        """`rotate`, whatever angles an Attention has."""
        return self.rotate

    @property
    def name(self) -> str:
        """As the inner one."""
        return self.over.name


class Attending(Over):
    """A layer of an encoding that gives some layers slots of their own: a mask, a scale of queries, a remap.

    Args:
        over: what it is without them.
        own: the slots.
        name: of the encoding that gives them.

    Raises:
        ValueError: the inner encoding has one of the slots, too.
    """

    def __init__(self, over: Encoding, own: Attention, name: str) -> None:
        super().__init__(over)
        self.own, self.owner = own, name
        if both := set(own.slots()) & set(over.attention.slots()):
            raise ValueError(f"{name} and {over.name} both set {', '.join(sorted(both))}: use another encoding beneath")

    @property
    def attention(self) -> Attention:
        """Its own slots and the inner one's."""
        return self.over.attention.merged(self.own)

    @property
    def name(self) -> str:
        """Of the encoding that gives the slots."""
        return self.owner


class Layered(Encoding):
    """One encoding for each layer, the same in everything but weights; what stands within all of them may be one.

    Of the whole model the first speaks.
    """

    def __init__(self, layers: Sequence[Encoding]) -> None:
        super().__init__()
        self.layers, self.reach = nn.ModuleList(layers), layers[0].reach

    @property
    def hooks(self) -> frozenset[str]:
        """As each layer's."""
        return self.first.hooks

    @property
    def rescores(self) -> bool:  # type: ignore[override]
        """As each layer's."""
        return self.first.rescores

    @property
    def used(self) -> Encoding:
        """As each layer's."""
        inner = [self.at(number).used for number in range(len(self.layers))]
        return self if all(one is two for one, two in zip(inner, self.layers, strict=True)) else Layered(inner)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """The first layer's, for those who ask whether there is one."""
        return self.first.bias(query_positions, key_positions)

    @property
    def first(self) -> Encoding:
        """That of the first layer, which speaks for the whole model."""
        return self.of(0)

    def of(self, layer: int) -> Encoding:
        """That layer's, as it was given."""
        found = self.layers[layer]
        assert isinstance(found, Encoding)
        return found

    @property
    def remaps(self) -> bool:  # type: ignore[override]
        """As each layer's."""
        return self.first.remaps

    @property
    def longest(self) -> int | None:
        """As each layer's."""
        return self.first.longest

    @property
    def facts(self) -> Mapping[str, Any]:
        """As each layer's."""
        return self.first.facts

    @property
    def name(self) -> str:
        """As each layer's."""
        return self.first.name

    def initialise(self, generator: Generator) -> None:
        """Each in turn."""
        for number in range(len(self.layers)):
            self.at(number).initialise(generator)

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """As each layer's; drawn once."""
        return self.first.positions(tokens, length, generator)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """As the first layer's."""
        return self.first.embed(embedded, tokens, positions)

    def at(self, layer: int) -> Encoding:
        """What holds in that layer, of its own."""
        return self.of(layer).at(layer)


def frequencies(head_dim: int, base: float) -> Tensor:
    """[D / 2] radians per token of each pair: b^(-2p/D) (RoFormer, arXiv 2104.09864, eq. 15).

    Raises ValueError where b is not above 1.
    """
    if not base > 1:
        raise ValueError(f"encoding.base must be above 1, got {base:g}: RoPE's is 10000")
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def angles(inv_freq: Tensor, positions: Tensor) -> Tensor:
    """[..., T, pairs] rotation angles in float64, whatever dtype the network runs in."""
    return positions.to(torch.float64)[..., :, None] * inv_freq.to(torch.float64)


def turned(vectors: Tensor, turn: Tensor, scale: float = 1.0) -> Tensor:
    """[B, H, T, D] vectors whose pairs (p, p + D/2) turn by angles [.., T, D / 2], times a scale; the half layout."""
    turn = heads_apart(turn)
    cos, sin = ((wave * scale).to(vectors.dtype) for wave in (turn.cos(), turn.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def heads_apart(values: Tensor) -> Tensor:
    """[T, D] as it is, [B, T, D] as [B, 1, T, D]: what is said of tokens, beside vectors [B, H, T, D]."""
    return values[:, None] if values.dim() == 3 else values


def apart(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[.., 1, Q, K] float64 i - j, to be multiplied by [H, 1, 1] something of each head; below 0 for later keys."""
    return (query_positions[..., :, None] - key_positions[..., None, :]).to(torch.float64)[..., None, :, :]


def rows(positions: Tensor, name: str) -> Tensor:
    """Positions as rows of a table; ValueError where one is a fraction or below 0."""
    index = positions.long()
    if bool((index != positions).any() | (index < 0).any()):
        raise ValueError(f"{name} has whole positions from 0 only, got others: use another encoding beneath")
    return index


def of_distance(bias: Callable[[Tensor], Tensor], query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[H, Q, K] of a bias that knows i - j alone, with a batch before it where positions have one.

    Where queries and keys stand one token apart, as they mostly do, it is worked out once for each distance.

    Args:
        bias: [N] float64 distances to [H, N]; later keys are given as 0 tokens away, nobody sees them.
        query_positions: [Q] or [B, Q].
        key_positions: [K] or [B, K].
    """
    if not (_consecutive(query_positions) and _consecutive(key_positions)):
        distances = apart(query_positions, key_positions).squeeze(-3).clamp_min(0)
        return bias(distances.flatten()).reshape(-1, *distances.shape).movedim(0, -3)
    asked, total = len(query_positions), len(key_positions)
    steps = torch.arange(asked + total - 1, dtype=torch.float64, device=key_positions.device)
    each = bias((query_positions[-1] - key_positions[0] - steps).clamp_min(0))
    return each.unfold(-1, total, 1).flip(-2)


def _consecutive(positions: Tensor) -> bool:
    return positions.dim() == 1 and len(positions) > 0 and bool((positions.diff() == 1).all())

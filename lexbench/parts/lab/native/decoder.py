"""A small decoder like Llama (RMSNorm, SwiGLU, grouped-query attention) or like GPT, with tied embeddings.

Positions enter only through the hooks of an `Encoding`. A caller may replace the attention function (`Attend`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding
from lexbench.parts.lab.native import attend

BLOCK_KINDS = ("llama", "gpt", "gau")
"""Values of `DecoderShape.block`."""
GAU_KEY_DIMENSIONS = 128
"""Dimensions of queries and keys in a gated attention unit."""
Attend = Callable[[int, Encoding, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(layer, its encoding, q [B, H, Q, D], k [B, KV, K, D], v, positions) -> [B, H, Q, D]; q and k are not rotated yet."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of a decoder."""

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 640
    """Width inside the feed-forward layer."""
    norm_epsilon: float = 1e-5
    block: str = "llama"
    """llama: RMSNorm and SwiGLU; gpt: LayerNorm and GELU, neither with a bias, as MPT has them; gau: `GatedUnit`."""

    def __post_init__(self) -> None:
        if self.block not in BLOCK_KINDS:
            raise ConfigError(f"shape: block must be {' or '.join(BLOCK_KINDS)}, got {self.block}")
        if self.block == "gau" and self.heads != 1:
            raise ConfigError(f"shape: gau has 1 head, got {self.heads}: give heads=1 and kv_heads=1")
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ConfigError(
                f"shape: heads must divide width and kv_heads heads, got {self.width}, {self.heads}, {self.kv_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Dimensions of a head's queries and keys."""
        return GAU_KEY_DIMENSIONS if self.block == "gau" else self.width // self.heads


def attend_by_encoding(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Attention under the encoding alone."""
    return attend.EncodingAttention(encoding, encoding.attention, q, k, positions).attention_output(v)


@dataclass(frozen=True)
class TokenVectors:
    """Vectors of the first `count` tokens: the first rows of `room` [B, H, R, E], which may have rows for more."""

    room: Tensor
    count: int

    def append_rows(self, new: Tensor, length: int) -> "TokenVectors":
        """Append vectors of new tokens: in the same buffer if it is large enough, else in one for `length` tokens."""
        room, total = self.room, self.count + new.shape[2]
        if total > room.shape[2]:
            room = new.new_empty(*new.shape[:2], max(total, length), new.shape[3])
            room[:, :, : self.count] = self.held
        room[:, :, self.count : total] = new
        return TokenVectors(room, total)

    def first_rows(self, count: int) -> "TokenVectors":
        """The first `count` tokens or, where there are fewer, all of them."""
        return TokenVectors(self.room, min(count, self.count))

    @property
    def held(self) -> Tensor:
        """[B, H, count, E] vectors of the first `count` tokens."""
        return self.room[:, :, : self.count]


class DecoderCache:
    """Tokens so far, and each layer's keys before rotation, values and gates: exact under any encoding.

    Beside these it keeps rotated keys, for callers whose rotations do not change with later tokens.

    Args:
        length: final length of the text in tokens.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.tokens: Tensor | None = None
        self._layers: dict[int, tuple[TokenVectors, ...]] = {}
        self._rotated: dict[tuple[int, int], TokenVectors] = {}

    def add_tokens(self, tokens: Tensor) -> Tensor:
        """Add tokens; [B, K] all tokens so far."""
        self.tokens = tokens if self.tokens is None else torch.cat([self.tokens, tokens], dim=1)
        return self.tokens

    def append_to_layer(self, layer: int, *new: Tensor) -> tuple[Tensor, ...]:
        """Add keys, values and gates, if any, to a layer; all of its [B, KV, K, D] keys, values and gates."""
        if layer in self._layers:
            both = zip(self._layers[layer], new, strict=True)
            self._layers[layer] = tuple(known.append_rows(more, self.length) for known, more in both)
        else:
            self._layers[layer] = tuple(TokenVectors(each, each.shape[2]) for each in new)
        return tuple(rows.held for rows in self._layers[layer])

    def rotated_keys(self, layer: int, region: int, count: int, turn: Callable[[int], Tensor]) -> Tensor:
        """[B, KV, count, D] first keys of a layer as a region of its remap rotates them.

        `turn(n)` rotates those from the n-th on: called once for each key.
        """
        known = self._rotated.get((layer, region))
        if known is None:
            known = TokenVectors(turn(0), count)
        elif known.count < count:
            known = known.append_rows(turn(known.count), self.length)
        self._rotated[layer, region] = known
        return known.first_rows(count).held

    def fork(self) -> "DecoderCache":
        """A copy; later additions to one do not change the other."""
        other = DecoderCache(self.length)
        other.tokens = self.tokens
        # Without room behind the last token: whatever is added goes to a room of its own.
        other._layers = {
            layer: tuple(TokenVectors(rows.held, rows.count) for rows in known) for layer, known in self._layers.items()
        }
        other._rotated = {place: TokenVectors(rows.held, rows.count) for place, rows in self._rotated.items()}
        return other

    def take_over_prefix(self, other: "DecoderCache", count: int) -> None:
        """Take over the first `count` tokens of another cache, which is of no use afterwards, into this empty one."""
        assert self.tokens is None and other.tokens is not None, "only an empty cache may take from one that is not"
        self.tokens = other.tokens[:, :count]
        self._layers = {
            layer: tuple(rows.first_rows(count) for rows in known) for layer, known in other._layers.items()
        }
        self._rotated = {place: rows.first_rows(count) for place, rows in other._rotated.items()}
        other.tokens, other._layers, other._rotated = None, {}, {}


class DecoderLayer(nn.Module):
    """One block: attention, then the feed-forward layer, each after a norm and added to the stream."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        kv_width = shape.kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.input_layernorm = _build_norm(shape)
        self.post_attention_layernorm = _build_norm(shape)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(shape.width, shape.width, bias=False),
                "k_proj": nn.Linear(shape.width, kv_width, bias=False),
                "v_proj": nn.Linear(shape.width, kv_width, bias=False),
                "o_proj": nn.Linear(shape.width, shape.width, bias=False),
            }
        )
        inner = ("gate_proj", "up_proj") if shape.block == "llama" else ("up_proj",)
        self.mlp = nn.ModuleDict({name: nn.Linear(shape.width, shape.hidden, bias=False) for name in inner})
        self.mlp["down_proj"] = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, stream: Tensor, mix: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """[B, T, width] output; `mix` is this layer's attention, from its input and q, k, v as [B, heads, T, D]."""
        normed = self.input_layernorm(stream)
        q, k, v = (
            self.self_attn[name](normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        stream = stream + self.self_attn["o_proj"](mix(normed, q, k, v).transpose(1, 2).flatten(2))
        return stream + self.mlp["down_proj"](self._inner(self.post_attention_layernorm(stream)))  # type: ignore[no-any-return]

    def _inner(self, normed: Tensor) -> Tensor:
        if "gate_proj" in self.mlp:
            return F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)  # type: ignore[no-any-return]
        return F.gelu(self.mlp["up_proj"](normed))


class GatedUnit(nn.Module):
    """Gated attention unit (Hua et al. 2022, arXiv 2202.10447) with a softmax, one head, and the norm behind the sum.

        u, v, z = silu(U x), silu(V x), silu(Z x),   q = z * a + b,  k = z * c + d
        x' = norm(x + O (u * attention(q, k, v)))

    It stands for attention and feed-forward layer both; v has `hidden` dimensions. Su's articles
    (kexue.fm/archives/9603) train 24 such layers; with one head and a norm behind, nothing extrapolated there.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        sizes = {"u_proj": shape.hidden, "v_proj": shape.hidden, "z_proj": shape.head_dim}
        self.self_attn = nn.ModuleDict({name: nn.Linear(shape.width, out, bias=False) for name, out in sizes.items()})
        self.self_attn["o_proj"] = nn.Linear(shape.hidden, shape.width, bias=False)
        self.query_gain, self.key_gain = (nn.Parameter(torch.ones(shape.head_dim)) for _ in range(2))
        self.query_shift, self.key_shift = (nn.Parameter(torch.zeros(shape.head_dim)) for _ in range(2))
        self.output_layernorm = _build_norm(shape)

    def forward(self, stream: Tensor, mix: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """[B, T, width] output; `mix` as in `DecoderLayer`."""
        u, v, z = (F.silu(self.self_attn[name](stream)) for name in ("u_proj", "v_proj", "z_proj"))
        q, k = z * self.query_gain + self.query_shift, z * self.key_gain + self.key_shift
        mixed = mix(stream, q[:, None], k[:, None], v[:, None])[:, 0]
        return self.output_layernorm(stream + self.self_attn["o_proj"](u * mixed))  # type: ignore[no-any-return]


def _build_norm(shape: DecoderShape) -> nn.Module:
    if shape.block == "gpt":
        return nn.LayerNorm(shape.width, eps=shape.norm_epsilon, bias=False)
    return nn.RMSNorm(shape.width, eps=shape.norm_epsilon)


class Decoder(nn.Module):
    """From token ids to hidden states or logits. Parameter names are those of Hugging Face's Llama."""

    def __init__(self, shape: DecoderShape, encoding: Encoding) -> None:
        super().__init__()
        unit = shape.block == "gau"
        if unit and (own := sorted(encoding.hooks & {"mix", "recur"})):
            raise ConfigError(f"shape: gau's values have no heads, {encoding.name} has its own {own[0]}: use another")
        self.shape = shape
        self.encoding = encoding
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList((GatedUnit if unit else DecoderLayer)(shape) for _ in range(shape.layers))
        self.norm = _build_norm(shape)

    def initialise(self, seed: int, rule: str = "gpt2", embeddings: float = WEIGHT_DEVIATION) -> None:
        """Draw normal weights.

            gpt2      deviation 0.02; of the outputs of layers 0.02 / sqrt(2 layers)
            fan_in    deviation 1 / sqrt(columns), so that outputs have the size of inputs; the outputs of layers begin
                      with 0

        Embeddings have a deviation of their own.
        The encoding draws its weights from another generator, so that all others are the same under every encoding.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            # Gains of norms keep their 1: they are vectors.
            if weight.dim() == 2 and not name.startswith("encoding."):
                deviation, writes = WEIGHT_DEVIATION, name.endswith(("o_proj.weight", "down_proj.weight"))
                if name.startswith("embed_tokens."):
                    deviation = embeddings
                elif rule == "fan_in":
                    deviation = 0.0 if writes else weight.shape[1] ** -0.5
                elif writes:
                    deviation /= (2 * self.shape.layers) ** 0.5
                nn.init.normal_(weight, std=deviation, generator=generator)
        other = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])  # torch uses 32 bits of a seed
        self.encoding.initialise(torch.Generator().manual_seed(other))

    def hidden_states(
        self,
        tokens: Tensor,
        attend: Attend = attend_by_encoding,
        *,
        cache: DecoderCache | None = None,
        generator: torch.Generator | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """[B, T, width] states after the last norm, of [B, T] token ids.

        Args:
            tokens: token ids after those in the cache.
            attend: computes the attention of one layer.
            cache: of earlier tokens; `tokens` are added to it.
            generator: for encodings that draw positions in training; None: positions at use.
            positions: of all tokens, where the caller has drawn them.
        """
        # Encodings get all tokens so far, because positions may depend on earlier ones (segments), embeddings, too.
        known = tokens if cache is None else cache.add_tokens(tokens)
        if positions is None:
            positions = self.encoding.positions(known, known.shape[1] if cache is None else cache.length, generator)
        new = slice(known.shape[1] - tokens.shape[1], None)
        if "embed" in self.encoding.hooks:
            stream = self.encoding.embed(self.embed_tokens(known), known, positions)[:, new]
        else:
            stream = self.embed_tokens(tokens)
        for number, layer in enumerate(self.layers):
            encoding = self.encoding.at(number)

            def mix(
                normed: Tensor, q: Tensor, k: Tensor, v: Tensor, number: int = number, encoding: Encoding = encoding
            ) -> Tensor:
                gates = encoding.cached_inputs(normed, q)
                known = (k, v) if gates is None else (k, v, gates)
                k, v, *found = known if cache is None else cache.append_to_layer(number, *known)
                return attend(number, encoding.with_gates(found[0]) if found else encoding, q, k, v, positions)

            stream = layer(encoding.layer_input(stream, positions[..., new]), mix)
        return self.norm(stream)  # type: ignore[no-any-return]

    def forward(
        self,
        tokens: Tensor,
        attend: Attend = attend_by_encoding,
        *,
        cache: DecoderCache | None = None,
        generator: torch.Generator | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """[B, T, vocabulary] logits of [B, T] token ids; arguments as in `hidden`."""
        states = self.hidden_states(tokens, attend, cache=cache, generator=generator, positions=positions)
        # Tied: the embeddings are the head, too.
        return F.linear(states, self.embed_tokens.weight)

"""The hooks of positional encodings that a model is trained with, and what the encodings share.

The decoder calls every hook and knows no encoding by name. The constructor of an encoding takes its own parameters, and
the sizes of the network that it needs, by name: `head_dim`, `heads`, `kv_heads`, `width`, `layers`, `vocabulary`,
`trained_length`. An encoding around another one takes it as `over` (`lexbench.parts.lab.encodings.wrappers`).

Shapes everywhere: B texts, H query heads, T tokens, Q queries (the last of K tokens), D = head_dim. Positions are
float64 and may be fractional or random: [T] where all texts share them, else [B, T].
"""

import copy
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokenizer
from lexbench.kernels.heads import Rotate, multiply_per_group

F64 = torch.float64
WEIGHT_DEVIATION = 0.02
"""Standard deviation of the decoder's initial weights, token embeddings included."""
ENCODING_HOOKS = (
    *("positions", "embed", "layer_input", "gates", "prepare", "rotate", "decay", "bias", "rescore", "qk"),
    *("products", "attention", "mix", "recur"),
)
"""The hooks through which an encoding changes the model."""


class Encoding(nn.Module):
    """The hooks through which positions reach the decoder; each does nothing unless an encoding overrides it.

        logit(i, j) = rescore(scaling query_scale(i) e^(decay (i - j)) query(i) . key(j)) + bias(i, j)

    `qk` gives query and key; `attention` gives query_scale and the mask. `products` replaces the dot product, and `mix`
    the softmax and the mean of values. `recur` replaces everything.
    """

    shared = True
    """Whether all layers share one encoding; False: every layer has its own, with its own weights."""
    remaps = False
    """Whether a method may replace the distance i - j: one rule rotates queries and keys, by their position alone."""
    rescores = False
    """Whether `rescore` does more than add the bias; it then needs all scores of a query at once."""
    weighs = True
    """Whether outputs are means of values, weighted by a softmax of the logits."""
    counts = False
    """Whether positions must be whole numbers from 0 on."""
    held = 1
    """Numbers in memory for each score while `rescore` runs."""
    before: Mapping[str, Any] = MappingProxyType({})
    """Values of its newer parameters for folders that were trained before these parameters existed."""
    reach: int | None = None
    """Tokens that positions cover in training, with shorter texts; None: the trained length."""

    # the whole model

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks that this encoding, or an encoding inside it, overrides."""
        return overridden_hooks(self, Encoding)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text for which the encoding has positions; None: no limit."""
        return None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Entries in config.json, in transformers' format: `rope_parameters`, for encodings with angles."""
        return {}

    @classmethod
    def resolve_texts(cls, parameters: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
        """Replace texts among the parameters by token ids of the tokenizer; called before construction."""
        return parameters

    def initialise(self, generator: Generator) -> None:
        """Draw the random initial weights; called once, after construction."""

    def constrain(self) -> None:
        """Bring weights that have left their range back into it; called before each step of training."""

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """Positions of the tokens [B, T] of texts whose final length is `length`; random only with a generator."""
        return torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float64)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] input of the first layer, from token embeddings; always of the whole text so far."""
        return embedded

    @property
    def used(self) -> "Encoding":
        """The encoding that a trained folder stores: the inner one, where the outer one acts in training only."""
        return self

    def at(self, layer: int) -> "Encoding":
        """The encoding of one layer; the hooks below are called on it."""
        return self

    # one layer

    @property
    def attention(self) -> Attention:
        """Mask, query_scale and remap of the encoding; they may differ between training (`self.training`) and use."""
        return Attention()

    def layer_input(self, stream: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] input of the layer."""
        return stream

    given: Tensor | None = None
    """Gates of all tokens so far, in the copy that `gated` makes."""

    def gates(self, normed: Tensor) -> Tensor | None:
        """[B, G, T, E] numbers of each token from the layer's input [B, T, width] after its norm; cached like keys."""
        return None

    def cached_inputs(self, normed: Tensor, queries: Tensor) -> Tensor | None:
        """The gates, or more that each token leaves for later ones, from its queries [B, H, T, D] before any change."""
        return self.gates(normed)

    def with_gates(self, gates: Tensor) -> "Encoding":
        """A copy for one forward pass, with the same weights, and the gates [B, G, K, E] of all K tokens so far."""
        other = copy.copy(self)
        other.given = gates
        return other

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Change projected queries [B, H, Q, D] and keys [B, KV, K, D] independently of positions."""
        return queries, keys

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] prepared queries or keys, rotated to their positions."""
        return vectors

    def rotation(self, attention: Attention) -> Rotate:
        """`rotate` with the inv_freq and scale of an Attention; ConfigError where the encoding has no such angles."""
        if attention.inv_freq is not None or attention.scale is not None:
            raise ConfigError(f"{self.name} has no angles to change: use a method that changes none, or method=none")
        return self.rotate

    @property
    def decay(self) -> Tensor | None:
        """[D / 2] change per token of distance in the logarithm of what pair (p, p + D/2) adds to a logit."""
        return None

    def scaling(self, head_dim: int) -> float:
        """Factor on the logits."""
        return float(head_dim**-0.5)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """[H, Q, K] or [B, H, Q, K] to be added to the logits, or None."""
        return None

    def rescore(
        self, scores: Tensor, seen: Tensor, queries: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        """[B, H, Q, K] logits, bias included, from scaled products of queries and keys.

        Args:
            scores: [B, H, Q, K]; 0 where a key is not seen.
            seen: [Q, K] bool.
            queries: [B, H, Q, D] as `qk` gave them, before scaling.
            query_positions: of the last Q of K tokens.
            key_positions: of all K.
        """
        bias = self.bias(query_positions, key_positions)
        return scores if bias is None else scores + bias.to(scores.dtype)

    def qk(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys whose plain dot products are the scores before scaling, from prepared ones.

            e^(decay (i - j)) = e^(decay (i - c)) e^(-decay (j - c)),  c the middle of the queries' positions

        Raises ConfigError where the queries are too far apart for such factors in the vectors' dtype: with xPos's own
        parameters the limit is 4,532 tokens in float16, and 36,000 in float32 and bfloat16.
        """
        queries, keys = rotate(queries, query_positions), rotate(keys, key_positions)
        if self.decay is None or not query_positions.numel():
            return queries, keys
        # Factors relative to the middle of the queries, not to 0, so that they stay in range however late the text is.
        both, middle = torch.cat([self.decay, self.decay]), (query_positions.min() + query_positions.max()) / 2
        grown = (query_positions - middle).to(torch.float64)[..., None] * both
        faded = (middle - key_positions).to(torch.float64)[..., None] * both
        # Where the key comes later, the product of both factors is above 1. It is masked, but must be finite:
        # hence each factor may use only half of the exponents of the dtype.
        if not torch.compiler.is_compiling():  # a compiled graph cannot raise; training sees a loss that is not finite
            self._check_factors(max(float(grown.abs().max()), float(faded.max())), queries)
        return queries * insert_head_axis(grown.exp()).to(queries.dtype), keys * insert_head_axis(faded.exp()).to(
            keys.dtype
        )

    def _check_factors(self, largest: float, queries: Tensor) -> None:
        if largest > (limit := math.log(torch.finfo(queries.dtype).max) / 2):
            raise ConfigError(
                f"{self.name} over {queries.shape[-2]} tokens needs factors of e^{largest:.0f}, "
                f"the largest in {queries.dtype} is e^{limit:.0f}: take fewer tokens, or a dtype of larger range"
            )

    @property
    def name(self) -> str:
        """Name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert as any module does, but keep float64 constants (frequencies, slopes) in their dtype."""
        # Module.half() converts buffers, too; frequencies in half precision would be wrong after a few hundred tokens.
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None and buffer.dtype == F64}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            changed = self._buffers[name]
            assert changed is not None
            self._buffers[name] = buffer.to(changed.device)
        return self

    def products(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> Tensor:
        """[B, H, Q, K] products before scaling, of the last Q of K tokens: queries [B, H, Q, D], keys [B, KV, K, D]."""
        queries, keys = self.qk(queries, keys, query_positions, key_positions, rotate)
        return multiply_per_group(queries, keys.mT)

    def mix(self, logits: Tensor, values: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, D] outputs, from logits [B, H, Q, K], -inf where a key is not seen, and values [B, KV, K, D]."""
        return multiply_per_group(logits.softmax(-1), values)

    def recur(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[B, H, Q, D] outputs of a layer that has no attention at all, from prepared queries, keys and values."""
        raise NotImplementedError


def overridden_hooks(encoding: Encoding, base: type[Encoding]) -> frozenset[str]:
    """The hooks that the encoding's class defines otherwise than `base`."""
    return frozenset(name for name in ENCODING_HOOKS if getattr(type(encoding), name) is not getattr(base, name))


class RotaryEncoding(Encoding):
    """RoPE and its variants: pair (p, p + D/2) of a query or key at position t rotates by the angle t inv_freq[p].

    Args:
        inv_freq: [D / 2] radians per token.
        base: b, where inv_freq[p] = b^(-2p/D), so that methods may start from it. None: frequencies of another rule.
    """

    remaps = True
    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor, base: float | None = None) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inv_freq.to(torch.float64), persistent=False)
        self.base = base

    @property
    def facts(self) -> Mapping[str, Any]:
        """The base of plain RoPE; else the encoding's name, so that no method mistakes its angles for plain RoPE."""
        kind = {"rope_type": "default", "rope_theta": self.base} if self.base else {"rope_type": self.name}
        return {"rope_parameters": kind}

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] rotated; angles, cos and sin are computed in float64."""
        return rotate_half(vectors, rotation_angles(self.inv_freq, positions))

    def rotation(self, attention: Attention) -> Rotate:
        """`rotate` with the frequencies and the scale of the Attention."""
        if attention.inv_freq is None and attention.scale is None:
            return self.rotate
        own = self.inv_freq
        changed = own if attention.inv_freq is None else torch.from_numpy(attention.inv_freq.copy()).to(own.device)
        return lambda vectors, positions: rotate_half(
            vectors, rotation_angles(changed, positions), attention.scale or 1.0
        )


def rope_frequencies(head_dim: int, base: float) -> Tensor:
    """[D / 2] radians per token of each pair: b^(-2p/D) (RoFormer, arXiv 2104.09864, eq. 15).

    Raises ConfigError where b is not above 1.
    """
    if not base > 1:
        raise ConfigError(f"encoding.base must be above 1, got {base:g}: RoPE's is 10000")
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


def rotation_angles(inv_freq: Tensor, positions: Tensor) -> Tensor:
    """[..., T, pairs] rotation angles, always in float64: float32 is too coarse at large positions."""
    return positions.to(torch.float64)[..., :, None] * inv_freq.to(torch.float64)


def rotate_half(vectors: Tensor, turn: Tensor, scale: float = 1.0) -> Tensor:
    """Rotate pairs (p, p + D/2) of vectors [B, H, T, D] by angles [.., T, D / 2] (half layout), times a scale."""
    turn = insert_head_axis(turn)
    cos, sin = ((wave * scale).to(vectors.dtype) for wave in (turn.cos(), turn.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def insert_head_axis(values: Tensor) -> Tensor:
    """Insert a head axis into [B, T, D], for broadcasting with [B, H, T, D]; [T, D] stays."""
    return values[:, None] if values.dim() == 3 else values


def relative_positions(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[.., 1, Q, K] float64 distances i - j, for broadcasting with [H, 1, 1]; negative for later keys."""
    return (query_positions[..., :, None] - key_positions[..., None, :]).to(torch.float64)[..., None, :, :]


def distinct_distances(query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
    """[N] float64 distances i - j that occur, and [.., 1, Q, K] indices into them; later keys, masked, count as 0."""
    between = relative_positions(query_positions, key_positions).clamp_min(0)
    if _are_consecutive(query_positions) and _are_consecutive(key_positions):
        farthest = (query_positions[-1] - key_positions[0]).clamp_min(0)
        return torch.arange(int(farthest) + 1, dtype=torch.float64, device=between.device), between.long()
    distances, index = torch.unique(between, return_inverse=True)
    return distances, index


def table_rows(positions: Tensor, name: str) -> Tensor:
    """Positions as row indices of a table; ConfigError for fractions and negative positions."""
    index = positions.long()
    if bool((index != positions).any() | (index < 0).any()):
        raise ConfigError(f"{name} needs whole positions from 0 on, got others: use another inner encoding")
    return index


def cumulative_from(gates: Tensor | None, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[B, H, Q, K] float64 sums of gates [B, H, K', 1] over the tokens after key j up to query i.

    Positions are plain, indices of tokens. Later keys, which are masked, have 0; without gates all are 0, [1, Q, K].
    """
    if gates is None:
        return 0.0 * relative_positions(query_positions, key_positions)
    # Differences of long sums: in float32 the last tokens of a long text would lose the digits that tell them apart.
    whole = gates[..., 0].to(torch.float64).cumsum(-1)
    here, there = whole[..., query_positions.long()], whole[..., key_positions.long()]
    between = here[..., :, None] - there[..., None, :]
    return between.masked_fill(relative_positions(query_positions, key_positions) <= 0, 0.0)


def bias_by_distance(bias: Callable[[Tensor], Tensor], query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """[H, Q, K] of a bias that depends on i - j alone; [B, H, Q, K] where positions have a batch axis.

    Where positions are consecutive, as they mostly are, each distance is computed once.

    Args:
        bias: from [N] float64 distances to [H, N]; later keys, which are masked, count as distance 0.
        query_positions: [Q] or [B, Q].
        key_positions: [K] or [B, K].
    """
    if not (_are_consecutive(query_positions) and _are_consecutive(key_positions)):
        distances = relative_positions(query_positions, key_positions).squeeze(-3).clamp_min(0)
        return bias(distances.flatten()).reshape(-1, *distances.shape).movedim(0, -3)
    # Row i of the matrix is row i - 1 shifted by one key: all rows are windows of one row of Q + K - 1 distances.
    n_queries, total = len(query_positions), len(key_positions)
    steps = torch.arange(n_queries + total - 1, dtype=torch.float64, device=key_positions.device)
    each = bias((query_positions[-1] - key_positions[0] - steps).clamp_min(0))
    return each.unfold(-1, total, 1).flip(-2)


def _are_consecutive(positions: Tensor) -> bool:
    return positions.dim() == 1 and len(positions) > 0 and bool((positions.diff() == 1).all())


def weight_versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """A key for caches of what weights give: it changes with every update in place and every move."""
    # Tensors made in inference mode count no versions, and cannot be trained either.
    weights = module.parameters()
    return tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights)

"""Gated delta rule: a state that is corrected token by token (Yang et al. 2024, arXiv 2412.06464)."""

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding

TOKENS_PER_CHUNK = 32
"""Tokens whose corrections are one triangular system."""
NORM_EPSILON = 1e-6
"""Epsilon of the norms of queries, keys and outputs, as transformers' Qwen3-Next has it."""
MAX_DECAY_RATE = 16.0
"""Largest initial decay rate of a head, in transformers' Qwen3-Next."""


class GatedDelta(Encoding):
    """A state of fixed size in place of attention: it fades, and what it says of a key is moved towards the value.

        S_i = e^(g_i) S_(i-1) + k_i^T beta_i (v_i - k_i e^(g_i) S_(i-1)),   o_i = q_i S_i / sqrt(d)
        g = -e^a softplus(A x + t),   beta = sigmoid(B x),   output = gain rms(o) * silu(Z x)

    x is the layer's input after its norm. Queries, keys and values first pass silu(conv), over `kernel` tokens up to
    their own and each dimension alone; then queries and keys have length 1. With as many query heads as key heads it is
    the layer of Qwen3-Next and Qwen3.5, as transformers computes it; else query heads share the state of their key
    head. There is no softmax, so there are no attention weights to probe, and no slot of a method acts here.

    All at once within a chunk, by its cumulative sums c of g: corrections u solve one triangular system,

        u_i + beta_i sum_(j < i) e^(c_i - c_j) (k_i . k_j) u_j = beta_i (v_i - e^(c_i) k_i S),   S of the chunk before

    Keys, values and queries are kept instead of the state, as for all other encodings.

    Args:
        head_dim: d, dimensions of a head.
        heads: H, query heads.
        kv_heads: key heads, each with a state.
        width: of the network.
        kernel: tokens of the convolutions; 4 in Qwen3-Next.
    """

    shared = False
    weighs = False

    def __init__(self, head_dim: int, heads: int, kv_heads: int, width: int, kernel: int = 4) -> None:
        super().__init__()
        if kernel < 1:
            raise ConfigError(f"gated_delta's kernel must be at least 1 token, got {kernel}: Qwen3-Next has 4")
        self.head_dim = head_dim
        self.mix_queries = nn.Parameter(torch.zeros(heads * head_dim, 1, kernel))
        self.mix_keys = nn.Parameter(torch.zeros(kv_heads * head_dim, 1, kernel))
        self.mix_values = nn.Parameter(torch.zeros(kv_heads * head_dim, 1, kernel))
        self.output_gate = nn.Parameter(torch.zeros(heads * head_dim, width))
        self.strength = nn.Parameter(torch.zeros(kv_heads, width))
        self.fade = nn.Parameter(torch.zeros(kv_heads, width))
        self.fade_bias = nn.Parameter(torch.ones(kv_heads))
        self.log_rate = nn.Parameter(torch.zeros(kv_heads))
        self.gain = nn.Parameter(torch.ones(head_dim))

    def initialise(self, generator: Generator) -> None:
        """Draw matrices like the decoder's, convolutions as PyTorch does, rates uniform up to 16; t begins as 1."""
        for weight in (self.output_gate, self.strength, self.fade):
            nn.init.normal_(weight, std=WEIGHT_DEVIATION, generator=generator)
        for weight in (self.mix_queries, self.mix_keys, self.mix_values):
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound, generator=generator)
        nn.init.uniform_(self.log_rate, 0.01, MAX_DECAY_RATE, generator=generator)
        self.log_rate.data.log_()

    def rotation(self, attention: Attention) -> Rotate:
        """No rotation; ConfigError for every slot of a method."""
        if attention.slots():
            raise ConfigError("gated_delta has no attention that a method could change: use method=none")
        return self.rotate

    def cached_inputs(self, normed: Tensor, queries: Tensor) -> Tensor:
        """[B, KV, T, 2 (H / KV) D + 2] queries before their convolution, Z x, B x and A x."""
        shape = (*normed.shape[:2], len(self.strength), -1)
        own = [queries.transpose(1, 2).reshape(*shape)]
        own += [F.linear(normed, self.output_gate.to(normed.dtype)).reshape(*shape)]
        own += [F.linear(normed, each.to(normed.dtype)).reshape(*shape) for each in (self.strength, self.fade)]
        return torch.cat(own, dim=-1).transpose(1, 2)

    def gates(self, normed: Tensor) -> Tensor:
        """ConfigError: it needs the queries, too, which an encoding around it does not hand on."""
        raise ConfigError("no encoding can stand around gated_delta: use delta_hybrid for layers of two kinds")

    def log_state_left(self, tokens: int) -> Tensor:
        """[KV, tokens] log of what is left of a state behind 0, 1, 2, ... tokens whose inputs are zero."""
        rate = self.log_rate.exp() * F.softplus(self.fade_bias)
        return -rate[:, None] * torch.arange(tokens)

    def recur(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[B, H, Q, D] outputs of the last Q of K tokens; keys and values [B, KV, K, D] as projected."""
        assert self.given is not None, "gated_delta needs what it keeps of its layer"
        precise = torch.promote_types(queries.dtype, torch.float32)
        given, total, count = self.given[:, :, : keys.shape[2]].to(precise), keys.shape[2], queries.shape[2]
        width = (given.shape[-1] - 2) // 2
        asking, gate, strength, fade = torch.split(given, [width, width, 1, 1], dim=-1)
        asking = _per_head(self._convolve(asking, self.mix_queries), self.head_dim)
        known, content = (
            self._convolve(each.to(precise), weight)
            for each, weight in ((keys, self.mix_keys), (values, self.mix_values))
        )
        rate = self.log_rate.to(precise).exp()[:, None, None]
        fades = -rate * F.softplus(fade + self.fade_bias.to(precise)[:, None, None])
        states = delta_rule(_unit(asking), _unit(known), content, fades, strength.sigmoid())[..., total - count :, :]
        opened = F.silu(_per_head(gate, self.head_dim)[..., total - count :, :])
        outputs = F.rms_norm(states, (self.head_dim,), self.gain.to(precise), NORM_EPSILON) * opened
        return outputs.flatten(1, 2).to(queries.dtype)

    def _convolve(self, each: Tensor, weight: Tensor) -> Tensor:
        """[B, KV, T, E] after silu(conv); token t sees t - kernel + 1 .. t, none that follows."""
        flat = F.pad(each.transpose(2, 3).flatten(1, 2), (weight.shape[-1] - 1, 0))
        mixed = F.silu(F.conv1d(flat, weight.to(each.dtype), groups=flat.shape[1]))
        return mixed.reshape(*each.shape[:2], -1, each.shape[2]).transpose(2, 3)


def _per_head(each: Tensor, head_dim: int) -> Tensor:
    """[B, KV, H / KV, T, D] of [B, KV, T, (H / KV) D]."""
    return each.unflatten(-1, (-1, head_dim)).transpose(2, 3)  # type: ignore[no-untyped-call, no-any-return]


def _unit(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + NORM_EPSILON)


def delta_rule(queries: Tensor, keys: Tensor, values: Tensor, fades: Tensor, strength: Tensor) -> Tensor:
    """[B, KV, R, T, D] outputs of the gated delta rule, chunk by chunk.

    Args:
        queries: [B, KV, R, T, D], R query heads of each key head.
        keys: [B, KV, T, D].
        values: [B, KV, T, D].
        fades: [B, KV, T, 1] g, at most 0.
        strength: [B, KV, T, 1] beta.
    """
    state = keys.new_zeros(*keys.shape[:2], keys.shape[-1], values.shape[-1])
    outputs, scale = [], 1 / math.sqrt(keys.shape[-1])
    for first in range(0, keys.shape[2], TOKENS_PER_CHUNK):
        here = slice(first, first + TOKENS_PER_CHUNK)
        known, beta, since = keys[:, :, here], strength[:, :, here], fades[:, :, here].cumsum(2)
        count = known.shape[2]
        later = torch.ones(count, count, dtype=torch.bool, device=keys.device).triu(1)
        between = (since - since.mT).masked_fill(later, -torch.inf).exp()
        system = (beta * (known @ known.mT) * between).tril(-1)
        wanted = beta * (values[:, :, here] - since.exp() * (known @ state))
        moved: Tensor = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        asking = queries[..., here, :]
        met = (asking @ known.mT[:, :, None]) * between[:, :, None]
        carried = since.exp()[:, :, None] * (asking @ state[:, :, None])
        outputs.append(scale * (carried + met @ moved[:, :, None]))
        end = since[:, :, -1:]
        state = end.exp() * state + (known * (end - since).exp()).mT @ moved
    return torch.cat(outputs, dim=-2)

"""GLA: gated linear attention (Yang et al. 2023, arXiv 2312.06635), a recurrent mixer as a reference."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding

KEYS_PER_CHUNK = 16
"""Keys whose decays are taken from one point."""


class Gla(Encoding):
    """A state of fixed size in place of attention: each token fades it, dimension by dimension, and adds its value.

        S_i = diag(alpha_i) S_(i-1) + k_i^T v_i,   o_i = q_i S_i / sqrt(d),   alpha = sigmoid(W2 W1 x + b)^(1/16)
        output = swish(R x) * g * rms(o)

    x is the layer's input after its norm, W1 has `rank` rows; alpha belongs to a key head, swish(R x) and the norm to a
    query head. Written out, o_i = sum_j (q_i * e^(c_i - c_j)) . k_j v_j with c the cumulative sum of ln alpha, which is
    computed at once for all tokens: within a chunk of keys from their differences, to later chunks by way of the
    chunk's end, so that no factor is above 1. Keys and values are kept instead of the state, as for all other
    encodings.

    Queries and keys have as many dimensions as values; in the paper half as many. It also has a bias inside swish, and
    LayerNorm in place of the rms norm; its authors' layer (flash-linear-attention, read, not run) has neither, divides
    by sqrt(d) as here, and begins W2 with deviation 0.02, too.

    There is no softmax, so there are no attention weights to probe. `products` are o's factors of v.

    Args:
        head_dim: d, dimensions of a head.
        heads: H, query heads.
        kv_heads: key heads.
        width: of the network.
        rank: of W2 W1; 16 in the paper.
    """

    shared = False
    weighs = False

    def __init__(self, head_dim: int, heads: int, kv_heads: int, width: int, rank: int = 16) -> None:
        super().__init__()
        if rank < 1:
            raise ConfigError(f"gla's rank must be at least 1, got {rank}: the paper has 16")
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.down = nn.Parameter(torch.zeros(rank, width))
        self.up = nn.Parameter(torch.zeros(kv_heads * head_dim, rank))
        self.fade_bias = nn.Parameter(torch.zeros(kv_heads * head_dim))
        self.output_gate = nn.Parameter(torch.zeros(heads * head_dim, width))
        self.gain = nn.Parameter(torch.ones(head_dim))

    def initialise(self, generator: Generator) -> None:
        """Draw matrices like the decoder's, W2 with deviation rank^(-1/2); b is 0, so alpha begins near 0.958."""
        for weight, deviation in (
            (self.down, WEIGHT_DEVIATION),
            (self.up, len(self.down) ** -0.5),
            (self.output_gate, WEIGHT_DEVIATION),
        ):
            nn.init.normal_(weight, std=deviation, generator=generator)

    def gates(self, normed: Tensor) -> Tensor:
        """[B, KV, T, D + (H / KV) D] ln alpha, and R x of the query heads of the key head."""
        dtype, shape = normed.dtype, (*normed.shape[:2], self.kv_heads, -1)
        fades = F.linear(F.linear(normed, self.down.to(dtype)), self.up.to(dtype), self.fade_bias.to(dtype))
        each = torch.cat(
            [
                # The 16th root (tau in the paper) keeps alpha near 1: a state forgets slowly from the first step on.
                (F.logsigmoid(fades) / 16).reshape(*shape),
                F.linear(normed, self.output_gate.to(dtype)).reshape(*shape),
            ],
            dim=-1,
        )
        return each.transpose(1, 2)

    def products(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> Tensor:
        """[B, H, Q, K] (q_i * e^(c_i - c_j)) . k_j; whatever for later keys."""
        assert self.given is not None, "gla needs the gates of its layer"
        total, count, groups = keys.shape[2], queries.shape[2], keys.shape[1]
        faded = self.given[:, :, :total, : self.head_dim].to(torch.float64).cumsum(2)
        here = faded[:, :, total - count :, None]
        asking = queries.reshape(len(queries), groups, -1, count, self.head_dim).transpose(
            2, 3
        )  # [B, KV, Q, H / KV, D]
        parts = []
        for first in range(0, total, KEYS_PER_CHUNK):
            last = min(first + KEYS_PER_CHUNK, total)
            end, mine, known = faded[:, :, last - 1 : last], faded[:, :, first:last], keys[:, :, first:last]
            # Queries up to the chunk's end need the differences themselves: there are at most as many as keys.
            inside = max(0, last - (total - count))
            near, far = asking[:, :, :inside], asking[:, :, inside:]
            # Later keys would have a factor above 1: clamped, as their products are masked anyway.
            between = (here[:, :, :inside] - mine[:, :, None]).clamp_max(0).exp().to(keys.dtype)
            one = torch.einsum("bgqhd,bgqkd,bgkd->bgqhk", near, between, known)
            # e^(c_i - c_j) = e^(c_i - c_end) e^(c_end - c_j) with the chunk's end between both: no factor is above 1.
            then = far * (here[:, :, inside:] - end[:, :, None]).exp().to(keys.dtype)
            two = torch.einsum("bgqhd,bgkd->bgqhk", then, known * (end - mine).exp().to(keys.dtype))
            parts.append(torch.cat([one, two], dim=2))
        return torch.cat(parts, dim=-1).transpose(2, 3).flatten(1, 2)

    def mix(self, logits: Tensor, values: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, Q, D] sums of values, normed and gated."""
        assert self.given is not None, "gla needs the gates of its layer"
        total, count = values.shape[2], logits.shape[2]
        # Logits are factors here: what a mask hides is 0, not -inf.
        states = multiply_per_group(logits.masked_fill(logits == -torch.inf, 0.0), values)
        gates = self.given[:, :, total - count : total, self.head_dim :]
        gates = gates.reshape(*gates.shape[:3], -1, self.head_dim)
        opened = F.silu(gates.transpose(2, 3).flatten(1, 2).to(states.dtype))
        return opened * F.rms_norm(states, (self.head_dim,), self.gain.to(states.dtype), 1e-5)

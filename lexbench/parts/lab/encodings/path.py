"""PaTH: position encoding by accumulating Householder transformations (Yang et al. 2025, arXiv 2505.16381)."""

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding


class Path(Encoding):
    """Between key and query stands a product of matrices, one for each token from after the key to the query.

        logit(i, j) = q_i^T H_i H_(i-1) .. H_(j+1) k_j / sqrt(d),   H_l = I - beta_l w_l w_l^T
        w = u / |u|,  u = silu(conv(W x)),   beta = 2 sigmoid(b . x + c)

    x is the layer's input after its norm; the convolution takes `kernel` tokens up to l, for each dimension alone.
    There is a w and a beta for each key head. As in the authors' code W is a full matrix, their choice where query
    heads share a key head; their matrix of rank 32 for plain heads, and PaTH-FoX, are left out.

    All products at once, without a loop over tokens: with A = tril(Q W^T), B = diag(beta) W, and strict the part below
    the diagonal,

        logits = Q K^T - A (I + strict(B W^T))^(-1) strict(B K^T)

    which is one triangular system of T equations for each key head: O(T^3) time for a whole text, O(T^2) for one token.

    Args:
        head_dim: d, dimensions of a head.
        kv_heads: key heads.
        width: of the network.
        kernel: tokens of the convolution; 3 in the authors' code.
    """

    shared = False
    held = 4

    def __init__(self, head_dim: int, kv_heads: int, width: int, kernel: int = 3) -> None:
        super().__init__()
        if kernel < 1:
            raise ConfigError(f"path's kernel must be at least 1 token, got {kernel}: the authors take 3")
        self.direction = nn.Parameter(torch.zeros(kv_heads * head_dim, width))
        self.convolution = nn.Parameter(torch.zeros(kv_heads * head_dim, 1, kernel))
        self.strength = nn.Parameter(torch.zeros(kv_heads, width))
        self.strength_bias = nn.Parameter(torch.zeros(kv_heads))

    def initialise(self, generator: Generator) -> None:
        """Draw W and b like the decoder's weights, the convolution as PyTorch draws it; c is 0."""
        for weight in (self.direction, self.strength):
            nn.init.normal_(weight, std=WEIGHT_DEVIATION, generator=generator)
        bound = self.convolution.shape[-1] ** -0.5
        nn.init.uniform_(self.convolution, -bound, bound, generator=generator)

    def gates(self, normed: Tensor) -> Tensor:
        """[B, KV, T, D + 1] W x before the convolution, and the logit of beta."""
        directions = F.linear(normed, self.direction.to(normed.dtype))
        strength = F.linear(normed, self.strength.to(normed.dtype), self.strength_bias.to(normed.dtype))
        each = directions.reshape(*normed.shape[:2], len(self.strength), -1).transpose(1, 2)
        return torch.cat([each, strength.mT[..., None]], dim=-1)

    def products(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> Tensor:
        """[B, H, Q, K] q^T H .. H k."""
        total, count = keys.shape[2], queries.shape[2]
        directions, strength = self._reflection_vectors(total, keys.dtype)
        # B = diag(beta) W of the docstring.
        scaled = directions * strength
        # Row i of `met` meets the directions up to its own token.
        met = multiply_per_group(queries, directions.mT).tril(total - count)
        met = met.reshape(len(met), directions.shape[1], -1, total)
        system = (scaled @ directions.mT).tril(-1)
        # X (I + strict(B W^T)) = A for X: the inverse itself is never computed.
        solved: Tensor = torch.linalg.solve_triangular(system, met, upper=False, left=False, unitriangular=True)
        change = solved @ (scaled @ keys.mT).tril(-1)
        return multiply_per_group(queries, keys.mT) - change.reshape(*queries.shape[:3], total)

    def _reflection_vectors(self, total: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """w [B, KV, K, D] of length 1 and beta [B, KV, K, 1] of the first K tokens."""
        assert self.given is not None, "path needs the gates of its layer"
        given = self.given[:, :, :total].to(dtype)
        raw, kernel = given[..., :-1].transpose(2, 3).flatten(1, 2), self.convolution.shape[-1]
        # Padded on the left alone: token l sees l - kernel + 1 .. l, none that follows.
        mixed = F.conv1d(F.pad(raw, (kernel - 1, 0)), self.convolution.to(dtype), groups=raw.shape[1])
        directions = F.silu(mixed).reshape(*given.shape[:2], -1, total).transpose(2, 3)
        return F.normalize(directions, dim=-1), 2 * given[..., -1:].sigmoid()

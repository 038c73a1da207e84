"""CoCA: collinear constrained attention (Zhu et al. 2024, arXiv 2309.08646)."""

import torch
from torch import Tensor

from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import RotaryEncoding, rope_frequencies

FORM_NAMES = ("slack", "strict")


class Coca(RotaryEncoding):
    """RoPE whose keys point in the query's direction: a key only gives each pair of the query a weight.

        t_p = max(0, (T_p + T_(p + d/2)) / 2),  T the projection of keys

        slack    a(i, j) = sum over all dimensions of q * R(i) q * R(j) [t, t]
        strict   a(i, j) = sum_p t_p |q_p|^2 cos((i - j) theta_p)      (eq. 17)

    both over sqrt(d). Each is the dot product of a query part and a key part: (q * R(i) q) . R(j) [t, t], and
    R(i) [|q|^2, 0] . R(j) [t, 0]. Slack is the released code, and eq. 10 without the constraint that both dimensions
    of a pair be equal. It depends on i and j, not on i - j alone, so methods cannot remap its distances.
    The paper finds slack better at passkey retrieval, with dynamic NTK on top of either.

    Args:
        head_dim: d, dimensions of a head.
        base: b of the angles b^(-2p/d).
        form: slack or strict.
    """

    def __init__(self, head_dim: int, base: float = 10000.0, form: str = "slack") -> None:
        super().__init__(rope_frequencies(head_dim, base), base)
        if form not in FORM_NAMES:
            raise ConfigError(f"coca's form must be slack or strict, got {form!r}: the released code is slack")
        self.strict = self.remaps = form == "strict"

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Keys become t; in the strict form, queries become the squared lengths of their pairs."""
        first, second = keys.chunk(2, dim=-1)
        # Without the relu, a negative weight would turn the key against the query.
        counting = ((first + second) / 2).relu()
        if not self.strict:
            return queries, torch.cat([counting, counting], dim=-1)
        one, two = queries.chunk(2, dim=-1)
        # R(i) [|q|^2, 0] . R(j) [t, 0] = sum_p |q_p|^2 t_p cos((i - j) theta_p): the einsum of eq. 17 as one dot
        # product.
        return _pad_with_zeros(one * one + two * two), _pad_with_zeros(counting)

    def qk(
        self, queries: Tensor, keys: Tensor, query_positions: Tensor, key_positions: Tensor, rotate: Rotate
    ) -> tuple[Tensor, Tensor]:
        """In the slack form, multiply queries by their rotated selves."""
        turned, known = super().qk(queries, keys, query_positions, key_positions, rotate)
        # q * R(i) q belongs to one side of the product only: still a dot product of a query and a key.
        return (turned, known) if self.strict else (queries * turned, known)


def _pad_with_zeros(half: Tensor) -> Tensor:
    return torch.cat([half, torch.zeros_like(half)], dim=-1)

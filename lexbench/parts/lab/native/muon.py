"""Muon: momentum whose matrices are made orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ_STEPS = 5
"""Newton-Schulz iterations."""
QUINTIC_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial: it brings singular values from 0.01 to 1 to between 0.7 and 1.2."""


class Muon(torch.optim.Optimizer):
    """Step along the orthogonalised Nesterov momentum of each matrix.

        B <- m B + G,    U = orthogonal(G + m B) sqrt(max(1, rows / columns)),    W <- W (1 - rate decay) - rate U

    Matrices of one shape go through the iteration together: on a CPU that is what makes it cheap.

    Args:
        matrices: parameters of two dimensions.
        lr: rate.
        momentum: m.
        weight_decay: decay.
        dtype: of the iteration; bfloat16 suffices, and halves its time where the processor has it.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            # `groupby` joins neighbours only.
            used = sorted((weight for weight in group["params"] if weight.grad is not None), key=_matrix_shape)
            for (rows, columns), some in groupby(used, key=_matrix_shape):
                self._update(list(some), group, max(1.0, rows / columns) ** 0.5)

    def _update(self, weights: list[Tensor], group: dict[str, Any], scale: float) -> None:
        momentum = [self.state[weight].setdefault("momentum", torch.zeros_like(weight)) for weight in weights]
        gradients: list[Tensor] = [weight.grad for weight in weights if weight.grad is not None]
        torch._foreach_mul_(momentum, group["momentum"])
        torch._foreach_add_(momentum, gradients)
        # Nesterov: G + m B, with B updated already.
        ahead = torch._foreach_add(gradients, momentum, alpha=group["momentum"])
        directions = orthogonalise_matrices(torch.stack(list(ahead)).to(self.dtype))
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(directions.to(weights[0].dtype)), alpha=-group["lr"] * scale)


def _matrix_shape(weight: Tensor) -> tuple[int, ...]:
    return tuple(weight.shape)


def orthogonalise_matrices(matrices: Tensor) -> Tensor:
    """[N, R, C] nearly orthogonal matrices with the singular vectors of [N, R, C] matrices, by Newton-Schulz."""
    a, b, c = QUINTIC_COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    # Wide, so that the Gram matrix X X^T is the smaller of the two.
    x = matrices.mT if tall else matrices
    # The Frobenius norm bounds the largest singular value, which must be at most 1.
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        # X <- a X + b (X X^T) X + c (X X^T)^2 X: each singular value s becomes a s + b s^3 + c s^5.
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result

"""KERPLE: kernelized relative positional embedding (Chi et al. 2022, NeurIPS, arXiv 2205.09921)."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, bias_by_distance

MIN_WEIGHT = 0.01
"""Smallest value of a weight, as in the released code."""


class Kerple(Encoding):
    """Bias from a conditionally positive definite kernel of the distance, learned for each head of each layer.

        log      b_h = -p_h ln(1 + a_h (i - j))
        power    b_h = -a_h (i - j)^p_h,  p_h at most 2

    p begins uniform in [0, 2], a in [0, 1]. The paper needs weights above 0. As in the released code, weights below
    0.01 are set to 0.01 before they are used in training (and p of the power form above 2 to 2). So a weight that left
    its range goes on learning from the border; a clamp inside the formula would give it no gradient. The released code
    can also multiply scores by a kernel, which is left out: the paper's models add.

    Args:
        heads: H, query heads.
        form: log (the paper's best) or power.
    """

    shared = False

    def __init__(self, heads: int, form: str = "log") -> None:
        super().__init__()
        if form not in KERNEL_OF_FORM:
            raise ConfigError(f"kerple form must be one of {', '.join(KERNEL_OF_FORM)}, got {form}")
        self.kernel, self.largest = KERNEL_OF_FORM[form]
        self.p = nn.Parameter(torch.ones(heads))
        self.a = nn.Parameter(torch.ones(heads))

    def initialise(self, generator: Generator) -> None:
        """Draw both uniformly."""
        nn.init.uniform_(self.p, 0.0, 2.0, generator=generator)
        nn.init.uniform_(self.a, 0.0, 1.0, generator=generator)

    def constrain(self) -> None:
        """Clamp both; at use `scores` clamps instead, and leaves the weights as they are."""
        with torch.no_grad():
            self.p.clamp_(MIN_WEIGHT, self.largest)
            self.a.clamp_(MIN_WEIGHT)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K] bias of the logits, or [B, H, Q, K] where positions have a batch axis."""
        return bias_by_distance(self.bias_at_distances, query_positions, key_positions)

    def bias_at_distances(self, distances: Tensor) -> Tensor:
        """[H, N] bias of the logits at distances [N] of at least 0."""
        p, a = [self.p, self.a] if self.training else [self.p.clamp(MIN_WEIGHT, self.largest), self.a.clamp(MIN_WEIGHT)]
        return -self.kernel(p[:, None], a[:, None], distances.to(p.dtype))


def logarithmic_kernel(p: Tensor, a: Tensor, distances: Tensor) -> Tensor:
    """Amount p ln(1 + a n) that logits at distance n lose."""
    return p * torch.log1p(a * distances)


def power_kernel(p: Tensor, a: Tensor, distances: Tensor) -> Tensor:
    """Amount a n^p that logits at distance n lose; the gradient of p is 0 at n = 0."""
    return a * distances.pow(p)


KERNEL_OF_FORM: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], float | None]] = {
    "log": (logarithmic_kernel, None),
    "power": (power_kernel, 2.0),
}
"""Kernel and the largest p of each form."""

"""FIRE: functional interpolation for relative position encoding (Li et al. 2024, ICLR, arXiv 2310.04418)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, bias_by_distance, relative_positions


class Fire(Encoding):
    """Bias learned as a function of the distance relative to the query's position.

        b(i, j) = f( psi(i - j) / (psi(max(i, tau)) + epsilon) ),   psi(x) = ln(|c x| + 1),   tau = |m threshold|

    `threshold` is L / 4 of the trained length L, as in the paper, which has 512 for L = 2048: inside L, so that
    training reaches both parts of the formula.

    f: 1 -> hidden -> H with a ReLU between. c and m learn too, `threshold` does not. Each layer has its own, as in
    the released code of DAPE; one f for all layers (FIRE-S) is left out. The input of f is between 0 and 1 at any
    length; at i = 0 it is 0 (also where tau is 0, because of epsilon). Up to i = tau the bias depends on i - j alone,
    and each distance is computed once. Absolute values and epsilon come from the released code (that of DAPE), not from
    the paper's equations.

    Args:
        heads: H, query heads.
        trained_length: L in tokens.
        hidden: numbers between f's two layers.
        threshold: tokens up to which the bias depends on i - j alone; None: L / 4.
        epsilon: added to the denominator.
    """

    shared = False

    def __init__(
        self, heads: int, trained_length: int, hidden: int = 32, threshold: float | None = None, epsilon: float = 1e-6
    ) -> None:
        super().__init__()
        threshold = trained_length / 4 if threshold is None else threshold
        if hidden < 1:
            raise ConfigError(f"fire needs at least 1 hidden number, got {hidden}: the paper has 32")
        if not (threshold > 0 and epsilon > 0):
            raise ConfigError(
                f"fire needs threshold and epsilon above 0, got {threshold} and {epsilon}: leave them out"
            )
        self.threshold, self.epsilon = threshold, epsilon
        self.c = nn.Parameter(torch.tensor(0.1))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        self.inner = nn.Parameter(torch.zeros(hidden))
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.zeros(heads, hidden))
        self.outer_bias = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: Generator) -> None:
        """Draw f as PyTorch draws its linear layers: uniform up to 1 / sqrt(inputs)."""
        for weight, inputs in (
            (self.inner, 1),
            (self.inner_bias, 1),
            (self.outer, len(self.inner)),
            (self.outer_bias, len(self.inner)),
        ):
            nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5, generator=generator)

    @property
    def tau(self) -> Tensor:
        """[] tokens."""
        return (self.multiplier * self.threshold).abs()

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K], or [B, H, Q, K] where positions have a batch axis."""
        if torch.compiler.is_compiling():  # the number of early queries follows a learnt tau: compiled anew for each
            return self._bias_by_pair(query_positions, key_positions)
        tau = self.tau
        early = query_positions.flatten() <= tau.detach()
        # Queries up to tau have one denominator psi(tau): their bias depends on the distance alone.
        alike = int(early.sum()) if query_positions.dim() == 1 else 0
        if not alike or not early[:alike].all():
            return self._bias_by_pair(query_positions, key_positions)
        first = bias_by_distance(
            lambda n: self.bias_of_share(self.distance_share(n, tau)), query_positions[:alike], key_positions
        )
        if alike == len(query_positions):
            return first
        return torch.cat([first, self._bias_by_pair(query_positions[alike:], key_positions)], dim=-2)

    def _bias_by_pair(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        # max(i, tau) depends on the row: each pair has a value of its own.
        bound = torch.maximum(query_positions.to(self.c.dtype), self.tau)[..., None]
        shares = self.distance_share(relative_positions(query_positions, key_positions).squeeze(-3).clamp_min(0), bound)
        return self.bias_of_share(shares.flatten()).reshape(-1, *shares.shape).movedim(0, -3)

    def distance_share(self, distances: Tensor, bound: Tensor) -> Tensor:
        """psi(distances) / (psi(bound) + epsilon), for bound max(i, tau)."""
        return self._psi(distances.to(self.c.dtype)) / (self._psi(bound) + self.epsilon)

    def _psi(self, tokens: Tensor) -> Tensor:
        # |.| keeps the logarithm defined when training makes c negative.
        return (self.c * tokens).abs().log1p()

    def bias_of_share(self, shares: Tensor) -> Tensor:
        """[H, N] f of [N]."""
        hidden = (self.inner[:, None] * shares + self.inner_bias[:, None]).relu()
        return self.outer @ hidden + self.outer_bias[:, None]

"""CLEX: continuous length extrapolation (Chen et al. 2023, arXiv 2310.16450)."""

import math
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.kernels.heads import Rotate
from lexbench.parts.lab.encodings.base import (
    RotaryEncoding,
    rope_frequencies,
    rotate_half,
    rotation_angles,
    weight_versions,
)

MAX_INTEGRATION_STEP = 0.125
"""Largest integration step in t."""


class Clex(RotaryEncoding):
    """RoPE whose frequencies follow a learned differential equation in t, how far the text is stretched.

        d ln theta_p / dt = psi(ln theta, t)_p + xi_p(t),    theta(1) = b^(-2p/d)
        xi_p(t) = d/dt ln ntk_p(t),    ntk_p(t) = theta_p(1) (2t - 1)^(-2p/(d-2))
        psi(z, t) = g W_down silu(W_up (z + ln ntk(t)))

    W_down begins at 0: untrained it is NTK-aware scaling by 2t - 1 (the method `clex`). What is integrated here, by
    Runge and Kutta's fourth-order rule in float64, is u = ln theta - ln ntk(t), whose derivative is psi alone; so the
    untrained case is exact. The authors integrate ln theta itself, in float32.

    The authors train a RoPE model further, at a rate of 2e-5. Under Adam every weight of W_down moves by about the rate
    a step, all at once, and psi is integrated over up to max_factor: at a rate of 2.5e-3 one step could change ln theta
    by some nats, and training diverged. g slows psi down by as much as such a rate is above theirs, so that CLEX may
    also be trained from nothing. As in the paper it is trained with `start=` a RoPE model.

    In training t ~ U[1, max_factor], one for each batch, and the tokens stand at a sorted random sample of the places
    0 .. t L - 1, both ends included. The released code draws whole t; the paper says U[1, max_factor]. At use
    t = ceil(N / L), from 1 to max_factor, N the text's final length, as in the released code. There, a cached key keeps
    the frequencies of the t at which it was computed; here t is fixed before the text begins. The released scale of
    logits, ln N / ln L, is left to the method `log_n`.

    `positions` sets t for the following forward passes. No method may change the frequencies, because they already
    follow the length.

    Args:
        head_dim: d, dimensions of a head, at least 4.
        trained_length: L in tokens.
        base: b of the angles at t = 1.
        max_factor: the largest t, at least 1.
        hidden: width inside psi over d, at least 1; 1 in the released configurations.
        gain: g, above 0; 1 is the authors', for their rate.
    """

    before = MappingProxyType({"gain": 1.0})
    growth: Tensor

    def __init__(
        self,
        head_dim: int,
        trained_length: int,
        base: float = 10000.0,
        max_factor: float = 16.0,
        hidden: int = 1,
        gain: float = 0.01,
    ) -> None:
        if head_dim < 4:
            raise ConfigError(f"clex needs heads of at least 4 dimensions, got {head_dim}: lower heads")
        if not 1 <= max_factor < math.inf:
            raise ConfigError(f"clex's max_factor must be finite and at least 1, got {max_factor}: the paper takes 16")
        if hidden < 1:
            raise ConfigError(f"clex's hidden must be at least 1, got {hidden}: the authors take 1")
        if not 0 < gain < math.inf:
            raise ConfigError(f"clex's gain must be finite and above 0, got {gain}: the authors take 1")
        super().__init__(rope_frequencies(head_dim, base))
        self.trained_length, self.max_factor, self.gain = trained_length, max_factor, gain
        pairs = torch.arange(head_dim // 2, dtype=torch.float64)
        self.register_buffer("growth", -2 * pairs / (head_dim - 2), persistent=False)
        self.up = nn.Parameter(torch.zeros(head_dim // 2, hidden * head_dim))
        self.down = nn.Parameter(torch.zeros(hidden * head_dim, head_dim // 2))
        self._t = 1.0
        self._now: Tensor | None = None
        self._known: dict[tuple[Any, ...], Tensor] = {}

    def initialise(self, generator: Generator) -> None:
        """Draw W_up uniformly, as the authors do; W_down is 0."""
        bound = self.up.shape[1] ** -0.5
        self.up.data = ((2 * torch.rand(self.up.shape, generator=generator) - 1) * bound).to(self.up)
        self.down.data.zero_()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out computed frequencies: a tensor with a gradient history cannot be copied."""
        return {**self.__dict__, "_now": None, "_known": {}}

    def train(self, mode: bool = True) -> "Clex":
        """Drop computed frequencies, because training changes the weights."""
        self._known, self._now = {}, None
        super().train(mode)
        return self

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """[T] positions; sets t, the stretch of the text, until the next call."""
        plain, count = super().positions(tokens, length, generator), tokens.shape[1]
        self._now = None
        if generator is None:
            # As the released code at use: the whole text has the t of its final length.
            self._t = float(min(max(1, math.ceil(length / self.trained_length)), self.max_factor))
            return plain
        device = generator.device
        drawn = torch.rand((), generator=generator, device=device, dtype=torch.float64)
        self._t = 1 + (self.max_factor - 1) * float(drawn)
        if count < 3:
            return plain
        # Positions 0 and t L - 1 always occur; those between are a sample without replacement.
        last = max(count, int(self._t * self.trained_length)) - 1
        between = torch.randperm(last - 1, generator=generator, device=device)[: count - 2].sort().values + 1
        return torch.cat([between.new_zeros(1), between, between.new_full((1,), last)]).to(plain)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Unchanged; in training, drops the frequencies, so that every forward pass has its own gradient to them."""
        if self.training:
            self._now = None
        return embedded

    @property
    def current_frequencies(self) -> Tensor:
        """[d / 2] frequencies at the t that `positions` set; at use computed once for each t."""
        # In training computed anew in each forward pass, with its own gradient; at use known by t, device and weights.
        if self._now is None:
            place = (self._t, self.inv_freq.device, weight_versions(self))
            if self.training:
                self._now = self.frequencies_at(self._t)
            elif place not in self._known:
                self._known[place] = self._now = self.frequencies_at(self._t).detach()
            else:
                self._now = self._known[place]
        return self._now

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a loop as long as t
    def frequencies_at(self, t: float) -> Tensor:
        """[d / 2] float64 frequencies theta(t), with a gradient to psi's weights."""
        steps = math.ceil((t - 1) / MAX_INTEGRATION_STEP)
        # Runge and Kutta's rule needs psi at the ends and in the middle of each step.
        ends = torch.linspace(1, t, 2 * steps + 1, dtype=torch.float64, device=self.inv_freq.device)
        # ln ntk_p(t) = ln theta_p(1) - 2p / (d - 2) ln(2t - 1), at all ends at once.
        ntk = self.inv_freq.log() + (2 * ends - 1).log()[:, None] * self.growth
        up, down = self.up.to(torch.float64), self.gain * self.down.to(torch.float64)
        driven = 2 * ntk @ up  # z + ln ntk = u + 2 ln ntk: the second part, of all steps at once

        def slope(place: int, off: Tensor) -> Tensor:
            return F.silu(torch.addmv(driven[place], up.mT, off)) @ down

        size, off = (t - 1) / max(1, steps), torch.zeros_like(self.inv_freq)
        for place in range(0, 2 * steps, 2):
            one = slope(place, off)
            two = slope(place + 1, off + size / 2 * one)
            three = slope(place + 1, off + size / 2 * two)
            four = slope(place + 2, off + size * three)
            # Runge and Kutta's fourth order; the same rule as the authors' `rk4`.
            off = off + size / 6 * (one + 2 * (two + three) + four)
        return (ntk[-1] + off).exp()

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[B, H, T, D] rotated by the frequencies at t."""
        return rotate_half(vectors, rotation_angles(self.current_frequencies, positions))

    def rotation(self, attention: Attention) -> Rotate:
        """`rotate`, times the Attention's scale."""
        if attention.inv_freq is not None:
            raise ConfigError("clex's frequencies follow the length already: use a method that changes none")
        scale = attention.scale or 1.0
        return lambda vectors, positions: rotate_half(
            vectors, rotation_angles(self.current_frequencies, positions), scale
        )

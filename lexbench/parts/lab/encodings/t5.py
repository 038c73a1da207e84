"""T5's relative position bias (Raffel et al. 2020, arXiv 1910.10683)."""

import math
from types import MappingProxyType

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, bias_by_distance


class T5(Encoding):
    """A learned bias for each head and bucket of distances, one table for all layers, as T5 has it.

        bias_h(n) = g table[bucket(n), h],   g = sqrt(width)
        bucket(n) = n                                                              n < N/2
                    min(N/2 + floor(ln(n / (N/2)) / ln(M / (N/2)) N/2), N - 1)     else,  n = i - j

    g decides how fast the table can move. An entry reaches a logit directly, and Adam moves it by at most the learning
    rate a step: 0.8 nats in all of 560 steps at 2.5e-3, where ALiBi's first head falls by 0.5 nats a token. A logit of
    queries and keys is made of `width` inputs, and moves about sqrt(width) times as far. So does a bias times g. It
    begins as T5's does, with deviation width^(-1/2), whatever g.

    The paper leaves the buckets to its code; these are the buckets of its decoder, all for earlier keys (its encoder
    uses half of them for later keys). transformers computes the logarithm in float32; here the first whole distance of
    each bucket is computed once; with the default sizes both agree. T5 has no 1 / sqrt(d) either: its weights begin
    smaller instead. Decoders that took its bias alone kept the factor, which is the default here.

    Args:
        heads: H, query heads.
        width: of the network; biases begin normal with deviation width^-0.5, as T5's.
        buckets: N, at least 2.
        max_distance: M, tokens; the last bucket holds all from there on. Above N/2.
        scaled: whether the scores keep their 1 / sqrt(d).
        gain: g; None: sqrt(width).
    """

    before = MappingProxyType({"gain": 1.0})
    starts: Tensor

    def __init__(
        self,
        heads: int,
        width: int,
        buckets: int = 32,
        max_distance: int = 128,
        scaled: bool = True,
        gain: float | None = None,
    ) -> None:
        super().__init__()
        self.gain = width**0.5 if gain is None else gain
        if not 0 < self.gain < math.inf:
            raise ConfigError(f"t5's gain must be finite and above 0, got {gain}: leave it out for sqrt(width)")
        if buckets < 2:
            raise ConfigError(f"t5 needs at least 2 buckets, got {buckets}: the paper has 32")
        if max_distance <= buckets // 2:
            raise ConfigError(
                f"t5 needs a max_distance above half its buckets, got {max_distance} of {buckets}: raise max_distance"
            )
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        # Times the gain, biases begin with T5's own deviation width^(-1/2).
        self.deviation, self.scaled = width**-0.5 / self.gain, scaled
        self.register_buffer("starts", first_distances(buckets, max_distance), persistent=False)

    def initialise(self, generator: Generator) -> None:
        """Draw the table from a normal distribution."""
        nn.init.normal_(self.table, std=self.deviation, generator=generator)

    def scaling(self, head_dim: int) -> float:
        """Factor 1 / sqrt(d) or 1 on the logits."""
        return super().scaling(head_dim) if self.scaled else 1.0

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K], or [B, H, Q, K] where positions have a batch axis."""
        return bias_by_distance(
            lambda distances: self.gain * self.table[self.distance_buckets(distances)].T, query_positions, key_positions
        )

    def distance_buckets(self, distances: Tensor) -> Tensor:
        """[...] buckets of distances [...] of at least 0, fractions cut off."""
        # right=True: a distance that begins a bucket belongs to it.
        return torch.bucketize(distances.to(torch.float64), self.starts, right=True)


def first_distances(buckets: int, max_distance: int) -> Tensor:
    """[buckets - 1] first whole distance of each bucket after the first."""
    near = buckets // 2
    rest = buckets - near
    grown = (near * (max_distance / near) ** (step / rest) for step in range(1, rest))
    # A power that is a whole number begins its own bucket, even where it was rounded up.
    starts = [*range(1, near + 1), *(math.ceil(start - 1e-9) for start in grown)]
    return torch.tensor(starts, dtype=torch.float64)

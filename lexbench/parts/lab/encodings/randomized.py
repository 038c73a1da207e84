"""Randomized positional encodings (Ruoss et al. 2023, arXiv 2305.16843)."""

import torch
from torch import Generator, Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper

POSITION_USES = ("spread", "plain")


class Randomized(EncodingWrapper):
    """In training, T tokens have T different random positions of 0 .. M - 1, in order; M is far above T.

        n_0 < n_1 < .. < n_(T-1),  a sample without replacement, one for a batch as in the released code

    At use the paper draws such a sample again. A measurement should not depend on a draw, so here the positions of a
    text of N tokens are, by `use`,

        spread  at floor(k (M - 1) / (N - 1)), k = 0 .. N - 1, N its final length: evenly over all trained positions
        plain   at k = 0 .. N - 1, closer together than in training

    Args:
        over: the inner encoding, any.
        trained_length: tokens.
        places: M, positions; 2048 in the paper, for 40 trained tokens.
        use: spread or plain.
    """

    excludes = frozenset({"gates", "positions"})

    def __init__(self, over: Encoding, trained_length: int, places: int = 2048, use: str = "spread") -> None:
        super().__init__(over)
        if places < trained_length:
            raise ConfigError(
                f"randomized needs at least {trained_length} places, one for each trained token, got {places}: raise it"
            )
        if use not in POSITION_USES:
            raise ConfigError(f"randomized use must be spread or plain, got {use!r}: choose one")
        if over.longest is not None and over.longest < places:
            raise ConfigError(
                f"randomized draws from {places} positions, {over.name} has {over.longest}: "
                f"give over={{name: {over.name}, size: {places}}} or lower places"
            )
        self.places, self.use = places, use

    @property
    def used(self) -> Encoding:
        """The inner encoding where positions are 0, 1, 2, ... at use; else this one."""
        return self.over.used if self.use == "plain" else self

    @property
    def remaps(self) -> bool:  # type: ignore[override]
        """Methods may remap plain positions only."""
        return self.use == "plain" and self.over.remaps

    @property
    def longest(self) -> int | None:
        """Number of places, where texts spread over them; else as the inner encoding."""
        return self.places if self.use == "spread" else self.over.longest

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """[T] positions, whole numbers."""
        plain = self.over.positions(tokens, length, generator)
        if generator is not None:
            if (count := tokens.shape[1]) > self.places:
                raise ConfigError(f"randomized has {self.places} positions for {count} tokens: raise places")
            # The first of a permutation are a sample without replacement; sorted, the tokens keep their order.
            drawn = torch.randperm(self.places, generator=generator, device=generator.device)[:count]
            return drawn.sort().values.to(plain)
        if self.use == "plain":
            return plain
        if length > self.places:
            raise ConfigError(f"randomized has {self.places} positions for {length} tokens: raise places or use=plain")
        # Both ends are taken: token 0 stands at 0, the last at M - 1.
        return (plain * (self.places - 1)).div(max(1, length - 1), rounding_mode="floor")

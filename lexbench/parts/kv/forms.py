"""Forms of rounded numbers."""

import math
from dataclasses import dataclass

import numpy as np

from lexbench.core.attention import Floats

BITS_OF_FORMAT = {"fp8": 8.0, "q8_0": 8.5, "q4_0": 4.5}
"""Formats of serving engines, and their bits a number: e4m3 as vLLM casts to it, and llama.cpp's blocks of 32 numbers
with a scale of 16 bits."""
LLAMA_CPP_BLOCK_NUMBERS = 32
"""Numbers of a block of q8_0 and q4_0."""
HADAMARD_SIGNS_SEED = 2402
"""Seed of the signs in front of the Hadamard matrix."""


@dataclass(frozen=True)
class Rounding:
    """A form of numbers of few bits, as `Compression` describes it."""

    bits: int | None
    format: str | None
    group: int
    hadamard: bool

    @property
    def rounds(self) -> bool:
        """Whether numbers are rounded."""
        return self.bits is not None or self.format is not None


def signs(width: int) -> Floats:
    """[D] random 1 and -1, always the same, in front of the Hadamard matrix."""
    return np.random.default_rng(HADAMARD_SIGNS_SEED).choice([-1.0, 1.0], width)


def is_power_of_two(count: int) -> bool:
    """Whether a count is 1, 2, 4, ..."""
    return count > 0 and math.log2(count).is_integer()

"""Cos and sin that were read at some positions, and whether they are those of given angles, within rounding.

65 positions: 0, 1, 2, 4, 8, ... and, up to the last one, odd positions at even distances, because half precision holds
many even ones exactly.
"""

import math
from dataclasses import dataclass

import numpy as np

from lexbench.core.attention import Floats, Positions

N_READ_POSITIONS = 65
"""Number of positions that are read."""
ROUNDING_OF_DTYPE = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest rounding error of a number, as a fraction of it, by the dtype of cos and sin."""
N_ANGLE_ROUNDINGS = 6
"""Roundings of float32 from a base to an angle: power, quotient, a ramp's mixture, product."""

EXACT_INTEGERS_OF_FLOAT32 = 2**24
"""Up to it all whole numbers are exact in float32."""


def places_up_to(length: int) -> Positions:
    """[65 or fewer] positions below a length: 0, the powers of two, odd ones at even distances, and the last."""
    powers = [0, *(2**power for power in range(max(length - 1, 1).bit_length()))]
    spread = np.linspace(0, length - 1, N_READ_POSITIONS - len(powers) + 1)[1:].astype(np.int64) | 1
    found = np.unique(np.concatenate([powers, spread, [length - 1]]))
    return np.asarray(found[found < length])


@dataclass(frozen=True, eq=False)
class RopeReading:
    """Cos and sin of a module at some positions."""

    places: Positions
    """[n] positions, ascending: 0, 1, 2, 4, 8, ... and others."""
    cos: Floats
    """[n, pairs] cos at the positions; `sin` alike."""
    sin: Floats
    dtype: str
    """Dtype in which the module returns cos and sin."""

    def errors(
        self, inv_freq: Floats, scale: float, rounded: "Rounded | None" = None, fast: bool = False
    ) -> tuple[Floats, Floats]:
        """[n, pairs] larger difference of cos and sin from these angles, and what rounding may make of it.

        What is not a number is equal only to what is not a number. The first pair turns by 1 radian a token, or by that
        over a factor: where this is a power of two, all its angles are exact in float32, and only cos and sin are
        rounded. Fast arithmetic rounds them all the same: it divides by 2 pi.
        """
        # b^-x in float32 is off by x ln b roundings of the exponent, and those of the steps.
        depth = np.maximum(0.0, -np.log(np.maximum(inv_freq, 1e-30))) + N_ANGLE_ROUNDINGS
        if not fast and np.frexp(inv_freq[0])[0] == 0.5 and self.places[-1] <= EXACT_INTEGERS_OF_FLOAT32:
            depth[0] = 0.0
        off = depth * 2.0**-24
        if rounded is None:
            errors = self._distances(self.places[:, None] * inv_freq, scale)
        else:  # frequencies in float32 may be on the other side of a half between two numbers of half precision
            near = (inv_freq * (1 + sign * off) for sign in (0, -1, 1))
            errors = np.minimum.reduce([self._distances(rounded(self.places, each), scale) for each in near])
        slack = abs(self.places[:, None] * inv_freq) * off + 2e-6 + 2 * ROUNDING_OF_DTYPE[self.dtype]
        return errors, scale * slack

    def _distances(self, angles: Floats, scale: float) -> Floats:
        """[n, pairs] larger difference of cos and sin from those of angles."""
        with np.errstate(invalid="ignore"):  # infinite ones, of positions beyond float16
            wanted = scale * np.cos(angles), scale * np.sin(angles)
        return np.asarray(np.maximum(*map(_difference, (self.cos, self.sin), wanted)))

    def agrees(self, inv_freq: Floats, scale: float, rounded: "Rounded | None" = None) -> bool:
        """Whether all cos and sin are of these angles, within rounding."""
        return len(inv_freq) == self.cos.shape[1] and bool(np.less_equal(*self.errors(inv_freq, scale, rounded)).all())

    def agrees_by_fast_arithmetic(self, inv_freq: Floats, scale: float) -> bool:
        """Whether all cos and sin are of these angles, if exact angles may be rounded, too."""
        fits = len(inv_freq) == self.cos.shape[1]
        return fits and bool(np.less_equal(*self.errors(inv_freq, scale, fast=True)).all())

    def share_of_wrong_angles(self, inv_freq: Floats, scale: float) -> float:
        """Share of cos and sin that are not of these angles; 1 for another number of pairs."""
        if len(inv_freq) != self.cos.shape[1]:
            return 1.0
        errors, slack = self.errors(inv_freq, scale)
        return float((errors > slack).mean())

    def scale(self) -> float:
        """Scale of cos and sin, the median; NaN where there is no number."""
        found = np.hypot(self.cos, self.sin)
        return float(np.median(found[np.isfinite(found)])) if np.isfinite(found).any() else math.nan

    def inv_freq(self) -> Floats:
        """[pairs] radians per token, from positions 1, 2, 4, 8, ..."""
        found = np.zeros(self.cos.shape[1])
        for row, place in enumerate(self.places):
            if place > 0 and place & (place - 1) == 0:
                off = np.arctan2(self.sin[row], self.cos[row]) - place * found
                found = found + (off - 2 * np.pi * np.round(off / (2 * np.pi))) / place
        return found


def _difference(found: Floats, wanted: Floats) -> Floats:
    """[n, pairs] distances, infinite where one of two is no number."""
    both = np.isnan(found) & np.isnan(wanted)
    return np.asarray(np.where(both, 0.0, np.nan_to_num(abs(found - wanted), nan=np.inf)))


@dataclass(frozen=True)
class Rounded:
    """Angles in half precision."""

    dtype: str
    positions: bool = False
    frequencies: bool = False
    products: bool = False

    def __call__(self, places: Positions, inv_freq: Floats) -> Floats:
        """[n, pairs] angles."""
        to = as_float16 if self.dtype == "float16" else as_bfloat16
        t = to(places.astype(np.float64)) if self.positions else places.astype(np.float64)
        with np.errstate(invalid="ignore"):  # a position beyond float16 times a frequency that it has as 0
            angles = t[:, None] * (to(inv_freq) if self.frequencies else inv_freq)
        return to(angles) if self.products else angles

    def __str__(self) -> str:
        parts = [name for name in ("positions", "frequencies") if getattr(self, name)]
        return f"{' and '.join(['angles'] if self.products else parts)} computed in {self.dtype}"


def as_float16(values: Floats) -> Floats:
    """The numbers of float16 nearest to those of float32; infinity beyond them."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float16).astype(np.float64)


def as_bfloat16(values: Floats) -> Floats:
    """The numbers of bfloat16 nearest to those of float32, whose upper 16 bits they are; of two the even one."""
    bits = values.astype(np.float32).view(np.uint32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return kept.view(np.float32).astype(np.float64)

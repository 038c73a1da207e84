"""How a layer's queries or keys turn with positions, as they were read, and what else could turn them so."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.rope_reading import N_ANGLE_ROUNDINGS
from lexbench.core.attention import Floats, Positions

SLACK_OF_DTYPE = {"float64": 1e-5, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest error of a turned pair, as a fraction of its length, by the dtype of queries and keys: roundings of cos and
sin, two products and a sum, and of the states before."""


@dataclass(frozen=True, eq=False)
class Pairing:
    """Which dimensions of a head turn together."""

    words: str
    first: NDArray[np.int64]
    """[pairs] dimension; `second` alike. Pair (x, y) at angle a becomes (x cos a - y sin a, y cos a + x sin a)."""
    second: NDArray[np.int64]


def pairing(layout: str, rotated: int, width: int, offset: int = 0, within: int | None = None) -> Pairing:
    """Pairs of `rotated` dimensions of a head of `width`, the first of which is `offset`.

    Args:
        layout: half or interleaved.
        rotated: dimensions.
        width: of the head.
        offset: of the block that turns.
        within: distance of the two dimensions of a half layout, times two; None: `rotated`.
    """
    pairs = np.arange(rotated // 2)
    if layout == "interleaved":
        return Pairing(f"({_plus(offset)}2i, {_plus(offset)}2i + 1)", offset + 2 * pairs, offset + 2 * pairs + 1)
    apart = (within or rotated) // 2
    start = f"{offset} + i" if offset else "i"
    return Pairing(f"({start}, {start} + {apart})", offset + pairs, offset + pairs + apart)


def _plus(offset: int) -> str:
    return f"{offset} + " if offset else ""


def other_pairings(rotated: int, width: int) -> Iterator[Pairing]:
    """Pairings that a wrong layer may have."""
    for offset in dict.fromkeys((0, width - rotated)):
        for layout in ("half", "interleaved"):
            yield pairing(layout, rotated, width, offset)
    if rotated < width:
        yield pairing("half", rotated, width, within=width)


@dataclass(frozen=True, eq=False)
class Turning:
    """How vectors at position 0 become those at others."""

    pairing: Pairing
    inv_freq: Floats
    """[pairs] radians a token."""
    factors: Floats
    """[n] or [n, H] factor at each position, over that at position 0."""

    def turn(self, start: Floats, places: Positions) -> Floats:
        """[n, H, D] vectors at positions, of those [H, D] at position 0."""
        angles = places[:, None, None] * self.inv_freq
        x, y = start[:, self.pairing.first], start[:, self.pairing.second]
        found = np.repeat(start[None], len(places), axis=0)
        found[..., self.pairing.first] = x * np.cos(angles) - y * np.sin(angles)
        found[..., self.pairing.second] = y * np.cos(angles) + x * np.sin(angles)
        factors = self.factors if self.factors.ndim == 2 else self.factors[:, None]
        return np.asarray(found * factors[..., None])


@dataclass(frozen=True, eq=False)
class TurnReading:
    """Queries or keys of a layer at some positions."""

    places: Positions
    """[n] positions."""
    vectors: Floats
    """[n, H, D]."""
    start: Floats
    """[H, D] at position 0."""
    dtype: str

    def errors(self, wanted: Turning) -> tuple[Floats, Floats]:
        """[n, pairs + 1] errors as fractions of the length of a pair, over all heads, and what rounding may make.

        The last column is of the dimensions that do not turn.
        """
        off = (self.vectors - wanted.turn(self.start, self.places)) ** 2
        sums = off.sum(1), (self.start**2).sum(0)[None]
        first, second = wanted.pairing.first, wanted.pairing.second
        rest = np.setdiff1d(np.arange(self.start.shape[1]), [*first, *second])
        columns = [
            np.concatenate([each[:, first] + each[:, second], each[:, rest].sum(1, keepdims=True)], axis=1)
            for each in sums
        ]
        errors = np.sqrt(columns[0] / np.maximum(columns[1], 1e-30))
        if not len(rest):
            errors[:, -1] = 0.0
        errors = np.nan_to_num(errors, nan=np.inf)
        depth = np.maximum(0.0, -np.log(np.maximum(abs(wanted.inv_freq), 1e-30))) + N_ANGLE_ROUNDINGS
        angle = np.append(abs(wanted.inv_freq) * depth, 0.0) * 2.0**-24
        scale = np.max(np.atleast_2d(wanted.factors.reshape(len(self.places), -1)), axis=1, keepdims=True)
        return errors, np.maximum(scale, 1.0) * (self.places[:, None] * angle + SLACK_OF_DTYPE[self.dtype])

    def agrees(self, wanted: Turning) -> bool:
        """Whether all vectors are those."""
        if max(wanted.pairing.first.max(initial=0), wanted.pairing.second.max(initial=0)) >= self.start.shape[1]:
            return False
        return bool(np.less_equal(*self.errors(wanted)).all())


def likely_turning(reading: TurnReading, wanted: Turning, others: dict[str, Floats]) -> str | None:
    """The first cause that turns all vectors as they were read; None where none does.

    Args:
        reading: another than what is wanted.
        wanted: how they should turn.
        others: frequencies of other kinds of layers, and of plain RoPE, by the cause that they stand for.
    """
    for cause, turning in _causes(reading, wanted, others):
        if reading.agrees(turning):
            return cause
    return _other_angles(reading, wanted)


def _causes(reading: TurnReading, wanted: Turning, others: dict[str, Floats]) -> Iterator[tuple[str, Turning]]:
    width, turning, pairs = reading.start.shape[1], wanted.inv_freq, wanted.pairing
    still = replace(wanted, inv_freq=np.zeros_like(turning))
    without = replace(wanted, factors=np.ones_like(wanted.factors))
    if not np.allclose(wanted.factors, 1):
        yield "attention temperature dropped: queries do not grow with the position", without
    yield "not rotated: its positions are lost", still
    yield "rotated the other way round", replace(wanted, inv_freq=-turning)
    moving = turning[turning > 0]
    for inv_freq in (turning, moving) if len(moving) < len(turning) else (turning,):
        for other in other_pairings(2 * len(inv_freq), width):
            said = f"pairs {other.words} turn together in place of {pairs.words}"
            yield said, Turning(other, inv_freq, wanted.factors)
    for cause, inv_freq in others.items():
        if len(inv_freq) == len(turning):
            yield cause, replace(wanted, inv_freq=inv_freq)


def _other_angles(reading: TurnReading, wanted: Turning) -> str | None:
    """Pairs that turn by other angles, of vectors that keep their length; None where none is told."""
    lengths = np.linalg.norm(reading.vectors, axis=(1, 2)) / np.linalg.norm(reading.start)
    factors = np.sqrt((wanted.factors.reshape(len(reading.places), -1) ** 2).mean(1))
    if not np.allclose(lengths, factors, rtol=2 * SLACK_OF_DTYPE[reading.dtype]):
        row = int(np.argmax(abs(lengths / factors - 1)))
        return f"another factor at position {reading.places[row]:,}: {lengths[row]:.4g}, not {factors[row]:.4g}"
    errors, slack = reading.errors(wanted)
    wrong = np.atleast_1d((errors > slack).any(axis=0))[:-1]
    if not wrong.any():
        return None
    x, y = reading.start[:, wanted.pairing.first], reading.start[:, wanted.pairing.second]
    a, b = reading.vectors[..., wanted.pairing.first], reading.vectors[..., wanted.pairing.second]
    found = np.zeros(len(wanted.inv_freq))
    for row, place in enumerate(reading.places):  # as in RopeReading.inv_freq
        if place > 0 and place & (place - 1) == 0:
            angle = np.arctan2((b[row] * x - a[row] * y).sum(0), (a[row] * x + b[row] * y).sum(0))
            off = angle - place * found
            found = found + (off - 2 * np.pi * np.round(off / (2 * np.pi))) / place
    if not reading.agrees(replace(wanted, inv_freq=np.where(wrong, found, wanted.inv_freq))):
        return None
    pair = int(np.flatnonzero(wrong)[0])
    if wanted.inv_freq[pair] <= 0:
        return f"pair {pair} turns, and should stand still"
    ratio = found[pair] / wanted.inv_freq[pair]
    count = int(wrong.sum())
    return f"{count} of {len(wrong)} pairs turn by other angles: pair {pair} by {ratio:.4g} of its own"

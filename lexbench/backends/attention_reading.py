"""How a layer's queries or keys turn with positions, as they were read, and what else could turn them so."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.rope_reading import N_ANGLE_ROUNDINGS
from lexbench.core.attention import Floats, Positions

SLACK_OF_DTYPE = {"float64": 5e-5, "float32": 5e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest error of a turned pair, as a fraction of its length, by the dtype of queries and keys: roundings of cos and
sin, two products and a sum, and of a projection that sums in another order for one token than for several. A short
pair has the error of one of mean length."""


@dataclass(frozen=True, eq=False)
class Pairing:
    """Pairs of dimensions of a head that turn together."""

    words: str
    first: NDArray[np.int64]
    """[pairs] dimension; `second` alike. Pair (x, y) at angle a becomes (x cos a - y sin a, y cos a + x sin a)."""
    second: NDArray[np.int64]


def head_pairs(layout: str, rotated: int, width: int, offset: int = 0, within: int | None = None) -> Pairing:
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
            yield head_pairs(layout, rotated, width, offset)
    if rotated < width:
        yield head_pairs("half", rotated, width, within=width)


@dataclass(frozen=True, eq=False)
class HeadTurning:
    """How vectors become those at positions."""

    pairing: Pairing
    inv_freq: Floats
    """[pairs] radians a token."""
    factors: Floats
    """[n] or [n, H] factor at each position, over that of the vectors at the start."""
    scale: float = 1.0
    """Scale of the dimensions that turn, over that of the vectors at the start."""
    made: Pairing | None = None
    """Places of the pairs afterwards; None: unchanged."""

    @property
    def stands(self) -> Pairing:
        """Places of the pairs afterwards."""
        return self.made or self.pairing

    def turn(self, start: Floats, places: Positions) -> Floats:
        """[n, H, D] vectors at positions, of those at the start [n, H, D]."""
        angles = places[:, None, None] * self.inv_freq
        x, y = start[..., self.pairing.first], start[..., self.pairing.second]
        found = start.copy()
        found[..., self.stands.first] = self.scale * (x * np.cos(angles) - y * np.sin(angles))
        found[..., self.stands.second] = self.scale * (y * np.cos(angles) + x * np.sin(angles))
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
    """[n, H, D] at position 0, or before any rotation."""
    dtype: str

    def errors(self, wanted: HeadTurning, places: Positions | None = None) -> tuple[Floats, Floats]:
        """[n, pairs + 1] errors as fractions of the length of a pair, over all heads, and what rounding may make.

        The last column is of the dimensions that do not turn.
        """
        at = self.places if places is None else places
        off = ((self.vectors - wanted.turn(self.start, at)) ** 2).sum(1)
        whole = (self.start**2).sum(1)
        rest = np.setdiff1d(np.arange(self.start.shape[2]), [*wanted.stands.first, *wanted.stands.second])
        sums = [
            np.concatenate([each[:, pairs.first] + each[:, pairs.second], each[:, rest].sum(1, keepdims=True)], axis=1)
            for each, pairs in ((off, wanted.stands), (whole, wanted.pairing))
        ]
        errors = np.nan_to_num(np.sqrt(sums[0] / np.maximum(sums[1], 1e-30)), nan=np.inf)
        if not len(rest):
            errors[:, -1] = 0.0
        depth = np.maximum(0.0, -np.log(np.maximum(abs(wanted.inv_freq), 1e-30))) + N_ANGLE_ROUNDINGS
        angle = np.append(abs(wanted.inv_freq) * depth, 0.0) * 2.0**-24
        scale = wanted.scale * np.max(wanted.factors.reshape(len(at), -1), axis=1, keepdims=True)
        mean = np.sqrt(whole.mean(axis=1, keepdims=True) * 2)
        shortness = np.maximum(1.0, mean / np.maximum(np.sqrt(sums[1]), 1e-15))
        return errors, np.maximum(scale, 1.0) * (at[:, None] * angle + SLACK_OF_DTYPE[self.dtype] * shortness)

    def agrees(self, wanted: HeadTurning, places: Positions | None = None) -> bool:
        """Whether all vectors are those."""
        last = max(int(each.max(initial=0)) for each in (wanted.pairing.first, wanted.pairing.second))
        return last < self.start.shape[2] and bool(np.less_equal(*self.errors(wanted, places)).all())


@dataclass(frozen=True, eq=False)
class OtherRotation:
    """Rotations that a layer may apply in place of its own."""

    cause: str
    pairing: Pairing
    inv_freq: Floats
    scale: float = 1.0


def likely_turning(reading: TurnReading, wanted: HeadTurning, others: Sequence[OtherRotation]) -> str | None:
    """The first cause that turns all vectors as they were read; None where none does.

    Args:
        reading: another than what is wanted.
        wanted: how they should turn.
        others: rotations of other kinds of layers, and of plain RoPE.
    """
    for ahead in (-1, 1):
        if reading.places[0] + ahead >= 0 and reading.agrees(wanted, reading.places + ahead):
            return f"positions are off by one: position t is rotated as t {'-+'[ahead > 0]} 1"
    if reading.places[0] > 0 and reading.agrees(wanted, reading.places - reading.places[0]):
        return f"positions begin at 0 again: position {reading.places[0]:,} is rotated as 0"
    for cause, turning in _causes(reading, wanted, others):
        if reading.agrees(turning):
            return cause
    return _other_angles(reading, wanted)


def _causes(
    reading: TurnReading, wanted: HeadTurning, others: Sequence[OtherRotation]
) -> Iterator[tuple[str, HeadTurning]]:
    width, turning, pairs = reading.start.shape[2], wanted.inv_freq, wanted.pairing
    if not np.allclose(wanted.factors, 1):
        without = replace(wanted, factors=np.ones_like(wanted.factors))
        yield "attention temperature dropped: queries do not grow with the position", without
    yield "not rotated: its positions are lost", replace(wanted, inv_freq=np.zeros_like(turning), scale=1.0)
    yield "rotated the other way round", replace(wanted, inv_freq=-turning)
    yield "scale of cos and sin (mscale) dropped", replace(wanted, scale=1.0)
    moving = turning[turning > 0]
    for inv_freq in (turning, moving) if len(moving) < len(turning) else (turning,):
        for other in other_pairings(2 * len(inv_freq), width):
            said = f"pairs {other.words} turn together in place of {pairs.words}"
            made = replace(wanted, pairing=other, inv_freq=inv_freq, made=None)
            yield said, made
            yield said, replace(made, made=head_pairs("half", 2 * len(inv_freq), width))
    for each in others:
        yield each.cause, replace(wanted, pairing=each.pairing, inv_freq=each.inv_freq, scale=each.scale, made=None)
        yield each.cause, replace(wanted, pairing=each.pairing, inv_freq=each.inv_freq, scale=each.scale)


def _other_angles(reading: TurnReading, wanted: HeadTurning) -> str | None:
    """Pairs that turn by other angles, of vectors that keep their length; None where none is told."""
    wanted_lengths = np.linalg.norm(wanted.turn(reading.start, reading.places), axis=(1, 2))
    ratios = np.linalg.norm(reading.vectors, axis=(1, 2)) / wanted_lengths
    if not np.allclose(ratios, 1, rtol=2 * SLACK_OF_DTYPE[reading.dtype]):
        row = int(np.argmax(abs(ratios - 1)))
        return f"another length: at position {reading.places[row]:,} times {ratios[row]:.4g}"
    errors, slack = reading.errors(wanted)
    wrong = np.atleast_1d((errors > slack).any(axis=0))[:-1]
    if not wrong.any():
        return None
    x, y = (reading.start[..., each] for each in (wanted.pairing.first, wanted.pairing.second))
    a, b = (reading.vectors[..., each] for each in (wanted.stands.first, wanted.stands.second))
    angles = np.arctan2((b * x - a * y).sum(1), (a * x + b * y).sum(1))
    found = np.zeros(len(wanted.inv_freq))
    for row, place in enumerate(reading.places):  # as in RopeReading.inv_freq
        if place > 0 and place & (place - 1) == 0:
            off = angles[row] - place * found
            found = found + (off - 2 * np.pi * np.round(off / (2 * np.pi))) / place
    if not reading.agrees(replace(wanted, inv_freq=np.where(wrong, found, wanted.inv_freq))):
        return None
    pair, count = int(np.flatnonzero(wrong)[0]), int(wrong.sum())
    if wanted.inv_freq[pair] <= 0:
        return f"{count} of {len(wrong)} pairs turn by other angles: pair {pair} turns, and should stand still"
    ratio = found[pair] / wanted.inv_freq[pair]
    return f"{count} of {len(wrong)} pairs turn by other angles: pair {pair} by {ratio:.4g} of its own"

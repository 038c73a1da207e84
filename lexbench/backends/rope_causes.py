"""Name the likely cause of wrong cos and sin in a running model.

A cause is a complete set of angles: other frequencies, another scale, or angles rounded to half precision. It is named
only where it gives all cos and sin that were read, within rounding. Frequencies that were never asked for (another
factor, another base) are first estimated from positions 1, 2, 4, 8, ...: each tells the angle of a pair within a turn,
and twice the position tells it twice as exactly.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.backends.rope_reading import ROUNDING_OF_DTYPE, RopeReading, Rounded
from lexbench.core.attention import Floats
from lexbench.core.errors import ConfigError
from lexbench.core.fence import attention_from
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.composition import Method, named_method
from lexbench.methods.scaled import LayerRope

FALLBACK_BASE = 1e4
"""Base of RoFormer and of the first Llama, which code takes where it finds none."""
TRIED_FACTORS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 64.0, 128.0)
"""Factors that are tried as they are; any other is estimated."""
EQUAL_FACTOR_TOLERANCE = 0.05
"""Relative difference of two estimated factors of neighbouring pairs that may be one."""
TRIED_ORIGINAL_LENGTHS = tuple(2**power for power in range(8, 21))
"""Original lengths that are tried, in tokens."""
OTHER_METHOD_WORDS = {"pi": "linear scaling", "yarn": "YaRN", "llama3": "llama3's scaling", "ntk": "an NTK base"}
"""Methods that may run in place of the one that was asked for."""


class RopeMismatch(AssertionError):  # noqa: N818 (an assertion, named for what it found)
    """Cos and sin of a running model, or its attention, differ from the requested ones.

    `pair`, `position` and `difference` are those of the worst cos or sin, or of the worst number of the attention of
    `layer`, None where there is nothing to compare; `cause` is None where none is known.
    """

    def __init__(
        self,
        message: str,
        cause: str | None = None,
        pair: int | None = None,
        position: int | None = None,
        difference: float | None = None,
        layer: str | None = None,
    ) -> None:
        super().__init__(message)
        self.cause, self.pair, self.position, self.difference = cause, pair, position, difference
        self.layer = layer


@dataclass(frozen=True, eq=False)
class WantedRope:
    """The rotation that layers of one RoPE must have, and its source."""

    rope: LayerRope
    """The model's own."""
    label: str
    """Label of the method, or of the model's config."""
    inv_freq: Floats
    """[pairs] radians per token."""
    scale: float
    method: Method | None
    """None: the model's own RoPE is wanted."""
    length: int

    @property
    def layers(self) -> str:
        """The layers, for a message."""
        return f" of its {self.rope.kind} layers" if self.rope.kind else ""

    @property
    def plain(self) -> Model:
        """The model with this RoPE unscaled, at its original length."""
        return self.rope.as_model("plain", self.length)

    @property
    def scaling(self) -> str:
        """The scaling that is wanted: the method's label, or the type in the model's config."""
        return self.label if self.method else f"{self.label} ({self.rope.parameters['rope_type']})"

    @property
    def follows_length(self) -> bool:
        """Whether it scales by the length of the text, so that short texts see plain RoPE."""
        at_trained = replace(self, length=self.plain.trained_length).angles()
        return at_trained is not None and np.allclose(at_trained[0], self.plain.inv_freq(), rtol=1e-6, atol=0)

    def factor(self) -> float:
        """Factor by which the slowest pair is slowed."""
        return float(self.plain.inv_freq()[-1] / self.inv_freq[-1]) if self.inv_freq[-1] > 0 else 1.0

    def angles(
        self,
        base: float | None = None,
        factor: float | None = None,
        original: int | None = None,
        method: Method | None = None,
    ) -> tuple[Floats, float] | None:
        """Frequencies and scale with another base, factor, original length or method; None where these do not exist."""
        plain, method = self.plain, method or self.method
        plain = replace(plain, rope_base=base or plain.rope_base, trained_length=original or plain.trained_length)
        try:
            if method is None:
                named = {"rope_theta": plain.rope_base, "factor": factor, "original_max_position_embeddings": original}
                parameters = {**self.rope.parameters, **{key: value for key, value in named.items() if value}}
                return replace(self.rope, plain=plain, parameters=parameters).own(self.length)
            made = attention_from(_with_parameters(method, factor, original), plain, self.length)
            return plain.inv_freq() if made.inv_freq is None else made.inv_freq, made.scale or 1.0
        except (Refused, ValueError):
            return None


def likely_cause(reading: RopeReading, wanted: WantedRope, others: list[WantedRope]) -> str | None:
    """The first cause that gives all cos and sin that were read; None where none does.

    Args:
        reading: another than what is wanted.
        wanted: of the layers of the module.
        others: of the other kinds of layers.
    """
    found = reading.scale()
    if reading.agrees_by_fast_arithmetic(wanted.inv_freq, wanted.scale):
        return "sine and cosine in fast arithmetic (fast math): angles are rounded once more, long ones the most"
    if not math.isclose(found, wanted.scale, rel_tol=1e-3) and reading.agrees(wanted.inv_freq, found):
        return _of_scale(found, wanted.scale)
    if cause := _first_cause(reading, found, _causes_without_estimate(wanted, others)) or _which_were_rounded(
        reading, wanted
    ):
        return cause
    return (
        _first_cause(reading, found, _causes_with_estimate(wanted, reading.inv_freq()))
        or _few_other_pairs(reading, wanted)
        or _half_precision_of_errors(reading, wanted)
    )


Cause = tuple[str, tuple[Floats, float] | None]


def _first_cause(reading: RopeReading, found: float, causes: Iterator[Cause]) -> str | None:
    """The first cause whose frequencies were read, and what else is wrong where the scale `found` is another."""
    for cause, made in causes:
        if made is None:
            continue
        inv_freq, scale = made
        if reading.agrees(inv_freq, scale):
            return cause
        if not math.isclose(found, scale, rel_tol=1e-3) and reading.agrees(inv_freq, found):
            return f"{cause}; {_of_scale(found, scale)}"
    return None


def _causes_without_estimate(wanted: WantedRope, others: list[WantedRope]) -> Iterator[Cause]:
    """Causes that need no estimate, with their frequencies and scales, the more likely first."""
    plain = wanted.plain
    own, base, inv_freq = plain.inv_freq(), plain.rotary_base(), wanted.inv_freq
    fallback = _of_fallback(base)
    if wanted.follows_length:
        at = f"at {wanted.length:,} tokens it rotates by plain RoPE of base {base:,.10g}"
        yield f"scaling by length (dynamic) does nothing: {at}", (own, 1.0)
    yield f"scaling not applied: it rotates by plain RoPE of base {base:,.10g}", (own, 1.0)
    for other in others:
        kinds = f"{wanted.rope.kind} layers rotate as {other.rope.kind} layers do"
        yield f"scaling of one kind of layers lost: {kinds}", (other.inv_freq, other.scale)
    if base != FALLBACK_BASE:
        yield fallback, wanted.angles(base=FALLBACK_BASE)
        yield f"scaling not applied, and {fallback}", (plain.inv_freq(FALLBACK_BASE), 1.0)
    yield from _other_exponents(wanted)
    twice = inv_freq * np.divide(inv_freq, own, out=np.ones_like(own), where=own > 0)
    yield "scaling applied twice", (twice, wanted.scale**2)
    yield "scaling applied twice", (twice, wanted.scale)
    # Shares kept and slowed change places: k + (1 - k) / s becomes 1 - k + k / s.
    inverted = own + own / wanted.factor() - inv_freq
    yield "ramp inverted: fast pairs are slowed and slow ones kept", (inverted, wanted.scale)
    yield from _other_methods_at(wanted, wanted.factor(), "")
    if wanted.follows_length:
        yield from _fixed_lengths(wanted)
    else:
        yield from _other_lengths(wanted)


def _other_exponents(wanted: WantedRope) -> Iterator[Cause]:
    """Exponents 2p / d of another d, where not all of a head turns: of its turning dimensions, or of all."""
    plain, inv_freq = wanted.plain, wanted.inv_freq
    turning = 2 * int((inv_freq > 0).sum())
    own, other = (plain.rotated, plain.head_dim) if turning == plain.rotated else (plain.rotated, turning)
    if own == other or not turning:
        return
    exponents = np.arange(0, plain.rotated, 2) * (1 / own - 1 / other)
    cause = f"another denominator of the exponents: {other} dimensions, not {own}"
    yield cause, (inv_freq * plain.rotary_base() ** exponents, wanted.scale)


def _causes_with_estimate(wanted: WantedRope, estimate: Floats) -> Iterator[Cause]:
    """Causes of another factor or base, of which there are many."""
    slowest = _slowing_factor(wanted.plain.inv_freq(), estimate)
    factors = [*TRIED_FACTORS, *([float(f"{slowest:.3g}"), slowest] if 1 < slowest < 1e6 else [])]
    for factor in factors:
        yield f"another factor: {factor:g}, not {wanted.factor():g}", wanted.angles(factor=factor)
    yield from _other_bases(wanted, estimate)
    for factor in factors:
        yield from _other_methods_at(wanted, factor, f" with factor {factor:g}")


def _of_fallback(base: float) -> str:
    return f"base fallen back to {FALLBACK_BASE:,.0f}, not {base:,.10g}"


def _slowing_factor(own: Floats, estimate: Floats) -> float:
    """Factor by which the slowest pairs are slowed; NaN where they do not turn.

    A slow pair tells it less exactly than a faster one that is slowed as much.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = own / estimate
    best = float(ratios[-1])
    for slower, faster in itertools.pairwise(ratios[::-1]):
        if not (best > 0 and abs(faster / slower - 1) < EQUAL_FACTOR_TOLERANCE):
            break
        best = float(faster)
    return best


def _other_methods_at(wanted: WantedRope, factor: float, said: str) -> Iterator[Cause]:
    """Other methods at a factor, with the base that is wanted and the one that code falls back to."""
    for words, method in _other_methods().items():
        cause = f"{words}{said} in place of {wanted.scaling}"
        yield cause, wanted.angles(factor=factor, method=method)
        if wanted.plain.rotary_base() != FALLBACK_BASE:
            fallback = _of_fallback(wanted.plain.rotary_base())
            yield f"{cause}, and {fallback}", wanted.angles(base=FALLBACK_BASE, factor=factor, method=method)


@functools.cache
def _other_methods() -> dict[str, Method]:
    return {words: named_method(name, factor=2.0) for name, words in OTHER_METHOD_WORDS.items()}


def _other_lengths(wanted: WantedRope) -> Iterator[Cause]:
    """Causes: another original length, same factor; first the lengths that replace a dropped one in engines."""
    original, factor = wanted.plain.trained_length, wanted.factor()
    stated = [wanted.rope.plain.trained_length, wanted.rope.plain.max_position_embeddings, wanted.length]
    dropped = dict.fromkeys(each for each in (*stated, round(original * factor)) if each and each != original)
    for tokens in (*dropped, *TRIED_ORIGINAL_LENGTHS):
        word = "dropped" if tokens in dropped else "is another"
        yield (
            f"original length {word}: {tokens:,} tokens, not {original:,}",
            wanted.angles(factor=factor, original=tokens),
        )


def _fixed_lengths(wanted: WantedRope) -> Iterator[Cause]:
    """The same scaling for another length than the text's: those stated, their multiples by the factor, and others."""
    stated = [wanted.plain.trained_length, wanted.plain.max_position_embeddings]
    factor = getattr(wanted.method, "factor", None) or wanted.rope.parameters.get("factor") or 1.0
    for tokens in dict.fromkeys((*(round(factor * each) for each in stated if each), *TRIED_ORIGINAL_LENGTHS)):
        if tokens != wanted.length:
            cause = (
                f"scaling by length (dynamic) is fixed: angles are those of {tokens:,} tokens, not {wanted.length:,}"
            )
            yield cause, replace(wanted, length=tokens).angles()


def _other_bases(wanted: WantedRope, estimate: Floats) -> Iterator[Cause]:
    """Other bases, as the first two pairs have them, which most scalings keep or slow alike."""
    if len(estimate) < 2 or not estimate[1] > 0:
        return
    dims, base = 2 * len(estimate), wanted.plain.rotary_base()
    # theta_1 / theta_0 = b^(-2/d).
    for ratio in (estimate[1], estimate[1] / estimate[0] if estimate[0] > 0 else math.nan):
        exact = float(ratio ** (-dims / 2))
        for found in (float(f"{exact:.4g}"), exact) if 1 < exact < math.inf else ():
            said = f"another base: {found:,.10g}, not {base:,.10g}"
            yield said, wanted.angles(base=found)
            yield f"scaling not applied, and {said}", (wanted.plain.inv_freq(found), 1.0)


def _of_scale(found: float, wanted: float) -> str:
    """The cause of another scale of cos and sin."""
    times = f"cos and sin are times {found:.4g}, not {wanted:.4g}"
    if math.isclose(found, 1, rel_tol=1e-2):
        return f"attention factor (mscale) missing: {times}"
    if wanted != 1 and math.isclose(found, wanted**2, rel_tol=1e-2):
        return f"attention factor (mscale) applied twice: {times}"
    return f"another attention factor (mscale): {times}"


def _which_were_rounded(reading: RopeReading, wanted: WantedRope) -> str | None:
    """The numbers that were rounded to half precision; None if no such rounding gives what was read."""
    plain = wanted.plain.inv_freq(), 1.0, "; scaling not applied, too"
    for inv_freq, scale, also in ((wanted.inv_freq, wanted.scale, ""), plain):
        for rounded in _roundings():
            if reading.agrees(inv_freq, scale, rounded):
                return f"{rounded}{also}"
    return None


def _few_other_pairs(reading: RopeReading, wanted: WantedRope) -> str | None:
    """The first of few pairs that turn by other angles; None where many do, or where no angle gives what was read.

    An angle is known from the last power of two among the positions: twice as far, four times the slack is allowed.
    """
    wrong = np.atleast_1d(np.greater(*reading.errors(wanted.inv_freq, wanted.scale)).any(axis=0))
    if wrong.sum() > max(1, len(wrong) // 8):
        return None
    found = np.where(wrong, reading.inv_freq(), wanted.inv_freq)
    errors, slack = reading.errors(found, wanted.scale)
    if (errors > 4 * slack).any():
        return None
    pair = int(np.flatnonzero(wrong)[0])
    own = wanted.inv_freq[pair]
    by = f"by {found[pair] / own:.4g} of its own" if own > 0 else "and should stand still"
    return f"{wrong.sum()} of {len(wrong)} pairs turn by other angles: pair {pair} {by}"


def _half_precision_of_errors(reading: RopeReading, wanted: WantedRope) -> str | None:
    """The half precision whose rounding errors are as large as those read, where angles are below a turn."""
    errors, slack = reading.errors(wanted.inv_freq, wanted.scale)
    for dtype, finest in (("float16", 2.0**-24), ("bfloat16", 0.0)):
        # A frequency, a position and their product are each rounded once; small numbers to multiples of the finest.
        off = np.maximum(3 * ROUNDING_OF_DTYPE[dtype] * wanted.inv_freq, finest)
        coarse = reading.places[:, None] * off * wanted.scale
        told = (coarse < 0.5) & np.isfinite(errors)  # float16 ends at 65,504
        if (errors <= slack + coarse)[told].all() and (errors > slack)[told].any():
            return f"angles, positions or frequencies computed in half precision, as in {dtype}"
    return None


def _roundings() -> Iterator[Rounded]:
    for dtype in ("bfloat16", "float16"):
        yield Rounded(dtype, positions=True)
        yield Rounded(dtype, frequencies=True)
        yield Rounded(dtype, positions=True, frequencies=True)
        yield Rounded(dtype, products=True)
        yield Rounded(dtype, positions=True, products=True)
        yield Rounded(dtype, positions=True, frequencies=True, products=True)


def _with_parameters(method: Any, factor: float | None, original: int | None) -> Method:
    """The method with another factor or trained length; ConfigError where it has none, or refuses the value."""
    given = {"factor": factor, "trained_length": original if getattr(method, "trained_length", None) else None}
    changed = {name: value for name, value in given.items() if value is not None}
    if missing := [name for name in changed if not hasattr(method, name)]:
        raise ConfigError(f"{type(method).__name__} has no {missing[0]}")
    found: Method = replace(method, **changed)
    return found

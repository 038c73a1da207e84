"""Numbers as a compressed cache gives them back, group by group in float64: the reference for `rounding`."""

from collections.abc import Callable

import numpy as np

from lexbench.core.attention import Floats
from lexbench.parts.kv.forms import LLAMA_CPP_BLOCK_NUMBERS, Rounding, signs


def round_numbers(numbers: Floats, form: Rounding, way: str) -> Floats:
    """[KV, K, D] numbers after rounding; `way`: channel or token."""
    if not form.rounds:
        return numbers
    heads, count, width = numbers.shape
    mix = _mixing_matrix(width) if form.hadamard else np.eye(width)
    found = np.empty_like(numbers)
    size = LLAMA_CPP_BLOCK_NUMBERS if form.format in ("q8_0", "q4_0") else min(form.group, width)
    for head in range(heads):
        mixed = numbers[head] @ mix
        if form.bits is not None and way == "channel":
            for start in range(0, count, form.group):
                for channel in range(width):
                    place = slice(start, start + form.group), channel
                    mixed[place] = uniform(mixed[place], form.bits)
        else:
            rule = ROUNDING_OF_FORMAT[form.format] if form.format is not None else _uniform_of(form.bits or 0)
            for token in range(count):
                for start in range(0, width, size):
                    mixed[token, start : start + size] = rule(mixed[token, start : start + size])
        found[head] = mixed @ mix.T
    return found


def uniform(group: Floats, bits: int) -> Floats:
    """A group in 2^bits levels between its ends; the lowest level and the step are numbers of 16 bits."""
    lowest = float(np.float16(group.min()))
    step = float(np.float16((group.max() - group.min()) / (2**bits - 1)))
    if step == 0:
        return np.full_like(group, lowest)
    return lowest + step * np.clip(np.rint((group - lowest) / step), 0, 2**bits - 1)


def _uniform_of(bits: int) -> Callable[[Floats], Floats]:
    return lambda group: uniform(group, bits)


def fp8(group: Floats) -> Floats:
    """The nearest numbers of e4m3: 3 bits behind the leading one, exponents from -6, at most 448; ties to even."""
    size = np.minimum(np.abs(group), 448.0)
    exponent = np.maximum(np.floor(np.log2(np.maximum(size, 2.0**-20))), -6)
    spacing = 2.0 ** (exponent - 3)
    return np.asarray(np.sign(group) * np.rint(size / spacing) * spacing)


def q8_0(group: Floats) -> Floats:
    """255 levels around 0 up to the largest size; levels come from the exact step, which is kept in 16 bits."""
    step = np.abs(group).max() / 127
    levels = np.zeros_like(group) if step == 0 else np.sign(group) * np.floor(np.abs(group) / step + 0.5)
    return levels * float(np.float16(step))


def q4_0(group: Floats) -> Floats:
    """16 levels, of which -8 is the number of largest size with its sign."""
    step = group[np.abs(group).argmax()] / -8
    levels = np.zeros_like(group) if step == 0 else np.clip(np.trunc(group / step + 8.5), 0, 15) - 8
    return levels * float(np.float16(step))


ROUNDING_OF_FORMAT: dict[str, Callable[[Floats], Floats]] = {"fp8": fp8, "q8_0": q8_0, "q4_0": q4_0}


def _mixing_matrix(width: int) -> Floats:
    """[D, D] random signs, then the Hadamard matrix over the root of D: sign (-1)^(bits that i and j share)."""
    shared = np.array([[bin(i & j).count("1") for j in range(width)] for i in range(width)])
    return np.asarray(signs(width)[:, None] * (-1.0) ** shared / np.sqrt(width))

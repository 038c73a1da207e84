"""Numbers as a compressed cache gives them back, computed with torch for many heads at once."""

import functools

import torch
from torch import Tensor

from lexbench.parts.kv.forms import LLAMA_CPP_BLOCK_NUMBERS, Rounding, signs

LARGEST_FP8 = 448.0
"""Largest number of e4m3."""
E4M3_FORMAT, FLOAT16_FORMAT = (3, -6), (10, -14)
"""Bits behind the leading one, and the least exponent with one."""


def round_numbers(numbers: Tensor, form: Rounding, way: str) -> Tensor:
    """[B, KV, K, D] numbers after rounding, in float32 or float64; `way`: channel or token."""
    if not form.rounds or not numbers.shape[2]:
        return numbers
    precise = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
    mix = mixing_matrix(numbers.shape[3], precise.dtype, precise.device) if form.hadamard else None
    mixed = precise if mix is None else precise @ mix
    rounded = _in_format(mixed, form.format) if form.format is not None else _uniform(mixed, form, way)
    return rounded if mix is None else rounded @ mix.T


def _uniform(numbers: Tensor, form: Rounding, way: str) -> Tensor:
    assert form.bits is not None, "a format is something else"
    batch, heads, count, width = numbers.shape
    if way == "channel":
        groups = numbers.view(batch, heads, count // form.group, form.group, width).transpose(3, 4)
        return _levels(groups, form.bits).transpose(3, 4).reshape(numbers.shape)
    groups = numbers.reshape(batch, heads, count, -1, min(form.group, width))
    return _levels(groups, form.bits).reshape(numbers.shape)


def _levels(groups: Tensor, bits: int) -> Tensor:
    """[..., group] numbers in 2^bits levels from the group's least to its largest."""
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step, lowest = (to_float(each, *FLOAT16_FORMAT) for each in ((most - least) / (2**bits - 1), least))
    level = ((groups - lowest) / step.where(step > 0, 1.0)).round().clamp(0, 2**bits - 1)
    return lowest + level * step


def _in_format(numbers: Tensor, name: str | None) -> Tensor:
    if name == "fp8":
        return to_float(numbers.clamp(-LARGEST_FP8, LARGEST_FP8), *E4M3_FORMAT)
    blocks = numbers.reshape(*numbers.shape[:-1], -1, LLAMA_CPP_BLOCK_NUMBERS)
    if name == "q8_0":
        step = blocks.abs().amax(-1, keepdim=True) / 127
        levels = _to_nearest(blocks * _inverse(step))
    else:
        # The number of largest size, with its sign, becomes level -8.
        place = blocks.abs().argmax(-1, keepdim=True)
        step = blocks.gather(-1, place) / -8
        levels = (blocks * _inverse(step) + 8.5).trunc().clamp(0, 15) - 8
    return (levels * to_float(step, *FLOAT16_FORMAT)).flatten(-2)


def to_float(numbers: Tensor, digits: int, least: int) -> Tensor:
    """The nearest numbers of a binary format; ties to even. Not by a cast: torch rounds float64 twice.

    Args:
        numbers: within the format's range.
        digits: bits behind the leading one.
        least: exponent of the least numbers with a leading one.
    """
    spacing = torch.exp2((numbers.frexp().exponent - 1).clamp_min(least) - digits).to(numbers.dtype)
    rounded: Tensor = (numbers / spacing).round() * spacing
    return rounded


def _inverse(step: Tensor) -> Tensor:
    return torch.where(step == 0, torch.zeros_like(step), 1 / step)


def _to_nearest(numbers: Tensor) -> Tensor:
    """Whole numbers, halves away from zero, as C rounds."""
    return numbers.sign() * (numbers.abs() + 0.5).floor()


@functools.lru_cache(maxsize=8)
def mixing_matrix(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[D, D] orthogonal: random signs, then the Hadamard matrix over the root of D, a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    mixed: Tensor = torch.from_numpy(signs(width))[:, None] * matrix / width**0.5
    return mixed.to(device, dtype)

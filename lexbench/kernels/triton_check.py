"""Ask Triton kernels once on each GPU, for each kind of calls, whether they compute what is defined.

Where one does not compile, or gives other numbers, the kernels without Triton compute instead.
"""

import logging
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from lexbench.core.attention import Chunks, PositionMap
from lexbench.kernels import triton_decode, triton_regions
from lexbench.kernels.flash import PartialAttention
from lexbench.kernels.near_far import Sides

CHECKED_TOKENS = 400
CHECKED_WINDOW_TOKENS = 130
"""Length of the window, or of a chunk; neither this nor the length is a multiple of a block."""
CHECKED_REACH_TOKENS = 310
"""Distance of the keys that another kernel has computed; beyond two chunks."""
MAX_RELATIVE_ERROR = 1e-2
"""Largest error as a share of the norm; half precision gives 0.2 to 0.6 %."""
log = logging.getLogger(__name__)


def regions_agree(queries: Tensor, keys: Tensor, is_sides: bool, has_sinks: bool) -> bool:
    """Whether `triton_regions` serves vectors like these [B, H, T, D]; always in Triton's interpreter, on a CPU."""
    if not queries.is_cuda:
        return True
    # Tensor cores round float32, and exact products without them are slow and take minutes to compile.
    is_half, shared = queries.dtype in (torch.bfloat16, torch.float16), queries.shape[1] // keys.shape[1]
    return is_half and _regions_agree(queries.device, queries.dtype, queries.shape[3], shared, is_sides, has_sinks)


def ranges_agree(queries: Tensor, keys: Tensor, count: int) -> bool:
    """Whether `triton_decode` serves vectors like these [B, H, 1, D]; always in Triton's interpreter, on a CPU."""
    shared = queries.shape[1] // keys.shape[1]
    return not queries.is_cuda or _ranges_agree(queries.device, queries.dtype, queries.shape[3], shared, count)


@cache
def _regions_agree(
    device: torch.device, dtype: torch.dtype, width: int, shared: int, is_sides: bool, has_sinks: bool
) -> bool:
    total, size, reach, plain = CHECKED_TOKENS, CHECKED_WINDOW_TOKENS, CHECKED_REACH_TOKENS, PositionMap()
    rule = Sides(size, None, plain, plain) if is_sides else Chunks(size, size)
    drawn = _draw([(heads, total) for heads in 3 * [shared] + 3 * [1]], width, device)
    near, back, far, known, old, values = (x.to(dtype) for x in drawn)
    old = old if is_sides else known
    sinks = torch.linspace(-1, 1, shared, device=device) if has_sinks else None
    here, there = (torch.arange(total, device=device).view(shape) for shape in ((-1, 1), (1, -1)))
    blocks = here // size - there // size
    is_far = here - there >= size if is_sides else blocks > 1
    is_back = torch.zeros_like(is_far) if is_sides else blocks == 1
    scaling = width**-0.5
    scores = [scaling * (q.double() @ k.double().mT) for q, k in ((far, old), (back, known), (near, known))]
    logits = torch.where(is_far, scores[0], torch.where(is_back, scores[1], scores[2]))
    exact, _ = _mix(logits.masked_fill(there > here, -torch.inf), values, sinks)
    behind = logits.masked_fill(here - there < reach, -torch.inf)[:, :, reach:]
    out, lse = _mix(behind, values, None)
    rotated = near, back, far, known, old
    for part, begin in ((None, total + 1), (PartialAttention(out.to(dtype), lse.float()), reach)):
        call = partial(triton_regions.attend_rotated, rotated, values, rule, scaling, sinks, part, begin)
        if not _agrees(call, exact):
            return False
    return True


@cache
def _ranges_agree(device: torch.device, dtype: torch.dtype, width: int, shared: int, count: int) -> bool:
    total, scaling = CHECKED_TOKENS, width**-0.5
    drawn = _draw([*count * [(2 * shared, 1)], *(count + 1) * [(2, total)]], width, device)
    *vectors, values = (x.to(dtype) for x in drawn)
    sinks = torch.linspace(-1, 1, 2 * shared, device=device)
    ends = torch.linspace(0, total, count + 1, device=device).long()[:, None]
    ranges, logits = [], []
    for n, (q, k) in enumerate(zip(vectors[:count], vectors[count:], strict=True)):
        ranges.append((q, k, ends[n], ends[n + 1]))
        scores = scaling * (q.double() @ k.double().repeat_interleave(shared, dim=1).mT)
        logits.append(scores[..., ends[n] : ends[n + 1]])
    exact, _ = _mix(torch.cat(logits, dim=-1), values.repeat_interleave(shared, dim=1), sinks)
    return _agrees(partial(triton_decode.attend, ranges, values, scaling, sinks), exact)


def _draw(shapes: list[tuple[int, int]], width: int, device: torch.device) -> list[Tensor]:
    """[1, heads, tokens, width] numbers."""
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(1, *shape, width, generator=generator, device=device) for shape in shapes]


def _mix(logits: Tensor, values: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values [1, H, T, D] of logits [1, H, Q, T], and their log-sum-exp, in float64."""
    lse = logits.logsumexp(-1)
    whole = lse if sinks is None else torch.logaddexp(lse, sinks.double()[:, None])
    return (logits - whole[..., None]).exp() @ values.double(), lse


def _agrees(call: Callable[[], Tensor | None], exact: Tensor) -> bool:
    """Whether a kernel runs and gives the exact numbers, or has no room on the GPU, which it tells each time."""
    try:
        found = call()
    except Exception as error:  # of the compiler, of the driver
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    else:
        apart = 0.0 if found is None else float((found.double() - exact).norm() / exact.norm())
        if apart <= MAX_RELATIVE_ERROR:
            return True
        why = f"its numbers are {apart:.2g} of their norm apart"
    log.warning("a Triton kernel of attention is not used (%s): slower ones compute the same", why)
    return False

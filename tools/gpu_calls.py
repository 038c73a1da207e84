"""Questions of random tokens for the GPU campaign (tools/gpu.py), and time and memory of calls."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Found = dict[str, Any]


def writes(count: int, length: int, room: int, uneven: bool = False) -> list[Any]:
    """Prompts of random tokens; `uneven`: of many lengths up to `length`."""
    from lexbench.core.task import Generate

    rng = np.random.default_rng(1)
    sizes = [length - (length // 2 * index // count if uneven else 0) for index in range(count)]
    prompts = [rng.integers(3, 500, size) for size in sizes]
    return [Generate(index=index, cluster="", prompt=each, max_new_tokens=room) for index, each in enumerate(prompts)]


def scores(count: int, length: int, start: int = 1) -> list[Any]:
    """Texts of random tokens, scored from a token on."""
    from lexbench.core.task import Loglikelihood

    rng = np.random.default_rng(2)
    texts = [rng.integers(3, 500, length) for _ in range(count)]
    return [
        Loglikelihood(index=index, cluster="", tokens=each, first_target=start, bytes=1, words=1)
        for index, each in enumerate(texts)
    ]


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    wait(device)
    began = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - began


def peak(call: Callable[[], Any], device: str) -> int | None:
    """Bytes that a call allocates at its peak beside what is held; None where that is not known: no call is made."""
    if device != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def said(call: Callable[[], Any]) -> Any:
    """A call's result, or its error in a line."""
    try:
        return call()
    except Exception as error:  # a kernel that fails is one row of the record
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def seconds(call: Callable[[], Any], device: str, repeats: int) -> Found:
    """Time of a call, after one that is not timed: median and spread (`middle_and_spread`)."""
    call()
    return middle_and_spread([{"seconds": timed(call, device)} for _ in range(repeats)])


def middle_and_spread(found: Sequence[Mapping[str, float]]) -> Found:
    """Median of each figure of several repeats, and under `spread` what lies between the extremes, as a share of it."""
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    ends = {name: [pick(each[name] for each in found) for pick in (min, max)] for name in middle}
    return {**middle, "spread": {name: (high - low) / (middle[name] or 1.0) for name, (low, high) in ends.items()}}

"""Kernels in the GPU campaign (tools/gpu.py): checked against the definition in float64, and measured."""

import functools
import importlib.util
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.backends.hf.exact.state import KeptLayer
from lexbench.core.attention import Attention
from lexbench.kernels import decode, dense, fast, looped
from lexbench.kernels.heads import Rotate
from lexbench.kernels.looped import Loop
from tests.kernels.on_device import on_device
from tools import attention_kernels
from tools.attention_kernels import attentions, rotation, still
from tools.gpu_calls import Found, said, seconds
from tools.gpu_rooflines import keys_seen, share_of_pairs
from tools.gpu_sizes import Campaign, Heads

AGREE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-5}
"""Largest error of a kernel, as a fraction of the output's norm."""


class WarningsOfTriton(logging.Handler):
    """Warnings from now on that a Triton kernel is not used: the slower one in its place gives right numbers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        logging.getLogger("lexbench.kernels.triton_check").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self.messages.append(record.getMessage())


def drawn(heads: Heads, asked: int, total: int, batch: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Queries, keys, values."""
    generator = torch.Generator(device).manual_seed(asked + total)
    counts = (heads.heads, asked), (heads.kv_heads, total), (heads.kv_heads, total)
    return tuple(
        torch.randn(batch, count, tokens, heads.head_dim, generator=generator, device=device).to(dtype)
        for count, tokens in counts
    )


def rotate_of(attention: Attention, width: int) -> Rotate:
    """A mask alone takes a model's own rotated vectors."""
    return still if attention.mask is not None and attention.remap is None else rotation(width)


@torch.inference_mode()
def check_kernels(campaign: Campaign, heads: Heads, dtype: str) -> Found:
    """Errors of each structure: a whole text, its last third, its last token, also as a step of writing; two texts."""
    total, kind, device = campaign.scale.checked, getattr(torch, dtype), campaign.device
    window, scaling = min(heads.window, total // 3), 1 / math.sqrt(heads.head_dim)
    logits = torch.linspace(-1, 1, heads.heads, device=device) if heads.sinks else None
    replaced = WarningsOfTriton()
    found: Found = {}
    for name, attention in attentions(window).items():
        if name.startswith("dense"):
            continue
        turn = rotate_of(attention, heads.head_dim)
        for asked in (total, total // 3, 1):
            q, k, v = drawn(heads, asked, total, 2, kind, device)
            places = torch.arange(total - asked, total, device=device)
            sinks = None if logits is None else logits.to(kind)
            precise = None if sinks is None else sinks.double()
            exact = dense.attend(q.double(), k.double(), v.double(), places, attention, turn, scaling, sinks=precise)
            if asked == 1:
                layer = KeptLayer()
                layer.update(k, v)
                step, spin = decode.DecodeStep(np.array([total, total])), None if turn is still else turn
                got = said(lambda: decode.attend(q, layer, step, attention, spin, scaling, sinks))  # noqa: B023
                found[f"{name}, a step"] = deviation(got, exact)
                for row, form in forms(name, step=True).items():
                    looping = functools.partial(in_a_loop, q, k, v, attention, spin, scaling, sinks, form)
                    got = said(functools.partial(called, looping))
                    found[f"{row}, a loop"] = deviation(got, exact)
            for row, form in forms(name).items():
                got = said(
                    lambda: fast.attend(q, k, v, places, attention, turn, scaling, sinks, form=form)  # noqa: B023
                )
                found[f"{row}, {asked}"] = deviation(got, exact)
    wrong = [name for name, error in found.items() if isinstance(error, str) or not error <= AGREE[dtype]]
    wrong += replaced.messages
    return {"passed": not wrong, "wrong": wrong, "errors": found}


def deviation(got: Tensor | str, exact: Tensor) -> float | str:
    """Distance of an output from the exact one, as a fraction of its norm; the line of a call that failed."""
    return got if isinstance(got, str) else float((got.double() - exact).norm() / exact.norm())


def forms(name: str, step: bool = False) -> dict[str, fast.Form]:
    """Rows of a structure: our merges, and where they serve Triton kernels (`backend.attention`)."""
    found: dict[str, fast.Form] = {name: "merged"}
    has_triton = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
    if has_triton and (step or name != "sdpa"):
        found[f"{name}, triton"] = "triton"
    return found


def in_a_loop(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention | None,
    spin: Rotate | None,
    scaling: float,
    sinks: Tensor | None = None,
    form: fast.Form = "merged",
    layers: int = 1,
) -> Callable[[], Tensor]:
    """A step of writing in a loop: the last token joins a cache and attends to it, in layers with caches of their own.

    Attention None is PyTorch's fused kernel. With `spin`, keys and queries are rotated in the step; under a remap the
    cache holds them unrotated.
    """
    total, device = keys.shape[2], keys.device
    unrotated = attention is not None and attention.remap is not None
    last = torch.tensor([total - 1], device=device)
    before = keys if unrotated or spin is None else spin(keys, torch.arange(total, device=device))
    loop = Loop(np.array([total] * len(query)), total=total, device=device)
    caches = [KeptLayer(room=1) for _ in range(layers)]
    for cache in caches:
        cache.update(before[:, :, :-1], values[:, :, :-1])
        cache.begin_loop(loop)
    new, value = keys[:, :, -1:], values[:, :, -1:]

    def step() -> Tensor:
        loop.begin()
        for cache in caches:
            outside = None if unrotated else spin
            cache.update(new if outside is None else outside(new, last), value)
            asking = query if outside is None else outside(query, last)
            if attention is None:
                kept = cache.keys[:, :, :total], cache.values[:, :, :total]
                found = F.scaled_dot_product_attention(asking, *kept, enable_gqa=True, scale=scaling)
            else:
                inside = spin if unrotated else None
                found = looped.attend(asking, cache, loop, attention, inside, scaling, sinks, form)
        return found

    return step


def recorded(step: Callable[[], Tensor]) -> Callable[[], Any]:
    """The step as a CUDA graph; on a CPU as it is, if it could be recorded."""
    found = step()
    if not found.is_cuda:
        with on_device():
            step()
        return step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def called(make: Callable[[], Callable[[], Any]]) -> Any:
    """Make a call, and call it."""
    return make()()


@torch.inference_mode()
def measure_kernels(campaign: Campaign, heads: Heads, length: int, asked: int) -> Found:
    """Seconds of each structure in the form that `backend.attention=auto` takes, and of PyTorch's own choice.

    Operations (of a whole text) or bytes of keys and values (of a step in `attention_kernels.LAYERS` layers) are those
    that the pairs need.
    """
    device, scaling, scale = campaign.device, 1 / math.sqrt(heads.head_dim), campaign.scale
    q, k, v = drawn(heads, asked, length, 1, campaign.dtype, device)
    places = torch.arange(length - asked, length, device=device)
    found: Found = {"seconds": {}, "spread": {}, "needs": {}}
    for name, attention in attentions(heads.window).items():
        if name.startswith("dense"):
            continue
        form = [*forms(name, step=asked == 1).values()][-1]
        turn, picked = rotate_of(attention, heads.head_dim), name == "sdpa"
        if asked == 1:
            spin = rotation(heads.head_dim)
            given = q, k, v, None if picked else attention, spin, scaling, None, form, attention_kernels.LAYERS
            # A cache of its own: one at a time.
            call: Callable[[], Any] = functools.partial(_loop_seconds, given, device, scale.repeats)
            bytes_of_key = 2 * heads.kv_heads * heads.head_dim * k.element_size()
            need = attention_kernels.LAYERS * keys_seen(attention, length - 1) * bytes_of_key
        else:
            whole = functools.partial(fast.attend, q, k, v, places, attention, turn, scaling, form=form)
            call = functools.partial(seconds, whole, device, scale.repeats)
            # Two products, each an operation and an addition for half of the square.
            need = round(2 * heads.heads * heads.head_dim * length**2 * share_of_pairs(attention, length))
        row = said(call)
        broken = isinstance(row, str)
        found["seconds"][name], found["needs"][name] = row if broken else row["seconds"], need
        found["spread"][name] = None if broken else row["spread"]["seconds"]
    wrong = [f"{name}: {value}" for name, value in found["seconds"].items() if isinstance(value, str)]
    return {**({"passed": False, "wrong": wrong} if wrong else {}), **found}


def _loop_seconds(given: tuple[Any, ...], device: str, repeats: int) -> Found:
    """Seconds of a recorded step of writing (`in_a_loop`)."""
    return seconds(recorded(in_a_loop(*given)), device, repeats)

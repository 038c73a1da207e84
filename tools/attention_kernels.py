"""Fast kernels against plain causal attention and the dense kernel: python tools/attention_kernels.py

Prints a Markdown table of ratios, all from one run: time, as the median of repeats taken in turns, and memory beside
the inputs at its peak, in tensors of the output's size. Plain is PyTorch's fused causal kernel on vectors that are
rotated already; the others rotate them too, of which `sdpa` shows the price, but for masks, which take a model's own
rotated vectors. With `--decode`, a call is a step of writing in four layers: the new token is rotated and joins the
cache, and plain attention does that too. With `--asked`, queries are the last of a text that was begun, for which plain
attention has a mask. On the CPU memory is the resident peak of a process of its own, on CUDA what the allocator held.
"""

import argparse
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench import Attention
from lexbench.backends.hf.exact.state import KeptLayer
from lexbench.core.attention import Blocks, Chunks, PositionMap, Remap, Stairs, Window
from lexbench.kernels import decode, dense, fast
from lexbench.kernels.heads import Rotate

Call = Callable[[], Tensor]
LAYERS = 4
"""Layers of a step of writing."""


def attentions(window: int) -> dict[str, Attention]:
    """One of each structure, and the method whose cost it shows."""
    rerope = Remap(window, PositionMap(math.inf, window), PositionMap(math.inf))
    leaky = Remap(window, PositionMap(8.0, window - window / 8), PositionMap(8.0))
    return {
        "sdpa": Attention(),
        "near_far (ReRoPE)": Attention(remap=rerope),
        "near_far (Leaky ReRoPE)": Attention(remap=leaky),
        "banded": Attention(mask=Window(window)),
        "banded (4 sinks)": Attention(mask=Window(window, 4)),
        "lambda (LM-Infinite)": Attention(remap=rerope, mask=Window(window, 10)),
        "blocks": Attention(mask=Blocks(window)),
        "chunks (DCA)": Attention(remap=Chunks(window, window + window // 3)),
        "dense (AdaGroPE)": Attention(remap=Stairs(((window, 1), (window // 2, 2), (1, 4)))),
    }


def rotation(width: int) -> Rotate:
    """Half-split rotation of base 10,000, angles in float32."""

    @cache
    def frequency(device: torch.device) -> Tensor:
        return (10_000.0 ** -(torch.arange(width // 2) / (width // 2))).to(device)

    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        turn = positions[:, None].float() * frequency(x.device)
        if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):  # as our attention function rotates (`Turn`)
            from lexbench.kernels import triton_rotate

            return triton_rotate.rotate_pairs(x, turn.cos()[None], turn.sin()[None], halves=True, offset=0)
        cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return rotate


def still(x: Tensor, positions: Tensor) -> Tensor:
    """No rotation: where only a mask changes, a model hands over vectors that it has rotated itself."""
    return x


def calls(options: argparse.Namespace, length: int) -> dict[str, Call]:
    """Plain attention, and each structure by the fast kernel and, as far as asked, by the dense one."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, length, options.head_dim, generator=generator).to(options.device, options.dtype)
        for heads in (options.heads, options.kv_heads, options.kv_heads)
    )
    scaling = 1 / math.sqrt(options.head_dim)
    asked = 1 if options.decode else min(options.asked or length, length)
    q = q[:, :, -asked:]
    given = (q, k, v, torch.arange(length - asked, length, device=q.device))
    mask = None
    if 1 < asked < length:
        mask = torch.ones(asked, length, dtype=torch.bool, device=q.device).tril_(length - asked)
    whole = asked == length
    found: dict[str, Call] = {
        "plain": partial(F.scaled_dot_product_attention, q, k, v, mask, is_causal=whole, enable_gqa=True)
    }
    if options.decode:
        found["plain"] = one_token(q, k, v, None, options.head_dim)
    for name, attention in attentions(options.window).items():
        masked = attention.mask is not None and attention.remap is None
        rest = (attention, still if masked else rotation(options.head_dim), scaling)
        if options.decode and decode.key_ranges(attention) is not None:
            found[name] = one_token(q, k, v, attention, options.head_dim)
        elif fast.kernel_name(attention) != "dense":
            found[name] = partial(fast.attend, *given, *rest)
        if length <= options.dense_up_to:
            found[f"{name} by definition"] = partial(dense.attend, *given, *rest)
    return found


def one_token(query: Tensor, keys: Tensor, values: Tensor, attention: Attention | None, width: int) -> Call:
    """One token is appended to a cache of all others and attends to it; None: by PyTorch's fused kernel.

    In `LAYERS` layers, each with a cache of its own, which share what is made once a step.
    """
    total, spin = keys.shape[2], rotation(width)
    last, scaling = torch.tensor([total - 1], device=keys.device), 1 / math.sqrt(width)
    unrotated = attention is not None and attention.remap is not None
    before = keys if unrotated else spin(keys, torch.arange(total, device=keys.device))
    layers = [KeptLayer(room=2) for _ in range(LAYERS)]
    for layer in layers:
        layer.update(before[:, :, :-1], values[:, :, :-1])
    new, value = keys[:, :, -1:], values[:, :, -1:]

    def call() -> Tensor:
        state = decode.DecodeStep(np.array([total]))
        for layer in layers:
            if layer.get_seq_length() == total:
                layer.crop(-1)
            layer.update(new if unrotated else spin(new, last), value)
            asking = query if unrotated else spin(query, last)
            if attention is None:
                found = F.scaled_dot_product_attention(asking, layer.keys, layer.values, enable_gqa=True)
            else:
                found = decode.attend(asking, layer, state, attention, spin if unrotated else None, scaling)
        return found

    return call


def seconds(call: Call, device: str) -> float:
    if device == "cpu":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def peak() -> float:
    """Bytes of this program's largest resident memory so far; Linux counts its parent's in getrusage too."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * float(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory(options: argparse.Namespace, length: int, name: str) -> float:
    """Bytes above the inputs at the peak of one call."""
    if options.device == "cuda":
        call = calls(options, length)[name]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)
    command = [sys.executable, __file__, *sys.argv[1:], "--one", str(length), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def alone(options: argparse.Namespace, length: int, name: str) -> float:
    """What a process of its own does for `memory`: a short call first brings the kernels in."""
    calls(options, 2 * options.window)[name]()
    call = calls(options, length)[name]
    before = peak()
    call()
    return peak() - before


@torch.inference_mode()
def table(options: argparse.Namespace) -> None:
    print("| length | kernel | time / plain | memory / output | dense: time | dense: memory |", flush=True)
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for length in options.lengths:
        found = calls(options, length)
        output = options.heads * length * options.head_dim * torch.finfo(options.dtype).bits // 8  # of all tokens
        for call in found.values():
            call()
        taken: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(options.repeats):
            for name, call in found.items():
                taken[name].append(seconds(call, options.device))
        plain = statistics.median(taken["plain"])

        def cells(name: str, taken: Any = taken, plain: float = plain, n: int = length, output: int = output) -> str:
            if name not in taken:
                return "— | —"
            return f"{statistics.median(taken[name]) / plain:.2f} | {memory(options, n, name) / output:.1f}"

        print(f"| {length} | plain: {1000 * plain:.1f} ms | {cells('plain')} | — | — |", flush=True)
        for name in attentions(options.window):
            print(f"| {length} | {name} | {cells(name)} | {cells(f'{name} by definition')} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 32768])
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, help="as many as heads, unless given")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="float32", choices=["float64", "float32", "float16", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dense-up-to", type=int, default=8192)
    parser.add_argument("--decode", action="store_true", help="one query: the last token over a cache of all keys")
    parser.add_argument("--asked", type=int, help="queries, the last of each text; all, unless given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("LENGTH", "KERNEL"), help="what a process of its own does")
    options = parser.parse_args()
    options.dtype = getattr(torch, options.dtype)
    options.kv_heads = options.kv_heads or options.heads
    if options.one:
        with torch.inference_mode():
            print(json.dumps(alone(options, int(options.one[0]), options.one[1])))
        return
    table(options)


if __name__ == "__main__":
    main()

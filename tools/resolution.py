"""Mean logits by Fourier transforms against all logits: python tools/resolution.py

Prints Markdown tables of one layer, float64 throughout. Both ways give s[n] of every head, and the same (the largest
difference is in the table). `rows` sums the diagonals of a few rows of logits at a time, in bounded memory; `matrix`
holds all logits of a group of heads at once. Seconds are the processor's, of all threads, so that other programs on
the machine count little: medians of repeats taken in turns. Memory is the resident peak of a process of its own, above
the inputs. The next table is of other structures, at one length; the last one of the weights' statistics, float32,
over fewer and fewer of the last queries, at the same length.
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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lexbench import Attention
from lexbench.core.attention import Blocks, Chunks, PositionMap, Remap, Stairs, Window
from lexbench.kernels import dense
from lexbench.kernels import resolution as fast
from lexbench.kernels.heads import Rotate
from lexbench.kernels.logits import Logits, split_by_key_head
from lexbench.kernels.observed import average_weights

Call = partial[Tensor]
ATTENTIONS = {
    "RoPE": Attention(),
    "window, 4 sinks": Attention(mask=Window(1024, 4)),
    "blocks": Attention(mask=Blocks(1024)),
    "ReRoPE": Attention(remap=Remap(1024, PositionMap(math.inf, 1024), PositionMap(math.inf))),
    "chunks (DCA)": Attention(remap=Chunks(1024, 1365)),
    "stairs (AdaGroPE)": Attention(remap=Stairs(((1024, 1), (512, 2), (1, 4)))),
}


def rotation(width: int) -> Rotate:
    """Half-split rotation of base 10,000."""
    frequency = 10_000.0 ** -(torch.arange(width // 2, dtype=torch.float64) / (width // 2))

    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        turn = positions[:, None].double() * frequency
        cos, sin = turn.cos(), turn.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return rotate


def by_rows(queries: Tensor, keys: Tensor, logits: Logits) -> Tensor:
    return torch.cat(
        [fast._by_rows(group, logits) for group in split_by_key_head(queries, keys, logits, torch.float64)]
    )


def by_matrix(queries: Tensor, keys: Tensor, logits: Logits) -> Tensor:
    chunk = dense.MAX_SCORES_IN_MEMORY
    dense.MAX_SCORES_IN_MEMORY = 1 << 62
    try:
        return by_rows(queries, keys, logits)
    finally:
        dense.MAX_SCORES_IN_MEMORY = chunk


def call(options: argparse.Namespace, name: str, length: int, way: str) -> Call:
    """One layer's s[n] in one way: fourier, rows or matrix; xPos is RoPE with a decay."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (
        torch.randn(1, heads, length, options.head_dim, generator=generator, dtype=torch.float64)
        for heads in (options.heads, options.kv_heads)
    )
    pairs = options.head_dim // 2
    decay = ((torch.arange(pairs, dtype=torch.float64) / pairs + 0.4) / 1.4).log() / 512 if name == "xPos" else None
    logits = Logits(
        rotate=rotation(options.head_dim),
        scaling=options.head_dim**-0.5,
        attention=ATTENTIONS.get(name, Attention()),
        decay=decay,
    )
    ways = {"fourier": fast.mean_logits, "rows": by_rows, "matrix": by_matrix}
    return partial(ways[way], queries, keys, logits)


def seconds(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(repeats):
        for way, each in calls.items():
            started = time.process_time()
            each()
            taken[way].append(time.process_time() - started)
    return {way: statistics.median(times) for way, times in taken.items()}


def peak() -> float:
    """Bytes of this program's largest resident memory so far; Linux counts its parent's in getrusage too."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * float(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory(length: int, way: str) -> float:
    """Bytes above the inputs at the peak of one call, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", str(length), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def alone(options: argparse.Namespace, length: int, way: str) -> float:
    """What a process of its own does for `memory`: a short call first brings the libraries in."""
    call(options, "RoPE", 64, way)()
    measured = call(options, "RoPE", length, way)
    before = peak()
    measured()
    return peak() - before


def tables(options: argparse.Namespace) -> None:
    print("| length | way | CPU seconds | of fourier's | peak MB | bytes a token | difference |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for length in options.lengths:
        limits = {"fourier": length, "rows": options.rows_up_to, "matrix": options.matrix_up_to}
        ways = [way for way, limit in limits.items() if length <= limit]
        calls = {way: call(options, "RoPE", length, way) for way in ways}
        expected = calls["fourier"]()
        taken = seconds(calls, options.repeats)
        for way in ways:
            held = memory(length, way)
            difference = float((calls[way]() - expected).abs().max())
            print(
                f"| {length} | {way} | {taken[way]:.3f} | {taken[way] / taken['fourier']:.1f} | {held / 1e6:.0f} "
                f"| {held / length:.0f} | {difference:.0e} |",
                flush=True,
            )
    if options.structures_at:
        structures(options)
        weights(options)


def structures(options: argparse.Namespace) -> None:
    print("\n| structure | length | fourier, CPU seconds | rows / fourier | difference |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in (*ATTENTIONS, "xPos"):
        length = options.structures_at
        calls = {way: call(options, name, length, way) for way in ("fourier", "rows")}
        difference = float((calls["fourier"]() - calls["rows"]()).nan_to_num().abs().max())
        taken = seconds(calls, max(1, options.repeats // 2))
        ratio = taken["rows"] / taken["fourier"]
        print(f"| {name} | {length} | {taken['fourier']:.3f} | {ratio:.1f} | {difference:.0e} |", flush=True)


def weights(options: argparse.Namespace) -> None:
    print("\n| last queries | length | weights' statistics, CPU seconds | all / these |")
    print("| ---: | ---: | ---: | ---: |")
    length = options.structures_at
    queries, keys, logits = call(options, "RoPE", length, "fourier").args
    counts = [length >> power for power in range(4)]
    calls = {str(last): partial(average_weights, queries.float(), keys.float(), logits, 4, last) for last in counts}
    taken = seconds(calls, options.repeats)
    for last, spent in taken.items():
        print(f"| {last} | {length} | {spent:.3f} | {taken[str(length)] / spent:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--rows-up-to", type=int, default=8192)
    parser.add_argument("--matrix-up-to", type=int, default=4096)
    parser.add_argument("--structures-at", type=int, default=4096, help="0: none")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("LENGTH", "WAY"), help="what a process of its own does")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        if options.one:
            print(json.dumps(alone(options, int(options.one[0]), options.one[1])))
        else:
            tables(options)


if __name__ == "__main__":
    main()

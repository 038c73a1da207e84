"""Cost of our Triton attention on a GPU, from its code compiled for sm_90 and a model: python tools/kernel_cost.py

Needs no GPU, but the package triton. Prints two Markdown tables. The first is of what Triton's compiler and its
disassembler tell: registers, spilled bytes and shared memory of a program, and instructions of a warp in a loop over
keys, without and with a mask. The second is of predicted times over PyTorch's causal attention, rotations included:

    program     sum over its blocks of keys: both products at the measured rate of a matrix product, and then, as
                nothing overlaps them, a warp's instructions, one a cycle on each of four schedulers; a start of a loop
    kernel      programs on 132 multiprocessors, in the order of the grid, each on the first that is free
    triangle    of cuDNN: the measured time of PyTorch's causal attention, by the square of the length
    rotations   each reads and writes its vectors once, at the measured rate of a copy

The measured rates, and the times to which the model is compared, are of `results/benchmarks/gpu`. There rotations ran
as PyTorch's single operations: what they took is the difference of two rows, lambda and banded, that differ in them.
"""

import argparse
import heapq
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lexbench.kernels import triton_decode, triton_regions
from tools.gpu import LARGE, Heads

RECORD = Path(__file__).parents[1] / "results/benchmarks/gpu/nvidia-h200-2026-11-27.json"
PROCESSORS, SCHEDULERS, CLOCK_HERTZ = 132, 4, 1.755e9
LOOP_START_SECONDS = 1e-6
"""Of the first loads of a loop, which nothing hides: about two latencies of memory."""
SIZES = {128: (128, 128, 8, 3), 64: (128, 64, 4, 3)}
"""Queries, keys, warps and stages by dimensions of a head: those that are tried first."""
POINTERS = {
    "*bf16": r"(near|back|far)_[qk]|[qk]_\d|v|out|begun",
    "*fp32": r"begun_lse|sinks|parts|lse",
    "*i64": r"(begin|end)_\d",
    "fp32": "scale",
}
"""Kinds of arguments by their names; all others are whole numbers."""


def compiled_regions(width: int, sides: bool, begun: bool) -> Any:
    rows, columns, *rest = SIZES[width]
    constants = {"SIDES": sides, "BEGUN": begun, "SINKS": False, "EVEN": True}
    return compiled(triton_regions._kernel, {**constants, "ROWS": rows, "COLUMNS": columns, "WIDTH": width}, *rest)


def compiled_step(width: int, count: int) -> Any:
    columns, stages = triton_decode.BLOCK_KEYS_AND_STAGES[0]
    constants = {"COUNT": count, "SHARED": 4, "ROWS": 16, "COLUMNS": columns, "WIDTH": width}
    return compiled(triton_decode._piece, constants, 4, stages)


def compiled(kernel: Any, constants: dict[str, Any], warps: int, stages: int) -> Any:
    """A kernel for bfloat16 and sm_90; addresses and strides are multiples of 16."""
    kinds, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        found = [kind for kind, names in POINTERS.items() if re.fullmatch(names, name)]
        kinds[name] = "constexpr" if name in constants else found[0] if found else "i32"
        if kinds[name].startswith("*") or name.endswith(("_head", "_row", "_text")) or name == "width":
            aligned[place,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, kinds, {(kernel.arg_names.index(k),): v for k, v in constants.items()}, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages})


def told(code: Any) -> dict[str, int]:
    """Registers, spilled bytes, shared bytes; instructions of the shortest and the longest loop with products."""
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        usage, text = (
            subprocess.run([tools / name, flag, file.name], capture_output=True, text=True, check=True).stdout
            for name, flag in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    loops = [len(body) for body in bodies(text) if any("MMA" in line for line in body)]
    found = {name: int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK")}
    return {**found, "shared": code.metadata.shared, "inner": min(loops), "edge": max(loops)}


def bodies(text: str) -> Iterator[list[str]]:
    """Instructions from each label to the branch back to it."""
    labels, lines = dict[str, int](), list[str]()
    for line in text.splitlines():
        if label := re.match(r"\s*\.(L_\w+):", line):
            labels[label[1]] = len(lines)
        elif code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            lines.append(code[1])
            branch = re.search(r"BRA.*\(\.(L_\w+)\)", code[1])
            if branch and branch[1] in labels:
                yield lines[labels[branch[1]] :]


def blocks(begin: int, last: int, span: tuple[int, int], least: int, beyond: int, columns: int) -> tuple[int, int]:
    """Blocks of keys of a range without and with a mask, as `add_range` cuts it; span: first and last query."""
    low, high = span
    end = min(last, high - least + 1)
    inside = begin + max(0, -(-(high - beyond + 1 - begin) // columns)) * columns
    until = inside + max(0, min(last, low - least + 1) - inside) // columns * columns
    edges = -(-max(0, min(inside, end) - begin) // columns) + -(-max(0, end - until) // columns)
    return (until - inside) // columns, edges


def programs(total: int, size: int, sides: bool, reach: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Of each program of a head, the longest first: blocks without a mask, with one, and loops."""
    rows, columns = SIZES[width][:2]
    tiles = total // rows if sides else -(-size // rows)
    for number in reversed(range(tiles if sides else -(-total // size) * tiles)):
        own = 0 if sides else number // tiles * size
        low = own + number % tiles * rows
        high = min(low + rows, total if sides else own + size) - 1
        far = max(0, low - reach + 1)
        if sides:
            parts = [(far, total - size, size, reach), (max(0, low - size + 1), total, 0, size)]
        else:
            parts = [(far, max(0, own - size), 0, reach), (max(0, own - size), own, 0, total), (own, total, 0, size)]
        cut = [blocks(*ends[:2], (low, high), *ends[2:], columns) for ends in parts]
        yield sum(x[0] for x in cut), sum(x[1] for x in cut), sum((x[0] > 0) + (x[1] > 0) for x in cut)


def kernel_seconds(heads: Heads, total: int, sides: bool, reach: int, code: dict[str, int], rate: float) -> float:
    """Time of the kernel; rate: operations a second of a matrix product on the whole GPU."""
    rows, columns, warps, _ = SIZES[heads.head_dim]
    products = 4 * rows * columns * heads.head_dim / (rate / PROCESSORS)
    # Of programs side by side on a multiprocessor each has its share of it.
    inner, edge = (code[kind] * warps / SCHEDULERS / CLOCK_HERTZ + products for kind in ("inner", "edge"))
    free = [0.0] * PROCESSORS
    for _ in range(heads.heads):
        for whole, masked, loops in programs(total, heads.window, sides, reach, heads.head_dim):
            took = whole * inner + masked * edge + loops * LOOP_START_SECONDS
            heapq.heapreplace(free, free[0] + took)
    return max(free)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print("| heads of | regions | after a triangle | registers | spilled | shared memory | loop | masked |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    codes = {}
    for width in SIZES:
        for sides in (True, False):
            for begun in (False, True):
                code = codes[width, sides, begun] = told(compiled_regions(width, sides, begun))
                names = "near, far" if sides else "chunks", "yes" if begun else "no"
                print(f"| {width} | {' | '.join(names)} | {' | '.join(map(str, code.values()))} |", flush=True)
        for count in (1, triton_decode.MAX_RANGES):
            code = told(compiled_step(width, count))
            print(f"| {width} | a step over ranges: {count} | — | {' | '.join(map(str, code.values()))} |", flush=True)
    steps = json.loads(RECORD.read_text())["steps"]
    copy, rate = (steps["measure/machine"][name] for name in ("bytes_per_second", "operations_per_second"))
    print(
        "\n| shape | tokens | sdpa, ms | kernel as measured, of the model | near and far alone | with cuDNN |", end=""
    )
    print(" chunks alone | with cuDNN |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, heads in LARGE.heads.items():
        for total in LARGE.lengths:
            print(f"| {name} | {total} | {' | '.join(predicted(heads, total, codes, steps, name, copy, rate))} |")


def predicted(
    heads: Heads, total: int, codes: dict[Any, dict[str, int]], steps: Any, name: str, copy: float, rate: float
) -> Iterator[str]:
    """Cells of a row of the second table."""
    took = steps[f"measure/kernels/{name}/{total}/whole"]["seconds"]
    query_bytes = heads.heads * total * heads.head_dim * 2
    shared = heads.kv_heads / heads.heads  # numbers of keys, of those of queries
    # Near queries and keys and far queries, rotated one operation after the other: of queries alone, so much.
    single = (took["lambda (LM-Infinite), triton"] - took["banded, triton"]) / (2 + shared)
    causal = took["sdpa"] - (1 + shared) * single
    plain = causal + (1 + shared) * 2 * query_bytes / copy
    yield f"{1000 * plain:.2f}"
    for sides in (True, False):
        alone = kernel_seconds(heads, total, sides, total + 1, codes[heads.head_dim, sides, False], rate)
        if sides:
            yield f"{(took['near_far (ReRoPE), triton'] - (2 + shared) * single) / alone:.2f}"
        turned = (3 + shared) * 2 * query_bytes / copy  # ReRoPE scales its far queries; chunks have three rotations
        yield f"{(alone + turned) / plain:.2f}"
        least = heads.window if sides else 2 * heads.window
        count = max(0, total - least) // triton_regions.TRIANGLE_STEP_KEYS * triton_regions.TRIANGLE_STEP_KEYS
        if count < triton_regions.MIN_TRIANGLE_KEYS:
            yield "—"
            continue
        band = kernel_seconds(heads, total, sides, total - count, codes[heads.head_dim, sides, True], rate)
        # What the triangle gave is written, and read again; its keys and values are copied, each read and written.
        merged = (2 + 4 * shared) * query_bytes * count / total / copy
        yield f"{(band + causal * (count / total) ** 2 + merged + turned) / plain:.2f}"


if __name__ == "__main__":
    main()

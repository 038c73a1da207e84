"""What a run will cost, before it starts: cells, tokens, time and memory."""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.core.task import AnyQuestion, Probe, Write

BYTES = 4  # of a number in float32; half of that in bfloat16
NUMBERS = {"float32": 4, "float64": 8}  # bytes by dtype; 2 of all others
EFFICIENCY = 0.5  # of a large matrix product's speed, that a whole forward pass reaches
PROBED = 3  # forward passes that watching one takes, as measured with the weights of half of the queries


@dataclass(frozen=True)
class Estimate:
    """Cost of one cell."""

    questions: int = 0
    tokens: int = 0
    """Read and written, over all questions."""
    dense: float = 0.0
    """Operations that grow with the tokens: products with weights."""
    quadratic: float = 0.0
    """Operations that grow with their square: attention's."""
    steps: int = 0
    """Forward passes of a single token: writing."""

    @property
    def flops(self) -> float:
        """All operations."""
        return self.dense + self.quadratic


@dataclass(frozen=True)
class Step:
    """One cell to be: its parts, before a backend gives it an identity."""

    method: Any
    """`lexbench.runner.job.Named`, as is the task."""
    task: Any
    length: int
    seed: int
    attention: Attention | None
    refused: str | None
    """Why there is no attention or no question."""
    estimate: Estimate


def parameters(model: Model) -> float:
    """Parameters of the network: as stated, else a decoder's usual 12 layers width^2 and its embedding."""
    if model.parameters is not None:
        return float(model.parameters)
    width = model.width or 0
    return 12.0 * (model.layers or 0) * width**2 + float((model.vocabulary or 0) * width)


def estimate(model: Model, questions: Sequence[AnyQuestion]) -> Estimate:
    """Forward passes: 2 flops a parameter and token, and causal attention's 2 layers width length^2."""
    a_token, a_pair = 2.0 * parameters(model), 2.0 * (model.layers or 0) * (model.width or 0)
    dense = quadratic = 0.0
    steps = 0
    for question in questions:
        times = PROBED if isinstance(question, Probe) else 1
        dense += times * a_token * question.length
        quadratic += times * a_pair * question.length**2
        if isinstance(question, Write):
            quadratic += 2.0 * a_pair * question.room * question.length
            steps += question.room
    tokens = sum(question.length for question in questions)
    return Estimate(len(questions), tokens, dense, quadratic, steps)


def peak_memory(model: Model, length: int) -> float:
    """Bytes, roughly: weights, keys and values of all layers, and a dozen activations of one."""
    width = model.width or 0
    share = (model.kv_heads or 1) / (model.heads or 1)
    return BYTES * (parameters(model) + length * width * (2 * (model.layers or 0) * share + 12))


def least_memory(model: Model, step: Step, dtype: str) -> float:
    """Bytes that a cell needs beside the weights, and cannot do without: one layer's activations, and a cache to write.

    Activations: the state, queries, keys, values and what attention gives, of one text.
    """
    width, share = model.width or 0, (model.kv_heads or 1) / (model.heads or 1)
    cache = 2 * (model.layers or 0) * share if step.estimate.steps else 0.0
    return NUMBERS.get(dtype, 2) * step.length * width * (3 + 2 * share + cache)


def describe(model: Model, steps: Sequence[Step], folder: Path) -> str:
    """The plan in a few lines; time from a matrix product measured here and now."""
    asked = [step for step in steps if step.refused is None]
    seconds = sum(step.estimate.flops for step in asked) / speed()
    tokens = sum(step.estimate.tokens for step in asked)
    longest = max((step.length for step in asked), default=0)
    names = {
        "methods": list(dict.fromkeys(step.method.label for step in steps)),
        "tasks": list(dict.fromkeys(step.task.label for step in steps)),
        "lengths": [str(length) for length in dict.fromkeys(sorted(step.length for step in steps))],
    }
    lines = [f"{model.name}, trained at {model.trained_length} tokens, into {folder}"]
    lines += [f"  {noun:8} {', '.join(values)}" for noun, values in names.items()]
    lines.append(
        f"  {len(asked)} cells, {tokens:,} tokens, about {duration(seconds)} "
        f"and {peak_memory(model, longest) / 2**30:.1f} GiB of model memory"
    )
    reasons = dict.fromkeys(f"{s.method.label} {s.task.label} {s.length}: {s.refused}" for s in steps if s.refused)
    lines += [f"  refused  {reason}" for reason in reasons]
    return "\n".join(lines)


GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files by which a driver shows itself: where there is none, nobody need wait for torch to say so."""


@functools.cache
def speed(size: int = 1024) -> float:
    """Operations per second of a forward pass, guessed from a float32 matrix product on the device that will run it."""
    if any(Path(file).exists() for file in GPUS):
        import torch

        left: Any = torch.ones(size, size, device="cuda" if torch.cuda.is_available() else "cpu")
    else:
        left = np.ones((size, size), np.float32)
    (left @ left).sum().item()
    started = time.perf_counter()
    for _ in range(4):
        product = left @ left
    product.sum().item()
    return EFFICIENCY * 4 * 2 * size**3 / (time.perf_counter() - started)


def duration(seconds: float) -> str:
    """In the largest unit of which there are two."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 1):.0f} seconds"

"""A run as it could have been: methods that hold, one that collapses, refusals, failed and truncated samples."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.method_key import parse_label
from lexbench.core.record import Cell, Sample
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store

TRAINED = 256
LENGTHS = (128, 256, 512, 1024, 2048)
LOSS = {  # nats per token that each method adds beyond the trained length, per doubling
    "none": 1.9,
    "ntk": 0.25,
    "pi": 0.12,
    "rerope": 0.0,
    "yarn(factor=8.0)": 0.04,
}


def cell(task: str, method: str, length: int, *, n: int = 32, seed: int = 0, **changed: Any) -> Cell:
    """A cell with an identity of the shape that the runner gives; `changed` fields enter the identity, too."""
    likelihood = not task.startswith("passkey")
    values: dict[str, Any] = {
        "model": "lexlet",
        "method": parse_label(method),
        "task": task,
        "length": length,
        "trained_length": TRAINED,
        "seed": seed,
        "n": n,
        "protocol": "NLL of the same last 64 tokens, context grows, token-weighted, BOS"
        if likelihood
        else "passkey of 5 digits in noise, strict: the key comes first, greedy, BOS",
        "backend": "hf",
        "dtype": "float32",
        "kernel": "sdpa",
        "corpus": "stdlib" if likelihood else None,
        "version": "0.1.0",
        **changed,
    }
    identity = {
        "model": {"name": values["model"], "revision": "5f0c"},
        "method": {"name": method},
        # Of each method another one, as no two do the same.
        "attention": {"scale": length / 7 + sum(method.encode())} if method != "none" else {},
        "task": {"name": task.partition("(")[0], "version": 1, **({"stated": task} if "(" in task else {})},
        "corpus": values["corpus"],
        "backend": {"name": values["backend"], "dtype": values["dtype"], "kernel": values["kernel"]},
        **{key: values[key] for key in ("length", "seed", "n")},
    }
    return Cell(**{**values, "identity": changed.get("identity", identity)})


def likelihood_sample(index: int, length: int, loss: float, targets: int = 64) -> Sample:
    """One text's targets; four texts of one document stand after another."""
    rng = np.random.default_rng([index, length])
    document = np.random.default_rng(index // 4).normal(0, 0.15)
    context = -0.08 * math.log2(length / TRAINED)
    nll = np.maximum(rng.gamma(2.0, 0.75, targets) + document + loss + context, 1e-3).astype(np.float32)
    return Sample(
        index=index,
        cluster=f"document {index // 4}",
        tokens=length,
        nll=nll,
        bytes=int(targets * 3.4) + index % 5,
        words=targets // 2 + index % 3,
        facts={"start": 1000 * index},
    )


def passkey_sample(index: int, length: int, loss: float) -> Sample:
    """Found always inside the trained length; beyond it the more rarely, the deeper the loss."""
    rng = np.random.default_rng([index, length, 7])
    depth = (index % 8 + rng.random()) / 8
    found = float(rng.random() < math.exp(-loss * (1.3 - depth)))
    return Sample(
        index=index,
        cluster=str(index),
        tokens=length,
        scores={"accuracy": found, "contains": max(found, float(rng.random() < 0.05))},
        output=f" {40000 + index}" if found else " 1",
        hit_room=not found,
        depth=depth,
        facts={"expected": str(40000 + index), "depth": depth},
    )


def finished(task: str, method: str, length: int, n: int = 32, **changed: Any) -> FinishedCell:
    """One cell with its samples, or refused."""
    this = cell(task, method, length, n=n, **changed)
    if task.startswith("passkey") and length == 128 and method == "none":
        return FinishedCell(this, [], "passkey needs at least 145 tokens, asked for 128: raise length")
    if method == "rerope" and length == 2048:
        return FinishedCell(this, [], "out of memory at batch 1: 2048 tokens need 61 GiB, a smaller model may fit")
    loss = LOSS[method] * max(0.0, math.log2(length / TRAINED))
    make = passkey_sample if task.startswith("passkey") else likelihood_sample
    samples = [make(index, length, loss) for index in range(n)]
    if method == "ntk" and length == 1024:
        samples[3] = replace(samples[3], failed="the server closed the connection", scores={}, nll=None)
    if method == "pi" and length == 2048:
        samples[-1] = replace(samples[-1], truncated=True, tokens=length - 40)
    return FinishedCell(this, samples)


def fake_cells(
    tasks: Iterable[str] = ("last_segment", "passkey"), losses: Mapping[str, float] = LOSS, **changed: Any
) -> list[FinishedCell]:
    """Every task under every method at every length."""
    return [finished(task, method, length, **changed) for task in tasks for method in losses for length in LENGTHS]


def keep(folder: Path, cells: Iterable[FinishedCell]) -> Store:
    """The run folder that a runner would have left."""
    store = Store(folder)
    for each in cells:
        if each.refused is not None:
            store.refuse(each.cell, each.refused)
        else:
            for sample in each.samples:
                store.append(each.cell, sample)
            store.finish(each.cell, [sample.index for sample in each.samples])
        store.cost(each.cell, seconds=1.5, tokens=each.cell.length, peak_bytes=1 << 20)
    store.write_records(records_of)
    return store


def fake_run(folder: Path, **changed: Any) -> Store:
    """A whole run folder."""
    return keep(folder, fake_cells(**changed))

"""Runs of a few questions whose answers a test chooses."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.record import Cell, Sample
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, keep

TARGETS = 4


def asked(task: str, method: str, length: int, n: int, **changed: Any) -> Cell:
    """A cell as the runner would give it, with a corpus that has a fingerprint; `identity` adds to its parts."""
    extra = changed.pop("identity", {})
    made = cell(task, method, length, n=n, **changed)
    identity = {
        **made.identity,
        "corpus": {"name": "stdlib", "fingerprint": "20f4"} if made.corpus else None,
        "backend": {**made.identity["backend"], "version": "transformers 5"},
        **extra,
    }
    return cell(task, method, length, n=n, **changed, identity=identity)


def texts(method: str, losses: Sequence[float], length: int = 512, **changed: Any) -> FinishedCell:
    """A likelihood: the mean NLL of each text, in nats per token; each text is a document of its own."""
    samples = [
        Sample(
            index=index,
            cluster=f"document {index}",
            tokens=length,
            nll=np.full(TARGETS, loss, np.float32),
            bytes=13,
            words=2,
        )
        for index, loss in enumerate(losses)
    ]
    return FinishedCell(asked("last_segment", method, length, len(losses), **changed), samples)


def answers(
    method: str, scores: Iterable[float], length: int = 512, metric: str = "accuracy", **changed: Any
) -> FinishedCell:
    """A score of each question; each has a haystack of its own."""
    given = list(scores)
    samples = [
        Sample(index=index, cluster=str(index), tokens=length, scores={metric: score}, depth=index / len(given))
        for index, score in enumerate(given)
    ]
    return FinishedCell(asked("passkey", method, length, len(given), **changed), samples)


def refused(method: str, length: int = 512, reason: str = "out of memory", **changed: Any) -> FinishedCell:
    return FinishedCell(asked("passkey", method, length, 8, **changed), [], reason)


def folder(path: Path, *cells: FinishedCell) -> list[Path]:
    """A run folder of these cells, as the commands take it."""
    keep(path, cells)
    return [path]


def right(count: int, of: int) -> list[float]:
    """So many right answers, the wrong ones first."""
    return [0.0] * (of - count) + [1.0] * count

"""Estimates the remaining time of runs from the files of finished cells.

`lexbench.runner.forecast` fits costs of its own questions; here only tokens per cell are known, so this scales the
measured seconds per token, and gives a range.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from lexbench.parts.web.view.folders import JobCell, UnfinishedCell, WatchedRun

CellKind = tuple[str, str, int]
"""Method, task and length."""

ESTIMATE_ERROR_FACTOR = 1.7
"""Error factor, up and down, of an estimate from other methods: holds for nine of ten cells of the committed runs."""
LENGTH_GROWTH_POWERS = (0.5, 2.0)
"""Seconds of a question grow with a power of length between these: overhead only, and attention only."""


@dataclass(frozen=True)
class SecondsRange:
    """A range of seconds."""

    low: float
    high: float


def seconds_per_token(run: WatchedRun, model: str) -> dict[CellKind, float]:
    """Seconds per token of finished cells by method, task and length, without refused cells."""
    groups: dict[CellKind, dict[str, JobCell]] = {}
    for job in run.jobs:
        for cell, planned in job.planned.items() if job.model == model else ():
            if cell in run.finished and cell not in run.refused and planned.tokens and run.seconds.get(cell):
                groups.setdefault((planned.method, planned.task, planned.length), {})[cell] = planned
    return {
        kind: math.fsum(run.seconds[cell] for cell in cells) / sum(planned.tokens for planned in cells.values())
        for kind, cells in groups.items()
    }


def remaining_seconds(
    spans: Mapping[str, SecondsRange | None], begun: Mapping[str, UnfinishedCell]
) -> dict[str, float] | None:
    """Seconds left for cells measured sequentially, without the finished share of each; None if one is unknown."""
    low = high = 0.0
    for cell, each in spans.items():
        if each is None:
            return None
        share = 1 - min(1.0, begun[cell].samples / begun[cell].n) if cell in begun else 1.0
        low, high = low + share * each.low, high + share * each.high
    return {"low": low, "high": high}


def cell_seconds(cell: JobCell, known: Mapping[CellKind, float], begun: UnfinishedCell | None) -> SecondsRange | None:
    """Seconds of a whole cell; None if nothing was measured yet.

    From the first of these that exists: its own samples so far; cells of its method, task and length; cells of its task
    and length with other methods, scaled by how these compare with its method elsewhere; the nearest length.
    """
    if cell.tokens == 0:
        return SecondsRange(0.0, 0.0)
    if begun and begun.seconds_per_sample:
        seconds = begun.seconds_per_sample * begun.n
        return SecondsRange(seconds, seconds)
    if rate := known.get((cell.method, cell.task, cell.length)):
        return SecondsRange(rate * cell.tokens, rate * cell.tokens)
    if rate := _rate_of_other_methods(cell, known):
        return SecondsRange(rate / ESTIMATE_ERROR_FACTOR * cell.tokens, rate * ESTIMATE_ERROR_FACTOR * cell.tokens)
    rates = _rates_by_length(cell, known)
    return SecondsRange(min(rates) * cell.tokens, max(rates) * cell.tokens) if rates else None


def _rate_of_other_methods(cell: JobCell, known: Mapping[CellKind, float]) -> float | None:
    """Seconds per token, the median over other methods of:

        rate(method', task, length)  rate(method, near) / rate(method', near)

    where `near` is the most similar task and length at which the cell's own method was measured. Without such a place
    the second factor is left out.
    """
    others = {method: rate for (method, *place), rate in known.items() if place == [cell.task, cell.length]}
    own = [kind for kind in known if kind[0] == cell.method]
    if own:
        near = min(own, key=lambda kind: _distance_of_kind(kind, cell))
        there = {method: known[at] for method in others if (at := (method, *near[1:])) in known}
        if there:
            return statistics.median(others[method] * known[near] / there[method] for method in there)
    return statistics.median(others.values()) if others else None


def _rates_by_length(cell: JobCell, known: Mapping[CellKind, float]) -> list[float]:
    """Lowest and highest seconds per token, scaled from the nearest length; of the cell's own method if possible.

    Seconds per question grow with a power of length, seconds per token with one power less.
    """
    pool = [kind for kind in known if kind[0] == cell.method] or list(known)
    near = min((_distance_of_kind(kind, cell) for kind in pool), default=None)
    nearest = [kind for kind in pool if _distance_of_kind(kind, cell) == near]
    return [
        statistics.fmean(known[kind] * (cell.length / kind[2]) ** (power - 1) for kind in nearest)
        for power in (LENGTH_GROWTH_POWERS if nearest else ())
    ]


def _distance_of_kind(kind: CellKind, cell: JobCell) -> tuple[bool, float]:
    """Distance to a measured kind; another task is farther than any length."""
    return kind[1] != cell.task, abs(math.log(kind[2] / cell.length))

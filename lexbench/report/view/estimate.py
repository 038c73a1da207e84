"""How long cells will take, from those that were measured."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from lexbench.report.view.folders import Planned, Run, Unfinished

Kind = tuple[str, str, int]
"""Method, task and length."""

ERROR = 1.7
"""Factor, up and down, within which cells stay that other methods foretell: nine in ten times in the committed runs."""
GROWTH = (0.5, 2.0)
"""Powers of length between which a question's seconds grow: from little but overhead to nothing but attention."""


@dataclass(frozen=True)
class Span:
    """Seconds, from the least to the most."""

    low: float
    high: float


def typical(run: Run, model: str) -> dict[Kind, float]:
    """Seconds a token of the cells of each method, task and length, refused ones left out."""
    groups: dict[Kind, dict[str, Planned]] = {}
    for job in run.jobs:
        for cell, planned in job.planned.items() if job.model == model else ():
            if cell in run.finished and cell not in run.refused and planned.tokens and run.seconds.get(cell):
                groups.setdefault((planned.method, planned.task, planned.length), {})[cell] = planned
    return {
        kind: math.fsum(run.seconds[cell] for cell in cells) / sum(planned.tokens for planned in cells.values())
        for kind, cells in groups.items()
    }


def remaining(spans: Mapping[str, Span | None], begun: Mapping[str, Unfinished]) -> dict[str, float] | None:
    """Seconds of cells one after another, less what is done of those begun; None where one cannot be told."""
    low = high = 0.0
    for cell, each in spans.items():
        if each is None:
            return None
        share = 1 - min(1.0, begun[cell].samples / begun[cell].n) if cell in begun else 1.0
        low, high = low + share * each.low, high + share * each.high
    return {"low": low, "high": high}


def span(cell: Planned, known: Mapping[Kind, float], begun: Unfinished | None) -> Span | None:
    """What a cell takes from its begin to its end; None where nothing was measured yet.

    The first of these that there is: its own samples, written meanwhile; cells of its method, task and length; cells of
    its task and length under other methods, and how they compare with its own method elsewhere; the nearest length.
    """
    if cell.tokens == 0:
        return Span(0.0, 0.0)
    if begun and begun.seconds_per_sample:
        seconds = begun.seconds_per_sample * begun.n
        return Span(seconds, seconds)
    if rate := known.get((cell.method, cell.task, cell.length)):
        return Span(rate * cell.tokens, rate * cell.tokens)
    if rate := _by_others(cell, known):
        return Span(rate / ERROR * cell.tokens, rate * ERROR * cell.tokens)
    rates = _by_length(cell, known)
    return Span(min(rates) * cell.tokens, max(rates) * cell.tokens) if rates else None


def _by_others(cell: Planned, known: Mapping[Kind, float]) -> float | None:
    """Seconds a token, the median over the other methods:

        rate(method', task, length)  rate(method, near) / rate(method', near)

    where `near` is the task and length, likest to the cell's, at which its own method was measured. Where there is no
    such place, the second factor is left out.
    """
    others = {method: rate for (method, *place), rate in known.items() if place == [cell.task, cell.length]}
    own = [kind for kind in known if kind[0] == cell.method]
    if own:
        near = min(own, key=lambda kind: _distance(kind, cell))
        there = {method: known[at] for method in others if (at := (method, *near[1:])) in known}
        if there:
            return statistics.median(others[method] * known[near] / there[method] for method in there)
    return statistics.median(others.values()) if others else None


def _by_length(cell: Planned, known: Mapping[Kind, float]) -> list[float]:
    """Seconds a token, least and most, from the nearest length, of its own method where there is one.

    A question's seconds grow by a power of length, those of a token by one power less.
    """
    pool = [kind for kind in known if kind[0] == cell.method] or list(known)
    near = min((_distance(kind, cell) for kind in pool), default=None)
    likest = [kind for kind in pool if _distance(kind, cell) == near]
    return [
        statistics.fmean(known[kind] * (cell.length / kind[2]) ** (power - 1) for kind in likest)
        for power in (GROWTH if likest else ())
    ]


def _distance(kind: Kind, cell: Planned) -> tuple[bool, float]:
    """Another task is farther than any length."""
    return kind[1] != cell.task, abs(math.log(kind[2] / cell.length))

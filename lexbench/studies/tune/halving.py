"""Successive halving: few questions for all, more of them for those that do best."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def rungs(first: int, n: int, eta: int) -> tuple[int, ...]:
    """Questions that each rung has asked in all, up to n: n divided by eta as often as `first` questions are left.

    n = 81, eta = 3 and first = 1 give 1, 3, 9, 27, 81 (Hyperband, Li et al. 2018, JMLR 18(185), table 1).
    """
    counts = [n]
    while counts[-1] // eta >= max(first, 1):
        counts.append(counts[-1] // eta)
    return tuple(reversed(counts))


def halve(
    entrants: Sequence[T],
    counts: Sequence[int],
    eta: int,
    measure: Callable[[T, int], Any],
    keep: Callable[[T], bool] = lambda entrant: False,
) -> None:
    """Measure all on the first rung, and the best share 1 / eta of them on each next one.

    Jamieson and Talwalkar (2016, arXiv 1502.07943) halve; with a share 1 / eta, k entrants send floor(k eta^-i), at
    least one, to rung i. Entrants that are out free no place for worse ones at the next rung, only their own.

    Args:
        entrants: in the order in which the first rung asks them; later rungs ask the best ones first.
        counts: questions of each rung, all before counted.
        eta: above 1.
        measure: an entrant's standing after so many questions, lower is better; None: it is out.
        keep: the best of those for which this is true goes on at every rung, beyond the share.
    """
    places = len(entrants)
    left = list(entrants)
    for count in counts:
        measured = [(measure(entrant, count), entrant) for entrant in left]
        standing = sorted(((at, entrant) for at, entrant in measured if at is not None), key=lambda pair: pair[0])
        places = max(1, places // eta)
        best = [entrant for _, entrant in standing[:places]]
        kept = next((entrant for _, entrant in standing if keep(entrant)), None)
        left = best if kept is None or any(kept is entrant for entrant in best) else [*best, kept]

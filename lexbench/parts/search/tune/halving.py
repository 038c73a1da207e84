"""Successive halving: few questions for all candidates, more for the best ones."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

EntrantT = TypeVar("EntrantT")


def rung_counts(first: int, n: int, eta: int) -> tuple[int, ...]:
    """Cumulative number of questions at each rung, ending with n: n divided by eta while at least `first` are left.

    n = 81, eta = 3 and first = 1 give 1, 3, 9, 27, 81 (Hyperband, Li et al. 2018, JMLR 18(185), table 1).
    """
    counts = [n]
    while counts[-1] // eta >= max(first, 1):
        counts.append(counts[-1] // eta)
    return tuple(reversed(counts))


def halve_entrants(
    entrants: Sequence[EntrantT],
    counts: Sequence[int],
    eta: int,
    measure: Callable[[EntrantT, int], Any],
    keep: Callable[[EntrantT], bool] = lambda entrant: False,
) -> None:
    """Measure all entrants on the first rung, and the best 1 / eta of them on each next rung.

    Jamieson and Talwalkar (2016, arXiv 1502.07943) halve; k entrants give floor(k eta^-i), at least one, on rung i.
    Dropped candidates are not replaced.

    Args:
        entrants: in the order of the first rung; later rungs measure the best first.
        counts: cumulative number of questions at each rung.
        eta: above 1.
        measure: an entrant's sort key after so many questions, lower is better; None: dropped.
        keep: the best entrant with `keep` true stays at every rung, as an extra one.
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

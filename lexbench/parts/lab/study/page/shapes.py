"""Shape of a likelihood curve beyond the trained length, by a rule that also applies to published curves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import linear_regression

from lexbench.parts.lab.study.page.curves import Curve
from lexbench.parts.lab.study.settings import SHAPES
from lexbench.stats.combine import Estimate

SLIGHT = 0.05
"""Nats per token, 5 % of perplexity: smaller changes count as flat."""
GREAT = math.log(2)
"""Nats per token, twice the perplexity: larger changes explode."""
RULE = """\
Shape up to a stated multiple of the trained length. The change is NLL at a length minus NLL at the trained length, on
the same targets, in nats per token. If the largest change beyond the trained length exceeds {slight}, it decides the
shape, else the change at the longest length. Above ln {times} = {great}, {times} times the perplexity, the curve
*explodes*; above {slight} it *rises slowly*; below -{slight} it *falls*; else it is *flat*. If the interval of that
change, over seeds and documents, covers another shape, both are named.
""".format(slight=f"{SLIGHT:g}", great=f"{GREAT:.2f}", times=f"{math.exp(GREAT):g}")


@dataclass(frozen=True)
class Shape:
    """Shape of one curve."""

    change: Estimate
    """The change that decides the shape."""
    multiple: float
    """Multiple of the trained length of that change."""
    low: str
    """Shape of the interval's lower end."""
    high: str
    """Shape of its upper end."""

    @property
    def name(self) -> str:
        """The shape of the change itself."""
        return of_change(self.change.value)

    @property
    def text(self) -> str:
        """`flat`, or `flat to rises slowly`."""
        return self.low if self.low == self.high else f"{self.low} to {self.high}"

    @property
    def open(self) -> bool:
        """Whether the interval covers more than one shape."""
        return self.low != self.high

    def allows(self, name: str) -> bool:
        """Whether the interval covers this shape."""
        return SHAPES.index(self.low) <= SHAPES.index(name) <= SHAPES.index(self.high)


def of_change(change: float) -> str:
    """The shape of one change in nats per token."""
    if change > GREAT:
        return "explodes"
    if change > SLIGHT:
        return "rises slowly"
    return "falls" if change < -SLIGHT else "flat"


def shape(changes: Mapping[float, Estimate]) -> Shape | None:
    """Shape by the rule, from changes by multiple of the trained length; None without one beyond it."""
    beyond = {multiple: change for multiple, change in changes.items() if multiple > 1}
    if not beyond:
        return None
    worst = max(beyond, key=lambda multiple: beyond[multiple].value)
    # The worst change counts, not the last: a curve that explodes and comes back has exploded.
    counts = worst if beyond[worst].value > SLIGHT else max(beyond)
    change = beyond[counts]
    return Shape(change, counts, *map(of_change, change.ends))


def shape_of(curve: Curve, upto: float = math.inf) -> Shape | None:
    """Shape of a measured curve, up to a multiple of the trained length."""
    known = {point.multiple: point.change for point in curve.points if point.change and point.multiple <= upto * 1.001}
    return shape(known)


def slope(curve: Curve) -> float | None:
    """Nats per token per doubling of the length: least squares of the change over log2 of the multiple.

    From the trained length on, where the change is 0 by definition: a point like the others, as it is measured like
    them. None without a change beyond it.
    """
    beyond = [(math.log2(p.multiple), p.change.value) for p in curve.points if p.change and p.multiple > 1]
    return linear_regression(*zip((0.0, 0.0), *beyond, strict=True)).slope if beyond else None

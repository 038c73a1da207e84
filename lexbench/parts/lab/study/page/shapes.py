"""Shape of a likelihood curve beyond the trained length, by a rule that also applies to published curves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import linear_regression

from lexbench.parts.lab.study.page.curves import Curve
from lexbench.parts.lab.study.settings import SHAPE_NAMES
from lexbench.stats.combine import Estimate

MAX_FLAT_CHANGE_NATS = 0.05
"""Nats per token, 5 % of perplexity: smaller changes count as flat."""
MIN_EXPLODING_CHANGE_NATS = math.log(2)
"""Nats per token, twice the perplexity: larger changes explode."""
SHAPE_RULE_TEXT = """\
Shape up to a stated multiple of the trained length. The change is NLL at a length minus NLL at the trained length, on
the same targets, in nats per token. If the largest change beyond the trained length exceeds {slight}, it decides the
shape, else the change at the longest length. Above ln {times} = {great}, {times} times the perplexity, the curve
*explodes*; above {slight} it *rises slowly*; below -{slight} it *falls*; else it is *flat*. If the interval of that
change, over seeds and documents, covers another shape, both are named.
""".format(
    slight=f"{MAX_FLAT_CHANGE_NATS:g}",
    great=f"{MIN_EXPLODING_CHANGE_NATS:.2f}",
    times=f"{math.exp(MIN_EXPLODING_CHANGE_NATS):g}",
)


@dataclass(frozen=True)
class CurveShape:
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
        return shape_name_of_change(self.change.value)

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
        return SHAPE_NAMES.index(self.low) <= SHAPE_NAMES.index(name) <= SHAPE_NAMES.index(self.high)


def shape_name_of_change(change: float) -> str:
    """The shape of one change in nats per token."""
    if change > MIN_EXPLODING_CHANGE_NATS:
        return "explodes"
    if change > MAX_FLAT_CHANGE_NATS:
        return "rises slowly"
    return "falls" if change < -MAX_FLAT_CHANGE_NATS else "flat"


def shape_of_changes(changes: Mapping[float, Estimate]) -> CurveShape | None:
    """Shape by the rule, from changes by multiple of the trained length; None without one beyond it."""
    beyond = {multiple: change for multiple, change in changes.items() if multiple > 1}
    if not beyond:
        return None
    worst = max(beyond, key=lambda multiple: beyond[multiple].value)
    # The worst change counts, not the last: a curve that explodes and comes back has exploded.
    counts = worst if beyond[worst].value > MAX_FLAT_CHANGE_NATS else max(beyond)
    change = beyond[counts]
    return CurveShape(change, counts, *map(shape_name_of_change, change.ends))


def shape_of_curve(curve: Curve, upto: float = math.inf) -> CurveShape | None:
    """Shape of a measured curve, up to a multiple of the trained length."""
    known = {point.multiple: point.change for point in curve.points if point.change and point.multiple <= upto * 1.001}
    return shape_of_changes(known)


def slope_per_doubling(curve: Curve) -> float | None:
    """Nats per token per doubling of the length: least squares of the change over log2 of the multiple.

    From the trained length on, where the change is 0 by definition: a point like the others, as it is measured like
    them. None without a change beyond it.
    """
    beyond = [(math.log2(p.multiple), p.change.value) for p in curve.points if p.change and p.multiple > 1]
    return linear_regression(*zip((0.0, 0.0), *beyond, strict=True)).slope if beyond else None

"""Predictions that were stated before the runs, judged by the intervals of what was measured.

entry, method ("none"), tasks      the curves that a prediction is about
shape: [explodes]                  its shape is one of these
not: explodes                      its shape is another one
at: 8, within: 0.05                its change from the trained length, at this multiple, is no larger
at: 8, below: rope                 it changes less than another entry's, at this multiple, by the same documents
source                             who says so
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lexbench.report.formats import columns
from lexbench.studies.encodings.page.curves import Curve, Estimate, Point, difference
from lexbench.studies.encodings.page.shapes import SHAPES, shape_of
from lexbench.studies.encodings.page.tables import signed

VERDICTS = ("fails", "uncertain", "holds", "not measured")
"""What contradicts comes first."""


def judged(found: Sequence[Curve], predictions: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of [verdict, prediction, task, measured, source], by verdict."""
    rows = [_judged(found, each, task) for each in predictions for task in each["tasks"]]
    return sorted(rows, key=lambda row: VERDICTS.index(row[0]))


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows with their head."""
    return columns(["verdict", "prediction", "protocol", "measured", "source"], rows)


def _judged(found: Sequence[Curve], stated: Mapping[str, Any], task: str) -> list[str]:
    curve = _curve(found, stated["entry"], stated.get("method", "none"), task)
    multiple = float(stated.get("at", 0))
    name = stated["entry"] + (f" + {stated['method']}" if "method" in stated else "")
    if "shape" in stated or "not" in stated:
        names = stated.get("shape") or [each for each in SHAPES if each != stated["not"]]
        said = f"{name}: {' or '.join(names)}" if "shape" in stated else f"{name}: not {stated['not']}"
        shape = shape_of(curve) if curve else None
        if shape is None:
            return ["not measured", said, task, "", stated["source"]]
        allowed = [each in names for each in SHAPES if shape.allows(each)]
        verdict = "holds" if all(allowed) else "uncertain" if any(allowed) else "fails"
        return [verdict, said, task, f"{shape.text}, {signed(shape.change)} at {shape.multiple:g}x", stated["source"]]
    if "within" in stated:
        said = f"{name} changes by at most {stated['within']:g} at {multiple:g}x"
        point = curve.at(multiple) if curve else None
        change = point.change if point else None
        return [_within(change, stated["within"]), said, task, signed(change) if change else "", stated["source"]]
    said = f"{name} rises less than {stated['below']} at {multiple:g}x"
    other = _curve(found, stated["below"], "none", task)
    gap = _gap(other, curve, multiple) if curve and other else None
    return [_within(gap, 0.0, below=True), said, task, signed(gap) if gap else "", stated["source"]]


def _curve(found: Sequence[Curve], entry: str, method: str, task: str) -> Curve | None:
    same = (each for each in found if (each.entry, each.method, each.task.partition("(")[0]) == (entry, method, task))
    return next(same, None)


def _within(change: Estimate | None, most: float, below: bool = False) -> str:
    """Whether the interval of a change is within -most to most, or below most; "uncertain" if only a part of it is."""
    if change is None:
        return "not measured"
    low, high = (change.value if end is None else end for end in (change.low, change.high))
    least = float("-inf") if below else -most
    if least <= low and high <= most:
        return "holds"
    return "fails" if high < least or low > most else "uncertain"


def _gap(left: Curve, right: Curve, multiple: float) -> Estimate | None:
    """Change of the right curve minus that of the left one, paired by document."""
    changes = [_change(curve, multiple) for curve in (left, right)]
    return difference(changes[0], changes[1]) if changes[0] and changes[1] else None


def _change(curve: Curve, multiple: float) -> Point | None:
    """The point at a multiple with its documents' nats minus those at the trained length."""
    base, point = curve.at(1.0), curve.at(multiple)
    if not (base and point and base.documents and point.documents) or len(base.seeds) != len(point.seeds):
        return None
    before = base.documents
    documents = {
        name: (nats - before[name][0], targets)
        for name, (nats, targets) in point.documents.items()
        if name in before and before[name][1] == targets
    }
    seeds = [after - at_first for at_first, after in zip(base.seeds, point.seeds, strict=True)]
    return Point(point.length, multiple, None, None, seeds=seeds, documents=documents)

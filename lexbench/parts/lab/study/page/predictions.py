"""Judges predictions that were stated before the runs by the intervals of what was measured."""

import math
from collections.abc import Sequence

from lexbench.core.method_key import BASELINE_METHOD, MethodKey, parse_label
from lexbench.parts.lab.study.page.curves import Curve, CurvePoint, likelihood_difference, name_with_method
from lexbench.parts.lab.study.page.shapes import shape_of_curve
from lexbench.parts.lab.study.page.tables import format_change
from lexbench.parts.lab.study.settings import SHAPE_NAMES, Prediction
from lexbench.report.formats import markdown_columns
from lexbench.stats.combine import Estimate

VERDICTS_IN_ORDER = ("fails", "uncertain", "holds", "not measured")
"""Verdicts in the order of the page: contradictions first."""


def judge_predictions(found: Sequence[Curve], predictions: Sequence[Prediction]) -> list[list[str]]:
    """Rows of [verdict, prediction, task, measured, source], by verdict."""
    rows = [_judge_prediction(found, each, task) for each in predictions for task in each.tasks]
    return sorted(rows, key=lambda row: VERDICTS_IN_ORDER.index(row[0]))


def deciding_items(found: Sequence[Curve], predictions: Sequence[Prediction]) -> list[str]:
    """List items: what would decide each prediction that fails, if that is stated."""
    made = []
    for each in predictions:
        failed = [row for row in (_judge_prediction(found, each, task) for task in each.tasks) if row[0] == "fails"]
        if failed and each.decide:
            made.append(f"- {failed[0][1]}: {each.decide}")
    return ["What would decide those that fail:", "", *made, ""] if made else []


def predictions_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows with their head."""
    return markdown_columns(["verdict", "prediction", "protocol", "measured", "source"], rows)


def _judge_prediction(found: Sequence[Curve], stated: Prediction, task: str) -> list[str]:
    curve = _find_curve(found, stated.entry, parse_label(stated.method), task)
    name = name_with_method(stated.entry, parse_label(stated.method))
    measured = ""
    if stated.at is None:
        said = f"{name} {stated.shape}" if stated.shape else f"{name}: not {stated.other_than}"
        shape = shape_of_curve(curve) if curve else None
        verdict = "not measured"
        if shape is not None:
            right = [
                (each == stated.shape) if stated.shape else (each != stated.other_than)
                for each in SHAPE_NAMES
                if shape.allows(each)
            ]
            verdict = "holds" if all(right) else "uncertain" if any(right) else "fails"
            measured = f"{shape.text}, {format_change(shape.change)} at {shape.multiple:g}x"
    else:
        if stated.below is None:
            said = f"{name} changes by at most {stated.within:g} at {stated.at:g}x"
            point = curve.at(stated.at) if curve else None
            change, most = point.change if point else None, stated.within or 0.0
            verdict = _range_verdict(change, -most, most)
        else:
            said = f"{name} rises less than {stated.below} at {stated.at:g}x"
            other = _find_curve(found, stated.below, BASELINE_METHOD, task)
            change = _curve_gap(other, curve, stated.at) if curve and other else None
            verdict = _range_verdict(change, -math.inf, 0.0)
        measured = format_change(change) if change else ""
    return [verdict, said, task, measured, stated.source]


def _find_curve(found: Sequence[Curve], entry: str, method: MethodKey, task: str) -> Curve | None:
    same = (each for each in found if (each.entry, each.method, each.task_name) == (entry, method, task))
    return next(same, None)


def _range_verdict(change: Estimate | None, least: float, most: float) -> str:
    """Whether the interval of a change lies between two values; "uncertain" if only a part of it does."""
    if change is None:
        return "not measured"
    low, high = change.ends
    if least <= low and high <= most:
        return "holds"
    return "fails" if high < least or low > most else "uncertain"


def _curve_gap(left: Curve, right: Curve, multiple: float) -> Estimate | None:
    """Change of the right curve minus that of the left one (`likelihood_difference`)."""
    changes = [_document_change(curve, multiple) for curve in (left, right)]
    return likelihood_difference(changes[0], changes[1]) if changes[0] and changes[1] else None


def _document_change(curve: Curve, multiple: float) -> CurvePoint | None:
    """The point at a multiple with its documents' nats minus those at the trained length."""
    base, point = curve.at(1.0), curve.at(multiple)
    if not (base and point and base.documents and point.documents) or base.seeds.keys() != point.seeds.keys():
        return None
    before = base.documents
    documents = {
        name: (nats - before[name][0], targets)
        for name, (nats, targets) in point.documents.items()
        if name in before and before[name][1] == targets
    }
    # Each seed against itself, so that levels of seeds do not enter the spread of the change.
    seeds = {seed: after - base.seeds[seed] for seed, after in point.seeds.items()}
    return CurvePoint(point.length, multiple, None, None, seeds=seeds, documents=documents)

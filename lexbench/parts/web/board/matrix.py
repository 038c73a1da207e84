"""The board's first view: for each model and task a matrix, methods down and lengths across, and a small curve a row.

A value is coloured only where the paired test tells it from the unmodified model's on the same questions, after Holm's
correction over the matrix. Settings of a method are folded under it. Cells of fewer than `MIN_SAMPLES` questions, and
cells that are not ranked, stand among the entries alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.parts.web.board.audit import BoardEntry
from lexbench.report.grid import difference_entry
from lexbench.report.looks import name_of
from lexbench.report.titles import asked_by
from lexbench.report.wording import direction_phrase, format_ratio, format_record_value, metric_format, metric_label
from lexbench.stats import metrics
from lexbench.stats.floors import shared_limit
from lexbench.stats.metrics import display_factor
from lexbench.stats.pairs import PairedDifference, correct_by_holm, paired_difference
from lexbench.stats.same_attention import cell_functions
from lexbench.stats.tables import Place

MIN_SAMPLES = 8
"""Questions of a cell in a matrix, at least."""
CURVE_WIDTH_PIXELS, CURVE_HEIGHT_PIXELS = 96.0, 26.0
"""Pixels of a small curve."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """Entries of one task on one model: of each method and length the first of those with the most questions."""

    entries: Mapping[Place, BoardEntry]
    differences: Mapping[Place, PairedDifference]
    """Differences to the unmodified model, in the metric's own unit, where both have the same questions."""

    @property
    def lengths(self) -> list[int]:
        """All lengths, ascending."""
        return sorted({length for _, length in self.entries})

    @property
    def rows(self) -> list[list[MethodKey]]:
        """The baseline, then each method with its settings behind it, the best at the longest length first."""
        methods = list(dict.fromkeys(method for method, _ in self.entries))
        groups = group_by_key(methods, lambda method: method.bare).values()
        rows = [sorted(group, key=lambda method: (str(method) != method.bare, method)) for group in groups]
        return sorted(rows, key=lambda row: (row[0] != BASELINE_METHOD, *self._worth(row[0])))

    def _worth(self, method: MethodKey) -> tuple[int, float]:
        """Sort by the longest length with a value, then by the value there, the better side first."""
        length = max(length for each, length in self.entries if each == method)
        record = self.entries[method, length].checked.record
        return -length, -metrics.better_direction(record.metric) * (record.value or 0.0)


def matrices(entries: Sequence[BoardEntry]) -> list[Matrix]:
    """The matrix of each model, task and metric, models and tasks in the order of their entries."""
    shown = [each for each in entries if _is_shown(each)]
    found = []
    for group in group_by_key(shown, _of_matrix).values():
        best: dict[Place, BoardEntry] = {}
        for each in group:
            record = each.checked.record
            place = record.method, record.length
            if place not in best or best[place].checked.record.n < record.n:
                best[place] = each
        found.append(Matrix(best, _differences(best)))
    return found


def _is_shown(entry: BoardEntry) -> bool:
    record = entry.checked.record
    return not entry.marks and record.value is not None and record.n >= MIN_SAMPLES


def _of_matrix(entry: BoardEntry) -> tuple[object, ...]:
    record = entry.checked.record
    return record.model, record.trained_length, record.task, record.metric


def _differences(entries: Mapping[Place, BoardEntry]) -> dict[Place, PairedDifference]:
    """Each entry minus the unmodified model's at its length, corrected over the matrix."""
    found: dict[Place, PairedDifference] = {}
    functions = cell_functions(each.checked.cell for each in entries.values())
    for (method, length), each in entries.items():
        base = entries.get((BASELINE_METHOD, length))
        if method == BASELINE_METHOD or base is None or not _comparable(base, each):
            continue
        function = functions.get(each.checked.cell.id)
        if function is not None and function == functions.get(base.checked.cell.id):
            continue
        metric = each.checked.record.metric or ""
        gap = paired_difference(base.checked.outcomes, each.checked.outcomes, metric)
        if gap.first_mismatch is None and gap.difference is not None:
            sides = base.checked.record, each.checked.record
            found[method, length] = PairedDifference(**{**vars(gap), "limit": shared_limit(sides)})
    named = {at: each.checked.cell.id for at, each in entries.items()}
    return correct_by_holm(found, {at: functions[name] for at, name in named.items() if name in functions})


def _comparable(base: BoardEntry, other: BoardEntry) -> bool:
    """Whether both were asked the same in the same way."""
    one, two = base.checked, other.checked
    alike = all(getattr(one.cell, name) == getattr(two.cell, name) for name in ("backend", "dtype", "kernel"))
    return alike and one.key == two.key


def as_shown(matrix: Matrix) -> dict[str, Any]:
    """A matrix for the page's template."""
    some = next(iter(matrix.entries.values())).checked.record
    counts = sorted({each.checked.record.n for each in matrix.entries.values()})
    asked = asked_by(some.task.partition("(")[0])
    ends = _ends(matrix)
    return {
        "model": some.model,
        "trained": some.trained_length,
        "title": some.task,
        "asked": asked,
        "label": metric_label(some.metric) + direction_phrase(some.metric),
        "n": f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        "heads": [{"length": f"{at:,}", "times": format_ratio(at / some.trained_length)} for at in matrix.lengths],
        "rows": [
            {
                "name": name_of(method),
                "baseline": method == BASELINE_METHOD,
                "setting": place > 0,
                "settings": len(row) - 1 if place == 0 else 0,
                "group": f"{some.task} {some.metric} {some.model} {some.trained_length} {row[0]}",
                "curve": _curve(matrix, method, ends),
                "under": _curve(matrix, BASELINE_METHOD, ends) if method != BASELINE_METHOD else [],
                "cells": [_cell(matrix, method, length) for length in matrix.lengths],
            }
            for row in matrix.rows
            for place, method in enumerate(row)
        ],
        "compared": bool(matrix.differences),
    }


def _cell(matrix: Matrix, method: MethodKey, length: int) -> dict[str, str] | None:
    """Value and its note, with `good` or `bad` where it differs significantly from the unmodified model."""
    entry = matrix.entries.get((method, length))
    if entry is None:
        return None
    record = entry.checked.record
    metric, value = record.metric or "", format_record_value(record, record.value or 0.0)
    said = [f"{record.n} questions"]
    if record.low is not None and record.high is not None:
        said.insert(0, f"95 %: {format_record_value(record, record.low)} to {format_record_value(record, record.high)}")
    gap, side = matrix.differences.get((method, length)), ""
    if gap is not None and gap.difference is not None:
        shown = difference_entry(gap, metric_format(metric), display_factor(metric), star=bool(gap.significant))
        said.append(
            f"minus unmodified {shown.text_with_interval}{', significant' if shown.star else ', not significant'}"
        )
        if gap.significant and metrics.better_direction(metric):
            side = "good" if gap.difference * metrics.better_direction(metric) > 0 else "bad"
    return {"value": value, "side": side, "said": "; ".join(said)}


def _ends(matrix: Matrix) -> tuple[float, float]:
    """Ends of the value axis of all small curves: of scores 0 and 1; of losses up to the unmodified model's worst."""
    records = [each.checked.record for each in matrix.entries.values()]
    values = [each.value or 0.0 for each in records]
    if metrics.is_score(records[0].metric):
        return 0.0, 1.0
    base = [each.value or 0.0 for each in records if each.method == BASELINE_METHOD]
    return min(values), max(base or values)


def _curve(matrix: Matrix, method: MethodKey, ends: tuple[float, float]) -> list[str]:
    """Points of a small curve over the logarithm of the length; what is beyond the axis stays at its edge."""
    lengths = matrix.lengths
    span = math.log2(lengths[-1] / lengths[0]) or 1.0
    points = []
    for length in lengths:
        if (method, length) in matrix.entries:
            value = matrix.entries[method, length].checked.record.value or 0.0
            share = min(1.0, max(0.0, (value - ends[0]) / ((ends[1] - ends[0]) or 1.0)))
            x = 3 + (CURVE_WIDTH_PIXELS - 6) * math.log2(length / lengths[0]) / span
            points.append(f"{x:.1f},{3 + (CURVE_HEIGHT_PIXELS - 6) * (1 - share):.1f}")
    return points

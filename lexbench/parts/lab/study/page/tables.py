"""Tables of the page: values by encoding and length, shapes, and comparisons with published rows."""

from collections.abc import Sequence

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.parts.lab.study.page.beside import PublishedPair, PublishedRow, ResolutionRow
from lexbench.parts.lab.study.page.curves import Curve, CurvePoint
from lexbench.parts.lab.study.page.shapes import CurveShape, shape_of_curve, slope_per_doubling
from lexbench.report.formats import markdown_columns
from lexbench.report.wording import format_ratio
from lexbench.stats.combine import Estimate
from lexbench.stats.metrics import is_score

Notes = dict[str, int]
"""Number of each note below a table, by its text."""


def format_value(estimate: Estimate | None, metric: str) -> str:
    """A value with its interval; the metric decides the digits."""
    digits = "#.3g" if metric == "resolution" else ".2f" if is_score(metric) else ".3f"
    return _with_interval(estimate, digits) if estimate else ""


def format_change(estimate: Estimate) -> str:
    """A change with its sign and interval, in nats per token."""
    return _with_interval(estimate, "+.3f")


def _with_interval(estimate: Estimate, digits: str) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{digits}}"
    return f"{estimate.value:{digits}} [{estimate.low:{digits}}, {estimate.high:{digits}}]"


def length_table(curves: Sequence[Curve], names: Sequence[str] = ("encoding", "family")) -> list[str]:
    """A row per encoding, a column per length, and notes below; `names` are heads of the first two columns."""
    lengths = {point.length: point.multiple for curve in curves for point in curve.points}
    notes: Notes = {}
    rows = []
    for curve in curves:
        points = {point.length: point for point in curve.points}
        entries = [_point_entry(points.get(length), curve.metric, notes) for length in sorted(lengths)]
        rows.append([*(curve.entry, curve.family)[: len(names)], *entries])
    head = [*names, *(f"{format_ratio(lengths[length])} ({length})" for length in sorted(lengths))]
    below = [f"({mark}) {text}" for text, mark in notes.items()]
    return [*markdown_columns(head, rows), *(["", "  \n".join(below)] if below else [])]


def _point_entry(point: CurvePoint | None, metric: str, notes: Notes) -> str:
    if point is None:
        return ""
    if point.value is None:
        text = f"refused: {' '.join((point.refused or 'nothing scored').split())}"
        return f"refused ({notes.setdefault(text, len(notes) + 1)})"
    return format_value(point.value, metric)


def shapes_table(plain: Sequence[Curve], under: Sequence[Curve], method: MethodKey) -> list[str]:
    """The shape of each encoding's curve, without and with a method."""
    other = {curve.entry: curve for curve in under}
    rows = []
    for curve in plain:
        beside = other.get(curve.entry)
        steep = slope_per_doubling(curve)
        alone = _shape_entries(shape_of_curve(curve))
        more = _shape_entries(shape_of_curve(beside)) if beside else ["", ""]
        rows.append([curve.entry, curve.family, *alone, "" if steep is None else f"{steep:+.3f}", *more])
    head = ["encoding", "family", "shape", "change", "slope", f"shape under {method}", f"change under {method}"]
    return markdown_columns(head, rows)


def _shape_entries(found: CurveShape | None) -> list[str]:
    return (
        ["no value beyond 1x", ""]
        if found is None
        else [found.text, f"{format_change(found.change)} at {found.multiple:g}x"]
    )


def published_shapes_table(lines: Sequence[PublishedRow]) -> list[str]:
    """Published shapes and our shapes, up to the same multiple."""
    rows = []
    for line in lines:
        theirs, ours = line.theirs, line.ours
        if theirs is None or ours is None:
            continue
        data = f"{line.data}, {line.trained_length}"
        said = f"{theirs.name} ({format_change(theirs.change)} at {theirs.multiple:g}x)"
        rows.append(
            [
                line.table,
                data,
                line.printed,
                said,
                line.curve.label,
                f"{ours.text} ({format_change(ours.change)} at {ours.multiple:g}x)",
                f"{max(line.logs):g}x",
                line.agrees,
            ]
        )
    head = ["table", "data, trained length", "printed", "published shape", "ours", "our shape", "up to", "agrees"]
    return markdown_columns(head, rows)


def published_orders_table(pairs: Sequence[PublishedPair]) -> list[str]:
    """Number of pairs with the same order in ours, by published table."""
    groups = group_by_key(pairs, lambda e: (e.better.table, e.better.data, e.better.trained_length, e.multiple))
    rows = []
    for (table, data, trained, multiple), some in groups.items():
        said = [pair.verdict for pair in some]
        older = [pair.verdict for pair in some if pair.older]
        counts = [*(said.count(verdict) for verdict in VERDICTS_IN_ORDER), older.count("yes"), older.count("no")]
        rows.append([table, f"{data}, {trained}", f"{multiple:g}x", *map(str, counts)])
    return markdown_columns(
        ["table", "data, trained length", "at", *VERDICTS_IN_ORDER, "yes at 1x, too", "no at 1x, too"], rows
    )


VERDICTS_IN_ORDER = ("yes", "uncertain", "no")


def contrary_pairs_table(pairs: Sequence[PublishedPair]) -> list[str]:
    """Every pair with the reverse order in ours."""
    rows = [
        [
            f"{pair.better.table}, {pair.better.data}",
            f"{pair.multiple:g}x",
            f"{pair.better.printed} before {pair.worse.printed}",
            f"{pair.worse.curve.label} before {pair.better.curve.label}, by "
            f"{format_change(_negate_estimate(pair.difference))}",
            format_change(_negate_estimate(pair.inside)) if pair.inside else "",
        ]
        for pair in pairs
        if pair.verdict == "no"
    ]
    return markdown_columns(["table, data", "at", "published", "ours", "at 1x"], rows) if rows else []


def _negate_estimate(each: Estimate) -> Estimate:
    # The upper end becomes the lower one.
    low, high = (None if end is None else -end for end in (each.high, each.low))
    return Estimate(-each.value, low, high)


def resolution_table(rows: Sequence[ResolutionRow]) -> list[str]:
    """Attention resolution at the trained length and beyond."""
    lines = [
        [
            each.printed,
            f"{each.theirs[0]:g} to {each.theirs[1]:g}",
            each.label,
            f"{format_value(each.ours[0], 'resolution')} to {format_value(each.ours[1], 'resolution')}",
            f"{each.multiple:g}x",
            each.agrees,
        ]
        for each in rows
    ]
    return markdown_columns(["printed", "published, 1x to", "ours", "ours, 1x to", "to", "same direction"], lines)

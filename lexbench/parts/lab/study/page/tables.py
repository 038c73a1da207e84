"""Tables of the page: values by encoding and length, shapes, and comparisons with published rows."""

from collections.abc import Sequence

from lexbench.core.groups import grouped
from lexbench.core.method_key import MethodKey
from lexbench.parts.lab.study.page.beside import Line, Pair, Resolved
from lexbench.parts.lab.study.page.curves import Curve, Point
from lexbench.parts.lab.study.page.shapes import Shape, shape_of, slope
from lexbench.report.formats import columns
from lexbench.stats.combine import Estimate
from lexbench.stats.metrics import is_score
from lexbench.stats.wording import times

Notes = dict[str, int]
"""Number of each note below a table, by its text."""


def number(estimate: Estimate | None, metric: str) -> str:
    """A value with its interval; the metric decides the digits."""
    digits = "#.3g" if metric == "resolution" else ".2f" if is_score(metric) else ".3f"
    return _with_interval(estimate, digits) if estimate else ""


def signed(estimate: Estimate) -> str:
    """A change with its sign and interval, in nats per token."""
    return _with_interval(estimate, "+.3f")


def _with_interval(estimate: Estimate, digits: str) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:{digits}}"
    return f"{estimate.value:{digits}} [{estimate.low:{digits}}, {estimate.high:{digits}}]"


def by_length(curves: Sequence[Curve], names: Sequence[str] = ("encoding", "family")) -> list[str]:
    """A row per encoding, a column per length, and notes below; `names` are heads of the first two columns."""
    lengths = {point.length: point.multiple for curve in curves for point in curve.points}
    notes: Notes = {}
    rows = []
    for curve in curves:
        points = {point.length: point for point in curve.points}
        entries = [_entry(points.get(length), curve.metric, notes) for length in sorted(lengths)]
        rows.append([*(curve.entry, curve.family)[: len(names)], *entries])
    head = [*names, *(f"{times(lengths[length])} ({length})" for length in sorted(lengths))]
    below = [f"({mark}) {text}" for text, mark in notes.items()]
    return [*columns(head, rows), *(["", "  \n".join(below)] if below else [])]


def _entry(point: Point | None, metric: str, notes: Notes) -> str:
    if point is None:
        return ""
    if point.value is None:
        text = f"refused: {' '.join((point.refused or 'nothing scored').split())}"
        return f"refused ({notes.setdefault(text, len(notes) + 1)})"
    return number(point.value, metric)


def shapes(plain: Sequence[Curve], under: Sequence[Curve], method: MethodKey) -> list[str]:
    """The shape of each encoding's curve, without and with a method."""
    other = {curve.entry: curve for curve in under}
    rows = []
    for curve in plain:
        beside = other.get(curve.entry)
        steep = slope(curve)
        alone = _shape(shape_of(curve))
        more = _shape(shape_of(beside)) if beside else ["", ""]
        rows.append([curve.entry, curve.family, *alone, "" if steep is None else f"{steep:+.3f}", *more])
    head = ["encoding", "family", "shape", "change", "slope", f"shape under {method}", f"change under {method}"]
    return columns(head, rows)


def _shape(found: Shape | None) -> list[str]:
    return (
        ["no value beyond 1x", ""] if found is None else [found.text, f"{signed(found.change)} at {found.multiple:g}x"]
    )


def beside(lines: Sequence[Line]) -> list[str]:
    """Published shapes and our shapes, up to the same multiple."""
    rows = []
    for line in lines:
        theirs, ours = line.theirs, line.ours
        if theirs is None or ours is None:
            continue
        data = f"{line.data}, {line.trained_length}"
        said = f"{theirs.name} ({signed(theirs.change)} at {theirs.multiple:g}x)"
        rows.append(
            [
                line.table,
                data,
                line.printed,
                said,
                line.curve.label,
                f"{ours.text} ({signed(ours.change)} at {ours.multiple:g}x)",
                f"{max(line.logs):g}x",
                line.agrees,
            ]
        )
    head = ["table", "data, trained length", "printed", "published shape", "ours", "our shape", "up to", "agrees"]
    return columns(head, rows)


def orders(pairs: Sequence[Pair]) -> list[str]:
    """Number of pairs with the same order in ours, by published table."""
    groups = grouped(pairs, lambda e: (e.better.table, e.better.data, e.better.trained_length, e.multiple))
    rows = []
    for (table, data, trained, multiple), some in groups.items():
        said = [pair.verdict for pair in some]
        older = [pair.verdict for pair in some if pair.older]
        counts = [*(said.count(verdict) for verdict in VERDICTS), older.count("yes"), older.count("no")]
        rows.append([table, f"{data}, {trained}", f"{multiple:g}x", *map(str, counts)])
    return columns(["table", "data, trained length", "at", *VERDICTS, "yes at 1x, too", "no at 1x, too"], rows)


VERDICTS = ("yes", "uncertain", "no")


def contrary(pairs: Sequence[Pair]) -> list[str]:
    """Every pair with the reverse order in ours."""
    rows = [
        [
            f"{pair.better.table}, {pair.better.data}",
            f"{pair.multiple:g}x",
            f"{pair.better.printed} before {pair.worse.printed}",
            f"{pair.worse.curve.label} before {pair.better.curve.label}, by {signed(_negated(pair.difference))}",
            signed(_negated(pair.inside)) if pair.inside else "",
        ]
        for pair in pairs
        if pair.verdict == "no"
    ]
    return columns(["table, data", "at", "published", "ours", "at 1x"], rows) if rows else []


def _negated(each: Estimate) -> Estimate:
    # The upper end becomes the lower one.
    low, high = (None if end is None else -end for end in (each.high, each.low))
    return Estimate(-each.value, low, high)


def resolved(rows: Sequence[Resolved]) -> list[str]:
    """Attention resolution at the trained length and beyond."""
    lines = [
        [
            each.printed,
            f"{each.theirs[0]:g} to {each.theirs[1]:g}",
            each.label,
            f"{number(each.ours[0], 'resolution')} to {number(each.ours[1], 'resolution')}",
            f"{each.multiple:g}x",
            each.agrees,
        ]
        for each in rows
    ]
    return columns(["printed", "published, 1x to", "ours", "ours, 1x to", "to", "same direction"], lines)

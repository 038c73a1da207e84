"""Compares our curves with published tables by shape and order; published numbers never enter our own tables."""

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.method_key import parse_label
from lexbench.parts.lab.study.page.curves import Curve, likelihood_difference
from lexbench.parts.lab.study.page.shapes import CurveShape, shape_of_changes, shape_of_curve
from lexbench.report.leaderboard.published import PublishedNumber, PublishedTable, find_published_tables
from lexbench.stats.combine import Estimate
from lexbench.stats.metrics import is_token_loss

LENGTH_TOLERANCE_SHARE = 0.05
"""Relative tolerance of lengths: a printed length of 1012 is twice 512."""


@dataclass(frozen=True)
class PublishedRow:
    """A row of a published table on one data set, and our curve to compare with."""

    table: str
    data: str
    trained_length: int
    printed: str
    """Name in the table."""
    curve: Curve
    logs: Mapping[float, float]
    """Log of the published perplexity by multiple of the trained length; 1.0 is missing if the table lacks it."""

    @property
    def theirs(self) -> CurveShape | None:
        """The published shape; published numbers have no intervals."""
        base = self.logs.get(1.0)
        if base is None:
            return None
        return shape_of_changes({multiple: Estimate(log - base) for multiple, log in self.logs.items()})

    @property
    def ours(self) -> CurveShape | None:
        """Our shape up to the same multiple."""
        return shape_of_curve(self.curve, max(self.logs))

    @property
    def agrees(self) -> str:
        """`yes`; `perhaps`: our interval covers the published shape and another one; `other size`; `no`: our change has
        the opposite sign, and its interval excludes 0."""
        theirs, ours = self.theirs, self.ours
        if theirs is None or ours is None:
            return ""
        if ours.allows(theirs.name):
            return "perhaps" if ours.open else "yes"
        low, high = ours.change.ends
        return "no" if (low > 0 > theirs.change.value) or (high < 0 < theirs.change.value) else "other size"


def published_rows(curves: Sequence[Curve], about: Mapping[str, Any], task: str) -> list[PublishedRow]:
    """All published rows whose encoding was measured, in the order of the study."""
    ours = {
        (curve.entry, curve.method): curve for curve in curves if curve.task == task and is_token_loss(curve.metric)
    }
    rows = [row for row in about["published"] if row.get("metric", "perplexity") == "perplexity"]
    tables = _published_tables(rows)
    found = []
    for row in rows:
        curve = ours.get((row["entry"], parse_label(row.get("method", "none"))))
        if curve is not None:
            found += list(_rows_by_data_set(row, tables, curve))
    return found


def _published_tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, PublishedTable]:
    """Published tables of rows, and the tables with the rows' values at the trained length, by name."""
    names = dict.fromkeys(name for row in rows for name in (row["table"], (row.get("base") or row)["table"]))
    return {each.name: each for each in find_published_tables(list(names))}


def _rows_by_data_set(
    row: Mapping[str, Any], tables: Mapping[str, PublishedTable], curve: Curve
) -> Iterator[PublishedRow]:
    """Published rows of an entry: one for each data set and trained length."""
    groups: dict[tuple[str, int], list[PublishedNumber]] = {}
    for figure in tables[row["table"]].figures:
        if figure.method == row["printed"] and figure.trained_length and figure.length and figure.value:
            groups.setdefault((figure.dataset, figure.trained_length), []).append(figure)
    for (data, trained), figures in groups.items():
        if base := row.get("base"):  # another table has the value at the trained length
            others = tables[base["table"]].figures
            known = [f for f in others if (f.method, f.dataset, f.length) == (base["printed"], data, trained)]
            figures = [*known, *figures]
        logs = {multiple_of(f): math.log(float(f.value)) for f in figures}
        yield PublishedRow(row["table"], data, trained, row["printed"], curve, logs)


def multiple_of(figure: PublishedNumber) -> float:
    """The length as a multiple of the trained length, rounded to a power of two if that is near."""
    assert figure.length and figure.trained_length
    exact = figure.length / figure.trained_length
    power = float(2 ** round(math.log2(exact)))
    return power if abs(exact / power - 1) < LENGTH_TOLERANCE_SHARE else exact


@dataclass(frozen=True)
class PublishedPair:
    """Two rows of one published table at one multiple, and our two curves."""

    better: PublishedRow
    """Row with the lower published perplexity."""
    worse: PublishedRow
    multiple: float
    difference: Estimate
    """Our NLL of the row that is worse in the table minus that of the better row."""
    inside: Estimate | None
    """Difference as in `difference`, at the trained length."""

    @property
    def ours(self) -> Hashable:
        """Our pair of curves and the multiple, which several pairs of rows may stand beside."""
        return frozenset((self.better.curve.label, self.worse.curve.label)), self.multiple

    @property
    def verdict(self) -> str:
        """Whether our order is the same: `yes`, `no`, or `uncertain` (our interval contains 0)."""
        return sign_verdict(self.difference)

    @property
    def older(self) -> bool:
        """Whether our order is the same at the trained length."""
        return self.verdict != "uncertain" and self.inside is not None and sign_verdict(self.inside) == self.verdict


def sign_verdict(difference: Estimate) -> str:
    """`yes` for a difference above 0, `no` below, `uncertain` where its interval contains 0 or is missing."""
    low, high = difference.low, difference.high
    if low is None or high is None:
        return "uncertain"
    return "yes" if low > 0 else "no" if high < 0 else "uncertain"


def published_pairs(found: Sequence[PublishedRow]) -> list[PublishedPair]:
    """All pairs of rows of one published table with different values at a multiple beyond the trained length."""
    groups: dict[tuple[str, str, int], list[PublishedRow]] = {}
    for line in found:
        groups.setdefault((line.table, line.data, line.trained_length), []).append(line)
    made = []
    for group in groups.values():
        for one, other in itertools.combinations(group, 2):
            for multiple in sorted(one.logs.keys() & other.logs.keys()):
                pair = _build_pair(one, other, multiple)
                if multiple > 1 and pair is not None:
                    made.append(pair)
    return made


def _build_pair(one: PublishedRow, other: PublishedRow, multiple: float) -> PublishedPair | None:
    """A pair; None if we have no value, or if the published values are equal."""
    if one.logs[multiple] == other.logs[multiple]:
        return None
    better, worse = sorted((one, other), key=lambda line: line.logs[multiple])
    left, right = (line.curve.at(multiple) for line in (better, worse))
    found = likelihood_difference(left, right) if left and right else None
    first, second = (line.curve.at(1.0) for line in (better, worse))
    inside = likelihood_difference(first, second) if first and second else None
    return None if found is None else PublishedPair(better, worse, multiple, found, inside)


def verdict_of_measurement(verdicts: Iterable[tuple[Hashable, str]]) -> dict[Hashable, str]:
    """Verdict on each of our measurements; "papers differ" where two published rows give it different verdicts."""
    found: dict[Hashable, str] = {}
    for measured, verdict in verdicts:
        found[measured] = verdict if found.setdefault(measured, verdict) == verdict else "papers differ"
    return found


@dataclass(frozen=True)
class ResolutionRow:
    """Attention resolution at the trained length and beyond, published and ours."""

    printed: str
    label: str
    theirs: tuple[float, float]
    ours: tuple[Estimate, Estimate]
    change: Estimate
    """Our change, paired by document."""
    multiple: float

    @property
    def agrees(self) -> str:
        """`yes` if both rise or both fall, else `no`; `perhaps` if the interval of our change contains 0."""
        low, high = self.change.ends
        if low <= 0 <= high:
            return "perhaps"
        return "yes" if (self.theirs[1] > self.theirs[0]) == (low > 0) else "no"


def resolution_rows(curves: Sequence[Curve], about: Mapping[str, Any]) -> list[ResolutionRow]:
    """All published rows of attention resolution whose encoding was measured."""
    ours = {(curve.entry, curve.method): curve for curve in curves if curve.metric == "resolution"}
    rows = [row for row in about["published"] if row.get("metric") == "resolution"]
    tables = _published_tables(rows)
    found = []
    for row in rows:
        curve = ours.get((row["entry"], parse_label(row.get("method", "none"))))
        figures = [f for f in tables[row["table"]].figures if f.method == row["printed"] and f.value]
        by_multiple = {multiple_of(figure): float(figure.value) for figure in figures}
        upto = max(by_multiple, default=1.0)
        ends = [curve.at(multiple) if curve else None for multiple in (1.0, upto)]
        values = [end.value for end in ends if end is not None and end.value is not None]
        change = ends[1].change if ends[1] is not None else None
        if curve is not None and change is not None and len(values) == 2 and upto > 1 and 1.0 in by_multiple:
            theirs = by_multiple[1.0], by_multiple[upto]
            found.append(ResolutionRow(row["printed"], curve.label, theirs, (values[0], values[1]), change, upto))
    return found

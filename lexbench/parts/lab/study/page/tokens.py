"""Compares our token accuracy (task `repeated`) with Su's tables, by the signs of differences."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.method_key import parse_label
from lexbench.parts.lab.study.page.beside import ResolutionRow, multiple_of, sign_verdict
from lexbench.parts.lab.study.page.curves import Curve, unpaired_difference
from lexbench.parts.lab.study.page.tables import VERDICTS_IN_ORDER, format_change, format_value
from lexbench.report.formats import markdown_columns
from lexbench.report.leaderboard.published import find_published_tables
from lexbench.stats.combine import Estimate
from lexbench.stats.metrics import is_headline_score

REPEATED_TASK = "repeated"
TOKEN_ACCURACY_METRIC = "token accuracy"
"""Metric of such a row in `find_published_tables` of a study; tables print it as a percentage."""
DATA_ENDING_OF_TEXT = {"repeated": ", repeated", "other text": ", not repeated"}
"""Kinds of text, by the end of a table's data."""


@dataclass(frozen=True)
class TokenAccuracyRow(ResolutionRow):
    """A row of a table on one kind of text: accuracy at the trained length and beyond, published and ours."""

    table: str
    text: str
    seeds: Sequence[int]
    """Seeds of our model."""


@dataclass(frozen=True)
class TokenAccuracyPair:
    """Two rows of one table on one kind of text, beyond the trained length."""

    better: TokenAccuracyRow
    """The one with the higher published accuracy."""
    worse: TokenAccuracyRow
    difference: Estimate
    """Our accuracy of the better row minus that of the worse one."""

    @property
    def verdict(self) -> str:
        """Whether our order is the same: `yes`, `no`, or `uncertain` (our interval contains 0)."""
        return sign_verdict(self.difference)


def token_accuracy_rows(curves: Sequence[Curve], about: Mapping[str, Any]) -> list[TokenAccuracyRow]:
    """All rows of tables of token accuracy whose encoding was measured, on both kinds of text."""
    ours = {
        (c.entry, c.method, _kind_of_text(c)): c
        for c in curves
        if c.task_name == REPEATED_TASK and is_headline_score(c.metric)
    }
    rows = [row for row in about["published"] if row.get("metric") == TOKEN_ACCURACY_METRIC]
    known = {each.name: each for each in find_published_tables(list(dict.fromkeys(row["table"] for row in rows)))}
    found = []
    for (text, end), row in itertools.product(DATA_ENDING_OF_TEXT.items(), rows):
        curve = ours.get((row["entry"], parse_label(row.get("method", "none")), text))
        figures = [
            f
            for f in known[row["table"]].figures
            if f.method == row["printed"] and f.metric.startswith(TOKEN_ACCURACY_METRIC)
        ]
        beyond = next((f for f in figures if f.dataset.endswith(end)), None)
        first = next((f for f in figures if f.length == f.trained_length), None)
        if curve is None or beyond is None or first is None:
            continue
        points = curve.at(1.0), curve.at(multiple_of(beyond))
        values = [point.value for point in points if point is not None and point.value is not None]
        if len(values) == 2:
            theirs = float(first.value) / 100, float(beyond.value) / 100
            change = unpaired_difference(values[1], values[0])
            ends, seeds = (values[0], values[1]), sorted({seed for point in points if point for seed in point.seeds})
            found.append(
                TokenAccuracyRow(
                    row["printed"], curve.label, theirs, ends, change, multiple_of(beyond), row["table"], text, seeds
                )
            )
    return found


def _kind_of_text(curve: Curve) -> str:
    return "repeated" if curve.stated.get("repeat", True) else "other text"


def token_accuracy_pairs(found: Sequence[TokenAccuracyRow]) -> list[TokenAccuracyPair]:
    """All pairs of rows of one table and kind of text that have different published values and are not one of ours."""
    made = []
    for one, other in itertools.combinations(found, 2):
        same = (one.table, one.text, one.multiple) == (other.table, other.text, other.multiple)
        if same and one.label != other.label and one.theirs[1] != other.theirs[1]:
            better, worse = sorted((one, other), key=lambda each: -each.theirs[1])
            made.append(TokenAccuracyPair(better, worse, unpaired_difference(better.ours[1], worse.ours[1])))
    return made


def token_accuracy_table(found: Sequence[TokenAccuracyRow]) -> list[str]:
    """Accuracy at the trained length and beyond, published and ours."""
    rows = [
        [
            each.table,
            each.text,
            each.printed,
            f"{each.theirs[0]:.2f} to {each.theirs[1]:.2f}",
            each.label,
            _list_seeds(each.seeds),
            f"{format_value(each.ours[0], 'accuracy')} to {format_value(each.ours[1], 'accuracy')}",
            f"{each.multiple:g}x",
            each.agrees,
        ]
        for each in found
    ]
    head = ["table", "text", "printed", "published, 1x to", "ours", "seeds", "ours, 1x to", "to", "same direction"]
    return markdown_columns(head, rows)


def contrary_pairs(found: Sequence[TokenAccuracyPair]) -> list[str]:
    """Every pair with the reverse order in ours."""
    rows = [
        [
            f"{each.better.table}, {each.better.text}",
            f"{each.better.multiple:g}x",
            f"{each.better.printed} before {each.worse.printed}",
            f"{each.better.label} minus {each.worse.label}: {format_change(each.difference)}",
            f"{_list_seeds(each.better.seeds)}; {_list_seeds(each.worse.seeds)}",
        ]
        for each in found
        if each.verdict == "no"
    ]
    return markdown_columns(["table, text", "at", "published", "ours", "seeds"], rows) if rows else []


def _list_seeds(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def count_same_orders(found: Sequence[TokenAccuracyPair]) -> list[str]:
    """Number of pairs with the same order in ours, by table and kind of text."""
    groups: dict[tuple[str, str, float], list[str]] = {}
    for each in found:
        groups.setdefault((each.better.table, each.better.text, each.better.multiple), []).append(each.verdict)
    rows = [
        [name, text, f"{multiple:g}x", *(str(said.count(verdict)) for verdict in VERDICTS_IN_ORDER)]
        for (name, text, multiple), said in groups.items()
    ]
    return markdown_columns(["table", "text", "at", *VERDICTS_IN_ORDER], rows)

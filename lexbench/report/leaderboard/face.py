"""The first view of a leaderboard as a web page: of each model one table, and in it one row a method.

A row holds what a method brings at the longest length, loss beside keys (copied whole, reached, chosen), and its price:
what it changes in loss and in keys at the trained length, set as for the longest one. A value is coloured where the
paired test tells it from the unmodified model's on the same questions, after Holm's correction over its table; a price
in keys over the prices; a price in loss where its interval excludes 0.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Sample
from lexbench.core.text import count_with_noun
from lexbench.metrics import chosen, reached
from lexbench.report.grid import EMPTY_ENTRY, Grid, GridEntry, difference_entry, value_entry
from lexbench.report.headline import price_entry
from lexbench.report.looks import name_of
from lexbench.report.plots.over_length import better_upwards
from lexbench.report.sheet import Block, Heading, Paragraph
from lexbench.report.titles import table_caption
from lexbench.report.wording import difference_format, format_ratio, metric_label
from lexbench.stats.differences import Differences, paired_differences
from lexbench.stats.metrics import is_headline_score, is_token_loss
from lexbench.stats.summaries import SummaryValue, method_prices
from lexbench.stats.tables import Table

FACE_LEGEND = (
    "At the longest length: loss in nats per token, and by how much it is better than the unmodified model's; shares "
    "of keys copied whole, reached, chosen. Price: what the method changes at the trained length, set as for the "
    "longest one; above 0 in loss and below 0 in keys it is worse. Green and red: better and worse than the unmodified "
    "model on the same questions, after Holm's correction (a price in loss: its 95 % interval excludes 0)."
)
KEY_METRIC_NAMES = (reached.METRIC.name, chosen.METRIC.name)
"""What is shown beside keys copied whole, where it was measured."""


@dataclass(frozen=True)
class _Measured:
    """A table, with its differences to the unmodified model, above 0 where a method is better."""

    table: Table
    compared: Differences | None

    def change(self, row: MethodKey, length: int) -> GridEntry:
        """What a method changes, coloured where it is told."""
        each = self.compared.entries.get((row, length)) if self.compared else None
        if self.compared is None or each is None or each.difference is None:
            return EMPTY_ENTRY
        told = 0 if not each.significant else 1 if each.difference > 0 else -1
        shown = difference_entry(each, difference_format(self.compared), star=bool(told))
        return replace(shown, told=told)

    def value(self, row: MethodKey, length: int) -> GridEntry:
        """Its value, coloured as the change."""
        return replace(value_entry(self.table.entries.get((row, length))), told=self.change(row, length).told)

    def rows(self) -> list[MethodKey]:
        """Methods, without the rows that only price them."""
        return [row for row in self.table.methods if row not in self.table.deployed.values()]

    def worth(self, row: MethodKey, length: int) -> float:
        """Place of a method among those of the table: the smaller, the better."""
        each = self.table.entries.get((row, length))
        return math.inf if each is None or each.value is None else -self.table.better * each.value

    @property
    def name(self) -> str:
        """Head of the column of values: the metric without its explanation."""
        return metric_label(self.table.metric, self.table.cell.task_name).partition(" (")[0]


Row = Mapping[str, GridEntry]
"""Entries of a method by the heads of their columns."""
TEXT_COLUMNS, TEXT_PRICE, KEYS_PRICE = ("loss", "better by"), "price in loss", "price in keys, points"


def face_blocks(tables: Sequence[Table], samples: Mapping[str, Sequence[Sample]]) -> list[Block]:
    """A sentence on all models, and the table of each that has a loss or a task of keys, of both the first.

    `samples` are those of each cell id.
    """
    counts, grids = Counter[str](), list[Grid]()
    for group in group_by_key(tables, lambda each: each.cell.model).values():
        loss = next((each for each in group if is_token_loss(each.metric)), None)
        whole = next((each for each in group if is_headline_score(each.metric)), None)
        beside = {each.metric: each for each in group if whole and each.setting == whole.setting}
        keys = [_compare(each, samples) for each in (whole, *map(beside.get, KEY_METRIC_NAMES)) if each is not None]
        if any(BASELINE_METHOD in each.methods for each in (loss, whole) if each):
            texts = _compare(loss, samples) if loss else None
            prices = method_prices(loss, samples) if loss else {}
            rows = _rows(texts, keys, prices, _compare(_at_trained_length(whole), samples) if whole else None)
            grids.append(_grid([*([texts] if texts else []), *keys], rows))
            counts.update(fact for row, line in rows.items() if row != BASELINE_METHOD for fact in _facts(line))
    models = f" on {count_with_noun(len(grids), 'model')}" if len(grids) > 1 else ""
    said = (
        f"Of {count_with_noun(counts['method'], 'method')}{models}, better than the unmodified model at the longest "
        f"length: {counts['text']} in text, {counts['keys']} in keys, {counts['both']} in both; with a price at the "
        f"trained length, set as for the longest: {counts['price']}."
    )
    return [Paragraph(said), *grids, Paragraph(FACE_LEGEND), Heading("By length")] if grids else []


def _compare(table: Table, samples: Mapping[str, Sequence[Sample]]) -> _Measured:
    found = paired_differences(table, samples)
    return _Measured(table, found and better_upwards(found))


def _at_trained_length(table: Table) -> Table:
    """The table of prices: each method set as for its longest length, at the longest length within the trained one."""
    at = max((length for length in table.lengths if length <= table.cell.trained_length), default=0)
    known = {**table.prices, **table.entries}
    rows = {row: table.deployed.get(row, row) for row in table.methods}
    entries = {(row, at): replace(known[to, at], method=row) for row, to in rows.items() if (to, at) in known}
    return replace(table, entries=entries, lengths=[at])


def _facts(line: Row) -> Iterator[str]:
    """What is told of a method: that it predicts text better, finds more keys, both, has a price."""
    text = line.get(TEXT_COLUMNS[1], EMPTY_ENTRY).told > 0
    keys = any(each.told > 0 for head, each in line.items() if head not in (*TEXT_COLUMNS, TEXT_PRICE, KEYS_PRICE))
    price = any(line.get(head, EMPTY_ENTRY).told < 0 for head in (TEXT_PRICE, KEYS_PRICE))
    facts = {"method": True, "text": text, "keys": keys, "both": text and keys, "price": price}
    yield from (name for name, holds in facts.items() if holds)


def _rows(
    texts: _Measured | None,
    keys: Sequence[_Measured],
    prices: Mapping[MethodKey, SummaryValue],
    keys_inside: _Measured | None,
) -> dict[MethodKey, Row]:
    """Entries of each method, the unmodified model first, then by keys and by loss."""
    measured = [*keys, *([texts] if texts else [])]
    records = [each for one in measured for each in one.table.entries.values() if each.value is not None]
    longest = max((each.length for each in records), default=0)
    rows: dict[MethodKey, dict[str, GridEntry]] = {}
    for row in dict.fromkeys(row for each in measured for row in each.rows()):
        line = rows[row] = {}
        if texts:
            line |= zip(TEXT_COLUMNS, (texts.value(row, longest), texts.change(row, longest)), strict=True)
        line |= {each.name: each.value(row, longest) for each in keys}
        if texts:
            line[TEXT_PRICE] = _price(prices.get(row)) if row != BASELINE_METHOD else EMPTY_ENTRY
        if keys_inside:
            line[KEYS_PRICE] = keys_inside.change(row, keys_inside.table.lengths[0])
    worth = {row: [each.worth(row, longest) for each in measured] for row in rows}
    return {row: rows[row] for row in sorted(rows, key=lambda row: (row != BASELINE_METHOD, worth[row]))}


def _price(each: SummaryValue | None) -> GridEntry:
    """A price in loss, red where its interval is above 0, green where it is below."""
    shown = price_entry(each)
    if each is None or each.low is None or each.high is None:
        return shown
    return replace(shown, told=-1 if each.low > 0 else 1 if each.high < 0 else 0)


def _grid(measured: Sequence[_Measured], rows: Mapping[MethodKey, Row]) -> Grid:
    cell = measured[0].table.cell
    longest = max(each.length for one in measured for each in one.table.entries.values() if each.value is not None)
    head = list(next(iter(rows.values())))
    settings = {one.table.setting: one.table for one in measured}.values()
    return Grid(
        title=f"{cell.model} at {longest:,} tokens, {format_ratio(longest / cell.trained_length)} its trained length",
        head=["method", *head],
        rows=[[name_of(row), *line.values()] for row, line in rows.items()],
        below=[f"{each.cell.task}: {'. '.join(table_caption(each).splitlines())}." for each in settings],
    )

"""Plain data for the page's charts and tables: values, intervals, depths, paired differences."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record, Sample
from lexbench.report import looks
from lexbench.report.grid import difference_entry, value_entry
from lexbench.report.leaderboard import best
from lexbench.report.notes import SAME_ATTENTION_WORDS, coverage_sentences, note_text, value_notes
from lexbench.report.plots.heatmaps import depth_strata
from lexbench.report.plots.over_length import floor_name, visible_floors
from lexbench.report.select import TABLES_REMEDY, left_out_sentence, tables_to_show
from lexbench.report.titles import asked_by, differences_in_brackets, table_caption
from lexbench.report.wording import metric_format, metric_label
from lexbench.stats import differences
from lexbench.stats.combine import shared_lengths
from lexbench.stats.floors import NGRAM_FLOOR_NAMES, at_floor
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.tables import Place, Table, build_tables
from lexbench.store.format import FinishedCell

CHART_DIGITS = 6
"""Significant digits of numbers for charts; texts are rounded separately."""


@dataclass(frozen=True, eq=False)
class PageData:
    """Data of the page: tables, the samples of each cell id, and paired differences by the name of their table."""

    tables: Sequence[Table]
    samples: Mapping[str, Sequence[Sample]]
    paired: Mapping[str, differences.Differences]
    left_out: str = ""
    """Line with the number of tables that are not shown, and the way to have them."""

    @classmethod
    def of(
        cls, finished: Sequence[FinishedCell], highlight: Collection[str] = (), most: int | None = None
    ) -> "PageData":
        """Build the page's data; differences are to the method `none`.

        Args:
            finished: all cells.
            highlight: names of methods to show always.
            most: tables to show, as in `tables_to_show`.
        """
        samples = samples_by_cell(finished)
        whole = build_tables(finished, highlight)
        every = tables_to_show(whole, len(finished), most)
        compared = {table.name: differences.paired_differences(table, samples) for table in every}
        paired = {name: found for name, found in compared.items() if found is not None}
        return cls(every, samples, paired, left_out_sentence(whole, every, TABLES_REMEDY))

    def shown_cells(self, finished: Sequence[FinishedCell]) -> list[FinishedCell]:
        """Cells that the tables show."""
        if not self.left_out:
            return list(finished)
        shown = {record.cell for table in self.tables for record in (*table.entries.values(), *table.prices.values())}
        return [each for each in finished if each.cell.id in shown]

    @property
    def settings(self) -> list[list[Table]]:
        """Tables of one setting together: one task and model, and all else that they share; metrics in order.

        Likelihoods, which have the headline, come first.
        """
        groups = group_by_key(self.tables, lambda table: table.setting).values()
        return sorted(groups, key=lambda group: not is_token_loss(group[0].metric))

    def name(self, table: Table) -> str:
        """A setting's name: the task, and what tells it from the others."""
        several = len({table.cell.model for table in self.tables}) > 1
        model = f" on {table.cell.model}" if several else ""
        return f"{table.cell.task}{model}{differences_in_brackets(table)}"


def settings_data(measured: PageData) -> list[dict[str, Any]]:
    """Each setting with its metrics; methods and lengths are indexes into the setting's lists."""
    return [_setting_data(measured, group) for group in measured.settings]


def _setting_data(measured: PageData, group: Sequence[Table]) -> dict[str, Any]:
    table = group[0]
    protocol, rest = table_caption(table).split("\n", 1)
    return {
        "id": table.setting,
        "label": measured.name(table),
        "asks": asked_by(table.cell.task_name),
        "protocol": protocol,
        "about": rest,
        "trained": table.cell.trained_length,
        "lengths": table.lengths,
        "methods": list(map(str, table.methods)),
        "looks": [method_look(each) for each in looks.looks_of_methods(table.methods, table.highlight).values()],
        "cells": [_cell_data(measured, table, place, record) for place, record in table.entries.items()],
        "metrics": [_metric_data(measured, each) for each in group],
    }


def method_look(shown: looks.Look) -> dict[str, Any]:
    """Look of a method for the page's script; dashes in pixels, for a line two pixels wide."""
    dash = ",".join(f"{2 * part:g}px" for part in looks.DASH_PATTERNS[shown.dash]) or "solid"
    about = {"hue": shown.tone, "mark": shown.marker, "hollow": shown.hollow, "front": shown.front}
    return {**about, "dash": dash, "family": shown.family}


def _cell_data(measured: PageData, table: Table, place: Place, record: Record) -> dict[str, Any]:
    found = {**_cell_place(table, *place), "id": record.cell, "samples": len(measured.samples.get(record.cell, ()))}
    return {**found, "refused": record.refused} if record.refused else found


def _cell_place(table: Table, method: MethodKey, length: int) -> dict[str, int]:
    return {"method": table.methods.index(method), "length": table.lengths.index(length)}


def _metric_data(measured: PageData, table: Table) -> dict[str, Any]:
    """One metric of a setting."""
    levels = visible_floors(table)
    known = places(table, measured.samples)
    return {
        "metric": table.metric,
        "label": metric_label(table.metric, table.cell.task_name),
        "better": table.better,
        "scored": table.scored,
        "ranked": [table.methods.index(method) for method in rank_methods(table)],
        "ranking": ranking_measure(table),
        "floor": floor_name(table),
        "chance": [round_for_charts(levels.get(length)) for length in table.lengths],
        "floors": _floors_by_length(table),
        "values": [
            {
                **_cell_place(table, *place),
                **_value_data(table, record),
                **({"place": known[place]} if place in known else {}),
            }
            for place, record in table.entries.items()
        ],
        "depths": list(_depth_strata(table, measured.samples)),
        "paired": _paired_data(measured.paired.get(table.name)),
    }


def places(table: Table, samples: Mapping[str, Sequence[Sample]]) -> dict[Place, str]:
    """`1st`, `tied` or `behind` of each method at each length, by the paired test against the best one there."""
    found: dict[Place, str] = {}
    for length in table.lengths:
        shown = {each.method: each for each in table.at(length) if each.value is not None}
        rows = {method: [record] for method, record in shown.items()}
        marks = best.mark_best_rows(rows, shown, samples, table.attentions)
        for method, mark in marks.items():
            word = "1st" if mark.best else "tied" if mark.level else "behind" if mark.behind else None
            if word is not None:
                found[method, length] = word
    return found


def _floors_by_length(table: Table) -> dict[str, list[float | None]]:
    """Uniform, unigram and bigram floors at each length, where known."""
    found = {
        name: [
            next(
                (round_for_charts(level) for each in table.at(length) if (level := getattr(each, name)) is not None),
                None,
            )
            for length in table.lengths
        ]
        for name in NGRAM_FLOOR_NAMES
    }
    return {name: levels for name, levels in found.items() if any(level is not None for level in levels)}


def lengths_past_trained(table: Table) -> list[int]:
    """The lengths beyond the trained one at which every method has a value."""
    return [length for length in shared_lengths(table) if length > table.cell.trained_length]


def rank_methods(table: Table) -> list[MethodKey]:
    """Methods, the best mean past the trained length first, over lengths that all share; those without values last.

    Where no such length lies past it, the mean over all shared lengths; where no side is better, the table's order.
    """
    if not table.better:
        return table.methods
    lengths = lengths_past_trained(table) or shared_lengths(table)

    def worth(method: MethodKey) -> tuple[bool, float]:
        known = {record.length: record.value for record in table.of(method) if record.value is not None}
        values = [known[length] for length in lengths if length in known]
        return not known, -table.better * math.fsum(values) / max(len(values), 1)

    return sorted(table.methods, key=worth)


def ranking_measure(table: Table) -> str | None:
    """Measure by which `rank_methods` ranks, in words; None where no side is better."""
    if not table.better:
        return None
    return (
        "the mean past the trained length"
        if lengths_past_trained(table)
        else "the mean over the lengths that all share"
    )


def _value_data(table: Table, record: Record) -> dict[str, Any]:
    notes = [*value_notes(record, table.cell.n)]
    if record.truncated:
        notes.append(f"{record.truncated} of {record.n} samples truncated")
    numbers = {side: round_for_charts(getattr(record, side)) for side in ("value", "low", "high")}
    if at_floor(record):
        notes.append("at its floor")
    found = {**numbers, "n": record.n, "clusters": record.clusters, "text": value_entry(record).text_with_interval}
    return {**found, "notes": notes} if notes else found


def round_for_charts(value: float | None) -> float | None:
    """Round to the digits that charts need."""
    return None if value is None else float(f"{value:.{CHART_DIGITS}g}")


def _depth_strata(table: Table, samples: Mapping[str, Sequence[Sample]]) -> Iterator[dict[str, Any]]:
    """Strata of depth, from the start to the end of the text, of each method and length."""
    strata: dict[Place, list[list[float | None]]] = {}
    for each in depth_strata(table, samples):
        ends = (each.interval.low, each.interval.high) if each.interval else (None, None)
        row = [each.n, *map(round_for_charts, (each.value, *ends))]
        strata.setdefault((each.method, each.length), []).append(row)
    for place, rows in strata.items():
        if any(row[0] for row in rows):
            yield {**_cell_place(table, *place), "strata": rows}


def _paired_data(found: differences.Differences | None) -> dict[str, Any] | None:
    """Paired differences to the baseline."""
    if found is None:
        return None
    table = found.table
    rows = [{**_cell_place(table, *place), **_difference_data(table, each)} for place, each in found.entries.items()]
    coverage = list(coverage_sentences(found))
    return {"baseline": str(found.baseline), "unit": found.unit, "coverage": coverage, "rows": rows}


def _difference_data(table: Table, each: differences.Difference) -> dict[str, Any]:
    """A difference as it is read; or why there is none."""
    if each.same_attention:
        return {"text": SAME_ATTENTION_WORDS}
    if each.difference is None:
        why = f"refused: {each.refused}" if each.refused else each.apart and note_text(each.apart)
        return {"text": "refused" if each.refused else "no pairs", "why": why}
    shown = difference_entry(each, metric_format(table.metric or ""))
    row: dict[str, Any] = {
        "value": round_for_charts(each.difference),
        "text": shown.text,
        "pairs": each.pairs,
        "clusters": each.clusters,
        "significant": each.significant,
        "low": round_for_charts(each.low),
        "high": round_for_charts(each.high),
    }
    if each.limit:
        row["limit"] = note_text(each.limit)
    if shown.ends:
        row["interval"] = shown.interval
    if each.p is not None and each.p_holm is not None:
        row["p"] = f"p {each.p:.2g}, {each.p_holm:.2g} after Holm's correction"
    dropped = {"failed": each.failed, "truncated": each.truncated, "unpaired": each.unpaired}
    return row | {word: count for word, count in dropped.items() if count}

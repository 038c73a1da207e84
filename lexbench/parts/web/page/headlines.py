"""Summary at the top: what context beyond the trained length adds; then the best methods of each task."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record
from lexbench.parts.web.page.data import PageData, lengths_past_trained, rank_methods
from lexbench.report import looks
from lexbench.report.grid import EMPTY_ENTRY, GridEntry, difference_entry, interval_texts, value_entry
from lexbench.report.headline import (
    first_sentences,
    gains_are_over_baseline,
    grid_of_headline,
    headline_sentence,
    headline_sentences,
)
from lexbench.report.leaderboard import best
from lexbench.report.notes import language_sentences, notes_text, why_all_alike
from lexbench.report.plots.first_screen import key_tables
from lexbench.report.wording import format_ratio, format_signed, metric_format, metric_label
from lexbench.stats import headline
from lexbench.stats.combine import shared_lengths
from lexbench.stats.floors import language_not_learned
from lexbench.stats.summaries import SummaryValue, curve_summaries
from lexbench.stats.tables import Table

N_BEST_METHODS = 3
"""Methods besides the baseline and the reader's own."""
MAX_NAMED_METHODS = 6
"""Methods named in a sentence; further ones are counted."""
MEANING_OF_COLUMN = {
    "brackets": "95 % intervals: over resampled documents or haystacks, or Wilson's for independent answers that are "
    "right or wrong",
    "gain": "loss of the unmodified model at the longest length within the trained one, minus loss of the method at "
    "the longest length, on the same targets; * significant after correction for the number of methods, and better "
    "than counting words. A window that forgets keeps its level and gains nothing",
    "NLL": "loss in nats per token, lower is better",
    "retrieval": "share of the hidden keys that are found",
    "price": "how much worse texts within the trained length get when the method is set up for the longest length, as "
    "a deployment is; price at factor 8: with the factor of eight times the trained length",
    "mean past": "of the values at the lengths beyond the trained one that all methods have; the best is bold",
    "at": "the value at the longest length",
    "minus unmodified": "the method minus the unmodified model, on the same questions; * significant after correction "
    "for the number of methods and lengths of the task",
    "effective_length": "the largest up to which every measured length is within 0.1 nats, or 15 points, of the "
    "unmodified model at its best",
    "collapse": "the length from which on every measured one is more than 0.5 nats worse than that, or keeps less than "
    "half of its score above chance; brackets of both lengths are left out where their ends are the value itself",
    "tied": "for the best, everywhere the same: not significant in a paired test on the same questions, after "
    "correction for the number of methods",
    "floor": "the chance of a score; of a loss the best of guessing and of counting words or word pairs, on the same "
    "targets. A value whose interval reaches it is never the best, no difference between two such values is starred",
}
"""Meaning of each column, for its hover and for the legend."""
COLUMN_HEAD_OF_SUMMARY = {
    "price": "price up to {trained}",
    "effective_length": "effective length",
    "collapse": "collapse from",
}
"""Names of summaries, and the heads of their columns."""


def context_headlines(measured: PageData) -> Iterator[dict[str, Any]]:
    """Tables of every method's gain from context beyond the trained length, level, retrieval and price, as data."""
    for found in headline.build_headlines(measured.tables, measured.samples):
        grid = grid_of_headline(found)
        units = {"gain": f"over {'unmodified' if gains_are_over_baseline(found) else 'itself'}", "NLL": "\u2193 better"}
        units |= {"retrieval": "accuracy"} if len(grid.head) == 5 else {}
        units |= {"price": f"set up for {found.longest:,}"}
        yield {
            "id": found.table.setting,
            "name": f"Context beyond {found.table.cell.trained_length:,} tokens: {measured.name(found.table)}",
            "label": metric_label(found.table.metric, found.table.cell.task_name),
            "side": "gain: \u2191 better",
            "lead": _lead(measured, found),
            "sentence": headline_sentence(found),
            "methods": len(found.rows),
            "more": 0,
            "columns": [
                {"head": head, "unit": unit, "means": MEANING_OF_COLUMN[term]}
                for head, (term, unit) in zip(grid.head[1:], units.items(), strict=True)
            ],
            "rows": [
                {
                    "method": looks.name_of(row.method),
                    "baseline": row.method == BASELINE_METHOD,
                    "entries": [
                        entry if isinstance(entry, GridEntry) else GridEntry(text=str(entry)) for entry in entries
                    ],
                }
                for row, (_, *entries) in zip(found.rows, grid.rows, strict=True)
            ],
            "notes": [remark.rstrip(".") for remark in grid.remarks[1:]],
        }


def _lead(measured: PageData, found: headline.Headline) -> str:
    """What the first chart shows, as the report says it; the headline where there is nothing to compare with."""
    compared, keys = measured.paired.get(found.table.name), key_tables(found, measured.tables)
    if compared is None or compared.empty:
        return headline_sentences(found)[0]
    return " ".join(first_sentences(found, compared, keys))


def metric_headlines(measured: PageData) -> Iterator[dict[str, Any]]:
    """The first metric of each setting, if one direction is better."""
    for table, *_ in measured.settings:
        if table.metric is not None and table.better and _has_value(table):
            yield _metric_headline(measured, table)


def _has_value(table: Table) -> bool:
    return any(record.metric == table.metric and record.value is not None for record in table.entries.values())


def _metric_headline(measured: PageData, table: Table) -> dict[str, Any]:
    order = [method for method in rank_methods(table) if any(record.value is not None for record in table.of(method))]
    own = looks.readers_own_methods(order, table.highlight)
    rows = order[:N_BEST_METHODS] + [method for method in own if method not in order[:N_BEST_METHODS]]
    rows += [BASELINE_METHOD] if BASELINE_METHOD in table.methods and BASELINE_METHOD not in rows else []
    means, marks = _means_and_marks(measured, table, order)
    said = {(each.name, each.method): each for each in curve_summaries(_restrict_table(table, rows), measured.samples)}
    columns = [*_value_columns(measured, table, rows, means, marks), *_summary_columns(table, rows, said)]
    why = dict.fromkeys(
        notes_text(said[name, row].notes)
        for name in COLUMN_HEAD_OF_SUMMARY
        for row in rows
        if (name, row) in said and said[name, row].value is None
    )
    said_first = _headline_sentence(table, means, marks)
    return {
        "id": table.setting,
        "name": measured.name(table),
        "label": metric_label(table.metric, table.cell.task_name),
        "side": "\u2191 better" if table.better > 0 else "\u2193 better",
        "lead": said_first,
        "sentence": said_first,
        "methods": len(table.methods),
        "more": len(table.methods) - len(rows),
        "columns": [{"head": head, "unit": unit, "means": MEANING_OF_COLUMN[term]} for term, head, unit, _ in columns],
        "rows": [
            {
                "method": looks.name_of(row),
                "baseline": row == BASELINE_METHOD,
                "entries": [entries.get(row, EMPTY_ENTRY) for *_, entries in columns],
            }
            for row in rows
        ],
        "notes": list(why),
    }


def _restrict_table(table: Table, rows: Sequence[MethodKey]) -> Table:
    """The table of some methods alone, where that changes no summary of theirs: averages go over the same lengths."""
    kept = [method for method in table.methods if method in rows]
    few = replace(table, methods=kept, entries={at: each for at, each in table.entries.items() if at[0] in rows})
    return few if shared_lengths(few) == shared_lengths(table) else table


Means = dict[MethodKey, Record]
Marks = dict[MethodKey, best.RowMark]
Column = tuple[str, str, str, dict[MethodKey, GridEntry]]
"""Name (a key of `MEANING_OF_COLUMN`), head, unit, and the entry of each method."""


def _means_and_marks(measured: PageData, table: Table, order: Sequence[MethodKey]) -> tuple[Means, Marks]:
    """Mean of each method past the trained length, and its mark beside the best."""
    lengths = lengths_past_trained(table)
    if not lengths:
        return {}, {}
    rows = {method: [table.entries[method, length] for length in lengths] for method in order}
    means = {method: best.mean_record(records, measured.samples) for method, records in rows.items()}
    return means, best.mark_best_rows(rows, means, measured.samples, table.attentions)


def _value_columns(
    measured: PageData, table: Table, rows: Sequence[MethodKey], means: Means, marks: Marks
) -> Iterator[Column]:
    """Values: the mean past the trained length, that of the longest length, and its difference to the baseline."""
    trained, longest = table.cell.trained_length, table.lengths[-1]
    lengths = lengths_past_trained(table)
    if len(lengths) > 1:
        ends = f"{lengths[0]:,} to {lengths[-1]:,}, {len(lengths)} lengths"
        best = {row: marks[row].best for row in rows if row in marks}
        yield (
            "mean past",
            f"mean past {trained:,}",
            ends,
            {row: replace(value_entry(means[row]), best=best.get(row, False)) for row in rows},
        )
    records = {row: table.entries.get((row, longest)) for row in rows}
    yield (
        "at",
        f"at {longest:,}",
        f"{format_ratio(longest / trained)} the trained length",
        {row: value_entry(record) for row, record in records.items() if record is not None},
    )
    paired = measured.paired.get(table.name)
    if paired is not None:
        gaps = {row: paired.entries[row, longest] for row in rows if (row, longest) in paired.entries}
        yield (
            "minus unmodified",
            "minus unmodified",
            f"{paired.unit}, at {longest:,}",
            {
                row: difference_entry(each, metric_format(table.metric or ""), star=bool(each.significant))
                for row, each in gaps.items()
                if each.difference is not None
            },
        )


def _summary_columns(
    table: Table, rows: Sequence[MethodKey], said: dict[tuple[str, MethodKey], SummaryValue]
) -> Iterator[Column]:
    """Sum up the curve of a method."""
    for name, head in COLUMN_HEAD_OF_SUMMARY.items():
        known = {row: said[name, row] for row in rows if (name, row) in said and said[name, row].value is not None}
        if not known:
            continue
        unit = next(iter(known.values())).unit
        if unit == "tokens":
            entries = {row: _length_entry(each, table.lengths[-1]) for row, each in known.items()}
        else:
            entries = {row: _signed_entry(each, metric_format(table.metric or "")) for row, each in known.items()}
        if name == "price":
            entries.pop(BASELINE_METHOD, None)
            unit = f"{unit}, minus unmodified"
        yield name, head.format(trained=f"{table.cell.trained_length:,}"), unit, entries


def _length_entry(each: SummaryValue, longest: int) -> GridEntry:
    """A length; brackets where the ends differ.

    An infinite one is `never`, or lies beyond the last length with a value, where longer ones were refused or failed.
    """

    def at(value: float) -> str:
        if math.isinf(value):
            if each.name == "collapse":
                return "never" if each.limit == longest else f"> {each.limit:,}"
            return f"\u2265 {each.limit:,}"
        return f"{value:,.0f}"

    value, low, high = (end if end is None else at(end) for end in (each.value, each.low, each.high))
    if low is None or high is None:
        return GridEntry(text=value or "", more="no interval")
    alone = each.low == each.high == each.value
    return GridEntry(text=value or "", ends=None if alone else (low, high))


def _signed_entry(each: SummaryValue, places: str) -> GridEntry:
    """A difference with its sign and interval."""
    ends = interval_texts(each.low, each.high, lambda end: format_signed(end, places))
    return GridEntry(text=format_signed(each.value or 0.0, places), ends=ends)


def _headline_sentence(table: Table, means: Means, marks: Marks) -> str:
    """A sentence on the best method, the methods that tie with it statistically, and the baseline."""
    if silent := language_not_learned(table.of(table.methods[0])):
        return language_sentences(silent)
    best = [method for method, mark in marks.items() if mark.best]
    if not best:
        why = why_all_alike(list(means.values()), "method")
        past = f"Past {table.cell.trained_length:,} tokens no method can be told from another"
        return f"{past}: {why}." if why else ""
    level = [method for method, mark in marks.items() if mark.level]
    several = f"{'has' if len(best) == 1 else 'share'} the {'highest' if table.better > 0 else 'lowest'} mean"
    first = value_entry(means[best[0]]).text_with_interval
    told = [f"{_list_methods(best)} {several} past {table.cell.trained_length:,} tokens, {first}"]
    if BASELINE_METHOD in means and BASELINE_METHOD not in best:
        told.append(f"where the unmodified model has {value_entry(means[BASELINE_METHOD]).text_with_interval}")
    said = ", ".join(told)
    if level and len(best) + len(level) == len(marks):
        return f"{said}; all others are tied with it."
    if level:
        return f"{said}; tied with it: {_list_methods(level)}."
    worse = all(mark.best or mark.behind for mark in marks.values())
    return f"{said}; every other method is significantly worse." if worse else f"{said}."


def _list_methods(methods: Sequence[MethodKey]) -> str:
    more = f" and {len(methods) - MAX_NAMED_METHODS} more" if len(methods) > MAX_NAMED_METHODS else ""
    return ", ".join(map(looks.name_of, methods[:MAX_NAMED_METHODS])) + more

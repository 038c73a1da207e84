"""Summary at the top: what context beyond the trained length adds; then the best methods of each task."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lexbench.core.method_key import BASELINE, MethodKey
from lexbench.core.record import Record
from lexbench.parts.web.page.data import Measured, past, ranked, text
from lexbench.report import looks
from lexbench.report.grid import EMPTY, Entry, difference_entry, ends_of, value_entry
from lexbench.report.headline import grid_of, over_none
from lexbench.report.leaderboard import best
from lexbench.stats import headline
from lexbench.stats.combine import shared_lengths
from lexbench.stats.floors import all_alike, unspoken
from lexbench.stats.intervals import LEVEL
from lexbench.stats.summaries import Summary, summaries
from lexbench.stats.tables import Table
from lexbench.stats.wording import digits, signed, times

BEST = 3
"""Methods besides the baseline and the reader's own."""
NAMED = 6
"""Methods named in a sentence; further ones are counted."""
TERMS = {
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
SUMMARIES = {"price": "price up to {trained}", "effective_length": "effective length", "collapse": "collapse from"}
"""Names of summaries, and the heads of their columns."""


def beyond(measured: Measured) -> Iterator[dict[str, Any]]:
    """What context beyond the trained length adds, beside level, retrieval and price, of every method."""
    for found in headline.headlines(measured.tables, measured.samples):
        grid = grid_of(found)
        units = {"gain": f"over {'unmodified' if over_none(found) else 'itself'}", "NLL": "\u2193 better"}
        units |= {"retrieval": "accuracy"} if len(grid.head) == 5 else {}
        units |= {"price": f"set up for {found.longest:,}"}
        yield {
            "id": found.table.setting,
            "name": f"Context beyond {found.table.cell.trained_length:,} tokens: {measured.name(found.table)}",
            "label": found.table.label,
            "side": "gain: \u2191 better",
            "lead": found.sentences[0],
            "sentence": found.sentence,
            "methods": len(found.rows),
            "more": 0,
            "columns": [
                {"head": head, "unit": unit, "means": TERMS[term]}
                for head, (term, unit) in zip(grid.head[1:], units.items(), strict=True)
            ],
            "rows": [
                {
                    "method": looks.name_of(row.method),
                    "baseline": row.method == BASELINE,
                    "entries": [entry if isinstance(entry, Entry) else Entry(text=str(entry)) for entry in entries],
                }
                for row, (_, *entries) in zip(found.rows, grid.rows, strict=True)
            ],
            "notes": [remark.rstrip(".") for remark in grid.remarks[1:]],
        }


def headlines(measured: Measured) -> Iterator[dict[str, Any]]:
    """The first metric of each setting, if one direction is better."""
    for table, *_ in measured.settings:
        if table.metric is not None and table.better and _valued(table):
            yield _headline(measured, table)


def _valued(table: Table) -> bool:
    return any(record.metric == table.metric and record.value is not None for record in table.entries.values())


def _headline(measured: Measured, table: Table) -> dict[str, Any]:
    order = [method for method in ranked(table) if any(record.value is not None for record in table.of(method))]
    own = looks.own_of(order, table.highlight)
    rows = order[:BEST] + [method for method in own if method not in order[:BEST]]
    rows += [BASELINE] if BASELINE in table.methods and BASELINE not in rows else []
    means, marks = _means(measured, table, order)
    said = {(each.name, each.method): each for each in summaries(_few(table, rows), measured.samples)}
    columns = [*_levels(measured, table, rows, means, marks), *_summed(table, rows, said)]
    why = dict.fromkeys(
        said[name, row].note
        for name in SUMMARIES
        for row in rows
        if (name, row) in said and said[name, row].value is None
    )
    said_first = _sentence(table, means, marks)
    return {
        "id": table.setting,
        "name": measured.name(table),
        "label": table.label,
        "side": "\u2191 better" if table.better > 0 else "\u2193 better",
        "lead": said_first,
        "sentence": said_first,
        "methods": len(table.methods),
        "more": len(table.methods) - len(rows),
        "columns": [{"head": head, "unit": unit, "means": TERMS[term]} for term, head, unit, _ in columns],
        "rows": [
            {
                "method": looks.name_of(row),
                "baseline": row == BASELINE,
                "entries": [entries.get(row, EMPTY) for *_, entries in columns],
            }
            for row in rows
        ],
        "notes": list(why),
    }


def _few(table: Table, rows: Sequence[MethodKey]) -> Table:
    """The table of some methods alone, where that changes no summary of theirs: averages go over the same lengths."""
    kept = [method for method in table.methods if method in rows]
    few = replace(table, methods=kept, entries={at: each for at, each in table.entries.items() if at[0] in rows})
    return few if shared_lengths(few) == shared_lengths(table) else table


Means = dict[MethodKey, Record]
Marks = dict[MethodKey, best.Mark]
Column = tuple[str, str, str, dict[MethodKey, Entry]]
"""One of `TERMS`, head, unit, and the entry of each method."""


def _means(measured: Measured, table: Table, order: Sequence[MethodKey]) -> tuple[Means, Marks]:
    """Mean of each method past the trained length, and its mark beside the best."""
    lengths = past(table)
    if not lengths:
        return {}, {}
    rows = {method: [table.entries[method, length] for length in lengths] for method in order}
    means = {method: best.mean(records, measured.samples) for method, records in rows.items()}
    return means, best.marks(rows, means, measured.samples)


def _levels(
    measured: Measured, table: Table, rows: Sequence[MethodKey], means: Means, marks: Marks
) -> Iterator[Column]:
    """Values: the mean past the trained length, that of the longest length, and its difference to the baseline."""
    trained, longest = table.cell.trained_length, table.lengths[-1]
    lengths = past(table)
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
        f"{times(longest / trained)} the trained length",
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
                row: difference_entry(each, digits(table.metric or ""), star=bool(each.significant))
                for row, each in gaps.items()
                if each.difference is not None
            },
        )


def _summed(table: Table, rows: Sequence[MethodKey], said: dict[tuple[str, MethodKey], Summary]) -> Iterator[Column]:
    """Sum up the curve of a method."""
    for name, head in SUMMARIES.items():
        known = {row: said[name, row] for row in rows if (name, row) in said and said[name, row].value is not None}
        if not known:
            continue
        unit = next(iter(known.values())).unit
        if unit == "tokens":
            entries = {row: _tokens(each, table.lengths[-1]) for row, each in known.items()}
        else:
            entries = {row: _change(each, digits(table.metric or "")) for row, each in known.items()}
        if name == "price":
            entries.pop(BASELINE, None)
            unit = f"{unit}, minus unmodified"
        yield name, head.format(trained=f"{table.cell.trained_length:,}"), unit, entries


def _tokens(each: Summary, longest: int) -> Entry:
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
        return Entry(text=value or "", more="no interval")
    alone = each.low == each.high == each.value
    return Entry(text=value or "", ends=None if alone else (low, high))


def _change(each: Summary, places: str) -> Entry:
    """A difference with its sign and interval."""
    ends = ends_of(each.low, each.high, lambda end: signed(end, places))
    return Entry(text=signed(each.value or 0.0, places), ends=ends)


def _sentence(table: Table, means: Means, marks: Marks) -> str:
    """A sentence on the best method, the methods that tie with it statistically, and the baseline."""
    if silent := unspoken(table.of(table.methods[0])):
        return silent
    best = [method for method, mark in marks.items() if mark.best]
    if not best:
        why = all_alike(list(means.values()), "method")
        past = f"Past {table.cell.trained_length:,} tokens no method can be told from another"
        return f"{past}: {why}." if why else ""
    level = [method for method, mark in marks.items() if mark.level]
    several = f"{'has' if len(best) == 1 else 'share'} the {'highest' if table.better > 0 else 'lowest'} mean"
    told = [f"{_listed(best)} {several} past {table.cell.trained_length:,} tokens, {text(means[best[0]])}"]
    if BASELINE in means and BASELINE not in best:
        told.append(f"where the unmodified model has {text(means[BASELINE])}")
    said = ", ".join(told)
    if level and len(best) + len(level) == len(marks):
        return f"{said}; all others are tied with it."
    if level:
        return f"{said}; tied with it: {_listed(level)}."
    worse = all(mark.best or (mark.p_holm is not None and mark.p_holm <= LEVEL) for mark in marks.values())
    return f"{said}; every other method is significantly worse." if worse else f"{said}."


def _listed(methods: Sequence[MethodKey]) -> str:
    more = f" and {len(methods) - NAMED} more" if len(methods) > NAMED else ""
    return ", ".join(map(looks.name_of, methods[:NAMED])) + more

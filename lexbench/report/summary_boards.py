"""Boards whose columns are the summaries of each curve: effective length, collapse, area, price and so on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lexbench.report.boards import Board, Column, Entry, Place
from lexbench.report.leaders import Mark, Samples
from lexbench.report.summaries import RULES, Summary, effective_lengths, summaries
from lexbench.report.tables import Table
from lexbench.report.wording import signed, some

ORDER = ("area_beyond", "area", "effective_length")
"""By which rows are sorted: the first that has a value."""
LONGER = ("effective_length", "collapse")
"""Of which more is better; of areas and prices it is as the metric has it."""
HEIGHTS = ("area", "area_beyond", "price")
LEFT_OUT = ("area_difference",)
"""Area minus that of the baseline: no other order of rows than area."""
MEANING = {
    "effective_length": "up to it every length is",
    "collapse": "from it on every length is",
    "area": "mean height of the curve over log2 of the length",
    "area_beyond": "the same from the trained length on",
    "price": "what the method changes up to the trained length",
    "context_gain": "NLL at the first length minus NLL at the second",
    "position_bias": "needle in the outer half of depths minus needle in the inner half, up to the trained length",
    "position_bias_beyond": "the same beyond the trained length",
}
"""In words, where the coverage follows."""


def summary_board(
    title: str,
    caption: str,
    about: Mapping[str, object],
    corner: str,
    shown: Mapping[str, Table],
    samples: Samples,
    method: str | None = None,
    rule: str = RULES[0],
) -> list[Board]:
    """The board, or none where the metric has no summaries.

    Args:
        title: of the board.
        caption: what all cells share.
        about: the same as data.
        corner: what the rows are.
        shown: of each row its table; tables of several models are those of one setting.
        samples: of each cell id.
        method: of which method the summaries are; None: of the row's own name.
        rule: of the effective length; `fixed`, RULER's, is for scores: elsewhere the usual rule stays.
    """
    made = {each.setting: _summaries(each, samples, rule) for each in {t.setting: t for t in shown.values()}.values()}
    found = {
        (row, each.name): each
        for row, table in shown.items()
        for each in made[table.setting]
        if each.method == (method or row) and each.name not in LEFT_OUT
    }
    several_models = corner == "model"
    if several_models:  # nats per token of one tokenizer are not those of another
        found = {place: each for place, each in found.items() if each.unit != "nats per token"}
    if not found:
        return []
    table = next(iter(shown.values()))
    names = list(dict.fromkeys(name for _, name in found))
    entries: dict[Place, Entry] = {}
    remarks = []
    for name in names:
        column = {row: found[row, name] for row in shown if (row, name) in found}
        side = 1 if name in LONGER else table.better if name in HEIGHTS else 0
        made_entries, usual = _column(column, side)
        entries |= {(row, name): entry for row, entry in made_entries.items()}
        remarks.append(f"{_head(name)} ({next(iter(column.values())).unit}): {_said(name, usual)}.")
    left_out = ["Nats per token of models with other tokenizers are not comparable: left out."]
    rows, order = _sorted(list(shown), found, table.better)
    return [
        Board(
            title=title,
            caption=caption,
            about={**about, "metric": table.metric, "label": table.label, "better": table.better},
            corner=corner,
            rows=rows,
            columns=[Column(name=name, head=_head(name)) for name in names],
            entries=entries,
            remarks=[order, *remarks, *(left_out if several_models and table.metric == "nll" else [])],
        )
    ]


def _summaries(table: Table, samples: Samples, rule: str) -> list[Summary]:
    """All summaries, the effective length by the rule."""
    found = summaries(table, samples)
    if rule == RULES[0] or (rule == "fixed" and not table.scored):
        return found
    ruled = {each.method: each for each in effective_lengths(table, samples, rule)}
    return [ruled[each.method] if each.name == "effective_length" else each for each in found]


def _head(name: str) -> str:
    return name.replace("_", " ")


def _said(name: str, usual: Sequence[str]) -> str:
    """What a summary is, and what most of its entries share."""
    if name in LONGER and not usual:
        return "as the notes say"
    return (" " if name in LONGER else ", ").join(filter(None, [MEANING.get(name), "; ".join(usual)]))


def _column(found: Mapping[str, Summary], side: int) -> tuple[dict[str, Entry], list[str]]:
    """The entries of one summary, the best ones marked, and the notes that most of them share."""
    notes = {row: _notes(each) for row, each in found.items() if each.value is not None}
    every = [note for several in notes.values() for note in several]
    usual = [note for note in dict.fromkeys(every) if 2 * every.count(note) > len(notes)]
    entries = {row: _entry(each, usual) for row, each in found.items()}
    values = {row: each.value for row, each in found.items() if each.value is not None}
    texts = {row: entries[row].shown for row in values}
    if side and len(set(texts.values())) > 1:
        top = texts[max(values, key=lambda row: side * values[row])]
        marked = {row: Mark(best=True) for row, text in texts.items() if text == top}
        entries |= {row: replace(entries[row], mark=mark) for row, mark in marked.items()}
    return entries, usual


def _notes(each: Summary) -> list[str]:
    """The parts of a note but those that `> 2048` has said."""
    beyond = each.value is not None and math.isinf(each.value)
    parts = each.note.split("; ") if each.note else []
    return [part for part in parts if not (beyond and part.endswith((f"up to {each.limit}", "the longest measured")))]


def _entry(each: Summary, usual: Sequence[str]) -> Entry:
    ends = None
    if each.low is not None and each.high is not None:
        ends = _text(each, each.low), _text(each, each.high)
    return Entry(
        shown="no value" if each.value is None else _text(each, each.value),
        value=each.value,
        low=each.low,
        high=each.high,
        ends=ends,
        interval=each.interval,
        notes=tuple(note for note in _notes(each) if note not in usual),
    )


def _text(each: Summary, value: float) -> str:
    """A length, which may lie beyond all that was measured; else nats or points, signed where it is a difference."""
    if each.unit == "tokens":
        return f"> {each.limit}" if math.isinf(value) else f"{value:.0f}"
    digits = ".1f" if each.unit == "points" else ".3f"
    return f"{value:{digits}}" if each.name in ("area", "area_beyond") else signed(value, digits)


def _sorted(rows: Sequence[str], found: Mapping[Place, Summary], better: int) -> tuple[list[str], str]:
    """Rows, and their order in a sentence."""
    by_name = sorted(rows, key=lambda row: (row.split(" #")[0] != "none", row))
    for name in ORDER:
        values = {row: value for row in rows if (each := found.get((row, name))) and (value := each.value) is not None}
        if values:
            side = 1 if name in LONGER else better
            ranked = sorted(values, key=lambda row: (-side * values[row], by_name.index(row)))
            last = [row for row in by_name if row not in values]
            below = f"; last, without a value: {some(last, 3)}" if last else ""
            return ranked + last, f"Rows by {_head(name)}, best first{below}."
    return by_name, "Rows by name."

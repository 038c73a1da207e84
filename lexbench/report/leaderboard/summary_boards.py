"""Boards whose columns are the summaries of each curve: effective length, collapse, area, price, cost and so on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lexbench.core.method_key import MethodKey
from lexbench.core.text import join_first_few
from lexbench.report.grid import interval_texts
from lexbench.report.leaderboard.best import RowMark, Samples
from lexbench.report.leaderboard.boards import Board, BoardColumn, BoardPlace, BoardValue, RowName, rows_by_name
from lexbench.report.notes import note_text, notes_text, treatment_of_failed
from lexbench.report.wording import format_signed, metric_label
from lexbench.stats.combine import Summary
from lexbench.stats.costs import COST_SUMMARIES, Cost, cost_summaries
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.records import sample_count
from lexbench.stats.summaries import (
    CURVE_SUMMARIES,
    EFFECTIVE_LENGTH_RULES,
    SummaryValue,
    curve_summaries,
    effective_lengths,
)
from lexbench.stats.tables import Table

SUMMARY_OF_NAME = {each.name: each for each in (*CURVE_SUMMARIES, *COST_SUMMARIES)}
OWN_NOTES = (NoteKind.BASELINE, NoteKind.REFUSED_AT, NoteKind.NO_VALUE_AT)
"""Kinds of notes that always stay with their own entry."""
BEYOND_NOTES = (NoteKind.LONGEST_MEASURED, NoteKind.NEVER_UP_TO)
"""Kinds of notes on a value that lies beyond every measured length."""
TOKENIZER_NOTE = (
    "Nats per token of models with other tokenizers are not comparable: left out. Lengths that follow from them are "
    "neither ranked nor marked."
)


def summary_board(
    title: str,
    caption: str,
    about: Mapping[str, object],
    corner: str,
    shown: Mapping[RowName, Table],
    samples: Samples,
    method: MethodKey | None = None,
    rule: str = EFFECTIVE_LENGTH_RULES[0],
    margin: float | None = None,
    costs: Mapping[str, Cost] | None = None,
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
        rule: of the effective length; `fixed`, RULER's, is for scores: elsewhere the usual rule and margin stay.
        margin: of the effective length, nats or points; None: the usual one.
        costs: by cell id.
    """
    made = {
        each.setting: _summaries(each, samples, rule, margin, costs or {})
        for each in {t.setting: t for t in shown.values()}.values()
    }
    found = {
        (row, each.name): each
        for row, table in shown.items()
        for each in made[table.setting]
        if each.method == (method or row)
    }
    table = next(iter(shown.values()))
    nats_of_several_models = corner == "model" and not table.scored
    if nats_of_several_models:  # nats per token of one tokenizer are not those of another
        found = {place: each for place, each in found.items() if each.unit != "nats per token"}
    if not found:
        return []
    names = list(dict.fromkeys(name for _, name in found))
    entries: dict[BoardPlace, BoardValue] = {}
    remarks = []
    for name in list(names):
        column = {row: found[row, name] for row in shown if (row, name) in found}
        facts, unit = SUMMARY_OF_NAME[name], next(iter(column.values())).unit
        if facts.digits and all(each.value is None for each in column.values()):
            names.remove(name)
            why = join_first_few([*dict.fromkeys(notes_text(each.notes) for each in column.values())], 2)
            remarks.append(f"{facts.label}: not shown, {why}.")
            continue
        direction = 0 if nats_of_several_models else facts.direction(table.better)
        made_entries, shared_notes = _column(column, direction)
        for row, entry in made_entries.items():
            of = method or row
            assert isinstance(of, MethodKey), "summaries are of a method"
            counted = entry.value is not None and not facts.digits
            entries[row, name] = _with_sample_counts(entry, shown[row], of) if counted else entry
        unit_words = f" ({unit})" if unit != facts.label else ""
        remarks.append(f"{facts.label}{unit_words}: {_summary_sentence(facts, shared_notes)}.")
    if nats_of_several_models:
        remarks.append(TOKENIZER_NOTE)
    if rule == "fixed" and not table.scored:
        remarks.append(
            f"The fixed threshold, RULER's, is one of scores: effective length by the {EFFECTIVE_LENGTH_RULES[0]} rule "
            "here."
        )
    rows, order = _sort_rows(list(shown), {} if nats_of_several_models else found, table.better)
    return [
        Board(
            title=title,
            caption=caption,
            about={
                **about,
                "metric": table.metric,
                "label": metric_label(table.metric, table.cell.task_name),
                "better": table.better,
            },
            corner=corner,
            rows=rows,
            columns=[BoardColumn(name=name, head=SUMMARY_OF_NAME[name].label) for name in names],
            entries=entries,
            remarks=[order, *remarks],
        )
    ]


def _summaries(
    table: Table, samples: Samples, rule: str, margin: float | None, costs: Mapping[str, Cost]
) -> list[SummaryValue]:
    """All summaries, the effective length by rule and margin; costs where any row has one."""
    found = curve_summaries(table, samples)
    if found:
        known = any(record.cell in costs for record in table.entries.values())
        found += cost_summaries(table, costs) if known else []
    if (rule == EFFECTIVE_LENGTH_RULES[0] and margin is None) or (rule == "fixed" and not table.scored):
        return found
    ruled = {(each.method, each.name): each for each in effective_lengths(table, samples, rule, margin)}
    return [ruled.get((each.method, each.name), each) for each in found]


def _with_sample_counts(entry: BoardValue, table: Table, method: MethodKey) -> BoardValue:
    """An entry with sample counts of its row over all lengths."""
    records = [record for record in table.of(method) if not record.refused]
    n, failed, truncated = (sum(getattr(each, name) for each in records) for name in ("n", "failed", "truncated"))
    of = f"{sum(map(sample_count, records))} samples"
    notes = [f"over all lengths {failed} of {of} failed, {treatment_of_failed(table.metric)}"] if failed else []
    notes += [f"over all lengths {truncated} of {of} truncated"] if truncated else []
    return replace(entry, n=n, failed=failed, truncated=truncated, notes=(*entry.notes, *notes))


def _summary_sentence(facts: Summary, shared_notes: Sequence[Note]) -> str:
    """Meaning of a summary, and the notes that most entries share."""
    is_length = facts.better == "higher"  # which only its notes explain
    if is_length and not shared_notes:
        return "as the notes say"
    return (" " if is_length else ", ").join(filter(None, [facts.remark, notes_text(shared_notes)]))


def _column(found: Mapping[RowName, SummaryValue], direction: int) -> tuple[dict[RowName, BoardValue], list[Note]]:
    """The entries of one summary, the best ones marked, and the notes that most of them share."""
    notes = {row: _notes(each) for row, each in found.items() if each.value is not None}
    every = [note for own in notes.values() for note in own if note.kind not in OWN_NOTES]
    shared_notes = [note for note in dict.fromkeys(every) if 2 * every.count(note) > len(notes)]
    entries = {row: _entry(each, shared_notes) for row, each in found.items()}
    values = _ranking_values(found)
    texts = {row: entries[row].shown for row in values}
    if direction and len(set(texts.values())) > 1:
        top = max(values, key=lambda row: direction * values[row])
        if math.isinf(values[top]) or not _is_lower_limit(found[top]):
            marked = [row for row, text in texts.items() if text == texts[top] and not _at_floor(found[row], direction)]
            entries |= {row: replace(entries[row], mark=RowMark(best=True)) for row in marked}
    return entries, shared_notes


def _at_floor(each: SummaryValue, direction: int) -> bool:
    """Whether an area is at its floor, or its interval contains the floor or values beyond it."""
    end = each.low if direction > 0 else each.high
    end = each.value if end is None else end
    return each.floor is not None and end is not None and direction * end <= direction * each.floor


def _is_lower_limit(each: SummaryValue) -> bool:
    """Whether only a lower limit of the value is known."""
    return each.value is not None and math.isinf(each.value)


def _ranking_values(found: Mapping[RowName, SummaryValue]) -> dict[RowName, float]:
    """Values to rank rows by: a curve that ends early is known only up to its end.

    So `> 512` ranks between 512 and longer lengths of other rows, and where it would be the best, no row is marked.
    """
    longest = max((each.limit or 0 for each in found.values()), default=0)
    return {
        row: (each.limit or 0) + 0.5 if _is_lower_limit(each) and (each.limit or 0) < longest else each.value
        for row, each in found.items()
        if each.value is not None
    }


def _notes(each: SummaryValue) -> list[Note]:
    """Notes that the value does not show already."""
    return [note for note in each.notes if not (_is_lower_limit(each) and note.kind in BEYOND_NOTES)]


def _entry(each: SummaryValue, shared_notes: Sequence[Note]) -> BoardValue:
    unit = 100 if each.unit == "points" else 1  # as data, scores are shares on every board
    value, low, high = (None if end is None else end / unit for end in (each.value, each.low, each.high))
    return BoardValue(
        shown="no value" if each.value is None else _text(each, each.value),
        value=value,
        low=low,
        high=high,
        ends=interval_texts(each.low, each.high, lambda end: _text(each, end)),
        interval=each.interval,
        notes=tuple(note_text(note) for note in _notes(each) if note not in shared_notes),
    )


def _text(each: SummaryValue, value: float) -> str:
    """A length, possibly beyond the longest measured; or nats or points, signed for a difference."""
    if each.unit == "tokens":
        return f"> {each.limit}" if math.isinf(value) else f"{value:.0f}"
    facts = SUMMARY_OF_NAME[each.name]
    digits = facts.digits or (".1f" if each.unit == "points" else ".3f")
    return format_signed(value, digits) if facts.signed and not facts.digits else f"{value:{digits}}"


def _sort_rows(
    rows: Sequence[RowName], found: Mapping[BoardPlace, SummaryValue], better: int
) -> tuple[list[RowName], str]:
    """Rows, and their order in a sentence."""
    names = rows_by_name(rows)
    for facts in sorted(CURVE_SUMMARIES, key=lambda each: each.sorting):
        values = _ranking_values({row: found[row, facts.name] for row in rows if (row, facts.name) in found})
        if values and facts.sorting:
            direction = facts.direction(better)
            ranked = sorted(values, key=lambda row: (-direction * values[row], names.index(row)))
            last = [row for row in names if row not in values]
            below = f"; last, without a value: {join_first_few(last, 3)}" if last else ""
            return ranked + last, f"Rows by {facts.label}, best first{below}."
    return names, "Rows by name."

"""One method against each of the others, by the paired test: a sentence, and a table of its leads."""

from collections.abc import Iterator

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.text import count_with_noun, join_first_few, plain_text
from lexbench.report.grid import Grid, GridEntry, Line, difference_entry, value_entry
from lexbench.report.notes import SAME_ATTENTION_WORDS, coverage_sentences, note_text
from lexbench.report.titles import differences_in_brackets, length_heading
from lexbench.report.wording import difference_format, format_ratio, found_words, metric_label, short_unit
from lexbench.stats.differences import Difference, Differences
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL, min_sign_flip_p
from lexbench.stats.metrics import display_factor
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.reach import smallest_found_by_all


def method_name(method: MethodKey) -> str:
    """A method's label in a sentence: the baseline is the unmodified model."""
    return "the unmodified model" if method == BASELINE_METHOD else str(method)


def told_length(found: Differences) -> int | None:
    """The longest length at which the method has a value; None where it has none."""
    known = [each.length for each in found.table.of(found.baseline) if each.value is not None]
    return known[-1] if known else None


def lead_sentence(found: Differences, silent: str | None = None) -> str:
    """The result of a method at its longest length: its value, then whom it beats, who beats it, and what is open.

    Args:
        found: leads of the method (`stats.differences.leads`).
        silent: why nothing can be told of this text, if so.
    """
    table, mine, length = found.table, found.baseline, told_length(found)
    name = f"{table.cell.task}{differences_in_brackets(table)}"
    if length is None:
        reason = next((record.refused for record in table.of(mine) if record.refused), None)
        return f"{name}: {mine} has no value{f' ({plain_text(reason)})' if reason else ''}."
    own = table.entries[mine, length]
    value = f"{value_entry(own).text_with_interval} {metric_label(table.metric, table.cell.task_name)}"
    said = f"{name} at {length:,} tokens ({format_ratio(own.multiple)}): {mine} has {value}"
    if silent:
        return f"{said}. {silent}"
    tested = [found.entries[row, length] for row in table.methods if (row, length) in found.entries]
    parts = [f"{words} {', '.join(told)}" for words, told in _standings(found, tested)]
    return f"{said}; {'; '.join(parts)}." if parts else f"{said}; no other method is measured there."


def _standings(found: Differences, tested: list[Difference]) -> Iterator[tuple[str, list[str]]]:
    """Groups of the others, each with the words before it."""
    up, down = ("better than", "worse than") if found.table.better else ("higher than", "lower than")
    real = [each for each in tested if each.significant]
    won, lost = ([each for each in real if side * (each.difference or 0.0) > 0] for side in (1, -1))
    if won:
        yield up, [_lead(found, each) for each in won]
    if lost:
        yield down, [_lead(found, each) for each in lost]
    open_ = [each for each in tested if not each.significant and each.p is not None]
    for why, group in group_by_key(open_, lambda each: _unsure(found, each)).items():
        told = ", ".join(_lead(found, each) for each in group)
        yield "not told apart from", [f"{told} ({why or _found_size(found, group)})"]
    for why, group in group_by_key([each for each in tested if each.p is None], _why_no_value).items():
        yield "not compared with", [f"{join_first_few([method_name(each.method) for each in group])} ({why})"]


def _unsure(found: Differences, each: Difference) -> str:
    """Why nothing is told, where both values are at a limit, or the interval alone would tell; nothing elsewhere."""
    if each.limit:
        return note_text(each.limit)
    if each.low is None or each.high is None or each.low <= 0 <= each.high:
        return ""
    count = sum(other.p is not None for other in found.entries.values())
    if min_sign_flip_p(each.clusters) * count > SIGNIFICANCE_LEVEL:
        few = f"no p of {count_with_noun(each.clusters, 'cluster')} is small enough"
        return f"their intervals alone exclude 0, but {few} for {count_with_noun(count, 'comparison')}: raise n"
    return (
        f"their intervals alone exclude 0, but p is above {SIGNIFICANCE_LEVEL} after Holm's correction for {count} "
        "comparisons"
    )


def _found_size(found: Differences, group: list[Difference]) -> str:
    """The size from which on all of these would have been told apart."""
    metric = found.table.metric or ""
    own_unit = [each.in_unit(1 / display_factor(metric)) for each in group]
    return found_words(smallest_found_by_all(own_unit, metric), metric)


def _why_no_value(each: Difference) -> str:
    if each.refused:
        return f"refused: {plain_text(each.refused)}"
    return plain_text(note_text(each.apart or Note(NoteKind.NO_PAIRED_VALUE)))


def _lead(found: Differences, each: Difference) -> str:
    by = difference_entry(each, difference_format(found)).text_with_interval
    return f"{method_name(each.method)} by {by}{short_unit(found.table.metric or '')}"


def lead_grid(found: Differences, silent: str | None = None) -> Grid:
    """The leads of a method over each other one, a column for each length; `silent` as of `lead_sentence`."""
    table = found.table

    def entry(row: MethodKey, length: int) -> GridEntry:
        each = found.entries.get((row, length))
        if each is None:
            return GridEntry(text="")
        if each.same_attention:
            return GridEntry(text=SAME_ATTENTION_WORDS)
        if each.difference is None:
            return GridEntry(text="refused" if each.refused else "no pairs", notes=(_why_no_value(each),))
        notes = [silent or note_text(each.limit)] if each.limit else []
        return difference_entry(each, difference_format(found), star=bool(each.significant), notes=notes)

    rows: list[Line] = [
        [method_name(row), *(entry(row, length) for length in table.lengths)]
        for row in table.methods
        if row != found.baseline
    ]
    count = sum(each.p is not None for each in found.entries.values())
    positive = f"above 0: {found.baseline} is better" if table.better else f"{found.baseline} minus the other"
    return Grid(
        title=f"{table.cell.task}: lead of {found.baseline} over each other method",
        head=["over", *(length_heading(table, length) for length in table.lengths)],
        rows=rows,
        below=[
            f"Paired on the same questions, in {found.unit}; {positive}. Brackets: 95 % intervals. "
            f"*: p up to {SIGNIFICANCE_LEVEL} after Holm's correction for {count_with_noun(count, 'comparison')}, "
            "and an interval without 0.",
            *coverage_sentences(found),
        ],
    )

"""One method against each of the others, by the paired test: sentences, and a table of its leads."""

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.text import count_with_noun, plain_text
from lexbench.report.grid import Grid, GridEntry, Line, difference_entry, value_entry
from lexbench.report.notes import SAME_ATTENTION_WORDS, coverage_sentences, note_text
from lexbench.report.titles import differences_in_brackets, length_heading
from lexbench.report.wording import difference_format, format_p_value, format_ratio, metric_label, short_unit
from lexbench.stats.differences import Difference, Differences
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.reach import MAX_PLANNED_CLUSTERS, more_clusters_to_find

DECIDING_WORDS = (
    "How many more texts would decide: if these differ as the measured ones do, so many are told nine times of ten."
)


def method_name(method: MethodKey) -> str:
    """A method's label in a sentence: the baseline is the unmodified model."""
    return "the unmodified model" if method == BASELINE_METHOD else str(method)


def told_length(found: Differences) -> int | None:
    """The longest length at which the method has a value; None where it has none."""
    known = [each.length for each in found.table.of(found.baseline) if each.value is not None]
    return known[-1] if known else None


def lead_sentences(found: Differences, silent: str | None = None) -> list[str]:
    """The result of a method at its longest length: its value, then a sentence on each other method, to quote alone.

    Args:
        found: leads of the method (`stats.differences.leads`).
        silent: why nothing can be told of this text, if so.
    """
    table, mine, length = found.table, found.baseline, told_length(found)
    name = f"{table.cell.task}{differences_in_brackets(table)}"
    if length is None:
        reason = next((record.refused for record in table.of(mine) if record.refused), None)
        return [f"{name}: {mine} has no value{f' ({plain_text(reason)})' if reason else ''}."]
    own = table.entries[mine, length]
    value = f"{value_entry(own).text_with_interval} {metric_label(table.metric, table.cell.task_name)}"
    place = f"{name} at {length:,} tokens ({format_ratio(own.multiple)})"
    said = f"{place}: {mine} has {value}"
    if silent:
        return [f"{said}. {silent}"]
    tested = [found.entries[row, length] for row in table.methods if (row, length) in found.entries]
    if not tested:
        return [f"{said}; no other method is measured there."]
    return [f"{said}.", *(_rival_sentence(found, each, place) for each in sorted(tested, key=_sentence_place))]


def _sentence_place(each: Difference) -> int:
    """Place among the sentences: won, lost, open, not compared."""
    if each.p is None:
        return 3
    return 2 if not each.significant else 0 if (each.difference or 0.0) > 0 else 1


def _rival_sentence(found: Differences, each: Difference, place: str) -> str:
    """The method against one other: the difference, its interval, the questions, and what would decide."""
    mine, other = found.baseline, method_name(each.method)
    if each.p is None:
        return f"{mine} is not compared with {other} in {place}: {_why_no_value(each)}."
    by = difference_entry(each, difference_format(found)).text_with_interval
    numbers = f"{by}{short_unit(found.table.metric or '')}, {count_with_noun(each.clusters, 'text')}"
    if each.significant:
        up, down = ("better", "worse") if found.table.better else ("higher", "lower")
        word = up if (each.difference or 0.0) > 0 else down
        return f"{mine} is {word} than {other} in {place}: {numbers} (p {format_p_value(each.p_holm or 0.0)})."
    return f"{mine} cannot be told from {other} in {place}: {numbers}; {_why_open(found, each)}."


def _why_open(found: Differences, each: Difference) -> str:
    """Why nothing is told, and how many more texts would."""
    if each.limit:
        return note_text(each.limit)
    metric = found.table.metric or ""
    more = more_clusters_to_find(each.in_unit(1 / display_factor(metric)), metric)
    if not each.n_changed:
        return "all answers are the same"
    if more is None:
        return f"{MAX_PLANNED_CLUSTERS:,} would not decide"
    return f"about {int(float(f'{max(1, more):.2g}')):,} more would decide"


def _why_no_value(each: Difference) -> str:
    if each.refused:
        return f"refused: {plain_text(each.refused)}"
    return plain_text(note_text(each.apart or Note(NoteKind.NO_PAIRED_VALUE)))


def lead_grid(found: Differences, silent: str | None = None) -> Grid:
    """The leads of a method over each other one, a column for each length; `silent` as of `lead_sentences`."""
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
            f"and an interval without 0. {DECIDING_WORDS}",
            *coverage_sentences(found),
        ],
    )

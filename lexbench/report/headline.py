"""The headline as a grid: method by level, gain beyond the trained length, retrieval and price."""

from collections.abc import Iterator, Sequence

from lexbench.core.method_key import BASELINE_METHOD
from lexbench.report.grid import EMPTY_ENTRY, Grid, GridEntry, Line, best_displayed_value, interval_texts, value_entry
from lexbench.stats.combine import SummaryNoteKind
from lexbench.stats.headline import Headline, HeadlineRow
from lexbench.stats.summaries import Summary
from lexbench.stats.tables import table_caption
from lexbench.stats.wording import format_ratio, format_signed, join_first_few

HEADLINE_MEANING = (
    "Gain: loss of {base} at the first length minus loss of the method at the second, on the same targets; "
    "* significant after correction for the number of methods, and better than counting words. Price: how much worse "
    "texts of up to {inside:,} tokens get when the method is set up for {longest:,}, as a deployment is. Losses are in "
    "nats per token."
)
ORDER_SENTENCE = " Significant gains stand first, then methods by what they find, then by loss."
NO_CONTROL_GAIN = (
    "This model gains nothing from more context on this text: the column can only show harm, and rows are not ranked "
    "by it, but by what methods find, then by loss."
)
"""Sentence for a control without a gain."""


def gains_are_over_baseline(found: Headline) -> bool:
    """Whether gains are over the baseline; else, as it has no value at the first length, over the method itself."""
    base = found.table.entries.get((BASELINE_METHOD, found.inside))
    return base is not None and base.value is not None


def grid_of_headline(found: Headline) -> Grid:
    """The headline's table; its sentence stands above it."""
    cell = found.table.cell
    multiple = found.longest / cell.trained_length
    head = ["method", f"gain {found.inside} to {found.longest}", f"NLL at {found.longest} ({format_ratio(multiple)})"]
    needles = found.needles and any(row.retrieval for row in found.rows)
    head += [f"retrieval at {found.longest}"] if needles else []
    head += ["price"]
    claimed = [row for row in found.rows if row.gains]
    texts = [format_signed(row.gain.value) for row in claimed if row.gain]
    best = best_displayed_value([row.retrieval for row in found.rows if row.retrieval])
    rows: list[Line] = [
        [
            row.method,
            _gain(row, texts[:1]),
            value_entry(row.level),
            *(
                [value_entry(row.retrieval, best=best) if row.retrieval else GridEntry(text="no value")]
                if needles
                else []
            ),
            _price(row.price),
        ]
        for row in found.rows
    ]
    return Grid(
        title=f"What context beyond {cell.trained_length} tokens adds: {cell.task} on {cell.model}",
        above=[found.sentence, f"Protocol: {'. '.join(table_caption(found.table).splitlines())}."],
        head=head,
        rows=rows,
        remarks=[
            HEADLINE_MEANING.format(
                base="the unmodified model" if gains_are_over_baseline(found) else "the method itself",
                inside=found.inside,
                longest=found.longest,
            )
            + ("" if found.idle else ORDER_SENTENCE),
            *_control(found),
            *(_retrieval_task_lines(found) if needles else ()),
            *_failed_task_lines(found),
            *_refused_length_lines(found),
        ],
    )


def _control(found: Headline) -> Iterator[str]:
    """Gain of the unmodified model itself inside the trained length."""
    if found.control is None or found.half is None:
        yield f"No control: the unmodified model was not measured on the same targets at {found.inside // 2:,} tokens."
        return
    gain = found.control
    ends = (
        f" [{format_signed(gain.low)}, {format_signed(gain.high)}]"
        if gain.low is not None and gain.high is not None
        else ""
    )
    said = (
        f"from {found.half:,} to {found.inside:,} tokens the unmodified model itself gains "
        f"{format_signed(gain.value)}{ends}"
    )
    yield f"Control: {said} on the same targets." + (f" {NO_CONTROL_GAIN}" if found.idle else "")


def _retrieval_task_lines(found: Headline) -> Iterator[str]:
    """Retrieval tasks, with their number of samples where it is not the table's."""
    cells = [each.cell for each in found.needles]
    apart = any(cell.n != found.table.cell.n for cell in cells)
    names = [f"{cell.task} ({cell.n} samples a cell)" if apart else cell.task for cell in cells]
    yield f"Retrieval: mean of {join_first_few(names)}."


def _failed_task_lines(found: Headline) -> Iterator[str]:
    """Retrieval tasks that the model cannot do."""
    if found.unable:
        level = "at chance for every method at the shortest length with a value, too"
        yield f"Left out of retrieval: {join_first_few(found.unable)}, {level}."


def _refused_length_lines(found: Headline) -> Iterator[str]:
    """Lengths beyond the shown one, at which every cell is refused or failed."""
    for length in found.table.lengths:
        reasons = [record.refused for record in found.table.at(length) if record.refused]
        if length > found.longest:
            yield f"No value at {length}{f': {reasons[0]}' if reasons else ''}."


def _gain(row: HeadlineRow, best: Sequence[str]) -> GridEntry:
    gain = row.gain
    if gain is None:
        refused = row.level is not None and row.level.refused is not None
        return GridEntry(text="refused" if refused else "no value")
    text = format_signed(gain.value)
    return GridEntry(
        text=text,
        ends=interval_texts(gain.low, gain.high, format_signed),
        best=row.gains and text in best,
        star=row.gains,
    )


def _price(each: Summary | None) -> GridEntry:
    if each is None:
        return EMPTY_ENTRY
    if each.value is None:
        return GridEntry(text="no value", notes=(each.note,))
    settings = tuple(note.text for note in each.notes if note.kind is SummaryNoteKind.SETTING)
    ends = interval_texts(each.low, each.high, format_signed)
    return GridEntry(text=format_signed(each.value), ends=ends, notes=settings)

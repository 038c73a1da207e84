"""The page of a trace: the checkpoint to take, falls, where more text hurts, and curves over steps."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lexbench.core.files import write_text
from lexbench.core.groups import group_by_key
from lexbench.core.text import count_with_noun, join_lengths
from lexbench.parts.search.trace.curves import draw
from lexbench.parts.search.trace.falls import Fall, smallest_found_falls
from lexbench.parts.search.trace.measure import Column
from lexbench.parts.search.trace.trace import Traced
from lexbench.report import formats
from lexbench.report.grid import Grid, GridEntry, Line, difference_entry
from lexbench.report.notes import note_text
from lexbench.report.sheet import Block, Figure, Heading, Paragraph, Remark
from lexbench.report.wording import (
    direction_phrase,
    format_metric_value,
    format_signed,
    found_words,
    metric_format,
    metric_label,
    short_unit,
)
from lexbench.stats.metrics import better_direction, display_factor
from lexbench.stats.pairs import PairedDifference, correct_by_holm, paired_difference
from lexbench.stats.reach import smallest_found_by_all

PAGE_STEM = "trace"
"""Stem of the page and its figure."""
TRACE_LEGEND = """\
Brackets hold 95 % intervals of paired differences, documents or haystacks kept together. *: significant at 5 % after
Holm's correction over the table. A fall lasts up to the newest checkpoint, against which all others are tested, at all
lengths of all tasks, with Holm's correction over all of them; its size comes from fresh questions. What would have
been found is found nine times of ten. The best checkpoint was chosen on the questions of the tables, so differences to
it are too large; those of the finalists are not, their questions are fresh."""


def write(found: Traced, out: Path) -> Path:
    """Write trace.md and trace.svg into the folder; the page."""
    draw(found, out / PAGE_STEM)
    page = out / f"{PAGE_STEM}.md"
    write_text(page, markdown(found))
    return page


def markdown(found: Traced) -> str:
    """The page."""
    lengths = join_lengths([column.length for column in found.columns])
    sheet: list[Block] = [Heading(f"Trace of {count_with_noun(len(found.rows), 'checkpoint')} at {lengths} tokens", 1)]
    sheet += [*screen(found), Figure(f"{PAGE_STEM}.svg", "Curves over steps"), Paragraph(TRACE_LEGEND)]
    sheet += [_finalists(found)] if found.finalists else []
    for task in dict.fromkeys(column.task for column in found.columns):
        sheet += [_values(found, task), _differences(found, task, 0, "the first")]
        sheet += [_differences(found, task, found.best, "the best")] if found.best else []
    return formats.sheet_markdown([*sheet, *([_more_text(found)] if found.harms else [])])


def screen(found: Traced) -> list[Block]:
    """Lines on the checkpoint to take, on every fall, and on the checkpoint from which on more text hurts."""
    falls = [_fall(found, fall) for fall in found.falls] or [_no_fall(found)]
    order = ", ".join(row.name for row in found.rows)
    rule = [f"Order of the checkpoints, by {found.order_rule}: {order}."] if found.order_rule else []
    return [Paragraph(_choice(found)), *map(Remark, [*falls, *_hurts(found), *rule])]


def _no_fall(found: Traced) -> str:
    """Say that no length falls, and which fall would have been found at each."""
    sizes = smallest_found_falls(found.rows, found.columns)
    told = [found_words(size, metric, "a fall") for metric, size in sizes.items()]
    return f"No length falls at any checkpoint: {'; '.join(told) or 'all are at a floor or a ceiling'}."


def _task(found: Traced) -> tuple[str, str]:
    """The task that decides, and its metric."""
    column, metric = next(iter(found.columns.items()))
    return column.task, metric


def _choice(found: Traced) -> str:
    """The checkpoint to take."""
    task, metric = _task(found)
    by = f"by {task}, the mean over lengths of its {metric_label(metric)}"
    if found.unspoken:
        return f"No checkpoint is recommended {by}: {note_text(found.unspoken)}."
    if not found.finalists:
        best = found.rows[found.best].label
        return (
            f"Best so far {by}: {best}. No checkpoint is recommended yet: trace without --watch asks fresh questions."
        )
    first, tied = found.finalists[0], [each for each in found.finalists if each.tied]
    asked = f"{count_with_noun(found.questions, 'fresh question')} at each length"
    gain = "no later checkpoint is better than the first"
    if first.place:
        seemed = (
            "" if first.seemed is None else format_signed(display_factor(metric) * first.seemed, metric_format(metric))
        )
        gain = f"{_interval(first.to_first, metric)} against {found.rows[0].label}"
        gain += f" ({seemed} on those that chose it)" if seemed else ""
    names = ", ".join(found.rows[each.place].label for each in tied)
    size = found_words(smallest_found_by_all([each.behind for each in tied], metric), metric)
    others = f"Equal within noise: {names} ({size})." if tied else "The other finalists are worse."
    chosen = f"Take {found.rows[first.place].label} {by}"
    return f"{chosen}: on {asked} {gain}. {others}{_falls_warning(found, first.place)}"


def _falls_warning(found: Traced, place: int) -> str:
    """Falls that the chosen checkpoint comes after."""
    fell = [fall.column for fall in found.falls if fall.after <= place]
    return f" It comes after a fall of {_columns(fell)}." if fell else ""


def _columns(columns: Iterable[Column]) -> str:
    """`last_segment at 128, 160 and copy at 512`."""
    by_task = group_by_key(columns, lambda column: column.task)
    return " and ".join(f"{task} at {join_lengths([each.length for each in at])}" for task, at in by_task.items())


def _interval(each: PairedDifference, metric: str) -> str:
    """A difference with its interval and unit."""
    entry = difference_entry(each, metric_format(metric), display_factor(metric))
    return f"{entry.text_with_interval}{short_unit(metric)}"


def _fall(found: Traced, fall: Fall) -> str:
    """A fall in a sentence."""
    kind = "Cliff" if fall.gaining else "Fall"
    before, after, newest = (found.rows[place].label for place in (fall.before, fall.after, -1))
    seen = f", first seen at {after}" if after != newest else ""
    size = "; its size is measured when the trace ends"
    if fall.fresh is not None:
        doubt = "" if fall.confirmed else ", which does not confirm it"
        size = f": {_interval(fall.fresh, fall.metric)} by {newest} on fresh questions{doubt}"
    gains = f", while {_columns(fall.gaining)} gains" if fall.gaining else ""
    return f"{kind} of {fall.column.task} at {fall.column.length:,} tokens after {before}{seen}{gains}{size}."


def _hurts(found: Traced) -> Iterator[str]:
    """Lines on the checkpoint from which on the text beyond a length hurts: of each task the first such length."""
    for task in dict.fromkeys(each.task for each in found.harms):
        hurting = [each for each in found.harms if each.task == task and each.hurts]
        if not hurting:
            steps = [each.found for each in found.harms if each.task == task]
            size = found_words(smallest_found_by_all(steps, "nll"), "nll")
            name = task
            yield f"{name}: at no checkpoint does more text make the same targets less likely ({size})."
            continue
        each = min(hurting, key=lambda each: (each.place, each.shorter))
        since = found.rows[each.place].label
        yield (
            f"{task}: from {since} on, text beyond {each.shorter:,} tokens hurts: the same targets "
            "have "
            f"{_interval(each.found, 'nll')} per token behind {each.longer:,}."
        )


def _finalists(found: Traced) -> Grid:
    _, metric = _task(found)

    def entry(each: PairedDifference, missing: str) -> GridEntry:
        star = bool(each.significant)
        return difference_entry(each, metric_format(metric), display_factor(metric), missing=missing, star=star)

    rows: list[Line] = []
    for each in found.finalists:
        first, behind = entry(each.to_first, "the first"), entry(each.behind, "the best")
        seemed = (
            "" if each.seemed is None else format_signed(display_factor(metric) * each.seemed, metric_format(metric))
        )
        rows.append([found.rows[each.place].label, first, seemed, behind])
    head = ["finalist", "minus the first", "as it seemed", "minus the best finalist"]
    return Grid(head=head, rows=rows, title="Finalists on fresh questions, mean over lengths")


def _of(found: Traced, task: str) -> list[tuple[Column, str]]:
    return [(column, metric) for column, metric in found.columns.items() if column.task == task]


def _values(found: Traced, task: str) -> Grid:
    columns = _of(found, task)
    metric = columns[0][1]
    rows: list[Line] = []
    for row in found.rows:
        values = [
            paired_difference(row.kept[column].outcomes[name], row.kept[column].outcomes[name], name).value
            for column, name in columns
        ]
        rows.append([row.label, *("" if each is None else format_metric_value(metric, each) for each in values)])
    title = (
        f"{task}, "
        f"{metric_label(metric)}{short_unit(metric) if display_factor(metric) != 1 else ''}{direction_phrase(metric)}"
    )
    return Grid(head=["checkpoint", *(str(column.length) for column, _ in columns)], rows=rows, title=title)


def _differences(found: Traced, task: str, base: int, name: str) -> Grid:
    """Each checkpoint minus another one, by length."""
    columns = _of(found, task)
    metric = columns[0][1]
    family = {
        (place, column): paired_difference(
            found.rows[base].kept[column].outcomes[kind], row.kept[column].outcomes[kind], kind
        )
        for place, row in enumerate(found.rows)
        if place != base
        for column, kind in columns
    }
    known = correct_by_holm(family)
    rows: list[Line] = [
        [
            row.label,
            *(
                difference_entry(
                    known[place, column],
                    metric_format(metric),
                    display_factor(metric),
                    star=bool(known[place, column].significant),
                )
                for column, _ in columns
            ),
        ]
        for place, row in enumerate(found.rows)
        if place != base
    ]
    better_ = "below 0: better" if better_direction(metric) < 0 else "above 0: better"
    title = f"{task}, {metric} minus that of {name} ({found.rows[base].label}), {better_}"
    return Grid(head=["checkpoint", *(str(column.length) for column, _ in columns)], rows=rows, title=title)


def _more_text(found: Traced) -> Grid:
    """Effect of more text on the same targets, by checkpoint."""
    steps = list(dict.fromkeys((each.task, each.shorter, each.longer) for each in found.harms))
    known = {(each.place, (each.task, each.shorter, each.longer)): each for each in found.harms}
    rows: list[Line] = [
        [
            row.label,
            *(
                difference_entry(known[place, step].found, ".3f", star=known[place, step].hurts)
                if (place, step) in known
                else ""
                for step in steps
            ),
        ]
        for place, row in enumerate(found.rows)
    ]
    several_tasks = len({task for task, _, _ in steps}) > 1
    head = [
        "checkpoint",
        *(f"{f'{task} ' if several_tasks else ''}{longer} - {shorter}" for task, shorter, longer in steps),
    ]
    title = "The same targets behind a longer text minus behind a shorter one, nats per token; above 0: it hurts"
    return Grid(head=head, rows=rows, title=title)

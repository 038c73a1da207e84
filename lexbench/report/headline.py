"""The headline as a grid: method by level, gain beyond the trained length, retrieval and price."""

from collections.abc import Iterator, Mapping, Sequence

from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import Record
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.report.grid import EMPTY_ENTRY, Grid, GridEntry, Line, best_displayed_value, interval_texts, value_entry
from lexbench.report.notes import language_sentences, note_text, notes_text, why_all_alike
from lexbench.report.rivals import method_name
from lexbench.report.titles import table_caption
from lexbench.report.wording import floor_text, format_ratio, format_record_value, format_signed, metric_label
from lexbench.stats.differences import Differences
from lexbench.stats.gain import NllDrop
from lexbench.stats.headline import Headline, HeadlineRow
from lexbench.stats.notes import NoteKind
from lexbench.stats.summaries import SummaryValue
from lexbench.stats.tables import Table

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


def headline_sentences(found: Headline) -> list[str]:
    """Sentences on the gains (always the first), the control and the retrieval."""
    if found.unspoken:
        return [language_sentences(found.unspoken), *_retrieval(found)]
    return [_gains(found), *_control_gain(found), *_retrieval(found)]


def headline_sentence(found: Headline) -> str:
    """All sentences in a line."""
    return " ".join(headline_sentences(found))


def first_sentences(found: Headline, compared: Differences, keys: Sequence[Table]) -> list[str]:
    """Sentences on what the first figure of a report shows: texts, keys, and what cutting the text gives.

    Args:
        found: the headline.
        compared: paired differences of its losses to the unmodified model.
        keys: of keys copied whole, and chosen or reached; none: nothing is said of keys.
    """
    gains = headline_sentences(found)[0]
    if found.unspoken:
        return [gains]
    here = {row: each for (row, length), each in compared.entries.items() if length == found.longest}
    told = {row: -(each.difference or 0.0) for row, each in here.items() if each.significant}
    better = sorted((row for row, gain in told.items() if gain > 0), key=told.__getitem__)
    if not any(row.gains for row in found.rows):
        gains = f"Cutting the text to {found.inside:,} tokens is not beaten: {gains[:1].lower()}{gains[1:]}"
    return [_better_texts(found, better, told, len(here)), *_keys_found(found, keys, better[-1:]), gains]


def _better_texts(found: Headline, better: Sequence[MethodKey], gains: Mapping[MethodKey, float], compared: int) -> str:
    """How many methods predict the text better than the unmodified model at the longest length, and by how much."""
    place = f"At {found.longest:,} tokens ({format_ratio(found.longest / found.table.cell.trained_length)})"
    than = "predict the text better than the unmodified model does there"
    if not better:
        return f"{place} no method is shown to {than}."
    sizes = " to ".join(f"{gains[row]:.3f} ({row})" for row in dict.fromkeys((better[0], better[-1])))
    return f"{place} {len(better)} of {count_with_noun(compared, 'method')} {than}: by {sizes} nats per token."


def _keys_found(found: Headline, keys: Sequence[Table], best_in_text: Sequence[MethodKey]) -> Iterator[str]:
    """Keys copied whole, and chosen or reached: of the best method, the best in text, and the unmodified model."""
    known: dict[MethodKey, list[float]] = {}
    for row in keys[0].methods if keys else ():
        records = [table.entries.get((row, found.longest)) for table in keys]
        values = [each.value for each in records if each is not None and each.value is not None]
        known |= {row: values} if len(values) == len(keys) else {}
    if not known:
        return
    best = max(known, key=known.__getitem__)
    said = {best: "", **dict.fromkeys(best_in_text, ", the best in text,"), BASELINE_METHOD: ""}
    n = max(each.n for each in keys[0].at(found.longest))
    words = [metric_label(table.metric, table.cell.task_name).partition(" (")[0] for table in keys]
    counts = {row: [f"{n * value:.3g}" for value in known[row]] for row in said if row in known}
    first = " and ".join(f"{count} {word}" for count, word in zip(counts.pop(best), words, strict=True))
    rest = "".join(f"; {method_name(row)}{said[row]} {' and '.join(each)}" for row, each in counts.items())
    yield f"Of {n} keys {method_name(best)}{said[best]} has {first}{rest}."


def _gains(found: Headline) -> str:
    start, longest = found.inside, found.longest
    over_none = gains_are_over_baseline(found)
    helped = [row for row in found.rows if row.gains]
    if helped:
        whose = "over the unmodified model" if over_none else "over its own level"
        most = f"{_gain_text(helped[0].gain)} at {longest:,} {whose} at {start:,}"
        others = f"; also gaining: {join_first_few([row.method for row in helped[1:]], 3)}" if len(helped) > 1 else ""
        return f"{helped[0].method} gains most from context beyond {start:,} tokens: {most}{others}."
    if all(row.method == BASELINE_METHOD for row in found.rows if row.gain is not None):
        return f"The unmodified model does not predict text better from {longest:,} tokens than from {start:,}."
    whose = f"the unmodified model does from its own {start:,}" if over_none else f"it does from {start:,}"
    return f"No method predicts text better from {longest:,} tokens than {whose}."


def _control_gain(found: Headline) -> Iterator[str]:
    if found.control is None or found.half is None:
        return
    if found.idle:
        yield f"(Nor does this model gain from {found.half:,} to {found.inside:,}: it has little to gain.)"
    else:
        yield f"(From {found.half:,} to {found.inside:,} the unmodified model gains {_gain_text(found.control)}.)"


def _gain_text(gain: NllDrop | None) -> str:
    assert gain is not None
    return f"{format_signed(gain.value)} nats per token{_ends(gain)}"


def _retrieval(found: Headline) -> Iterator[str]:
    """Retrieval in the table: the best method, and one that is right less often at a loss not told from its loss."""
    needles, above = found.retrievals, found.above_floor
    if not needles:
        return
    where = f"at {found.longest:,} tokens ({join_first_few([each.cell.task for each in found.needles], 3)})"
    if why := why_all_alike(needles.values()):
        yield f"Retrieval {where} cannot be told: {why}."
        return
    if not above:
        only = next(iter(needles.values()))
        yield f"Retrieval {where}: {floor_text(only.floor, only.floor_of)} for the only method."
        return
    # As shown: means of several tasks that are equal differ in their last digits.
    texts = {method: format_record_value(needles[method], value) for method, value in above.items()}
    first = max(above, key=above.__getitem__)
    best = [method for method, text in texts.items() if text == texts[first]]
    said = f"Most answers are right under {join_first_few(best, 3)}: {_count_found(needles[first], found)} {where}"
    yield f"{said}{_blind(found)}."


def _blind(found: Headline) -> str:
    """The method whose loss cannot be told from that of the best at retrieval, with the difference; or nothing."""
    gap = found.blind_gap
    if found.blind is None or gap is None or gap.difference is None or gap.interval is None:
        return ""
    ends = f"[{format_signed(gap.interval.low)}, {format_signed(gap.interval.high)}]"
    count = _count_found(found.retrievals[found.blind], found)
    return (
        f"; under {method_name(found.blind)} {count}, at a loss that is not told apart "
        f"(paired difference {format_signed(gap.difference)} {ends} nats per token)"
    )


def _count_found(record: Record, found: Headline) -> str:
    """`27 of 32`; of several tasks, or partial scores, the mean with its interval."""
    value = record.value or 0.0
    right = value * record.n
    if len(found.needles) == 1 and abs(right - round(right)) < 1e-6:
        return f"{round(right)} of {record.n}"
    ends = f" [{record.low:.2f}, {record.high:.2f}]" if record.low is not None and record.high is not None else ""
    return f"{value:.2f}{ends}"


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
            price_entry(row.price),
        ]
        for row in found.rows
    ]
    return Grid(
        title=f"What context beyond {cell.trained_length} tokens adds: {cell.task} on {cell.model}",
        above=[headline_sentence(found), f"Protocol: {'. '.join(table_caption(found.table).splitlines())}."],
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
    lengths = f"from {found.half:,} to {found.inside:,} tokens"
    said = f"{lengths} the unmodified model itself gains {format_signed(found.control.value)}{_ends(found.control)}"
    yield f"Control: {said} on the same targets." + (f" {NO_CONTROL_GAIN}" if found.idle else "")


def _ends(gain: NllDrop) -> str:
    """The interval behind a gain."""
    ends = interval_texts(gain.low, gain.high, format_signed)
    return f" [{', '.join(ends)}]" if ends else ""


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


def price_entry(each: SummaryValue | None) -> GridEntry:
    """A price in loss."""
    if each is None:
        return EMPTY_ENTRY
    if each.value is None:
        return GridEntry(text="no value", notes=(notes_text(each.notes),))
    settings = tuple(note_text(note) for note in each.notes if note.kind is NoteKind.SETTING)
    ends = interval_texts(each.low, each.high, format_signed)
    return GridEntry(text=format_signed(each.value), ends=ends, notes=settings)

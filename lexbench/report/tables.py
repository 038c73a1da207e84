"""The tables of a report as grids and sheets: values, parts, paired differences, context gain, collapse by position."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.record import SERVER_KERNEL, Record
from lexbench.core.text import join_first_few
from lexbench.report.abilities import ability_sentence
from lexbench.report.formats import sheet_markdown, sheet_text
from lexbench.report.grid import (
    EMPTY_ENTRY,
    TRUNCATION_NOTE,
    Grid,
    GridEntry,
    Line,
    best_displayed_value,
    difference_entry,
    interval_texts,
    truncated_share,
    value_entry,
)
from lexbench.report.longbench import longbench_grid, longbench_tables
from lexbench.report.notes import (
    SAME_ATTENTION_WORDS,
    coverage_sentences,
    difference_notes,
    language_sentences,
    note_text,
    unchanged_prompts_sentence,
)
from lexbench.report.sheet import Block, Heading, Paragraph
from lexbench.report.stopping import stopped_grid
from lexbench.report.titles import differences_in_brackets, length_heading, table_caption
from lexbench.report.wording import (
    difference_format,
    format_record_value,
    format_signed,
    found_words,
    level_text,
    metric_label,
)
from lexbench.stats import metrics, positions
from lexbench.stats.differences import Difference, Differences, usual_counts
from lexbench.stats.floors import NGRAM_FLOOR_NAMES, at_floor, language_not_learned
from lexbench.stats.gain import Gain, first_harmful_length, smallest_found_step
from lexbench.stats.length_effect import LengthEffect
from lexbench.stats.records import number_sort_key
from lexbench.stats.same_attention import unchanged_up_to
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from lexbench.store.stopped import read_stopped
from lexbench.store.store import Store

MAX_TERMINAL_CELLS = 2000
"""Largest number of cells whose tables a terminal shows."""
DIFFERENCES_LEGEND = """\
Each entry is a method's value minus the baseline's over the same samples: NLL in nats per token, weighted by tokens as
in the tables of the report; scores in points, hundredths of the score. The baseline's row holds its own values.
Brackets hold 95 % intervals, pairs kept together: of NLL the bootstrap-t over documents, of answers that are right or
wrong recovered variances (MOVER). An interval without width: at this precision, all pairs differ equally. *:
significant at 0.05, two-sided, by sign flips over documents or haystacks and by a test for skewed differences, after
Holm's correction over the methods and lengths of a table. A difference between two values at their floor, or at the
ceiling, is never starred.
"""
GAIN_LEGEND = """\
Gain: NLL at the shortest length minus NLL at this one, in nats per token over the same targets; positive where more
context helps. Hurts from: the first length that is worse than the one before it, by an interval wholly below zero,
uncorrected for the number of lengths.
"""
LENGTH_EFFECT_LEGEND = """\
Score at this length over the score at the shortest one, minus 1, on the same questions: 0 where only the distance grows
and the model does not mind it, -100 % where nothing is left. At its floor: the score at the shortest length has an
interval that reaches chance.
"""
SERVER_NOTE = (
    "Whether the server puts a text or a second BOS in front of every prompt cannot be judged without a reference: "
    "lexbench identify."
)
MIN_SAID_CHANCE = 0.01
"""Chance from which on methods that are not above it are named."""
NAME_OF_FLOOR = {"bigram": "counting word pairs", "unigram": "counting words", "uniform": "guessing"}
"""Models without context that a loss is compared with, in words."""
COLLAPSE_LEGEND = """\
In range: the second half of the trained length. Collapse: the position (tokens before the target, BOS counted) from
which NLL stays more than 0.5 nats above that level, to the end; never: not within this length. Brackets hold 95 %
intervals over resampled documents.
"""


def setting_heading(table: Table) -> list[Block]:
    """Task, model and what all cells share, above the tables of one setting."""
    protocol, rest = table_caption(table).split("\n", 1)
    title = f"{table.cell.task} on {table.cell.model}{differences_in_brackets(table)}"
    return [Heading(title), Paragraph(f"Protocol: {protocol}."), Paragraph(f"{rest}.")]


def _heads(table: Table) -> list[str]:
    return [length_heading(table, length) for length in table.lengths]


def table_grid(table: Table) -> Grid:
    """Methods down, lengths across, the best of each column bold."""
    best = {length: best_displayed_value(table.at(length)) for length in table.lengths}
    truncated = table.truncated

    def at(row: MethodKey, length: int) -> GridEntry:
        record = table.entries.get((row, length))
        more = truncated_share(record) if record and truncated else ""
        return value_entry(record, best=best[length], more=more, n=table.cell.n)

    rows: list[Line] = [[row, *(at(row, length) for length in table.lengths)] for row in table.methods]
    for row in dict.fromkeys(name for name, _ in table.prices):
        rows.append([row, *(value_entry(table.prices.get((row, length)), n=table.cell.n) for length in table.lengths)])
    columns = {str(length): table.at(length) for length in table.lengths}
    silent = language_not_learned(table.of(table.methods[0])) if table.methods else None  # none, where it was measured
    below = [
        *floor_lines(columns),
        *_shortcut_line(table),
        *([language_sentences(silent)] if silent else []),
        *_states(table),
    ]
    of_prompts = any(map(_factors_of_prompts, table.parts.values()))
    below += [*([TRUNCATION_NOTE] if truncated else []), *realised_line(columns, median=of_prompts)]
    below += [*_unchanged_prompts_lines(table), *_unmeasured_line(table)]
    below += [SERVER_NOTE] if table.cell.kernel == SERVER_KERNEL else []
    return Grid(head=["method", *_heads(table)], rows=rows, below=below)


def _factors_of_prompts(parts: Mapping[str, Record]) -> dict[float, int]:
    """Prompts of each factor, where the cell has one for each prompt."""
    return {float(name.split()[1]): each.n for name, each in parts.items() if name.startswith("factor ")}


def _unchanged_prompts_lines(table: Table) -> Iterator[str]:
    """Prompts that are read as by none, at each length that is a ceiling, for each method that is another beyond."""
    trained = table.cell.trained_length
    for length in table.lengths:
        alike: dict[tuple[int, int, float], list[MethodKey]] = {}
        for row in table.methods:
            record, parts = table.entries.get((row, length)), table.parts.get((row, length), {})
            by_factor = _factors_of_prompts(parts)
            form = table.attentions.get(record.cell) if record else None
            if by_factor and form is not None and row != BASELINE_METHOD:
                up_to = unchanged_up_to(form)
                count = sum(n for factor, n in by_factor.items() if factor * trained <= up_to)
                alike.setdefault((count, sum(by_factor.values()), up_to), []).append(row)
        for told, methods in alike.items():
            if told[0]:
                yield f"At {length}: {unchanged_prompts_sentence(methods, *told)}"


def _unmeasured_line(table: Table) -> Iterator[str]:
    """Metrics of the task that are not measured, said once: below its accuracy."""
    if table.unmeasured and metrics.is_headline_score(table.metric):
        yield f"Not measured by this version or backend: {'; '.join(each.words for each in table.unmeasured)}."


def _states(table: Table) -> Iterator[str]:
    """Parameters that tell twins apart, a line for each key: `pi: factor 4.0; pi #2: factor 8.0.`"""
    for rows in group_by_key(table.states, lambda row: replace(row, twin=1)).values():
        told = [(row, ", ".join(f"{name} {value}" for name, value in table.states[row].items())) for row in rows]
        yield f"{'; '.join(f'{row}: {said}' for row, said in told)}."


def floor_lines(records: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    """The score of guessing, and the floors of a likelihood, by the heads of columns; nothing where none is known."""
    chance = {
        head: max((each.chance for each in column if each.chance), default=None) for head, column in records.items()
    }
    if said := _joined_by_head({head: level_text(level) for head, level in chance.items() if level is not None}):
        yield f"Chance: {said}.{_not_above_chance(records)}"
    floors = {head: next((_ngrams(each) for each in column if _ngrams(each)), "") for head, column in records.items()}
    if said := _joined_by_head({head: text for head, text in floors.items() if text}, "; "):
        yield f"For scale, on the same targets: {said}."


def _not_above_chance(records: Mapping[str, Sequence[Record]]) -> str:
    """` Not above it: none at 256, 512; rerope at 512.`: methods whose interval reaches chance, by heads of columns.

    Chances below 0.01 are left out: there a score at chance is a 0 that shows itself.
    """
    methods: dict[MethodKey, list[str]] = {}
    counts = {head: sum(each.value is not None for each in column) for head, column in records.items()}
    for head, column in records.items():
        for each in column:
            if each.value is not None and (each.chance or 0.0) >= MIN_SAID_CHANCE and at_floor(each):
                methods.setdefault(each.method, []).append(head)
    by_heads = group_by_key(methods, lambda method: tuple(methods[method]))
    told = [
        f"{_all_or_names(rows, max(counts[head] for head in heads))} at {', '.join(heads)}"
        for heads, rows in by_heads.items()
    ]
    return f" Not above it: {'; '.join(told)}." if told else ""


def _all_or_names(rows: Sequence[MethodKey], count: int) -> str:
    """The names of rows, at most six; `all` where a column has no other."""
    return "all" if len(rows) == count > 1 else join_first_few(rows)


def _shortcut_line(table: Table) -> Iterator[str]:
    """Scores of a reader of the last tokens alone, by window, at the lengths where they are above chance."""
    found: dict[int, dict[str, list[str]]] = {}
    for length, shortcut in sorted(table.shortcuts.items()):
        chance = max((record.chance for record in table.at(length) if record.chance), default=0.0)
        if shortcut.accuracy > chance and (level := level_text(shortcut.accuracy)) != level_text(chance):
            found.setdefault(shortcut.window, {}).setdefault(level, []).append(str(length))
    told = [
        f"the last {window}{'' if place else ' tokens alone'}: "
        + ", ".join(f"{level} at {', '.join(lengths)}" for level, lengths in levels.items())
        for place, (window, levels) in enumerate(sorted(found.items()))
    ]
    if told:
        yield f"Reading {'; '.join(told)}."


def _ngrams(record: Record) -> str:
    """`counting word pairs scores 5.424, counting words 6.433, guessing 7.625`."""
    known = [
        (NAME_OF_FLOOR[name], level)
        for name in reversed(NGRAM_FLOOR_NAMES)
        if (level := getattr(record, name)) is not None
    ]
    scores = [f"{name} {format_record_value(record, level)}" for name, level in known[1:]]
    return ", ".join([*(f"{name} scores {format_record_value(record, level)}" for name, level in known[:1]), *scores])


def _joined_by_head(shown: Mapping[str, str], between: str = ", ") -> str:
    """A text that all columns share, or one for each."""
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return between.join(f"{text} at {head}" for head, text in shown.items())


def realised_line(records: Mapping[str, Sequence[Record]], median: bool = False) -> Iterator[str]:
    """Realised tokens, of the columns with a sample that is shorter or longer than its length; and their median."""
    parts = []
    for head, column in records.items():
        measured = [record for record in column if record.tokens_min is not None]
        if any({record.tokens_min, record.tokens_max} != {record.length} for record in measured):
            low = min(record.tokens_min or 0 for record in measured)
            high = max(record.tokens_max or 0 for record in measured)
            middle = max(record.tokens_median or 0 for record in measured)  # one, of the same questions
            parts.append(f"{low} to {high} {f'(median {middle:g}) ' if median else ''}at {head}")
    if parts:
        yield f"Realised tokens: {', '.join(parts)}."


def terminal_tables(measured: Sequence[tuple[Path, Sequence[str]]]) -> str:
    """Headline tables of the named cells of run folders, for a terminal; empty where there are none.

    The data sets of LongBench stand in one table.
    """
    wanted: dict[Path, set[str]] = {}
    for folder, ids in measured:
        wanted.setdefault(folder, set()).update(ids)
    if (cells := sum(map(len, wanted.values()))) > MAX_TERMINAL_CELLS:
        return f"{cells:,} cells: more tables than a terminal shows"
    finished = {each.cell.id: each for folder, ids in wanted.items() for each in Store(folder).load(ids)}
    of_longbench = longbench_tables(finished.values())
    laid_out = {name for layout in of_longbench for name in layout.ids}
    tables = headline_tables(each for name, each in finished.items() if name not in laid_out)
    shown: list[Block] = []
    told = set[str]()
    for table in tables:
        about = table_caption(table)  # of several metrics of the same cells once
        above = [] if about in told else about.splitlines()
        shown.append(replace(table_grid(table), title=table_headline(table), above=above))
        told.add(about)
    shown += map(longbench_grid, of_longbench)
    stopped = [each for folder, ids in wanted.items() for each in read_stopped(folder) if each.cell in ids]
    shown += [stopped_grid(stopped)] if stopped else []
    said = ability_sentence(tables)
    return sheet_text([*shown, *([Paragraph(said)] if said else [])]).rstrip()


def table_headline(table: Table) -> str:
    """Task, metric and model."""
    return f"{table.cell.task}, {metric_label(table.metric, table.cell.task_name)}, {table.cell.model}"


def headline_tables(finished: Iterable[FinishedCell]) -> list[Table]:
    """The tables of headline metrics; all tables of a task that has none."""
    every = build_tables(finished)
    headed = {table.setting for table in every if metrics.is_headline(table.metric)}
    return [table for table in every if metrics.is_headline(table.metric) or table.setting not in headed]


# parts: groups of a cell's samples


def parts_of(table: Table) -> list[str]:
    """Names of all parts of a table's cells; empty where samples are in no groups."""
    return sorted({part for records in table.parts.values() for part in records}, key=number_sort_key)


def parts_grid(table: Table) -> Grid:
    """Methods and lengths down, parts across, the best of each length and part bold."""
    parts = parts_of(table)
    rows: list[Line] = []
    for length in table.lengths:
        here = [row for row in table.methods if (row, length) in table.entries]
        column = {
            part: [table.parts[row, length][part] for row in here if part in table.parts.get((row, length), {})]
            for part in parts
        }
        best = {part: best_displayed_value(records) for part, records in column.items()}
        for row in here:
            whole = table.entries[row, length]
            found = {part: table.parts[row, length].get(part, whole if whole.refused else None) for part in parts}
            entries = [
                value_entry(record, best=best[part], more=_count_text(record, table) if record else "")
                for part, record in found.items()
            ]
            rows.append([row, str(length), *entries])
    below = ["n: samples of the part.", *([TRUNCATION_NOTE] if table.truncated else [])]
    return Grid(head=["method", "length", *parts], rows=rows, labels=2, below=below)


def _count_text(record: Record, table: Table) -> str:
    return f"n {record.n}" + (f" {truncated_share(record)}" if table.truncated else "")


def part_records(table: Table) -> list[Record]:
    """Records of all parts."""
    places = [(row, length) for row in table.methods for length in table.lengths]
    return [record for place in places for record in table.parts.get(place, {}).values()]


# paired differences


def differences_page(found: Sequence[Differences]) -> str:
    """All paired differences of a report as Markdown."""
    blocks: list[Block] = [Heading(f"Paired differences to {found[0].baseline}", 1), Paragraph(DIFFERENCES_LEGEND)]
    for each, before in zip(found, [None, *found], strict=False):
        if before is None or before.table.setting != each.table.setting:
            blocks += setting_heading(each.table)
        blocks += [Heading(f"{each.table.metric} ({each.unit})", 3), difference_grid(each)]
    return sheet_markdown(blocks)


def difference_grid(found: Differences) -> Grid:
    """Methods down, lengths across, the baseline's own values first."""
    lengths, usual = found.table.lengths, usual_counts(found)
    rows: list[Line] = [[f"{found.baseline} (value)", *(_baseline_entry(found, length) for length in lengths)]]
    rows += [
        [row, *(_difference(found, found.entries.get((row, length)), usual) for length in lengths)]
        for row in found.table.methods
        if row in {method for method, _ in found.entries}
    ]
    return Grid(head=["method", *_heads(found.table)], rows=rows, below=list(coverage_sentences(found)))


def _baseline_entry(found: Differences, length: int) -> GridEntry:
    """The baseline's value, scores in points."""
    record = found.table.entries.get((found.baseline, length))
    if record is None or record.refused:
        return value_entry(record)
    if record.metric != found.table.metric or record.value is None:
        return GridEntry(text="no value")
    return GridEntry(
        text=f"{100 * record.value:.1f}" if found.table.scored else format_record_value(record, record.value)
    )


def _difference(found: Differences, each: Difference | None, usual: tuple[int, int]) -> GridEntry:
    if each is None:
        return EMPTY_ENTRY
    if each.refused:
        return GridEntry(text="refused", notes=(f"refused: {' '.join(each.refused.split())}",))
    if each.same_attention:
        note = f"its attention at this length is that of {found.baseline}: no difference by construction, not tested"
        return GridEntry(text=SAME_ATTENTION_WORDS, notes=(note,))
    if each.apart:
        return GridEntry(text="no pairs", notes=(f"no pairs: {note_text(each.apart)}",))
    fate = "a failed side counts 0" if found.table.scored and each.pairs else "left out"
    notes = [f"cannot be told: {note_text(each.limit)}"] if each.limit else []
    notes += difference_notes(each, usual if each.pairs else (0, 0), fate)
    return difference_entry(each, difference_format(found), star=bool(each.significant), notes=notes)


def difference_rows(found: Sequence[Differences]) -> list[dict[str, Any]]:
    """All comparisons of a report as rows, in full precision."""
    rows = []
    for each in found:
        for (_, length), entry in each.entries.items():
            cell = each.table.cell
            shared = {name: getattr(cell, name) for name in ("model", "task", "seed", "trained_length")}
            about = {"metric": each.table.metric, "unit": each.unit, "baseline": str(each.baseline)}
            setting = {name: getattr(cell, name) for name in ("protocol", "backend", "dtype", "kernel", "corpus", "n")}
            multiple = length / cell.trained_length
            numbers = {"cell": entry.cell, "baseline_cell": entry.baseline_cell, **entry.numbers()}
            tests = {"interval": entry.interval.kind if entry.interval else None, **entry.tests()}
            reasons = {"refused": entry.refused, "apart": entry.apart and note_text(entry.apart)}
            reasons["limit"] = entry.limit and note_text(entry.limit)
            own = {"method": str(entry.method), "length": length, **numbers, **tests, **entry.counts(), **reasons}
            rows.append({**shared, **about, "multiple": multiple, **own, **setting, "version": cell.version})
    return rows


# context gain


def gain_grid(table: Table, found: Sequence[Gain]) -> Grid:
    """The gain of each method at each length, beside its NLL at the shortest one."""
    shortest, *others = table.lengths
    places = {(each.method, each.length): each for each in found}
    rows: list[Line] = []
    sizes: list[float | None] = []
    for row in table.methods:
        base = table.entries.get((row, shortest))
        level = f"{base.value:.3f}" if base and base.value is not None else "no value"
        own = [each for each in found if each.method == row]
        hurts = first_harmful_length(own)
        sizes += [] if hurts else [smallest_found_step(own)]
        gains = [_gain(places.get((row, length)), shortest) for length in others]
        rows.append([row, level, *gains, str(hurts or "never")])
    known = list(filter(None, sizes))
    below = [f"Never: {found_words(max(known), 'nll', 'a loss')} from one length to the next."] if known else []
    return Grid(head=["method", f"NLL at {shortest}", *_heads(table)[1:], "hurts from"], rows=rows, below=below)


def _gain(each: Gain | None, shortest: int) -> GridEntry:
    if each is None:
        return EMPTY_ENTRY
    if each.refused:
        return GridEntry(text="refused", notes=(f"refused: {' '.join(each.refused.split())}",))
    gain = each.gain
    if gain is None:
        return GridEntry(text="no pairs", notes=(f"no value at this length or at {shortest}",))
    failed = f"{gain.left_out} of {gain.left_out + gain.targets} targets failed, left out"
    ends = interval_texts(gain.low, gain.high, format_signed)
    return GridEntry(text=format_signed(gain.value), ends=ends, notes=(failed,) if gain.left_out else ())


# length's effect on scores


def length_effect_grid(table: Table, found: Sequence[LengthEffect]) -> Grid:
    """Change of each method's score at each length in percent, beside its score at the shortest one."""
    shortest, *others = table.lengths
    places = {(each.method, each.length): each for each in found}
    rows: list[Line] = []
    for row in dict.fromkeys(each.method for each in found):
        level = 100 * (table.entries[row, shortest].value or 0.0)
        rows.append([row, f"{level:.1f}", *(_effect_entry(places.get((row, length))) for length in others)])
    return Grid(
        head=["method", f"{metric_label(table.metric, table.cell.task_name)} at {shortest}", *_heads(table)[1:]],
        rows=rows,
    )


def _effect_entry(each: LengthEffect | None) -> GridEntry:
    if each is None:
        return EMPTY_ENTRY
    if each.value is None:
        return GridEntry(text="at its floor")
    ends = interval_texts(each.low, each.high, lambda end: f"{100 * end:+.1f}")
    return GridEntry(text=f"{100 * each.value:+.1f} %", ends=ends)


# collapse by position


def collapse_grid(table: Table, curves: Sequence[positions.PositionCurve]) -> Grid | None:
    """At the longest length: NLL inside and beyond the trained length, and where it collapses; None for marks."""
    length, trained = curves[-1].length, table.cell.trained_length
    found = [curve for curve in curves if curve.length == length and curve.collapse is not None]
    if not found:
        return None
    head = ["method", f"NLL at {trained // 2} to {trained - 1}", f"NLL at {trained} to {length - 1}", "collapse"]
    rows: list[Line] = [
        [
            curve.method,
            _position_entry(curve.level),
            _position_entry(curve.beyond),
            _position_entry(curve.collapse or curve.level, ".0f"),
        ]
        for curve in found
    ]
    return Grid(head=head, rows=rows)


def _position_entry(each: positions.BinValue, digits: str = ".3f") -> GridEntry:
    text, low, high = (positions.format_position(end, digits) for end in (each.value, each.low, each.high))
    return GridEntry(text=text, ends=(low, high) if low and low != "never" else None)

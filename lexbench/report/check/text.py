"""A check as a sheet: the verdict, one table of differences, and notes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.core.text import count_with_noun, join_first_few, join_lengths
from lexbench.report.check.check import ALTERED_EXIT_CODE, Check
from lexbench.report.formats import sheet_markdown, sheet_text
from lexbench.report.grid import Grid, GridEntry, Line
from lexbench.report.notes import change_text, note_text
from lexbench.report.sheet import Block, Heading, Paragraph, Remark
from lexbench.report.wording import format_metric_change, format_metric_value, format_p_value, short_unit
from lexbench.stats.alterations import Alteration
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_unit, is_score
from lexbench.stats.reach import AMBER_NATS, AMBER_SCORE_POINTS
from lexbench.stats.regressions import Verdict, VerdictStatus

STATUSES_IN_ORDER = (
    *(VerdictStatus.PROVEN, VerdictStatus.HELD, VerdictStatus.IMPROVED, VerdictStatus.REGRESSED),
    *(VerdictStatus.NOT_PROVEN, VerdictStatus.NOT_COMPARABLE, VerdictStatus.CHANGED, VerdictStatus.NEW),
)
"""Order in which a headline counts verdicts."""
MARK_OF_STATUS = {
    VerdictStatus.REGRESSED: "LOST",
    VerdictStatus.IMPROVED: "gained",
    VerdictStatus.NOT_COMPARABLE: "?",
    VerdictStatus.NOT_PROVEN: "?",
    VerdictStatus.CHANGED: "changed",
    VerdictStatus.NEW: "new",
    VerdictStatus.PROVEN: "proven",
}
"""Marks beside a difference; what is held has none."""
MAX_TERMINAL_ROWS = 24
"""Maximum rows on a terminal; a longer table is cut to rows with a change beyond the tolerance."""


def terminal_text(found: Check, colour: bool = False) -> str:
    """Text for a terminal: the verdict, one table, notes; with `colour` a pass that proves little is amber."""
    rows = table_rows(found)
    if len(rows) > MAX_TERMINAL_ROWS:
        rows = [(name, group) for name, group in rows if any(map(_is_noteworthy, group))]
    verdict = Paragraph(verdict_line(found), warns=is_amber(found))
    return sheet_text([verdict, *check_sheet(found, rows)], colour).rstrip()


def check_as_markdown(found: Check) -> str:
    """Markdown for a pull request or a job's summary; a pass that proves little has a warning's colour."""
    amber = [Paragraph(verdict_line(found), warns=True)] if is_amber(found) else []
    heading = Heading(f"lexbench check: {verdict_line(found)}")
    return sheet_markdown([heading, *amber, *check_sheet(found, table_rows(found))])


def check_sheet(found: Check, rows: Sequence[tuple[str, list[Verdict]]]) -> list[Block]:
    """A check below its verdict: the table of `rows`, and the notes."""
    left = len(table_rows(found)) - len(rows)
    return [
        *([_grid(rows)] if rows else []),
        *([Remark(f"{count_with_noun(left, 'row')} held or new, not shown")] if left else []),
        *(Remark(str(note)) for note in check_notes(found)),
    ]


def is_amber(found: Check) -> bool:
    """Whether a check passes in which some comparison could not have shown a loss, or only a large one."""
    if found.code or found.certify:
        return False
    return bool(found.blind) or any(
        size > (AMBER_SCORE_POINTS if is_score(metric) else AMBER_NATS) for metric, size in found.smallest.items()
    )


def verdict_line(found: Check) -> str:
    """The verdict in a line; of a pass, how many comparisons could not have shown a loss."""
    counts = [(len(found.of(status)), status) for status in STATUSES_IN_ORDER]
    if found.code == 0 and not found.certify:
        more = (VerdictStatus.IMPROVED, VerdictStatus.NEW)
        others = "".join(f", {count} {status.value}" for count, status in counts if count and status in more)
        return (
            f"{found.word}: no loss found in "
            f"{count_with_noun(len(found.compared), 'comparison')}{_blind_text(found)}{others}{_smallest_text(found)}"
        )
    if found.code == ALTERED_EXIT_CODE and found.altered:
        methods = join_first_few(sorted({str(each.method) for each in found.altered}), 3)
        counted = "".join(f", {count} {status.value}" for count, status in counts if count)
        return f"{found.word}: another attention of {methods}{counted}"
    return f"{found.word}: {', '.join(f'{count} {status.value}' for count, status in counts if count)}"


def _smallest_text(found: Check) -> str:
    """`; one of 25 points of accuracy would have been found`; nothing where all comparisons are blind."""
    sizes = [f"{size:.2g}{short_unit(metric)} of {metric}" for metric, size in found.smallest.items()]
    if not sizes:
        return ""
    which = "the others" if found.blind else "each"
    return f"; {which} would have found one of {' or '.join(sizes)}"


def _blind_text(found: Check) -> str:
    """`, 7 of which could not have shown one`; nothing where all could."""
    blind, compared = len(found.blind), len(found.compared)
    if not blind:
        return ""
    if blind == compared:
        return ", which could not have shown one" if blind == 1 else ", none of which could have shown one"
    return f", {blind} of which could not have shown one"


def table_rows(found: Check) -> list[tuple[str, list[Verdict]]]:
    """Verdicts by task, metric, unit and method; by model and seed where there are several."""
    shown = [each for each in found.verdicts if each.metric is not None]
    models, seeds = ({getattr(each.cell, name) for each in shown} for name in ("model", "seed"))

    def row(verdict: Verdict) -> str:
        of, metric = verdict.cell, verdict.metric or ""
        model = f"{of.model} " if len(models) > 1 else ""
        seed = f" seed {of.seed}" if len(seeds) > 1 else ""
        return f"{model}{of.task} {metric} ({display_unit(metric)}): {of.method}{seed}"

    return list(group_by_key(shown, row).items())


def _is_noteworthy(verdict: Verdict) -> bool:
    quiet = VerdictStatus.HELD, VerdictStatus.PROVEN, VerdictStatus.NEW
    return verdict.status not in quiet or verdict.doubted


def _grid(rows: Sequence[tuple[str, list[Verdict]]]) -> Grid:
    """The run minus the baseline, a column per length."""
    lengths = sorted({each.cell.length for _, group in rows for each in group})
    made: list[Line] = []
    for name, group in rows:
        entries = {each.cell.length: _entry(each) for each in group}
        made.append([name, *(entries.get(length, "") for length in lengths)])
    return Grid(head=["run minus baseline", *map(str, lengths)], rows=made)


def _entry(verdict: Verdict) -> GridEntry:
    found = verdict.found
    number = (
        ""
        if found is None or found.difference is None
        else format_metric_change(verdict.metric or "", found.difference)
    )
    if verdict.status in MARK_OF_STATUS:
        return GridEntry(text=number, more=MARK_OF_STATUS[verdict.status])
    return GridEntry(text=number or "refused", more="~" if number and verdict.doubted else "")


class CheckNoteKind(Enum):
    """Subject of a note on a check, the worst first; its value begins the line."""

    LOST = "lost: "
    NOT_COMPARABLE = "not comparable: "
    NOT_PROVEN = "not proven: "
    ALTERED = "another method under the same name: "
    CHANGED_QUESTIONS = "changed: "
    PROVEN = "proven: "
    DOUBTED = "~ "
    """A loss beyond the tolerance that is held for want of significance."""
    GAINED = "gained, --update keeps it: "
    NEW = "new: "
    HELD = "held: "
    UNSPOKEN = "not spoken: "
    UNPAIRED = "other questions, compared unpaired, with less power: "
    NO_POWER = "no power: "
    REACH = "found nine times of ten, by metric: "
    CHANGED = "other settings: "
    NOT_READABLE = "not readable: "
    NO_CHECKSUM = "no checksum: "
    METHOD = ""


@dataclass(frozen=True)
class CheckNote:
    """A note on a check."""

    kind: CheckNoteKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}{self.text}"


def check_notes(found: Check) -> list[CheckNote]:
    """Notes in plain lines, the worst first."""
    doubted = [each for each in found.verdicts if each.doubted]
    held = [each for each in found.of(VerdictStatus.HELD) if each.reason and not each.doubted]
    unsealed = [] if found.checked else [f"{found.baseline} has no checksum to tell an edit: --update adds one"]
    told: dict[CheckNoteKind, Iterable[str]] = {
        CheckNoteKind.LOST: _verdict_lines(found.of(VerdictStatus.REGRESSED)),
        CheckNoteKind.NOT_COMPARABLE: _by_reason(found.of(VerdictStatus.NOT_COMPARABLE)),
        CheckNoteKind.NOT_PROVEN: _verdict_lines(found.of(VerdictStatus.NOT_PROVEN)),
        CheckNoteKind.ALTERED: _alteration_lines(found),
        CheckNoteKind.CHANGED_QUESTIONS: _by_reason(found.of(VerdictStatus.CHANGED)),
        CheckNoteKind.PROVEN: _verdict_lines(found.of(VerdictStatus.PROVEN)),
        CheckNoteKind.DOUBTED: _verdict_lines(doubted),
        CheckNoteKind.GAINED: _verdict_lines(found.of(VerdictStatus.IMPROVED)),
        CheckNoteKind.NEW: _by_reason(found.of(VerdictStatus.NEW)),
        CheckNoteKind.HELD: _by_reason(held),
        CheckNoteKind.UNSPOKEN: (
            f"{note_text(each)}: only large losses of its likelihood are found" for each in found.unspoken
        ),
        CheckNoteKind.UNPAIRED: _unpaired_notes(found),
        CheckNoteKind.NO_POWER: _no_power_notes(found),
        CheckNoteKind.REACH: _smallest_loss_notes(found),
        CheckNoteKind.CHANGED: map(change_text, found.changes),
        CheckNoteKind.NOT_READABLE: found.problems,
        CheckNoteKind.NO_CHECKSUM: unsealed,
        CheckNoteKind.METHOD: _method_notes(found),
    }
    return [CheckNote(kind, text) for kind, texts in told.items() for text in texts]


def _verdict_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line each, with its numbers."""
    for each in verdicts:
        yield f"{_places([each])}: {verdict_numbers(each)}"


def verdict_numbers(verdict: Verdict) -> str:
    """Both values, the difference, and the test; or the reason where there are none."""
    found, metric = verdict.found, verdict.metric or ""
    if found is None or found.difference is None or found.baseline_value is None or found.value is None:
        return reason_text(verdict)
    ends = found.interval
    between = f" [{format_metric_change(metric, ends.low)}, {format_metric_change(metric, ends.high)}]" if ends else ""
    values = (
        f"{format_metric_value(metric, found.baseline_value)} -> "
        f"{format_metric_value(metric, found.value)}{short_unit(metric)}"
    )
    p = f", p {format_p_value(verdict.p_holm)} after Holm" if verdict.p_holm is not None and verdict.p_holm < 1 else ""
    reason = f"; {reason_text(verdict)}" if verdict.reason else ""
    return (
        f"{values} ({format_metric_change(metric, found.difference)}{between}, tolerance "
        f"{verdict.tolerance:g}{p}){reason}"
    )


def reason_text(verdict: Verdict) -> str:
    """Reason beside the numbers of a verdict, or for none; empty without one."""
    return note_text(verdict.reason) if verdict.reason else ""


def _by_reason(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line per reason, with its cells."""
    for reason, group in group_by_key(verdicts, reason_text).items():
        yield f"{_places(group)}: {reason}"


def _places(verdicts: Iterable[Verdict]) -> str:
    """`passkey accuracy of ntk on lexlet at 512, 1024; ...`; with seeds other than 0."""
    found = []
    for (task, metric, method, model), group in group_by_key(verdicts, _line).items():
        lengths, seeds = (join_lengths([getattr(each.cell, name) for each in group]) for name in ("length", "seed"))
        seed = f", seed {seeds}" if seeds != "0" else ""
        found.append(f"{task} {metric} of {method} on {model} at {lengths}{seed}")
    return join_first_few(found, between="; ")


def _line(verdict: Verdict) -> tuple[str, str, MethodKey, str]:
    return verdict.cell.task, verdict.metric or "", verdict.cell.method, verdict.cell.model


def _unpaired_notes(found: Check) -> Iterator[str]:
    others = [each for each in found.compared if each.unpaired]
    for reason, group in group_by_key(others, lambda each: each.unpaired and change_text(each.unpaired)).items():
        yield f"{_places(group)}: {reason}"


def _no_power_notes(found: Check) -> Iterator[str]:
    """Comparisons in which no loss could be significant."""
    comparisons, blind = len(found.compared), found.powerless
    if blind:
        fewest = min(each.found.clusters for each in blind if each.found)
        least = max(each.found.min_p for each in blind if each.found)
        few = f"with {count_with_noun(fewest, 'cluster')} no p is below {format_p_value(least)}"
        yield f"{few}, too much for {count_with_noun(comparisons, 'comparison')}: raise n ({_places(blind)})"


def _smallest_loss_notes(found: Check) -> Iterator[str]:
    """The smallest loss of each metric that its comparisons find, the best and the worst of them."""
    sizes: dict[str, list[float]] = {}
    for each in found.compared:
        if each.metric and each.smallest is not None:
            sizes.setdefault(each.metric, []).append(each.smallest)
    said = [
        f"{name} {min(each):.2g} to {max(each):.2g}{short_unit(name)}"
        if f"{min(each):.2g}" != f"{max(each):.2g}"
        else f"{name} {max(each):.2g}{short_unit(name)}"
        for name, each in sizes.items()
    ]
    if said:
        yield ", ".join(said)


def _alteration_lines(found: Check) -> Iterator[str]:
    """A line a method whose attention is another one: where, and its largest change."""
    accepted = "; allowed" if found.allow_changed else "; --update or --allow-changed accepts it"
    for each in found.alterations:
        yield f"{each.method} on {each.model} at {join_lengths(each.lengths)}: {alteration_text(each)}{accepted}"


def alteration_text(found: Alteration) -> str:
    """The largest change of an attention: `pair 12 turns by 0.0031 radians a token, was 0.0044, and 6 more numbers`."""
    if not found.slots:
        return "its attention has another hash, of which an older baseline tells no more"
    slot, more = found.slots[0], len(found.slots) - 1
    before, after = ("nothing" if each is None else _attention_value(each) for each in (slot.before, slot.after))
    if slot.path[-2:-1] == ("inv_freq",):
        said = f"pair {slot.path[-1]} turns by {after} radians a token, was {before}"
    else:
        said = f"{'.'.join(map(str, slot.path))} is {after}, was {before}"
    return f"{said}{f', and {more} more' if more else ''}"


def _attention_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _method_notes(found: Check) -> Iterator[str]:
    tolerances = {each.metric: each.tolerance for each in found.compared}
    said = ", ".join(f"{name} {tolerance:g}{short_unit(name or '')}" for name, tolerance in tolerances.items())
    if said:
        count = count_with_noun(len(found.compared), "comparison")
        yield f"{count} with {found.baseline}, tolerance {said}; level {SIGNIFICANCE_LEVEL} in all"

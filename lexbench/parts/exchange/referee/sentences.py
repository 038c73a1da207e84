"""Sentences on two files of samples: what is ruled, with the numbers and what is missing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lexbench.core.text import count_with_noun, join_first_few, plain_text
from lexbench.parts.exchange.files.sample_line import ALL_SAMPLES
from lexbench.parts.exchange.referee.judge import Doubt, FilesQuestion, FilesVerdict, Judged, Ruling, loss_of
from lexbench.parts.exchange.referee.pairs import TaskPair
from lexbench.report.wording import format_p_value, format_signed, short_unit
from lexbench.stats.intervals import CONFIDENCE_LEVEL
from lexbench.stats.metrics import display_factor, is_score
from lexbench.stats.pairs import PairedDifference


@dataclass(frozen=True)
class SideNames:
    """What the two files are called."""

    first: str
    second: str


SIDES_OF_QUESTION = {
    FilesQuestion.COMPARE: SideNames("A", "B"),
    FilesQuestion.CHECK: SideNames("the baseline", "the run"),
    FilesQuestion.CERTIFY: SideNames("A", "B"),
}


def verdict_sentence(verdict: FilesVerdict) -> str:
    """The verdict in one line."""
    rows = verdict.rows
    if len(rows) == 1 and not (verdict.absent and verdict.question is not FilesQuestion.COMPARE):
        return _first_word(verdict) + row_sentence(rows[0], verdict.question)
    if verdict.question is FilesQuestion.COMPARE:
        return _ruling_counts(verdict, tuple(Ruling))
    if verdict.code == 0:
        return _first_word(verdict) + _pass_words(verdict)
    absent = f"; {join_first_few(verdict.absent, 3)} missing in {SIDES_OF_QUESTION[verdict.question].second}"
    told = _ruling_counts(verdict, (Ruling.LOST, Ruling.UNTOLD, Ruling.NOT_PROVEN, Ruling.PROVEN, Ruling.HELD))
    return plain_text(f"{_first_word(verdict)}{told}{absent if verdict.absent else ''}")


def verdict_word(verdict: FilesVerdict) -> str:
    """The verdict in capitals, as `lexbench check` says it; of a comparison its ruling."""
    if verdict.question is FilesQuestion.COMPARE:
        return "; ".join(dict.fromkeys(row.ruling.value for row in verdict.rows)).upper()
    if verdict.code == 1:
        return "LOST"
    if verdict.code == 0:
        return "CERTIFIED" if verdict.question is FilesQuestion.CERTIFY else "PASS"
    return "NOT COMPARABLE" if verdict.absent or verdict.of(Ruling.UNTOLD) else "NOT PROVEN"


def _first_word(verdict: FilesVerdict) -> str:
    return "" if verdict.question is FilesQuestion.COMPARE else f"{verdict_word(verdict)}: "


def _ruling_counts(verdict: FilesVerdict, rulings: Sequence[Ruling]) -> str:
    """How many rows have each ruling, and some of their names."""
    said = []
    for ruling in rulings:
        if rows := verdict.of(ruling):
            named = (
                f" ({join_first_few([pair_label(row.pair) for row in rows], 3)})"
                if len(rows) < len(verdict.rows)
                else ""
            )
            said.append(f"{len(rows)} {ruling.value}{named}")
    return (
        plain_text(f"{count_with_noun(len(verdict.rows), 'comparison')} of B with A: {', '.join(said)}")
        if (verdict.question is FilesQuestion.COMPARE)
        else plain_text(", ".join(said))
    )


def _pass_words(verdict: FilesVerdict) -> str:
    """Of several rows that all hold: what is proven, or the loss that each would have shown."""
    if verdict.question is FilesQuestion.CERTIFY:
        margins = sorted({f"{row.margin:g}{short_unit(row.pair.metric)}" for row in verdict.rows})
        return (
            f"at {100 * CONFIDENCE_LEVEL:g} % each, B loses less than {' or '.join(margins)} in each of "
            f"{count_with_noun(len(verdict.rows), 'comparison')}"
        )
    return f"no loss found in {count_with_noun(len(verdict.rows), 'comparison')}; {_reach(verdict.rows)}"


def _reach(rows: Sequence[Judged]) -> str:
    """`one of 4.1 points would have been found`: the largest of the smallest losses that are found, by unit."""
    if blind := [row for row in rows if row.smallest is None]:
        which = "it" if len(rows) == 1 else f"{len(blind)} of them"
        return f"{which} could not have shown one"
    sizes: dict[str, float] = {}
    for row in rows:
        unit, size = short_unit(row.pair.metric), display_factor(row.pair.metric) * (row.smallest or 0.0)
        sizes[unit] = max(sizes.get(unit, 0.0), size)
    return f"one of {' or '.join(f'{size:.2g}{unit}' for unit, size in sizes.items())} would have been found"


def row_sentence(row: Judged, question: FilesQuestion) -> str:
    """The ruling on one task and metric."""
    sides = SIDES_OF_QUESTION[question]
    what = {
        Ruling.BETTER: f"{sides.second} is better",
        Ruling.WORSE: f"{sides.second} is worse",
    }.get(row.ruling, row.ruling.value)
    if question is FilesQuestion.CHECK and row.ruling is Ruling.HELD:
        said = f"{what}: {_numbers(row)}; {_reach([row])}"
    elif row.ruling is Ruling.PROVEN:
        said = (
            f"at {100 * CONFIDENCE_LEVEL:g} %, {sides.second} loses less than {_margin(row)} of {pair_label(row.pair)} "
            f"({_numbers(row, '')})"
        )
    elif row.ruling in (Ruling.UNTOLD, Ruling.NOT_PROVEN):
        said = f"{_why_open(row, sides)} ({_numbers(row)})"
        said = said if question is not FilesQuestion.COMPARE else f"{what}: {said}"
    else:
        missed = f"; one of {display_factor(row.pair.metric) * row.detectable:.2g}{short_unit(row.pair.metric)} may be "
        more = f"{missed}missed" if row.ruling is Ruling.NO_DIFFERENCE else ""
        what = "" if row.ruling is Ruling.LOST else f"{what}: "
        lost = (
            f", more than {_margin(row)} (p {format_p_value(row.found.p_holm or 0.0)})"
            if row.margin is not None
            else ""
        )
        said = f"{what}{_numbers(row)}{lost}{more}"
    return plain_text("; ".join([said, *_remarks(row, sides)]))


def _remarks(row: Judged, sides: SideNames) -> list[str]:
    """What else the sentence says: missing samples where a ruling stands, failed ones, other prompts."""
    said = []
    if not row.is_whole and row.doubt is not Doubt.MISSING:
        said.append(f"{_missing_words(row, sides)}: {_range(row, sides)}")
    if row.found.failed:
        fate = "counted as wrong" if is_score(row.pair.metric) else "left out"
        said.append(f"{count_with_noun(row.found.failed, 'pair')} failed on a side, {fate}")
    if row.pair.other_prompts and row.doubt is not Doubt.PROMPTS:
        said.append(
            f"{count_with_noun(row.pair.other_prompts, 'pair')} read other prompts, so the difference is one of "
            "prompts, too"
        )
    return said


def _why_open(row: Judged, sides: SideNames) -> str:
    """Why nothing is ruled."""
    if row.doubt is Doubt.MISSING:
        return f"{_missing_words(row, sides)}, perhaps the wrong ones: {_range(row, sides)}"
    if row.doubt is Doubt.PROMPTS:
        return f"{row.pair.other_prompts} of {row.found.pairs} pairs read other prompts"
    clusters = row.found.clusters
    if row.doubt is Doubt.TOO_FEW:
        return f"no loss is significant with {count_with_noun(clusters, 'cluster')}"
    if row.doubt is Doubt.SKEWED:
        return f"skewed noise in {count_with_noun(clusters, 'cluster')} may be all, and more of them tell"
    if row.doubt is Doubt.NOTHING_TO_LOSE:
        return f"{sides.first} has no more than {_margin(row)} to lose"
    return _why_not_proven(row)


def _why_not_proven(row: Judged) -> str:
    if row.worst and loss_of(row, row.worst) > (row.margin or 0.0):
        return f"the loss is above {_margin(row)}"
    if row.proof is None or row.proof.more is None:
        return f"no number of samples like these proves a loss below {_margin(row)}"
    noun = "more sample" if row.proof.clusters == row.proof.questions else "more cluster"
    return f"about {count_with_noun(row.proof.more, noun)} may prove a loss below {_margin(row)}"


def _missing_words(row: Judged, sides: SideNames) -> str:
    """`8 of 32 samples of arc acc are missing in B`."""
    lacks = zip((sides.first, sides.second), map(len, row.pair.missing), strict=True)
    named = [f"{count} in {side}" for side, count in lacks if count]
    total = sum(map(len, row.pair.missing))
    if len(named) == 1:
        named = [
            f"in {next(s for s, lacked in zip((sides.first, sides.second), row.pair.missing, strict=True) if lacked)}"
        ]
    are = "is" if total == 1 else "are"
    return f"{total} of {row.pair.samples} samples of {pair_label(row.pair)} {are} missing {' and '.join(named)}"


def _range(row: Judged, sides: SideNames) -> str:
    """What the difference would be with all that is missing wrong, and with all of it right."""
    if row.worst is None or row.best is None:
        return "a loss has no bound"
    ends = [_value(row, each) for each in (row.worst, row.best)]
    first, second = row.pair.missing
    difference = f"{sides.second} minus {sides.first}"
    if first and second:
        return f"{difference} is from {ends[0]} to {ends[1]}, whatever they would have been"
    wrong, right = ends if second else ends[::-1]
    return f"with all of them wrong {difference} is {wrong}, with all right {right}"


def _numbers(row: Judged, of: str | None = None) -> str:
    """`+34.4 points [+18.1, +50.2] of arc acc, 24 samples that both hold`."""
    found, ends = row.found, row.found.interval
    factor = display_factor(row.pair.metric)
    between = f" [{_format_change(row, factor * ends.low)}, {_format_change(row, factor * ends.high)}]" if ends else ""
    label = f" of {pair_label(row.pair)}" if of is None else of
    hold = "" if row.is_whole else " that both hold"
    return f"{_value(row, found)}{between}{label}, {count_with_noun(found.pairs, 'sample')}{hold}"


def _value(row: Judged, found: PairedDifference) -> str:
    metric = row.pair.metric
    return f"{_format_change(row, display_factor(metric) * (found.difference or 0.0))}{short_unit(metric)}"


def _format_change(row: Judged, number: float) -> str:
    return format_signed(number, ".1f" if is_score(row.pair.metric) else ".4f")


def _margin(row: Judged) -> str:
    return f"{row.margin:g}{short_unit(row.pair.metric)}"


def pair_label(pair: TaskPair) -> str:
    """Task and metric, the metric once."""
    task, metric = pair.task, pair.metric
    if task == ALL_SAMPLES:
        return metric
    return task if metric in re.split("[ ,]", task) else f"{task} {metric}"

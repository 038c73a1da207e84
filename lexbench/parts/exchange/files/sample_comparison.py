"""Paired comparison of two files of results by sample: difference, interval, Holm over tasks, detectable difference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key
from lexbench.core.text import join_first_few, plain_text
from lexbench.parts.exchange.files.sample_line import Line
from lexbench.parts.exchange.files.sample_logs import columns_of, is_log, read
from lexbench.report import formats
from lexbench.report.grid import Grid, difference_entry
from lexbench.report.grid import Line as Row
from lexbench.report.notes import difference_notes
from lexbench.report.wording import escape_markdown, format_p_value
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor, display_unit, is_score
from lexbench.stats.pairs import Outcome, PairedDifference, correct_by_holm, detectable_difference, paired_difference

__all__ = ["compare", "compare_command", "data_of", "is_log", "markdown"]

DECIMALS_OF_KIND = {True: ".1f", False: ".4f"}
"""Decimals of scores, in points, and of losses."""
COMPARISON_LEGEND = """\
B minus A over the samples that both files hold. Brackets hold 95 % intervals, samples of a cluster kept together. p:
two-sided, by sign flips over clusters and a test for skewed differences, after Holm's correction over the rows; `*`: up
to {level}, and an interval without 0. Detectable: a difference of this size would be significant as the first of the
rows; a smaller one may be missed.
"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Comparison of both files on one task and metric."""

    task: str
    metric: str
    found: PairedDifference
    detectable: float
    """The difference that may be missed, in the metric's own unit (`pairs.detectable_difference`)."""
    other_prompts: int = 0
    """Pairs of which the two models read other texts, as far as the files say."""


def compare_command(a: Path, b: Path, columns: Sequence[str] = (), as_data: bool = False) -> str:
    """`lexbench compare A.jsonl B.jsonl`: the text to print.

    ConfigError for a file that cannot be read, and where no sample is in both.
    """
    named = columns_of(columns)
    sides = [read(path, named, bool(columns)) for path in (a, b)]
    found, alone = compare(*sides)
    return formats.as_json(data_of(found, a, b)) if as_data else markdown(found, a, b, alone)


def compare(a: Sequence[Line], b: Sequence[Line]) -> tuple[list[Compared], list[str]]:
    """Compare every task and metric that both sides have; and name those of one side alone.

    Raises ConfigError where no sample is in both.
    """
    left, right = (group_by_key(side, lambda line: (line.task, line.metric)) for side in (a, b))
    shared = [key for key in left if key in right]
    alone = [f"{task} ({metric})" for task, metric in left.keys() ^ right.keys()]
    found = {key: _pair_task(left[key], right[key], *key) for key in shared}
    valued = {key: each for key, each in found.items() if each.difference is not None}
    if not valued:
        named = [join_first_few([" ".join(key) for key in side], 3) for side in (left, right)]
        raise ConfigError(f"the files share no task with a sample that both have: A holds {named[0]}, B {named[1]}")
    level = SIGNIFICANCE_LEVEL / len(valued)
    made = [
        Compared(
            task=task,
            metric=metric,
            found=each,
            detectable=detectable_difference(each, metric, level),
            other_prompts=_count_other_prompts(left[task, metric], right[task, metric]),
        )
        for (task, metric), each in correct_by_holm(valued).items()
    ]
    without = [f"{task} ({metric})" for task, metric in shared if (task, metric) not in valued]
    return made, sorted([*alone, *without])


def _pair_task(left: Sequence[Line], right: Sequence[Line], task: str, metric: str) -> PairedDifference:
    """The difference of one task; ConfigError for an id that is there twice, or that is another sample."""
    names = dict.fromkeys(line.id for side in (left, right) for line in side)
    places = {name: place for place, name in enumerate(names)}
    sides = []
    for side, lines in zip("AB", (left, right), strict=True):
        ids = [line.id for line in lines]
        if len({*ids}) < len(ids):
            twin = next(name for name in ids if ids.count(name) > 1)
            raise ConfigError(
                f"{side} has sample {plain_text(twin)} of {plain_text(task)} twice: an id must be a sample's own, e.g. "
                "with its "
                "epoch or filter, or name the column that tells them apart, --columns task=COLUMN"
            )
        sides.append([_outcome(line, places[line.id]) for line in lines])
    if len({line.tokens is None for line in (*left, *right) if line.amount is not None}) > 1:
        raise ConfigError(
            f"{plain_text(task)} has tokens for some samples and not for others: give them for all, or none"
        )
    _refuse_other_questions(left, right, task)
    found = paired_difference(sides[0], sides[1], metric)
    if found.first_mismatch is not None:
        name = plain_text([*names][found.first_mismatch])
        raise ConfigError(
            f"sample {name} of {plain_text(task)} is not the same in A and B (another cluster, document or number of "
            "tokens): compare results on the same samples"
        )
    return found


def _pairs(left: Sequence[Line], right: Sequence[Line]) -> Iterator[tuple[Line, Line]]:
    """The lines of both sides with one id."""
    known = {line.id: line for line in left}
    return ((known[line.id], line) for line in right if line.id in known)


def _refuse_other_questions(left: Sequence[Line], right: Sequence[Line], task: str) -> None:
    """ConfigError where one id is another question in the other file."""
    for one, other in _pairs(left, right):
        known = dict(one.question)
        if odd := next((name for name, asked in other.question if known.get(name, asked) != asked), None):
            raise ConfigError(
                f"sample {plain_text(one.id)} of {plain_text(task)} is not the same in A and B (other {odd}): "
                "compare results on the same samples"
            )


def _count_other_prompts(left: Sequence[Line], right: Sequence[Line]) -> int:
    return sum(None is not one.prompt != other.prompt is not None for one, other in _pairs(left, right))


def _outcome(line: Line, place: int) -> Outcome:
    failed = line.amount is None
    amount = 0.0 if failed and is_score(line.metric) else line.amount
    tokens = line.tokens
    return Outcome(index=place, cluster=line.cluster, amount=amount, targets=tokens, failed=failed)


def markdown(found: Sequence[Compared], a: Path, b: Path, alone: Sequence[str]) -> str:
    """A table with a row for each task."""
    head = ["task", "metric", "A", "B", "B - A", "p (Holm)", "detectable", "pairs"]
    rows: list[Row] = []
    for each in found:
        values = each.found.numbers(display_factor(each.metric))
        digits = DECIMALS_OF_KIND[is_score(each.metric)]
        notes = [*difference_notes(each.found, (each.found.pairs, each.found.pairs))]
        entry = difference_entry(
            each.found, digits, display_factor(each.metric), star=bool(each.found.significant), notes=notes
        )
        rows.append(
            [
                each.task,
                f"{each.metric}, {display_unit(each.metric)}",
                *(f"{values[name]:{digits}}" for name in ("baseline_value", "value")),
                entry,
                format_p_value(each.found.p_holm or 0.0),
                f"{display_factor(each.metric) * each.detectable:{digits}}",
                str(each.found.pairs),
            ]
        )
    lines = [
        "# B against A",
        "",
        f"- A: {escape_markdown(a)}",
        f"- B: {escape_markdown(b)}",
        "",
        COMPARISON_LEGEND.format(level=SIGNIFICANCE_LEVEL),
    ]
    lines.append(formats.grid_markdown(Grid(head=head, rows=rows, labels=2)))
    if other := {each.task: each.other_prompts for each in found if each.other_prompts}:
        counts = join_first_few([f"{task} {count}" for task, count in other.items()], 6)
        lines += [
            "Other prompts in A and B, so the difference is one of prompts, too, as of other examples in front or "
            f"another chat template: {escape_markdown(counts)}.",
            "",
        ]
    if alone:
        lines.append(f"In one file only, or without a pair: {escape_markdown(join_first_few(alone, 6))}.")
    return "\n".join(lines).rstrip() + "\n"


def data_of(found: Sequence[Compared], a: Path, b: Path) -> dict[str, Any]:
    """The comparison as plain data, in full precision and each task's unit."""
    names: Mapping[str, str] = {"baseline_value": "a_value", "value": "b_value"}
    return {
        "a": str(a),
        "b": str(b),
        "level": SIGNIFICANCE_LEVEL,
        "tasks": [
            {
                "task": each.task,
                "metric": each.metric,
                "unit": display_unit(each.metric),
                **{
                    names.get(name, name): number
                    for name, number in each.found.numbers(display_factor(each.metric)).items()
                },
                "interval": each.found.interval and each.found.interval.kind,
                **each.found.tests(),
                "detectable": display_factor(each.metric) * each.detectable,
                **each.found.counts(),
                "other_prompts": each.other_prompts,
            }
            for each in found
        ],
    }

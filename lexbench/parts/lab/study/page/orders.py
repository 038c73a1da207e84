"""Page of a study with predicted orders: tasks that each encoding learnt, and the lengths up to which it keeps them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lexbench.core.text import count_with_noun
from lexbench.parts.lab.study.page import plots, tables
from lexbench.parts.lab.study.page.curves import Curve, CurvePoint, build_curves, unpaired_difference
from lexbench.parts.lab.study.page.measured import MeasuredRow
from lexbench.parts.lab.study.settings import PredictedOrder
from lexbench.report.formats import markdown_columns
from lexbench.report.wording import metric_label
from lexbench.stats.combine import Estimate
from lexbench.stats.floors import OutcomesStanding, at_floor
from lexbench.stats.metrics import is_headline_score

MIN_LEARNT_ACCURACY = 0.9
"""Accuracy at the trained length from which on a task counts as learnt."""
DECIDING_METRIC_OF_TASK = {"sort": "exact"}
"""Metric that decides where a guess without the algorithm has a high accuracy; else accuracy."""
GUESS_OF_TASK = {"sort": "Naming the digit before", "mqar": "Crossing out the values seen"}
"""Guesses that need no algorithm and are better than chance."""
VERDICTS_IN_ORDER = ("no", "uncertain", "yes", "both at chance", "nothing follows")
"""Verdicts in the order of the page: contradictions first."""
PAGE_INTRODUCTION = """\
One small decoder is trained for each encoding, on all tasks together. Everything else is the same: initial weights,
rows and their order, number of steps. It is asked strings up to ten times as long as the longest that it learnt from.
What was predicted was stated before (`PREREGISTRATION.md`). `lexbench study {study}` makes this page from
`measured.parquet` and `models.json`, and the numbers of its figure in `plots/`. A repository may keep the figure alone.
"""
VERDICT_RULE_TEXT = f"""\
A task counts for an encoding that has an accuracy of at least {MIN_LEARNT_ACCURACY:g} at the trained length; \
of what it has not
learnt, nothing follows. A prediction compares means over the tasks that both encodings have learnt: accuracy, and for
`sort` `exact`, the share of strings that are right as a whole. Difference: the higher one as predicted minus the lower
one. *yes* or *no* where its interval is above or below 0. *both at chance* where no accuracy of either side is above
chance, as its interval reaches it (of `exact`: reaches 0): that says nothing about their order.
"""
WHOLE_STRINGS_TEXT = """\
Whole strings, all of their symbols right, each behind the right ones: the highest share of any encoding beyond the
trained length.
"""
CHANGED_VERDICTS_TEXT = """\
Not stated before. `exact` decides little where hardly a whole string is right. With accuracy in its place, these
verdicts change, to what stands here. Below a guess ({guess})
an accuracy tells how a model goes wrong, and not how far its algorithm reaches.
"""
LIMITS_TEXT = """\
Accuracy is per symbol, with the right symbols before it given; in the papers whole answers are generated, which is
harder, so orders are compared and values are not. One seed: intervals cover questions, and not another training. Tasks
trained alone, larger models or more steps may give another order.
"""


@dataclass(frozen=True)
class OrderComparison:
    """A predicted order at one multiple of the trained length, and what was measured."""

    higher: str
    lower: str
    multiple: float
    tasks: Sequence[str]
    """Tasks that count; without one nothing follows."""
    difference: Estimate | None
    source: str
    at_chance: bool
    """Whether neither side is above chance in any of the tasks."""

    @property
    def verdict(self) -> str:
        """Whether the order is as predicted."""
        found = self.difference
        if found is None:
            return "nothing follows"
        if self.at_chance:
            return "both at chance"
        low, high = found.ends
        return "yes" if low > 0 else "no" if high < 0 else "uncertain"


def page_lines(
    rows: Sequence[MeasuredRow], about: Mapping[str, Any], stated: Sequence[PredictedOrder], folder: Path
) -> list[str]:
    """All sections behind the facts of the models; writes the plot."""
    found = build_curves(rows, about, ("accuracy", "exact"))
    chances = {row.record.task: row.record.chance for row in rows if row.record.chance is not None}
    tasks = list(dict.fromkeys(curve.task for curve in found))
    made = list(compare_orders(found, stated, chances))
    plain = [curve for curve in found if is_headline_score(curve.metric)]
    other = compare_orders(plain, stated, chances)
    changed = [new for old, new in zip(made, other, strict=True) if new.verdict != old.verdict]
    counts = ", ".join(f"{sum(each.verdict == said for each in made)} {said}" for said in VERDICTS_IN_ORDER)
    shown = [
        replace(
            curve,
            family=curve.task,
            points=[
                replace(point, floor=guess_accuracy(curve.task, point.length) or chances[curve.task])
                for point in curve.points
            ],
        )
        for curve in plain
    ]
    guesses = {curve.task: [(point.multiple, point.floor) for point in curve.points] for curve in shown}
    guessed = "; ".join(
        f"{task}: {', '.join(f'{value:.2f} at {at:g}x' for at, value in guesses[task])}"
        for task in DECIDING_METRIC_OF_TASK
        if task in guesses
    )
    title = f"accuracy, trained at {about['trained_length']} tokens"
    plots.plot_small_multiples(shown, about["trained_length"], folder / "plots" / "accuracy", title)
    return [
        *(
            "## Predictions",
            "",
            VERDICT_RULE_TEXT,
            *whole_string_lines(found),
            f"{count_with_noun(len(made), 'comparison')}: {counts}.",
            "",
        ),
        *(*verdict_lines(made), ""),
        *(
            (
                "### By accuracy in all tasks",
                "",
                CHANGED_VERDICTS_TEXT.format(guess=guessed),
                *verdict_lines(changed),
                "",
            )
            if changed
            else ()
        ),
        *("## What was learnt", "", "Accuracy at the trained length; in brackets what was not learnt.", ""),
        *_learnt_table(found, tasks),
        *("", "## How far it reaches", "", "![accuracy over length, by task](plots/accuracy.svg)", ""),
        *(line for task in tasks for line in _task_section(found, task, chances[task])),
        *("## Limits", "", LIMITS_TEXT),
    ]


def compare_orders(
    found: Sequence[Curve], orders: Sequence[PredictedOrder], chances: Mapping[str, float]
) -> Iterator[OrderComparison]:
    """Every stated order of two encodings, or of a task and the other tasks of one encoding, at every multiple.

    A task's own deciding metric counts where `found` has it, else accuracy.

    Args:
        found: what was measured.
        orders: those stated.
        chances: accuracy by chance, by task.
    """
    tasks = list(dict.fromkeys(curve.task for curve in found))
    for each in orders:
        for multiple in each.multiples:
            for lower in each.lower:
                pair = str(each.higher), lower
                own = [t for t in each.tasks or tasks if all(is_learnt(found, entry, t) for entry in pair)]
                high, low = (_mean_of_cells(found, [(entry, task) for task in own], multiple) for entry in pair)
                asked = [(entry, task) for entry in pair for task in own]
                guessed = _all_at_chance(found, asked, multiple, chances)
                yield OrderComparison(*pair, multiple, own, _interval_difference(high, low), each.source, guessed)
            for entry in each.entries:
                for other in (task for task in tasks if task != each.task):
                    both = [(entry, str(each.task)), (entry, other)]
                    known = all(is_learnt(found, *cell) for cell in both)
                    high, low = (_mean_of_cells(found, [cell], multiple) if known else None for cell in both)
                    difference, own = _interval_difference(high, low), [task for _, task in both]
                    names = f"{each.task} under {entry}", f"{other} under {entry}"
                    guessed = _all_at_chance(found, both, multiple, chances)
                    yield OrderComparison(*names, multiple, own if difference else [], difference, each.source, guessed)


def whole_string_lines(found: Sequence[Curve]) -> list[str]:
    """Lines with the highest share of whole strings beyond the trained length, by task; else nothing."""
    said = []
    for task in dict.fromkeys(curve.task for curve in found):
        best: dict[float, float] = {}
        for point in (point for curve in _whole_string_curves(found, task) for point in curve.points):
            if point.multiple > 1 and point.value:
                best[point.multiple] = max(best.get(point.multiple, 0.0), point.value.value)
        shares = ", ".join(f"{share:.2f} at {multiple:g}x" for multiple, share in sorted(best.items()))
        said += [f"- {task}: {shares}"] if shares else []
    return [WHOLE_STRINGS_TEXT, *said, ""] if said else []


def _whole_string_curves(found: Sequence[Curve], task: str) -> list[Curve]:
    """Curves of whole strings; none where one symbol is asked, as `accuracy` says the same."""
    own = {
        metric: [curve for curve in found if (curve.task, curve.metric) == (task, metric)]
        for metric in ("accuracy", "exact")
    }
    values = [[[point.value for point in curve.points] for curve in some] for some in own.values()]
    return own["exact"] if values[0] != values[1] else []


def is_learnt(found: Sequence[Curve], entry: str, task: str) -> bool:
    """Whether the encoding has learnt the task."""
    point = _find_point(found, entry, task, "accuracy", 1.0)
    return point is not None and point.value is not None and point.value.value >= MIN_LEARNT_ACCURACY


def _find_point(found: Sequence[Curve], entry: str, task: str, metric: str, multiple: float) -> CurvePoint | None:
    own = (curve for curve in found if (curve.entry, curve.task, curve.metric) == (entry, task, metric))
    curve = next(own, None)
    return curve.at(multiple) if curve else None


def _deciding_point(found: Sequence[Curve], entry: str, task: str, multiple: float) -> tuple[str, CurvePoint | None]:
    """The metric that decides, and its point."""
    for metric in (DECIDING_METRIC_OF_TASK.get(task, "accuracy"), "accuracy"):
        if point := _find_point(found, entry, task, metric, multiple):
            return metric, point
    return "accuracy", None


def _all_at_chance(
    found: Sequence[Curve], cells: Sequence[tuple[str, str]], multiple: float, chances: Mapping[str, float]
) -> bool:
    """Whether no (encoding, task) is above chance."""
    for entry, task in cells:
        metric, point = _deciding_point(found, entry, task, multiple)
        if point is not None and point.value is not None:
            chance = chances[task] if is_headline_score(metric) else None
            low, high = point.value.ends
            standing = OutcomesStanding(
                metric=metric, value=point.value.value, low=low, high=high, floor=chance, floor_of=None
            )
            if not at_floor(standing):
                return False
    return True


def _mean_of_cells(found: Sequence[Curve], cells: Sequence[tuple[str, str]], multiple: float) -> Estimate | None:
    """The mean over (encoding, task); their questions are independent, so distances of ends add up in squares."""
    points = [_deciding_point(found, *cell, multiple)[1] for cell in cells]
    values = [point.value for point in points if point and point.value]
    if not values or len(values) < len(cells):
        return None
    mean = math.fsum(each.value for each in values) / len(values)
    below = math.hypot(*(each.value - each.ends[0] for each in values)) / len(values)
    above = math.hypot(*(each.ends[1] - each.value for each in values)) / len(values)
    return Estimate(mean, mean - below, mean + above)


def _interval_difference(high: Estimate | None, low: Estimate | None) -> Estimate | None:
    """The difference; None without an interval on both sides."""
    if high is None or low is None or None in (high.low, high.high, low.low, low.high):
        return None
    return unpaired_difference(high, low)


def guess_accuracy(task: str, length: int) -> float | None:
    """Accuracy of the best guess known without the algorithm; None: chance.

    sort    the digit before: of n sorted digits n - (different digits) repeat it, 1 - 10 (1 - 0.9^n) / n
    mqar    crossing out the values seen: (1 + 1/2 + .. + 1/8) / 8
    """
    if task == "sort":
        count = (length - 2) // 2
        return 1 - 10 * (1 - 0.9**count) / count
    return math.fsum(1 / left for left in range(1, 9)) / 8 if task == "mqar" else None


def verdict_lines(made: Sequence[OrderComparison]) -> list[str]:
    """Lines of a table of the predictions that can be judged, then of a list of the others."""
    rows = [
        [
            f"{each.higher} above {each.lower}",
            f"{each.multiple:g}x",
            ", ".join(each.tasks),
            tables.format_change(each.difference),
            f"**{each.verdict}**" if each.verdict == "no" else each.verdict,
            each.source,
        ]
        for each in sorted(made, key=lambda each: VERDICTS_IN_ORDER.index(each.verdict))
        if each.difference is not None
    ]
    silent: dict[str, list[str]] = {}
    for each in made:
        if each.difference is None:
            silent.setdefault(f"{each.higher} above {each.lower} ({each.source})", []).append(f"{each.multiple:g}x")
    judged = markdown_columns(["predicted", "at", "tasks", "difference", "holds", "source"], rows) if rows else []
    if not silent:
        return judged
    between = [""] if judged else []
    listed = [f"- {named}: {', '.join(at)}" for named, at in silent.items()]
    return [
        *judged,
        *between,
        "Nothing follows about these, as both sides share no task that they have learnt:",
        "",
        *listed,
    ]


def _learnt_table(found: Sequence[Curve], tasks: Sequence[str]) -> list[str]:
    rows = []
    for entry in dict.fromkeys(curve.entry for curve in found):
        row = [entry]
        for task in tasks:
            point = _find_point(found, entry, task, "accuracy", 1.0)
            said = tables.format_value(point.value, "accuracy") if point else ""
            row.append(said if is_learnt(found, entry, task) else f"({said})")
        rows.append(row)
    return markdown_columns(["encoding", *tasks], rows)


def _task_section(found: Sequence[Curve], task: str, chance: float) -> Iterator[str]:
    own = [curve for curve in found if curve.task == task]
    yield from (f"### {task}", "", f"Protocol: {own[0].protocol}.", "")
    lengths = sorted({point.length for curve in own for point in curve.points})
    guesses = [(guess_accuracy(task, length), length) for length in lengths]
    said = ", ".join(f"{value:.2f} at {length} tokens" for value, length in guesses if value is not None)
    yield from (f"Chance: {chance:.3f}." + (f" {GUESS_OF_TASK[task]}: {said}." if said else ""), "")
    for some in ([curve for curve in own if is_headline_score(curve.metric)], _whole_string_curves(found, task)):
        if some:
            yield from (f"{metric_label(some[0].metric)}:", "", *tables.length_table(some), "")

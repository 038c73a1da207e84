"""The table of comparisons that have stopped as soon as they were decided."""

import math
from collections.abc import Sequence

from lexbench.core.method_key import BASELINE_METHOD
from lexbench.report.grid import Grid, GridEntry, Line
from lexbench.report.wording import format_signed, metric_label, short_unit
from lexbench.stats.metrics import better_direction, display_factor, is_score
from lexbench.stats.stopping import StoppingVerdict
from lexbench.store.stopped import StoppedComparison

STOPPED_HEAD = ("method", "task", "length", "metric", "minus none", "verdict", "questions")
STOPPED_REMARK = (
    "Brackets hold the method's value minus that of none, at whatever number of questions it stops: all intervals of "
    "a run together miss with a chance of 5 %. Of nats per token it is the centre of clipped differences "
    "(docs/statistics.md). No star, no family of tests and no check counts these cells; a run with n set makes them "
    "ordinary ones."
)


def stopped_grid(found: Sequence[StoppedComparison]) -> Grid:
    """A row for each comparison."""
    several = len({each.seed for each in found}) > 1
    head = [*STOPPED_HEAD, *(["seed"] if several else [])]
    rows = [_row(each) + ([str(each.seed)] if several else []) for each in found]
    return Grid(head=head, rows=rows, labels=4, title="Stopped as soon as decided", below=[STOPPED_REMARK])


def _row(each: StoppedComparison) -> Line:
    side = better_direction(each.metric)
    digits, scale = ".1f" if is_score(each.metric) else ".3f", side * display_factor(each.metric)
    ends = [-math.inf if each.low is None else each.low, math.inf if each.high is None else each.high]
    low, high = (format_signed(scale * end, digits) for end in ends[::side])
    shown = "no pairs" if each.gain is None else format_signed(scale * each.gain, digits)
    return [
        *(each.method, each.task, str(each.length), metric_label(each.metric, each.task)),
        GridEntry(text=shown, ends=(low, high)),
        verdict_words(each),
        f"{each.questions} of {each.budget}",
    ]


def verdict_words(each: StoppedComparison) -> str:
    """What is shown of a method: `better`, `worse`, `equal within 2 points`, or that the budget has ended."""
    margin = f"{display_factor(each.metric) * each.margin:g} {short_unit(each.metric)}"
    if each.verdict == StoppingVerdict.EQUAL:
        return f"equal within {margin}"
    return (
        f"budget ended ({margin})" if each.verdict == StoppingVerdict.OPEN else f"{each.verdict} than {BASELINE_METHOD}"
    )

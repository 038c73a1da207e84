"""Verdicts of comparisons in words."""

from collections.abc import Sequence

from lexbench.core.text import count_with_noun, join_lengths
from lexbench.report.notes import note_text
from lexbench.report.wording import format_p_value, found_words
from lexbench.stats.compare import SignificantLength, TaskComparison, TaskVerdict, VerdictKind
from lexbench.stats.metrics import is_score
from lexbench.stats.notes import Note


def verdict_text(task: TaskComparison, subject: str = "B") -> str:
    """The verdict on one task; `subject` names side B."""
    found = task.verdict
    if found.kind is VerdictKind.NOT_COMPARABLE:
        return "not comparable"
    if found.kind is VerdictKind.SAME_ATTENTION:
        return "no difference: the same attention, not tested"
    if found.kind is VerdictKind.MIXED:
        said = ", and ".join(f"{each.value} at {_lengths(at)}" for each, at in found.where.items())
        return f"mixed by length{' and seed' if found.seeds > 1 else ''}: {subject} is {said}"
    if found.kind is VerdictKind.ONE_SIDED:
        [(direction, at)] = found.where.items()
        return f"{subject} is {direction.value} at {'every length' if found.everywhere else _lengths(at)}"
    if found.kind is VerdictKind.AT_LIMIT:
        return f"cannot be told: {_limits(found.limits)}"
    if found.kind is VerdictKind.ALL_THE_SAME:
        size = f"; {found_words(task.smallest, task.metric or '')}" if is_score(task.metric) else ""
        return f"no difference: every question gave the same{size}"
    if found.kind is VerdictKind.TOO_FEW:
        return f"too few samples to detect any difference: {_too_few_words(found)}"
    told = f"; cannot be told at {join_lengths([at for _, at in found.limits])}: {_limits(found.limits)}"
    return f"no difference found: {found_words(task.smallest, task.metric or '')}{told if found.limits else ''}"


def _too_few_words(found: TaskVerdict) -> str:
    least = f"with {count_with_noun(found.clusters, 'cluster')} no p is below {format_p_value(found.least_p)}"
    return f"{least}, before correction for {count_with_noun(found.comparisons, 'comparison')}"


def _lengths(found: Sequence[SignificantLength]) -> str:
    """`256, 512 (1 of 3 seeds)`: lengths with the verdict, and of how many seeds where not of all."""
    return ", ".join(
        f"{each.length} ({each.seeds} of {each.asked} seeds)" if each.seeds < each.asked else str(each.length)
        for each in found
    )


def _limits(found: Sequence[tuple[Note, int]]) -> str:
    """`both at chance (0.25)`; by length where the reasons differ."""
    by_reason: dict[str, list[int]] = {}
    for why, length in found:
        by_reason.setdefault(note_text(why), []).append(length)
    if len(by_reason) == 1:
        return next(iter(by_reason))
    return ", ".join(f"{why} at {join_lengths(at)}" for why, at in by_reason.items())

"""Factors of prompts: where a cell's length is a ceiling, a method is set for the length of each prompt.

    group of a prompt    the least of T, 2 T, 4 T, ... that holds prompt and answer; at most the ceiling
    factor               group / T, at least 1; T: the trained length

Prompts of one group are read under one Attention, that of the method at the group's length ("local static").
"""

from collections.abc import Sequence
from dataclasses import replace

from lexbench.core.task import AnyQuestion
from lexbench.runner.cells import OpenCell


def group_lengths(trained_length: int, ceiling: int) -> list[int]:
    """Lengths of the groups, tokens, ascending: T, 2 T, 4 T, ... below the ceiling, and the ceiling."""
    found, length = list[int](), trained_length
    while length < ceiling:
        found.append(length)
        length *= 2
    return [*found, ceiling]


def group_of_length(tokens: int, lengths: Sequence[int]) -> int:
    """The least of the ascending lengths that holds so many tokens; the last where none does."""
    return next((length for length in lengths if tokens <= length), lengths[-1])


def with_factors(questions: Sequence[AnyQuestion], trained_length: int, ceiling: int) -> list[AnyQuestion]:
    """The questions with their factors as facts."""
    lengths = group_lengths(trained_length, ceiling)
    factors = [max(1.0, group_of_length(each.length, lengths) / trained_length) for each in questions]
    return [
        replace(each, facts={**each.facts, "factor": factor}) for each, factor in zip(questions, factors, strict=True)
    ]


def with_used_groups(cell: OpenCell, questions: Sequence[AnyQuestion]) -> OpenCell:
    """The cell with those groups that its questions have; where it is one, as a cell of that length."""
    groups = cell.step.groups
    if not groups:
        return cell
    lengths = sorted(groups)
    used = sorted({group_of_length(each.length, lengths) for each in questions})
    kept = {length: groups[length] for length in used} if len(used) > 1 else {}
    return replace(cell, step=replace(cell.step, length=used[-1], attention=groups[used[-1]], groups=kept))


def questions_by_group(
    cell: OpenCell, questions: Sequence[AnyQuestion]
) -> list[tuple[OpenCell, Sequence[AnyQuestion]]]:
    """The questions of each group with the cell as of the group's length, the longest first."""
    lengths = sorted(cell.step.groups)
    found: list[tuple[OpenCell, Sequence[AnyQuestion]]] = []
    for length in reversed(lengths):
        step = replace(cell.step, length=length, attention=cell.step.groups[length], groups={})
        asked = [each for each in questions if group_of_length(each.length, lengths) == length]
        found.append((replace(cell, step=step), asked))
    return found

"""Pair the samples of two files by task and metric, refuse what is another question, and bound what is missing.

A sample that one file lacks may be one that was answered wrong, so a difference over shared samples alone says little.
Of scores, which lie in [0, 1], the difference over all samples of both files lies between those with every missing
sample at 0 and at 1 (Manski 1990, American Economic Review 80:319). A loss has no such bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key
from lexbench.core.text import join_first_few, plain_text
from lexbench.parts.exchange.files.sample_line import Line
from lexbench.stats.metrics import is_score
from lexbench.stats.pairs import Outcome, paired_difference

Outcomes = Sequence[Outcome]
Key = tuple[str, str]
"""Task and metric."""


@dataclass(frozen=True, kw_only=True)
class TaskPair:
    """The samples of both files under one task and metric."""

    task: str
    metric: str
    before: Outcomes
    """Of the first file; equal samples have one index in both."""
    after: Outcomes
    other_prompts: int
    """Pairs of which the two models read other texts, as far as the files say."""

    @property
    def missing(self) -> tuple[list[Outcome], list[Outcome]]:
        """Samples with a value in the other file alone: what the first file lacks, and the second."""
        sides = [{each.index: each for each in side if each.amount is not None} for side in (self.before, self.after)]
        lacks = [[other[index] for index in other if index not in one] for one, other in (sides, sides[::-1])]
        return lacks[0], lacks[1]

    @property
    def samples(self) -> int:
        """Samples with a value in either file."""
        return len({each.index for each in (*self.before, *self.after) if each.amount is not None})

    @property
    def is_bounded(self) -> bool:
        """Whether the difference over all samples has a bound: none is missing, or the metric is a score."""
        return is_score(self.metric) or not any(self.missing)

    def fill_missing(self, lost: bool) -> tuple[Outcomes, Outcomes] | None:
        """Both sides with what is missing at its worst for the second file (`lost`) or at its best; None: no bound."""
        if not is_score(self.metric):
            return None
        sides = (self.before, self.after)
        worst = (1.0, 0.0) if lost else (0.0, 1.0)
        made = [
            [*side, *(replace(each, amount=amount, failed=False) for each in lacked)]
            for side, lacked, amount in zip(sides, self.missing, worst, strict=True)
        ]
        return made[0], made[1]


def pair_files(before: Sequence[Line], after: Sequence[Line]) -> tuple[list[TaskPair], list[Key], list[Key]]:
    """Every task and metric that both files have; then those of the first file alone, and of the second.

    One without a pair of values is alone in both. ConfigError for an id that is there twice or is another question,
    and where no sample is in both.
    """
    left, right = (group_by_key(side, lambda line: (line.task, line.metric)) for side in (before, after))
    every = {key: _pair_task(left[key], right[key], *key) for key in left if key in right}
    made = {
        key: pair
        for key, pair in every.items()
        if paired_difference(pair.before, pair.after, pair.metric).difference is not None
    }
    if not made:
        named = [join_first_few([" ".join(key) for key in side], 3) for side in (left, right)]
        raise ConfigError(f"the files share no task with a sample that both have: A holds {named[0]}, B {named[1]}")
    alone = [[key for key in side if key not in made] for side in (left, right)]
    return [*made.values()], alone[0], alone[1]


def _pair_task(left: Sequence[Line], right: Sequence[Line], task: str, metric: str) -> TaskPair:
    names = dict.fromkeys(line.id for side in (left, right) for line in side)
    places = {name: place for place, name in enumerate(names)}
    for side, lines in zip("AB", (left, right), strict=True):
        ids = [line.id for line in lines]
        if len({*ids}) < len(ids):
            twin = next(name for name in ids if ids.count(name) > 1)
            raise ConfigError(
                f"{side} has sample {plain_text(twin)} of {plain_text(task)} twice: an id must be a sample's own, e.g. "
                "with its epoch or filter, or name the column that tells them apart, --columns task=COLUMN"
            )
    if len({line.tokens is None for line in (*left, *right) if line.amount is not None}) > 1:
        raise ConfigError(
            f"{plain_text(task)} has tokens for some samples and not for others: give them for all, or none"
        )
    _refuse_other_questions(left, right, task)
    before, after = ([_outcome(line, places[line.id]) for line in lines] for lines in (left, right))
    odd = paired_difference(before, after, metric).first_mismatch
    if odd is not None:
        raise ConfigError(
            f"sample {plain_text([*names][odd])} of {plain_text(task)} is not the same in A and B (another cluster, "
            "document or number of tokens): compare results on the same samples"
        )
    others = sum(None is not one.prompt != other.prompt is not None for one, other in _shared_lines(left, right))
    return TaskPair(task=task, metric=metric, before=before, after=after, other_prompts=others)


def _shared_lines(left: Sequence[Line], right: Sequence[Line]) -> Iterator[tuple[Line, Line]]:
    """The lines of both sides with one id."""
    known = {line.id: line for line in left}
    return ((known[line.id], line) for line in right if line.id in known)


def _refuse_other_questions(left: Sequence[Line], right: Sequence[Line], task: str) -> None:
    for one, other in _shared_lines(left, right):
        known = dict(one.question)
        if odd := next((name for name, asked in other.question if known.get(name, asked) != asked), None):
            raise ConfigError(
                f"sample {plain_text(one.id)} of {plain_text(task)} is not the same in A and B (other {odd}): "
                "compare results on the same samples"
            )


def _outcome(line: Line, place: int) -> Outcome:
    failed = line.amount is None
    amount = 0.0 if failed and is_score(line.metric) else line.amount
    return Outcome(index=place, cluster=line.cluster, amount=amount, targets=line.tokens, failed=failed)

"""Compare two sides on the same questions: difference at each length, and a verdict per task.

A side is one or more run folders, narrowed by selectors. Cells match by task, length, seed and corpus; their questions
are paired (`pairs.paired`). The sides may differ in everything else: method, model (of one tokenizer), backend, dtype,
version of lexbench. P-values are two-sided, over documents or
haystacks (`intervals.difference_p`), with Holm's correction over all lengths and tasks of the comparison.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from lexbench.core.errors import ConfigError
from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell
from lexbench.core.registry import did_you_mean
from lexbench.core.text import count_with_noun, join_first_few, plain_text
from lexbench.stats import metrics, records
from lexbench.stats.cell_outcomes import (
    CellOutcomes,
    SettingChange,
    changed_settings,
    difference_in_kind,
    difference_in_questions,
    find_duplicates,
    headline_metric,
    limit_of_pair,
    match_cells,
    outcomes_of_cell,
    text_of,
    texts_not_learned,
)
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import is_token_loss
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.pairs import (
    PairedDifference,
    correct_by_holm,
    paired_difference,
)
from lexbench.stats.prices import price_rows
from lexbench.stats.reach import smallest_found_by_all
from lexbench.stats.same_attention import cell_functions
from lexbench.store.cell_rows import with_purposes

SELECTOR_KEYS = ("method", "model", "task", "backend", "dtype", "kernel", "seed", "version", "length")


@dataclass(frozen=True, kw_only=True)
class LengthComparison:
    """The two sides at one length and seed."""

    length: int
    seed: int
    found: PairedDifference | None = None
    """B minus A; None where nothing is comparable."""
    apart: Note | None = None
    """Why nothing is comparable, or why the difference is not tested."""

    @property
    def tested(self) -> PairedDifference | None:
        """B minus A, where that is a comparison and not the rounding of one function."""
        return None if self.apart else self.found

    @property
    def same_attention(self) -> bool:
        """Whether both sides are one function at this length."""
        return self.apart is not None and self.apart.kind is NoteKind.SAME_ATTENTION

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at 0.05 for the whole comparison."""
        return bool(self.found and self.found.significant)


class Direction(Enum):
    """Direction in which side B differs from side A."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    """Direction of a metric without a better side."""
    LOWER = "lower"


class VerdictKind(Enum):
    """Kinds of verdicts on one task."""

    NOT_COMPARABLE = "not comparable"
    SAME_ATTENTION = "same attention"
    """Both sides are one function wherever they were compared."""
    MIXED = "mixed"
    """Significant in both directions."""
    ONE_SIDED = "one-sided"
    """Significant in one direction alone."""
    AT_LIMIT = "at a limit"
    """Both sides are at a floor or at the ceiling wherever they were compared."""
    ALL_THE_SAME = "all the same"
    """Every question gave the same on both sides."""
    TOO_FEW = "too few"
    """No difference could be significant with so few clusters."""
    NOT_DETECTED = "not detected"


class SignificantLength(NamedTuple):
    """A length at which a difference is significant, and for how many of the seeds asked there."""

    length: int
    seeds: int
    asked: int


@dataclass(frozen=True, kw_only=True)
class TaskVerdict:
    """The verdict on one task, as data; `lexbench.report.verdicts` says it in words."""

    kind: VerdictKind
    where: Mapping[Direction, Sequence[SignificantLength]] = field(default_factory=dict)
    """Lengths with a significant difference, by what side B is there."""
    everywhere: bool = False
    """Whether all comparisons are significant."""
    seeds: int = 1
    """The most seeds asked at one length."""
    limits: Sequence[tuple[Note, int]] = ()
    """Why a length cannot tell, and the length."""
    clusters: int = 0
    least_p: float = 1.0
    """The smallest p that so many clusters allow."""
    comparisons: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskComparison:
    """Comparison of two sides on one task, by its headline metric."""

    task: str
    corpus: str | None
    """Corpus of the task, where it tells this comparison from another one."""
    metric: str | None
    """Metric of the comparison; None: neither side has a value."""
    trained_length: int
    """Value of side A."""
    entries: list[LengthComparison]
    verdict: TaskVerdict
    smallest: float | None = None
    """The smallest difference that each of its comparisons would have found, in the metric's own unit
    (`reach.smallest_found_difference`); None where one of them finds none, or no pair differs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Side B against side A."""

    a: str
    b: str
    """Folders and selectors of the sides."""
    changes: list[SettingChange]
    """Differences in setup, apart from the questions."""
    tasks: list[TaskComparison]
    only_a: list[Cell]
    """Cells without a partner."""
    only_b: list[Cell]
    problems: list[str]
    """Files that could not be read."""


def compare_runs(
    a: Sequence[Path] | Path,
    b: Sequence[Path] | Path,
    select_a: Sequence[str] = (),
    select_b: Sequence[str] = (),
    only: Collection[str] | None = None,
) -> Comparison:
    """Compare side B with side A.

    Args:
        a: run folders, or folders of run folders, of side A.
        b: those of side B; they may be the same.
        select_a: `KEY=VALUE` that cells of side A must have; of one key several times, one of its values.
        select_b: likewise.
        only: ids of the cells of both sides; None: all.

    ConfigError for a selector that fits nothing, for several cells of one side at one place, and where no task, length
    and seed is on both sides.
    """
    folders = [[side] if isinstance(side, Path) else list(side) for side in (a, b)]
    once = {tuple(side): records.load_cells(side) for side in folders}  # both sides may be the same folders
    loaded = [once[tuple(side)] for side in folders]
    given = [select_a, select_b]
    sides = []
    for name, side, words in zip("ab", loaded, given, strict=True):
        every = [finished for finished in side.finished if only is None or finished.cell.id in only]
        cells = _select_cells([outcomes_of_cell(finished) for finished in every], words, name)
        _refuse_duplicate_cells(cells, name)
        sides.append(cells)
    pairs, only_a, only_b = match_cells(sides[0], sides[1], [_question_key, lambda cell: _question_key(cell)[:3]])
    if not pairs:
        said = [join_first_few([cell_name(each.cell) for each in side], 3) for side in sides]
        raise ConfigError(f"sides share no task, length and seed: A holds {said[0]}, B {said[1]}")
    functions = cell_functions(finished.cell for side in loaded for finished in side.finished)
    tasks = _verdicts(_correct_by_holm(_by_task(pairs, functions)))
    names = [" ".join([*map(str, side), *words]) for side, words in zip(folders, given, strict=True)]
    problems = list(dict.fromkeys(problem for side in loaded for problem in side.problems))
    return Comparison(
        a=names[0],
        b=names[1],
        changes=changed_settings(pairs),
        tasks=tasks,
        only_a=[each.cell for each in only_a],
        only_b=[each.cell for each in only_b],
        problems=problems,
    )


def _select_cells(cells: list[CellOutcomes], words: Sequence[str], side: str) -> list[CellOutcomes]:
    """Cells of one side that match its selectors."""
    wanted: dict[str, set[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if key not in SELECTOR_KEYS or not equals:
            keys, hint = ", ".join(SELECTOR_KEYS), did_you_mean(key, SELECTOR_KEYS) if equals else ""
            raise ConfigError(
                f"selector {word!r} must be KEY=VALUE with a key of {keys}: {hint}e.g. --{side} method=none"
            )
        wanted.setdefault(key, set()).add(text)
    for key, texts in wanted.items():
        known = [str(value) for value in sorted({getattr(each.cell, key) for each in cells})]
        cells = [each for each in cells if str(getattr(each.cell, key)) in texts]
        if not cells:
            asked = f"{key}={'|'.join(sorted(texts))}"
            raise ConfigError(
                f"side {side.upper()} has no cell of {plain_text(asked)}: choose from {join_first_few(known)}"
            )
    return cells if "method" in wanted else _without_prices(cells)


def _without_prices(cells: list[CellOutcomes]) -> list[CellOutcomes]:
    """All cells but those that measure only the price of another method's factor."""
    priced = {
        trained: price_rows(_by_place(with_purposes(alike)))[1]
        for trained, alike in group_by_key((each.cell for each in cells), lambda cell: cell.trained_length).items()
    }
    return [each for each in cells if each.cell.method not in priced[each.cell.trained_length]]


def _by_place(cells: Iterable[Cell]) -> dict[tuple[MethodKey, int], Cell]:
    """Cells by method and length; of several, as of two tasks, one that was measured for more than a price."""
    found: dict[tuple[MethodKey, int], Cell] = {}
    for cell in cells:
        known = found.get((cell.method, cell.length))
        if known is None or (known.purpose is not None and known.purpose.price_only):
            found[cell.method, cell.length] = cell
    return found


def _refuse_duplicate_cells(cells: Sequence[CellOutcomes], side: str) -> None:
    """ConfigError for several cells of a side at one key, naming a selector that separates them."""
    twins = find_duplicates(cells, _question_key)
    if not twins:
        return
    count = f"{count_with_noun(len(twins), 'cell')} of {plain_text(twins[0].cell.task)} at {twins[0].cell.length}"
    for key in SELECTOR_KEYS:
        known = sorted({str(getattr(each.cell, key)) for each in twins})
        if len(known) > 1:
            raise ConfigError(
                f"side {side.upper()} has {count}, which differ in {key} ({join_first_few(known)}): "
                f"narrow it, e.g. --{side} {key}={plain_text(known[0])}"
            )
    odd = ", ".join(plain_text(each.name) for each in changed_settings([(twins[0], twins[1])])) or "their questions"
    raise ConfigError(f"side {side.upper()} has {count}, which differ in {odd}: give a folder that holds one of them")


def _question_key(cell: Cell) -> tuple[Any, ...]:
    """Key of a cell's questions."""
    return cell.task, cell.length, cell.seed, cell.corpus


def cell_name(cell: Cell) -> str:
    """Method, task, length and seed of a cell, for a message."""
    return plain_text(f"{cell.method} {cell.task} at {cell.length}, seed {cell.seed}")


def _by_task(pairs: Sequence[tuple[CellOutcomes, CellOutcomes]], functions: Mapping[str, str]) -> list[TaskComparison]:
    """The pairs of each task, by length and seed; `functions` of `cell_functions`."""
    groups = group_by_key(pairs, lambda pair: (pair[0].cell.task, pair[0].cell.corpus))
    silent = texts_not_learned(pairs)
    made = []
    for (task, corpus), group in groups.items():
        ordered = sorted(group, key=lambda pair: (pair[0].cell.length, pair[0].cell.seed))
        metric = headline_metric({name for one, other in group for name in one.outcomes.keys() & other.outcomes.keys()})
        made.append(
            TaskComparison(
                task=task,
                corpus=corpus if [name for name, _ in groups].count(task) > 1 else None,
                metric=metric,
                trained_length=ordered[0][0].cell.trained_length,
                entries=[
                    _entry(one, other, metric, silent.get(text_of(other.cell)), functions) for one, other in ordered
                ],
                verdict=TaskVerdict(kind=VerdictKind.NOT_COMPARABLE),
            )
        )
    return sorted(made, key=lambda each: (metrics.metric_sort_key(each.metric), each.task, each.corpus or ""))


def _entry(
    one: CellOutcomes, other: CellOutcomes, metric: str | None, silent: Note | None, functions: Mapping[str, str]
) -> LengthComparison:
    """Comparison at one length, not yet corrected for the others; `silent`: why likelihoods are not compared."""
    blank = LengthComparison(length=one.cell.length, seed=one.cell.seed)
    unlike = difference_in_kind(one.cell, other.cell) or difference_in_questions(one.cell, other.cell)
    for name, side in (("A", one), ("B", other)):
        if side.refused is not None:
            return replace(blank, apart=Note(NoteKind.SIDE_REFUSED, (name, side.refused)))
    if unlike:
        return replace(blank, apart=Note(NoteKind.SETTINGS_DIFFER, (unlike,)))
    if metric is None or not all(metric in side.outcomes for side in (one, other)):
        return replace(blank, apart=Note(NoteKind.NOTHING_SHARED))
    found = paired_difference(one.outcomes[metric], other.outcomes[metric], metric)
    if found.first_mismatch is not None:
        return replace(blank, apart=_why_questions_differ(one, other, metric, found.first_mismatch))
    if found.difference is None:
        return replace(blank, apart=Note(NoteKind.NO_PAIRED_VALUE))
    same = functions.get(one.id) == functions.get(other.id) is not None
    if same and one.cell.method != other.cell.method:  # of one method a second measurement is asked about
        untested = replace(found, p=None, interval=None)
        return replace(blank, found=untested, apart=Note(NoteKind.SAME_ATTENTION))
    limit = silent if silent and is_token_loss(metric) else limit_of_pair(one, other, metric)
    return replace(blank, found=replace(found, limit=limit))


def _why_questions_differ(one: CellOutcomes, other: CellOutcomes, metric: str, index: int) -> Note:
    """Why a question differs between the sides."""
    left, right = (next(each for each in side.outcomes[metric] if each.index == index) for side in (one, other))
    sizes = [(each.targets, each.bytes, each.words) for each in (left, right)]
    if is_token_loss(metric) and sizes[0] != sizes[1]:
        return Note(NoteKind.TOKENIZERS_DIFFER, (index, *sizes[0], *sizes[1]))
    return Note(NoteKind.QUESTION_DIFFERS, (index,))


def _correct_by_holm(tasks: Sequence[TaskComparison]) -> list[TaskComparison]:
    """Holm's correction over all entries of all tasks."""
    known = correct_by_holm(
        {
            (number, place): entry.found
            for number, task in enumerate(tasks)
            for place, entry in enumerate(task.entries)
            if entry.found
        }
    )
    return [
        replace(task, entries=[replace(entry, found=known.get((number, at))) for at, entry in enumerate(task.entries)])
        for number, task in enumerate(tasks)
    ]


def _verdicts(tasks: Sequence[TaskComparison]) -> list[TaskComparison]:
    """Tasks, each with its verdict."""
    comparisons = sum(entry.tested is not None for task in tasks for entry in task.entries)
    made = []
    for task in tasks:
        tested = [entry.tested for entry in task.entries if entry.tested]
        settled = replace(task, smallest=smallest_found_by_all(tested, task.metric or ""))
        made.append(replace(settled, verdict=_verdict_rows(settled, comparisons)))
    return made


def _verdict_rows(task: TaskComparison, comparisons: int) -> TaskVerdict:
    """The verdict on one task."""
    compared = [entry.tested for entry in task.entries if entry.tested is not None]
    if not compared:
        same = any(entry.same_attention for entry in task.entries)
        return TaskVerdict(kind=VerdictKind.SAME_ATTENTION if same else VerdictKind.NOT_COMPARABLE)
    if where := _significant_lengths(task):
        several = VerdictKind.MIXED if len(where) > 1 else VerdictKind.ONE_SIDED
        seeds = max(Counter(entry.length for entry in task.entries).values())
        real = sum(entry.significant for entry in task.entries)
        return TaskVerdict(kind=several, where=where, seeds=seeds, everywhere=real == len(task.entries))
    limits = [(entry.tested.limit, entry.length) for entry in task.entries if entry.tested]
    known = tuple((why, length) for why, length in limits if why)
    if len(known) == len(limits):
        return TaskVerdict(kind=VerdictKind.AT_LIMIT, limits=known)
    if not any(found.n_changed for found in compared):
        return TaskVerdict(kind=VerdictKind.ALL_THE_SAME)
    clusters, least = max(found.clusters for found in compared), min(found.min_p for found in compared)
    if least * comparisons > SIGNIFICANCE_LEVEL:
        few = TaskVerdict(kind=VerdictKind.TOO_FEW, clusters=clusters, least_p=least)
        return replace(few, comparisons=comparisons)
    return TaskVerdict(kind=VerdictKind.NOT_DETECTED, limits=known)


def _significant_lengths(task: TaskComparison) -> dict[Direction, list[SignificantLength]]:
    """Lengths with a significant difference, by direction."""
    asked = Counter(entry.length for entry in task.entries)
    found: dict[Direction, list[int]] = {}
    for entry in task.entries:
        if entry.significant and entry.tested:
            found.setdefault(_direction(task.metric, entry.tested.difference or 0.0), []).append(entry.length)
    return {
        direction: [SignificantLength(at, count, asked[at]) for at, count in sorted(Counter(lengths).items())]
        for direction, lengths in found.items()
    }


def _direction(metric: str | None, difference: float) -> Direction:
    up, side = difference > 0, metrics.better_direction(metric)
    if not side:
        return Direction.HIGHER if up else Direction.LOWER
    return Direction.BETTER if up == (side > 0) else Direction.WORSE

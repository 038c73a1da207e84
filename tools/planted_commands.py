"""What commands say of planted truths: each as a function of the samples of one cell on both sides.

All else that a command compares is healthy, and alike on both sides. The functions are those that the commands call,
below the reading of run folders.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock

import lexbench
from lexbench.core import registry
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell, Sample
from lexbench.parts.search.trace.checkpoints import Checkpoint
from lexbench.parts.search.trace.choose import rank_finalists
from lexbench.parts.search.trace.falls import smallest_found_falls
from lexbench.parts.search.trace.measure import CheckpointRow, Column
from lexbench.parts.search.trace.trace import summarise_checkpoints
from lexbench.parts.search.tune.ranking import CandidateOutcomes
from lexbench.parts.search.tune.ranking import rank_finalists as rank_candidates
from lexbench.parts.search.tune.space import Candidate
from lexbench.report.check.check import Check
from lexbench.report.tables import headline_tables
from lexbench.stats import compare, records, regressions
from lexbench.stats.baseline import read_baseline
from lexbench.stats.cell_outcomes import CellOutcomes, outcomes_of_cell
from lexbench.stats.differences import leads
from lexbench.stats.gain import context_gains, smallest_found_step
from lexbench.stats.metrics import display_factor
from lexbench.stats.pairs import outcomes_of_samples
from lexbench.stats.reach import smallest_found_by_all
from lexbench.stats.regressions import VerdictStatus, judge_cells
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.same_attention import attention_forms
from lexbench.stats.tables import Table
from lexbench.store.format import FinishedCell
from tests.report import fake_run
from tools.planted_readings import EFFECTS, MODEL, TRAINED, Library, Reading

SEED, TRIED = 0, 48
"""Seed of tries and of null runs, and questions of their readings, except for the gate."""
GATE = Path("results/baselines/lexlet.json")
TOLERANCES = {"chosen": 2.0}
TASK_OF_METRIC = {"nll": "last_segment", "accuracy": "passkey", "chosen": "passkey"}
Samples = Sequence[Sample]


class Place(NamedTuple):
    """A cell, and the metric by which the effect's size is told."""

    method: str
    length: int
    metric: str

    @property
    def task(self) -> str:
        """Task of the metric."""
        return TASK_OF_METRIC[self.metric]


class Said(NamedTuple):
    """What a command said."""

    found: bool
    alarms: int
    """Findings where nothing was planted."""


class Trial(Protocol):
    """A command, as the list plants in it."""

    name: str
    library: Library
    n: int
    tried: int
    longest: int
    ids: Mapping[str, str]
    """Sign of each effect: - a loss, + a gain, and for `trace` the checkpoints."""

    def places(self, row: str) -> list[Place]:
        """Where an effect may be planted, the first choice first."""

    def stated(self, place: Place) -> float | None:
        """The smallest difference that it says it would have found, in the metric's own unit."""

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """What it says of both sides, with the same questions."""

    def null(self, draw: "Draw") -> bool:
        """Whether it alarms on a resample of two healthy readings."""


Draw = Callable[[str, str, int], tuple[Samples, Samples]]
"""Healthy samples of method, task and length, labels of both readings exchanged by cluster."""


def as_cell(method: str, task: str, length: int, n: int) -> Cell:
    """A cell as a run of lexlet would have it; a method that lexbench does not have gets an Attention of its own."""
    made = fake_run.cell(task, method, length, n=n, corpus="packages")
    if method not in registry.registered_names("method"):
        return made
    attention = lexbench.method(method).attention(MODEL, length).as_data()
    return replace(made, identity={**made.identity, "attention": attention})


def finished(cell: Cell, samples: Samples) -> FinishedCell:
    """A cell with samples, numbered anew."""
    return FinishedCell(cell, [replace(each, index=at) for at, each in enumerate(samples)])


def outcomes(method: str, task: str, length: int, samples: Samples) -> CellOutcomes:
    """A cell with outcomes."""
    return outcomes_of_cell(finished(as_cell(method, task, length, len(samples)), samples))


def signs(losses: str, gains: str = "") -> dict[str, str]:
    """Ids with their sign."""
    return {**dict.fromkeys(losses.split(), "-"), **dict.fromkeys(gains.split(), "+")}


def metric_of(row: str) -> list[str]:
    """Odd ids: likelihood; even ones: what is copied whole and what is chosen, in turn, the other one behind it."""
    number = int(row[1:])
    if number % 2:
        return ["nll"]
    return ["chosen", "accuracy"] if number % 4 else ["accuracy", "chosen"]


def table_of(cells: Sequence[FinishedCell]) -> Table:
    """The table of a task; perplexity follows from its nats."""
    [found] = [table for table in headline_tables(cells) if table.metric != "perplexity"]
    return found


def headline_of(row: str) -> str:
    """What a comparison is judged by: the likelihood of odd ids, keys that are copied whole of even ones."""
    return "nll" if int(row[1:]) % 2 else "accuracy"


@dataclass
class Stand:
    """What commands share.

    Args:
        library: of readings.
    """

    library: Library
    n: int = 32
    tried: int = TRIED
    """Questions of the readings that it is tried with."""
    longest: int = 512
    """Of the lengths by which its run chooses texts."""

    def healthy(self, method: str, task: str, length: int, n: int | None = None) -> Samples:
        """Healthy samples of the tries' seed."""
        read = Reading(method, task, length, SEED, TRIED)
        if length > 512:
            read = read._replace(n=32, longest=1024 if task == "last_segment" else 512)
        return self.library.samples(read)[: n or self.n]

    def pair(self, task: str, length: int) -> tuple[Samples, Samples]:
        """Two healthy readings of the unmodified model, in float32 and in bfloat16."""
        one, other = (
            self.library.samples(Reading("none", task, length, SEED, TRIED, setting=dtype))
            for dtype in ("float32", "bfloat16")
        )
        return one[: self.n], other[: self.n]


@dataclass
class CheckDocs(Stand):
    """`lexbench check` with the run of docs/check.md; planted in the cells of `none`."""

    name: str = "check, docs"
    n: int = 48
    ids: Mapping[str, str] = field(
        default_factory=lambda: signs("E01 E02 E03 E05 E06 E08 E10 E11 E12 E13 E15 E16 E17 E20 E21 E23")
    )

    @cached_property
    def others(self) -> dict[tuple[str, str, int], CellOutcomes]:
        """Cells of the baseline."""
        return {
            (method, task, length): outcomes(method, task, length, self.healthy(method, task, length))
            for method in ("none", "rerope")
            for task in ("last_segment", "passkey")
            for length in (128, 512)
        }

    def places(self, row: str) -> list[Place]:
        """The longer length first."""
        method = EFFECTS[row].method
        lengths = (512, 128) if method == "none" else (512,)
        return [Place(method, length, metric) for metric in metric_of(row) for length in lengths]

    def cells(self, place: Place, samples: Samples) -> list[CellOutcomes]:
        """The run with these samples at a place."""
        new = {(name, place.length): outcomes(name, place.task, place.length, samples) for name in self.alike(place)}
        return [
            new.get((name, length), each) if task == place.task else each
            for (name, task, length), each in self.others.items()
        ]

    def alike(self, place: Place) -> tuple[str, ...]:
        """Methods that are one function with the planted one there, and count once: all are touched."""
        return ("none", "rerope") if place.length == 128 else ("none",)

    def stated(self, place: Place) -> float | None:
        """By its first line."""
        cells = list(self.others.values())
        size = checked(cells, cells, sized=True).smallest.get(place.metric)
        return None if size is None else size / display_factor(place.metric)

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: the planted cell regressed."""
        return said_by(checked(self.cells(place, healthy), self.cells(place, planted)), self.alike(place), place)

    def null(self, draw: Draw) -> bool:
        """Any regression."""
        sides: tuple[list[CellOutcomes], list[CellOutcomes]] = ([], [])
        for method, task, length in self.others:
            for side, samples in zip(sides, draw(method, task, length), strict=True):
                side.append(outcomes(method, task, length, samples))
        return checked(*sides).code == 1


def checked(old: Sequence[CellOutcomes], new: Sequence[CellOutcomes], sized: bool = False) -> Check:
    """What `check_runs` makes of a baseline and of a run's cells; without sizes, which take most of its time."""
    cells = (replace(each.cell, identity={**each.cell.identity, "attention": each.attention}) for each in new)
    forms = attention_forms(cells)
    without = nullcontext() if sized else mock.patch.object(regressions, "smallest_found_loss", return_value=None)
    with without:
        verdicts, _ = judge_cells(old, new, TOLERANCES, forms=forms)
    return Check(baseline="", verdicts=verdicts, changes=[], alterations=[], problems=[], measured=[])


def said_by(found: Check, methods: Sequence[str], place: Place) -> Said:
    """Whether a planted cell is named, and how many others are."""
    keys = {(method, place.task, place.length) for method in methods}
    lost = [(str(each.cell.method), each.cell.task, each.cell.length) for each in found.of(VerdictStatus.REGRESSED)]
    return Said(any(each in keys for each in lost), sum(each not in keys for each in lost))


@dataclass
class CheckGate(Stand):
    """`make gate`, with its committed baseline; outcomes of the planted cell from the readings."""

    name: str = "check, make gate"
    n: int = 64
    tried: int = 64
    longest: int = 1024
    ids: Mapping[str, str] = field(
        default_factory=lambda: signs("E04 E07 E10 E11 E12 E13 E19 E21 E22 E01 E03 E09 E02 E06 E08 E16")
    )

    @cached_property
    def base(self) -> list[CellOutcomes]:
        """The committed baseline."""
        return read_baseline(GATE).cells

    @cached_property
    def sizes(self) -> Mapping[str, float]:
        """The smallest losses by metric, as the first line states them."""
        return checked(self.base, self.base, sized=True).smallest

    def places(self, row: str) -> list[Place]:
        """Methods at 4T, where they follow the length; the unmodified model at T."""
        method = EFFECTS[row].method
        return [Place(method, 256 if method == "none" else 1024, metric) for metric in metric_of(row)]

    def stated(self, place: Place) -> float | None:
        """By its first line."""
        size = self.sizes.get(place.metric)
        return None if size is None else size / display_factor(place.metric)

    def cells(self, place: Place, samples: Samples) -> list[CellOutcomes]:
        """The baseline's cells, with these samples at a place."""
        new, found = outcomes(place.method, place.task, place.length, samples).outcomes, []
        for each in self.base:
            own = (each.cell.task, each.cell.length) == (place.task, place.length)
            own &= str(each.cell.method) in self.alike(place)
            found.append(replace(each, outcomes={name: new[name] for name in each.outcomes}) if own else each)
        return found

    def alike(self, place: Place) -> tuple[str, ...]:
        """Methods that are one function with the planted one there, and count once: all are touched."""
        return ("none", "ntk", "yarn") if place.length == TRAINED else (place.method,)

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: the planted cell regressed."""
        return said_by(checked(self.cells(place, healthy), self.cells(place, planted)), self.alike(place), place)

    def null(self, draw: Draw) -> bool:
        """Not drawn: the docs' gate is the same function."""
        raise NotImplementedError


@dataclass
class Compare(Stand):
    """`lexbench compare`, of one cell."""

    name: str = "compare"
    ids: Mapping[str, str] = field(
        default_factory=lambda: signs("E02 E04 E06 E10 E12 E13 E20 E24", "E01 E05 E07 E11 E16 E19 E22 E23")
    )

    def places(self, row: str) -> list[Place]:
        """At 2T; of the unmodified model also at T."""
        method = EFFECTS[row].method
        lengths = (512, 256) if method == "none" else (512,)
        return [Place(method, length, headline_of(row)) for length in lengths]

    def compared(self, task: str, length: int, one: Samples, other: Samples) -> compare.TaskComparison:
        """The comparison of two run folders of one cell."""
        sides = {
            path: records.LoadedCells([finished(as_cell("none", task, length, len(samples)), samples)], [], [])
            for path, samples in ((Path("a"), one), (Path("b"), other))
        }
        with mock.patch.object(records, "load_cells", lambda folders: sides[folders[0]]):
            return compare.compare_runs(Path("a"), Path("b")).tasks[0]

    def stated(self, place: Place) -> float | None:
        """By the sentence on two healthy readings."""
        return self.compared(place.task, place.length, *self.pair(place.task, place.length)).smallest

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: significant, with the right sign."""
        sides = (healthy, planted) if sign == "-" else (planted, healthy)
        return told(self.compared(place.task, place.length, *sides), sign)

    def null(self, draw: Draw) -> bool:
        """One cell of likelihood."""
        return self.compared("last_segment", 512, *draw("none", "last_segment", 512)).entries[0].significant


def told(found: compare.TaskComparison, sign: str) -> Said:
    """Whether a comparison tells a difference of a sign."""
    [entry] = found.entries
    up = compare.Direction.BETTER in found.verdict.where
    return Said(entry.significant and up == (sign == "+"), int(entry.significant and up != (sign == "+")))


@dataclass
class Versus(Stand):
    """`lexbench versus`: of three methods, mine and a rival alike but at one length."""

    name: str = "versus"
    ids: Mapping[str, str] = field(
        default_factory=lambda: signs("E01 E03 E05 E08 E10 E13 E16 E21", "E02 E06 E09 E11 E14 E15 E17 E20")
    )

    def places(self, row: str) -> list[Place]:
        """At 2T; of the unmodified model also at T."""
        method = EFFECTS[row].method
        lengths = (512, 256) if method == "none" else (512,)
        return [Place(method, length, headline_of(row)) for length in lengths]

    def leading(self, task: str, length: int, mine: Samples, rival: Samples, none: Samples) -> Any:
        """The leads of a method."""
        cells = []
        for at in (256, 512, 1024):
            base = self.healthy("none", task, at, n=len(mine))
            for name, samples in (("none", none), ("mine", mine), ("rival", rival)):
                held = samples if at == length else base
                cells.append(finished(as_cell(name, task, at, len(held)), held))
        table = table_of(cells)
        return leads(table, samples_by_cell(cells), MethodKey.of_method("mine"))

    def stated(self, place: Place) -> float | None:
        """By the sentence on two healthy readings."""
        one, other = self.pair(place.task, place.length)
        found = self.leading(place.task, place.length, one, other, one)
        entry = found.entries[MethodKey.of_method("rival"), place.length]
        return smallest_found_by_all([entry.in_unit(1 / display_factor(place.metric))], place.metric)

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: a star over the rival at the length, with the right sign."""
        sides = (planted, healthy) if sign == "-" else (healthy, planted)
        found = self.leading(place.task, place.length, *sides, healthy)
        real = {at: each for (row, at), each in found.entries.items() if str(row) == "rival" and each.significant}
        own = real.pop(place.length, None)
        right = own is not None and ((own.difference or 0.0) > 0) == (sign == "+")
        return Said(right, len(real) + (own is not None and not right))

    def null(self, draw: Draw) -> bool:
        """Any star over the rival, at one length of likelihoods."""
        one, other = draw("none", "last_segment", 512)
        found = self.leading("last_segment", 512, one, other, one)
        return any(each.significant for (row, _), each in found.entries.items() if str(row) == "rival")


@dataclass
class Trace(Stand):
    """`lexbench trace` of six checkpoints; - in the 4th on, + in the first three."""

    name: str = "trace"
    ids: Mapping[str, str] = field(
        default_factory=lambda: {
            **dict.fromkeys(["E05", "E10", "E11", "E12", "X01", "X02"], "-"),
            **dict.fromkeys(["E02", "E08", "E13", "E20", "E21", "E23"], "-"),
            **dict.fromkeys(["E16", "E19", "E22", "X03"], "+"),
        }
    )
    columns = (
        Column("last_segment", 128),
        Column("last_segment", 512),
        Column("passkey", 128),
        Column("passkey", 512),
    )

    def places(self, row: str) -> list[Place]:
        """At 2T."""
        return [Place(EFFECTS[row].method, 512, headline_of(row))]

    def rows(self, held: Callable[[int, Column], Samples]) -> list[CheckpointRow]:
        """Six checkpoints, by what each answers."""
        return [
            CheckpointRow(
                checkpoint=Checkpoint(path=str(step), step=10 * step),
                kept={each: outcomes("none", *each_of(each), held(step, each)) for each in self.columns},
            )
            for step in range(6)
        ]

    def stated(self, place: Place) -> float | None:
        """By the sentence on healthy readings in two precisions."""
        rows = self.rows(lambda step, each: self.pair(each.task, each.length)[step % 2])
        found = summarise_checkpoints(rows)
        return smallest_found_falls(rows, found.columns)[place.metric]

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: a fall first seen at the 4th, or a later one recommended whose interval to the first excludes 0."""
        where = {"-": (3, 4, 5), "+": (0, 1, 2)}[sign]
        own = Column(place.task, place.length)

        def held(step: int, each: Column) -> Samples:
            if each != own:
                return self.healthy("none", each.task, each.length, n=len(healthy))
            return planted if step in where else healthy

        rows = self.rows(held)
        found = summarise_checkpoints(rows)
        other = sum(fall.column != own or fall.after != 3 for fall in found.falls)
        if sign != "+":
            return Said(any(fall.column == own and fall.after == 3 for fall in found.falls), other)
        deciding = {each: name for each, name in found.columns.items() if each.task == place.task}
        finalists = rank_finalists(rows, dict(enumerate(rows)), [3, 4, 5], deciding)
        first = finalists[0]
        low, high = first.to_first.low, first.to_first.high
        told = low is not None and high is not None and not low <= 0 <= high
        return Said(first.place >= 3 and told, other)

    def null(self, draw: Draw) -> bool:
        """Any fall among six readings of two precisions."""
        known = {each: draw("none", each.task, each.length) for each in self.columns}
        return bool(summarise_checkpoints(self.rows(lambda step, each: known[each][step // 3])).falls)


def each_of(column: Column) -> tuple[str, int]:
    """Task and length."""
    return column.task, column.length


@dataclass
class Gain(Stand):
    """Context gain from T to 4T, which is 0 where both hold the answers of one length."""

    name: str = "gain"
    ids: Mapping[str, str] = field(
        default_factory=lambda: signs("E01 E05 E08 E10 E13 E16 E21 E22", "E02 E06 E09 E12 E15 E20 E23 X04")
    )

    def places(self, row: str) -> list[Place]:
        """Answers at 2T, or of the unmodified model at T."""
        method = EFFECTS[row].method
        return [Place(method, length, "nll") for length in ((512, 256) if method == "none" else (512,))]

    def gains(self, near: Samples, far: Samples) -> Any:
        """Gains of the method."""
        cells = [
            finished(as_cell("none", "last_segment", at, len(samples)), samples)
            for at, samples in ((TRAINED, near), (4 * TRAINED, far))
        ]
        table = table_of(cells)
        return context_gains(table, samples_by_cell(cells))

    def stated(self, place: Place) -> float | None:
        """The smallest step that would have hurt."""
        return smallest_found_step(self.gains(*self.pair("last_segment", 512)))

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: an interval of the right sign without 0."""
        [each] = self.gains(*((healthy, planted) if sign == "-" else (planted, healthy)))
        low, high = each.gain.low, each.gain.high
        if low is None or high is None or low <= 0 <= high:
            return Said(False, 0)
        return Said((low > 0) == (sign == "+"), int((low > 0) != (sign == "+")))

    def null(self, draw: Draw) -> bool:
        """An interval without 0."""
        [each] = self.gains(*draw("none", "last_segment", 512))
        return not each.gain.low <= 0 <= each.gain.high


@dataclass
class Tune(Stand):
    """The last ranking of `lexbench tune`, on fresh questions; text and needles are touched together."""

    name: str = "tune"
    ids: Mapping[str, str] = field(
        default_factory=lambda: signs("E01 E02 E03 E05 E06 E08 E09 E10 E14 E15 E16 E17 E18 E21 E22 X03")
    )

    def places(self, row: str) -> list[Place]:
        """Texts at 2T."""
        return [Place(EFFECTS[row].method, 512, "nll")]

    def ranked(self, one: Samples, other: Samples) -> Any:
        """A and B, by texts alone; prices are equal."""
        inside = outcomes_of_samples(self.healthy("none", "last_segment", 256, n=len(one)), "nll")
        none = CandidateOutcomes(text=outcomes_of_samples(one, "nll"), needles=(), inside=inside)
        measured = []
        for factor, samples in ((2.0, one), (3.0, other)):
            candidate = Candidate.of({"name": "ntk", "factor": factor}, MODEL, 512)
            renumbered = [replace(each, index=at) for at, each in enumerate(samples)]
            text = outcomes_of_samples(renumbered, "nll")
            measured.append((candidate, replace(none, text=text)))
        return [candidate for candidate, _ in measured], rank_candidates(measured, none, 0.02, 1.0)

    def stated(self, place: Place) -> float | None:
        """By the page's line on what cannot be told from the best."""
        _, rows = self.ranked(*self.pair("last_segment", 512))
        return smallest_found_by_all([row.behind for row in rows[1:]], "nll")

    def judge(self, place: Place, healthy: Samples, planted: Samples, sign: str) -> Said:
        """Found: A is first and told apart from B."""
        (a, _), rows = self.ranked(healthy, planted)
        first = rows[0].candidate is a
        return Said(first and not rows[1].tied, int(not first and not rows[1].tied))

    def null(self, draw: Draw) -> bool:
        """One told apart from the other."""
        _, rows = self.ranked(*draw("none", "last_segment", 512))
        return not rows[1].tied


COMMANDS: tuple[type[Any], ...] = (CheckDocs, CheckGate, Compare, Versus, Trace, Gain, Tune)

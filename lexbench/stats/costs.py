"""Costs: seconds and memory of each cell, per token and beside the quality.

A run's costs.jsonl has a row for each finished cell. What an unfinished cell has taken lies with its samples, so that a
process that is killed loses no second of an answer that it has kept; the row holds all parts of a cell that was
interrupted, and what its first answers have taken in a smaller cell. Earlier versions wrote a row for each part:
seconds and tokens of a cell's rows are added up. They are wall-clock seconds of one machine under whatever else it did:
compare them inside one run only. A row also holds the seconds and tokens of each answer. These repeated timings give
seconds per token, sum of seconds / sum of tokens, its interval: the timings are resampled. A cell that was timed once
has none, and is not compared. Answers that arrive at once were computed together, in a batch: they are one timing.
The interval holds what varies from answer to answer, not what the machine did during one cell and not another.

Peak memory is that of the process (of the accelerator where there is one): weights, libraries and all. A process's
peak never falls by itself, so it is an upper bound of what a cell needs, unless its row says `"own_peak": true`:
counted anew from the cell's start.
"""

import functools
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_bytes
from lexbench.core.method_key import MethodKey
from lexbench.stats.combine import Summary, SummaryValue, shared_lengths
from lexbench.stats.intervals import CONFIDENCE_LEVEL, Interval, resample_totals
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.records import run_folders
from lexbench.stats.tables import Table
from lexbench.store.format import MAX_COST_AMOUNT, SampleCost

log = logging.getLogger(__name__)
SAME_BATCH_WAIT_SHARE = 0.05
"""Share of the wait for a batch's first answer below which the next answer belongs to that batch."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one cell."""

    seconds: float
    """Total seconds."""
    tokens: int
    """Tokens read and written in these seconds."""
    peak_bytes: int | None
    """Peak memory of the process; None: the model ran in another process."""
    own_peak: bool = False
    """Whether the peak was reset at the cell's start; False: an upper bound, possibly of an earlier cell."""
    measurements: int = 1
    """Rows behind it: more than one where it was resumed or measured again."""
    timings: tuple[tuple[float, int], ...] = ()
    """Seconds and tokens of each answer; of a row without them those of the whole row."""
    indices: tuple[int, ...] = ()
    """Of the question of each timing; () where a row does not tell them, as those of earlier versions."""

    @classmethod
    def of_samples(
        cls, costs: Mapping[int, SampleCost], seconds: float, peak_bytes: int | None, own_peak: bool
    ) -> "Cost":
        """The cost of a cell of whose answers each has a cost, by index."""
        timings = tuple((each.answer_seconds, each.tokens) for each in costs.values())
        tokens = sum(each.tokens for each in costs.values())
        return cls(
            seconds=seconds,
            tokens=tokens,
            peak_bytes=peak_bytes,
            own_peak=own_peak,
            timings=timings,
            indices=tuple(costs),
        )

    def samples(self) -> dict[int, SampleCost]:
        """The cost of each answer by index: its own seconds, and an even share of those that are no answer's.

        Empty where the indices of the timings are not told.
        """
        if not self.indices or len(self.indices) != len(self.timings):
            return {}
        rest = max(0.0, self.seconds - math.fsum(each for each, _ in self.timings)) / len(self.timings)
        pairs = zip(self.indices, self.timings, strict=True)
        return {index: SampleCost(each + rest, each, tokens) for index, (each, tokens) in pairs}

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds per token of the cell's texts; None for a refused cell."""
        return self.seconds / self.tokens if self.tokens else None

    @functools.cached_property
    def rate(self) -> "Rate | None":
        """Seconds per token of the timed answers with an interval; None for fewer than two timings."""
        timings = merge_batches(self.timings)
        seconds, tokens = [each for each, _ in timings], [count for _, count in timings]
        if len(timings) < 2 or not sum(seconds) > 0:
            return None
        drawn = resample_totals(np.array([seconds, tokens]).T)  # percentiles: no rate below the fastest answer's
        tail = (1 - CONFIDENCE_LEVEL) / 2
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [tail, 1 - tail]).tolist()
        interval = Interval(low, high, "cluster_bootstrap")
        return Rate(math.fsum(seconds) / sum(tokens), interval, len(timings))


@dataclass(frozen=True)
class Rate:
    """Seconds per token from repeated timings."""

    value: float
    interval: Interval
    timings: int


def merge_batches(timings: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Timings, those of answers that arrived with the first one of their batch as one; without tokens, none.

    With it: within a twentieth of the wait for it. Answers of a cell have about one length, so that one computed by
    itself takes longer, unless the first one had a warm-up of 20 times its time.
    """
    found: list[tuple[float, int]] = []
    least = 0.0
    for seconds, tokens in timings:
        if found and seconds < least:
            found[-1] = (found[-1][0] + seconds, found[-1][1] + tokens)
        else:
            found.append((seconds, tokens))
            least = SAME_BATCH_WAIT_SHARE * seconds
    return [each for each in found if each[1]]


@dataclass(frozen=True, kw_only=True)
class QualityAtCost:
    """Quality and cost of one method at one length."""

    method: MethodKey
    length: int
    value: float
    """Value of the table's metric, like `low` and `high`."""
    low: float | None
    high: float | None
    cost: Cost


def load_costs(folders: Iterable[Path]) -> dict[str, Cost]:
    """Costs by cell id, of run folders or folders of run folders.

    A cell in several folders has the cost of the first. Unreadable rows are logged as warnings and left out. Raises
    ConfigError where there is no run folder.
    """
    found: dict[str, Cost] = {}
    for folder in run_folders(folders):
        found = {**costs_of_file(folder / "costs.jsonl"), **found}  # the first folder's cost of a cell stays
    return found


def costs_of_file(file: Path) -> dict[str, Cost]:
    """Costs by cell id of one costs.jsonl; empty without the file."""
    found: dict[str, Cost] = {}
    for cell, cost in _rows(file):
        found[cell] = add_costs(found[cell], cost) if cell in found else cost
    return found


def _rows(file: Path) -> Iterator[tuple[str, Cost]]:
    try:
        content = read_bytes(file).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("costs %s cannot be read (%s): remove it", file, error.strerror)
        return
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line)
            seconds, tokens = float(row["seconds"]), int(row["tokens"])
            timings = [(float(each), int(count)) for each, count in row.get("timings") or [(seconds, tokens)]]
            cost = Cost(
                seconds=seconds,
                tokens=tokens,
                peak_bytes=None if row["peak_bytes"] is None else int(row["peak_bytes"]),
                own_peak=row.get("own_peak") is True,
                timings=tuple(timings),
                indices=tuple(int(each) for each in row.get("indices") or ()),
            )
            numbers = [seconds, tokens, cost.peak_bytes or 0, *itertools.chain.from_iterable(timings)]
            if not all(0 <= number <= MAX_COST_AMOUNT for number in numbers):
                raise ConfigError("impossible numbers")
            yield str(row["cell"]), cost
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            log.warning("line %d of %s is no cost: left out", number, file)


def add_costs(before: Cost, after: Cost) -> Cost:
    """Two measurements of a cell as one."""
    return Cost(
        seconds=before.seconds + after.seconds,
        tokens=before.tokens + after.tokens,
        peak_bytes=max((peak for peak in (before.peak_bytes, after.peak_bytes) if peak is not None), default=None),
        own_peak=before.own_peak and after.own_peak,
        measurements=before.measurements + after.measurements,
        timings=before.timings + after.timings,
        indices=before.indices + after.indices,
    )


def qualities_at_cost(table: Table, costs: Mapping[str, Cost]) -> list[QualityAtCost]:
    """Quality against cost, of each method at each length that has both; method by method, lengths ascending."""
    return [
        QualityAtCost(method=row, length=record.length, value=record.value, low=record.low, high=record.high, cost=cost)
        for row in table.methods
        for record in table.of(row)
        if record.metric == table.metric and record.value is not None
        if (cost := costs.get(record.cell)) and cost.tokens
    ]


def cost_summaries(table: Table, costs: Mapping[str, Cost]) -> list[SummaryValue]:
    """`COST_SUMMARIES` of each method of a table, over the lengths at which all methods have a value and a cost."""
    every = qualities_at_cost(table, costs)
    having = {row: {each.length for each in every if each.method == row} for row in table.methods}
    valued = {row for row in table.methods if any(record.value is not None for record in table.of(row))}
    lengths = [at for at in shared_lengths(table) if all(at in having[row] for row in valued)]
    found: list[SummaryValue] = []
    for row in table.methods:
        own = {each.length: each.cost for each in every if each.method == row and each.length in lengths}
        found += filter(None, (each.of(row, own) for each in COST_SUMMARIES))
    return found


def _seconds(row: MethodKey, costs: Mapping[int, Cost]) -> SummaryValue:
    length = max(costs, default=0)
    rate = costs[length].rate if costs else None
    blank = SummaryValue(method=row, name="seconds_per_token", value=None, unit="seconds per token", notes=())
    if rate is None:
        why = Note(NoteKind.TIMED_ONCE, (length,)) if costs else Note(NoteKind.NO_SHARED_COST)
        return replace(blank, notes=(why,))
    ends, notes = rate.interval, (Note(NoteKind.AT_LENGTH, (length,)), Note(NoteKind.WALL_CLOCK))
    return replace(blank, value=rate.value, low=ends.low, high=ends.high, interval=ends.kind, notes=notes)


def _bytes(row: MethodKey, costs: Mapping[int, Cost]) -> SummaryValue:
    blank = SummaryValue(method=row, name="bytes_per_token", value=None, unit="bytes per token", notes=())
    peaks = {length: cost.peak_bytes for length, cost in sorted(costs.items()) if cost.peak_bytes is not None}
    rises = [after - before for before, after in itertools.pairwise(peaks.values())]
    if len(costs) < 2:
        why = NoteKind.ONE_SHARED_COST
    elif len(peaks) < len(costs):
        why = NoteKind.UNSEEN_MEMORY
    elif not all(cost.own_peak for cost in costs.values()):
        why = NoteKind.SHARED_PEAKS
    elif any(len(merge_batches(cost.timings)) < len(cost.timings) for cost in costs.values()):
        why = NoteKind.BATCHED_MEMORY
    elif min(rises) < 0 or sum(rises) <= 0:
        why = NoteKind.NO_RISE
    else:
        first, last = min(costs), max(costs)
        notes = Note(NoteKind.RISE, (first, last)), Note(NoteKind.BYTES_IN_ALL, (peaks[last], last))
        return replace(blank, value=(peaks[last] - peaks[first]) / (last - first), notes=notes)
    return replace(blank, notes=(Note(why),))


COST_SUMMARIES = (
    Summary(
        "seconds_per_token",
        "at the longest shared length, of at least two timed answers; none of a batch",
        "what measuring took",
        _seconds,
        digits=".3g",
    ),
    Summary(
        "bytes_per_token",
        "memory per added token of context; none where it was not counted cell by cell, or does not rise",
        "memory that a token of context adds",
        _bytes,
        digits=".0f",
    ),
)
"""Costs, in the order of their columns."""

"""Costs: seconds and memory of each cell, per token and beside the quality.

A run's costs.jsonl has a row each time that a process measured a cell, or the rest of one that was interrupted.
Seconds and tokens of a cell's rows are added up, so seconds per token is a mean over all that was measured. They are
wall-clock seconds of one machine under whatever else it did: compare them inside one run only. There is no interval:
a cell is timed once.

Peak memory is that of the process (of the accelerator where there is one): weights, libraries and all. A process's
peak never falls by itself, so it is an upper bound of what a cell needs, unless its row says `"own_peak": true`:
counted anew from the cell's start.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lexbench.stats.combine import Summary, shared_lengths
from lexbench.stats.records import run_folders
from lexbench.stats.tables import Table

log = logging.getLogger(__name__)


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

    @property
    def seconds_per_token(self) -> float | None:
        """None for a refused cell."""
        return self.seconds / self.tokens if self.tokens else None


@dataclass(frozen=True, kw_only=True)
class Price:
    """Quality and cost of one method at one length."""

    method: str
    length: int
    value: float
    """Value of the table's metric, like `low` and `high`."""
    low: float | None
    high: float | None
    cost: Cost


def load(folders: Iterable[Path]) -> dict[str, Cost]:
    """Costs by cell id, of run folders or folders of run folders.

    A cell in several folders has the cost of the first. Unreadable rows are logged as warnings and left out. Raises
    ValueError where there is no run folder.
    """
    found: dict[str, Cost] = {}
    for folder in run_folders(folders):
        found = {**of_file(folder / "costs.jsonl"), **found}
    return found


def of_file(file: Path) -> dict[str, Cost]:
    """Costs by cell id of one costs.jsonl; empty without the file."""
    found: dict[str, Cost] = {}
    for cell, cost in _rows(file):
        found[cell] = _added(found[cell], cost) if cell in found else cost
    return found


def _rows(file: Path) -> Iterator[tuple[str, Cost]]:
    content = file.read_text(errors="replace") if file.exists() else ""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line)
            cost = Cost(
                seconds=float(row["seconds"]),
                tokens=int(row["tokens"]),
                peak_bytes=None if row["peak_bytes"] is None else int(row["peak_bytes"]),
                own_peak=row.get("own_peak") is True,
            )
            yield str(row["cell"]), cost
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            log.warning("line %d of %s is no cost: left out", number, file)


def _added(before: Cost, after: Cost) -> Cost:
    """Two measurements of a cell as one."""
    return Cost(
        seconds=before.seconds + after.seconds,
        tokens=before.tokens + after.tokens,
        peak_bytes=max((peak for peak in (before.peak_bytes, after.peak_bytes) if peak is not None), default=None),
        own_peak=before.own_peak and after.own_peak,
        measurements=before.measurements + after.measurements,
    )


def prices(table: Table, costs: Mapping[str, Cost]) -> list[Price]:
    """Quality against cost, of each method at each length that has both; method by method, lengths ascending."""
    return [
        Price(method=row, length=record.length, value=record.value, low=record.low, high=record.high, cost=cost)
        for row in table.methods
        for record in table.of(row)
        if record.metric == table.metric and record.value is not None
        if (cost := costs.get(record.cell)) and cost.tokens
    ]


def cost_summaries(table: Table, costs: Mapping[str, Cost]) -> list[Summary]:
    """Seconds and bytes per token of each method of a table, over the lengths at which all methods have value and cost.

    seconds_per_token    at the longest of them: shorter ones hide what grows with length behind what does not
    bytes_per_token      what a token of context adds: the rise of the peak from the shortest to the longest of them,
                         over their difference; None where peaks were not counted cell by cell
    """
    every = prices(table, costs)
    having = {row: {each.length for each in every if each.method == row} for row in table.methods}
    valued = {row for row in table.methods if any(record.value is not None for record in table.of(row))}
    lengths = [at for at in shared_lengths(table) if all(at in having[row] for row in valued)]
    found = []
    for row in table.methods:
        own = {each.length: each.cost for each in every if each.method == row and each.length in lengths}
        found += [_seconds(row, own), _bytes(row, own)]
    return found


def _seconds(row: str, costs: Mapping[int, Cost]) -> Summary:
    name, unit = "seconds_per_token", "seconds per token"
    if not costs:
        return Summary(method=row, name=name, value=None, unit=unit, note="no length at which all methods have a cost")
    length = max(costs)
    again = f", {costs[length].measurements} measurements" if costs[length].measurements > 1 else ""
    note = f"at {length}; wall clock, timed once{again}: compare inside one run only"
    return Summary(method=row, name=name, value=costs[length].seconds_per_token, unit=unit, note=note)


def _bytes(row: str, costs: Mapping[int, Cost]) -> Summary:
    value: float | None = None
    peaks = {length: cost.peak_bytes for length, cost in costs.items() if cost.peak_bytes is not None}
    if len(costs) < 2:
        note = "needs two lengths at which all methods have a cost"
    elif len(peaks) < len(costs):
        note = "the model ran in another process, whose memory was not seen"
    elif not all(cost.own_peak for cost in costs.values()):
        note = "peaks were not counted cell by cell: each holds what its process held before"
    else:
        first, last = min(costs), max(costs)
        value = (peaks[last] - peaks[first]) / (last - first)
        note = f"rise of the peak from {first} to {last}; {peaks[last]} bytes in all at {last}"
    return Summary(method=row, name="bytes_per_token", value=value, unit="bytes per token", note=note)

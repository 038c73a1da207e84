"""Compute every metric from the samples; no model is needed."""

import logging
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.files import why_not_a_folder
from lexbench.core.groups import group_by_key
from lexbench.core.record import Cell, Record, Sample
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.stats import invariants
from lexbench.stats.detection import detection
from lexbench.stats.floors import floors_of_samples
from lexbench.stats.intervals import Interval, cluster_bootstrap, mean_interval
from lexbench.stats.metrics import facts_of, failed_value, is_score
from lexbench.stats.rescore import rescore_cell
from lexbench.store.format import FinishedCell
from lexbench.store.stopped import StoppedComparison, read_stopped
from lexbench.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedCells:
    """Content of one or more run folders."""

    finished: list[FinishedCell]
    """Each cell once, sorted by id; none that another one repeats with more questions."""
    unfinished: list[Cell]
    problems: list[str]
    stopped: list[StoppedComparison] = field(default_factory=list)
    """Comparisons of unfinished cells that have stopped as soon as they were decided."""

    @property
    def remedy(self) -> str:
        """How unfinished cells become finished ones."""
        budget = max((each.budget for each in self.stopped), default=None)
        return "repeat the run command to finish it" if budget is None else f"run with n={budget} to finish it"


def build_records(folders: Iterable[Path]) -> list[Record]:
    """Records of every finished cell in run folders, or in folders of run folders, from their samples.

    Of copies of a cell keep the one with most questions. Raises ConfigError where there is no run folder.
    """
    return [record for finished in load_cells(folders).finished for record in records_of(finished)]


def load_cells(folders: Iterable[Path], afresh: Collection[Path] = ()) -> LoadedCells:
    """All cells of run folders; files that cannot be read, and cells that break an invariant (`stats.invariants`), are
    left out, listed, and logged as warnings. Each records.jsonl in or below `afresh` is written anew from them."""
    stores = [Store(folder) for folder in run_folders(folders)]
    finished: dict[str, FinishedCell] = {}
    left: dict[str, Cell] = {}
    problems: list[str] = []
    stopped: list[StoppedComparison] = []
    for store in stores:
        own = any(store.folder.resolve().is_relative_to(folder.resolve()) for folder in afresh)
        cells = store.write_records(records_of, afresh=True) if own else store.load()
        odd = invariants.record_problems(cells)
        problems += [f"run folder {store.folder}: {said}" for said in odd.values()]
        for cell in cells:
            if cell.cell.id in odd:
                continue
            known = finished.get(cell.cell.id)
            if known is None or (known.deferred and not cell.deferred):  # a measured cell replaces its deferred twin
                finished[cell.cell.id] = cell
        left.update({cell.id: cell for cell in store.unfinished_cells()})
        problems += store.problems
        stopped += read_stopped(store.folder)
    for problem in problems:
        log.warning(problem)
    kept = cells_of_most_questions(finished.values())
    unfinished = [cell for name, cell in sorted(left.items()) if name not in finished]
    if stopped:
        unfinished, stopped = _still_stopped(unfinished, stopped, [finished[name] for name in kept])
    return LoadedCells([rescore_cell(finished[name]) for name in sorted(kept)], unfinished, problems, stopped)


def _still_stopped(
    unfinished: Sequence[Cell], stopped: Sequence[StoppedComparison], finished: Iterable[FinishedCell]
) -> tuple[list[Cell], list[StoppedComparison]]:
    """Unfinished cells and stopped comparisons without those that were measured with more questions since.

    Logs which cells of the others no statistic of a fixed number of questions reads.
    """
    named = {name for each in stopped for name in (each.cell, each.baseline)}
    most = {_identity_without_n(each.cell): each.cell.n for each in finished if each.refused is None}
    left = [cell for cell in unfinished if cell.id not in named or most.get(_identity_without_n(cell), 0) < cell.n]
    kept = [each for each in stopped if each.cell in {cell.id for cell in left}]
    shown = [f"{cell.method} {cell.task} at {cell.length}" for cell in left if cell.id in named]
    if kept:
        log.warning(
            "%s stopped as soon as comparisons were decided (%s), so no statistic of a fixed number of questions reads "
            "them: run with n=%d to have one",
            *(count_with_noun(len(shown), "cell"), join_first_few(shown, 3), max(each.budget for each in kept)),
        )
    return left, kept


def cells_of_most_questions(cells: Collection[FinishedCell]) -> set[str]:
    """Ids of cells that no measured one repeats with more questions: tasks keep their first ones as n grows."""
    kept = {each.cell.id for each in cells}
    for row in group_by_key(cells, lambda each: (each.cell.task, each.cell.length, each.cell.method)).values():
        if len({each.cell.n for each in row}) == 1:
            continue
        for alike in group_by_key(row, lambda each: _identity_without_n(each.cell)).values():
            most = max((each.cell.n for each in alike if each.refused is None), default=0)
            kept -= {each.cell.id for each in alike if each.cell.n < most}
    return kept


def _identity_without_n(cell: Cell) -> str:
    return replace(cell, identity={**cell.identity, "n": None}).id


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The folders themselves, or the run folders below them; each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"run folder {folder} {why_not_a_folder(folder)}: give one that `lexbench run` has written"
            )
        below = [folder] if _is_run(folder) else [cells.parent for cells in sorted(folder.rglob("cells"))]
        runs = [run for run in below if _is_run(run)]
        if not runs:
            raise ConfigError(f"folder {folder} holds no cells: give one that `lexbench run` has written")
        found.update(dict.fromkeys(runs))
    return list(found)


def _is_run(folder: Path) -> bool:
    cells = folder / "cells"
    return any(cells.glob("*.parquet")) or any(cells.glob("*.jsonl"))


def records_of(finished: FinishedCell) -> list[Record]:
    """A cell's records: one per metric; one without a metric where the cell is refused or nothing was scored.

    First those of all samples, then those of each part, parts by name. A part has the metrics of the whole.
    """
    if finished not in _derived:  # a report writes them down and makes its tables of them
        whole = rescore_cell(finished)
        parts = sorted({part for sample in whole.samples for part in sample.parts}, key=number_sort_key)
        _derived[finished] = [record for part in (None, *parts) for record in _records_of_part(whole, part)]
    return list(_derived[finished])


_derived: WeakKeyDictionary[FinishedCell, list[Record]] = WeakKeyDictionary()


def number_sort_key(part: str) -> list[tuple[int, str]]:
    """Sort key by the numbers in a name: `words 4-8k` before `words 16k+`."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", part)]


def _records_of_part(finished: FinishedCell, part: str | None) -> list[Record]:
    """Records of the samples of one part, or of all."""
    shown = finished if part is None else replace(finished, samples=[e for e in finished.samples if part in e.parts])
    if any(sample.nll is not None for sample in finished.samples):
        return _likelihood(shown, part)
    names = dict.fromkeys(name for sample in finished.samples for name in sample.scores)
    if not names:
        return [_record(shown, part, None, None, None, ())]
    means = [_mean(shown, part, name) for name in names]
    found = detection(shown.samples)
    return means + [_record(shown, part, each.metric, each.value, each.interval, each.used) for each in found]


def _mean(finished: FinishedCell, part: str | None, metric: str) -> Record:
    """The mean of one score or measure; a failed sample has the metric's `failed_value`.

    A sample that lacks it without having failed makes its cell invalid (`stats.invariants`); it is left out here.
    """
    instead = failed_value(metric)
    used = [
        sample
        for sample in finished.samples
        if (metric in sample.scores if sample.failed is None else instead is not None)
    ]
    values = [float(sample.scores[metric] if sample.failed is None else instead or 0.0) for sample in used]
    if not values:
        return _record(finished, part, metric, None, None, ())
    clusters = [sample.cluster for sample in used]
    interval = (
        mean_interval(values, clusters) if is_score(metric) else cluster_bootstrap(values, [1] * len(values), clusters)
    )
    return _record(finished, part, metric, math.fsum(values) / len(values), interval, used)


def _likelihood(finished: FinishedCell, part: str | None) -> list[Record]:
    """Token-weighted NLL, and the same sums in other units.

        nll = sum nats / targets; perplexity = exp(nll); bits_per_byte = sum nats / (ln 2 bytes);
        word_perplexity = exp(sum nats / words)

    A failed sample is left out of the value and counted in `failed`. Intervals are computed in nats, their ends
    converted; none reaches below an NLL of 0, a perplexity of 1.
    """
    used = [sample for sample in finished.samples if sample.nll is not None and not sample.failed]
    clusters = [sample.cluster for sample in used]
    losses = [sample.nll.astype(np.float64) for sample in used if sample.nll is not None]
    nats = np.array([loss.sum() for loss in losses])
    targets = np.array([len(loss) for loss in losses], np.float64)
    floors = floors_of_samples(finished.samples, "nll")
    records = []
    per_target = cluster_bootstrap(nats, targets, clusters) if targets.sum() > 0 else None

    def add(metric: str, units: np.ndarray, turn: Callable[[float], float]) -> None:
        value, interval = None, None
        if units.sum() > 0:
            value = _finite_or_none(turn, float(nats.sum() / units.sum()))
            interval = _convert_interval(
                per_target if units is targets else cluster_bootstrap(nats, units, clusters), turn
            )
        record = _record(finished, part, metric, value, interval if value is not None else None, used)
        ends: dict[str, Any] = {}
        if value is not None:  # floors are in nats per target: times targets per unit they are in nats per unit
            ratio = float(targets.sum() / units.sum())
            ends = {name: _finite_or_none(turn, each * ratio) for name, each in floors.items()}
        records.append(replace(record, **ends))

    add("nll", targets, float)
    add("perplexity", targets, math.exp)
    seen = [sample for sample in finished.samples if sample.nll is not None]
    if all(sample.bytes is not None for sample in seen):
        add("bits_per_byte", np.array([sample.bytes for sample in used], np.float64), lambda x: x / math.log(2))
    if all(sample.words is not None for sample in seen):
        add("word_perplexity", np.array([sample.words for sample in used], np.float64), math.exp)
    return records


def _convert_interval(interval: Interval | None, turn: Callable[[float], float]) -> Interval | None:
    """An interval in other units, its ends no lower than an NLL of 0; None where an end is not finite there."""
    if interval is None:
        return None
    low, high = _finite_or_none(turn, max(interval.low, 0.0)), _finite_or_none(turn, interval.high)
    return Interval(low, high, interval.kind) if low is not None and high is not None else None


def _finite_or_none(turn: Callable[[float], float], value: float) -> float | None:
    """turn(value), or None where it is beyond float64: a perplexity above e^709."""
    try:
        result = turn(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def _record(
    finished: FinishedCell,
    part: str | None,
    metric: str | None,
    value: float | None,
    interval: Interval | None,
    used: Sequence[Sample],
) -> Record:
    """A record: the metric over the `used` samples, with the coverage of all samples."""
    cell, samples = finished.cell, finished.samples
    tokens = [sample.tokens for sample in samples]
    return Record(
        cell=cell.id,
        model=cell.model,
        method=cell.method,
        attention=_attention_line(cell.identity.get("attention") or {}),
        task=cell.task,
        length=cell.length,
        trained_length=cell.trained_length,
        seed=cell.seed,
        metric=metric,
        part=part,
        value=value,
        chance=None if metric is None else floors_of_samples(samples, metric).get("chance"),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        interval=interval.kind if interval else None,
        n=len(used),
        clusters=len({sample.cluster for sample in used}),
        tokens_min=min(tokens, default=None),
        tokens_median=float(statistics.median(tokens)) if tokens else None,
        tokens_max=max(tokens, default=None),
        truncated=sum(sample.truncated for sample in samples),
        failed=sum(sample.failed is not None for sample in samples),
        hit_room=sum(sample.hit_room is True for sample in samples),
        refused=finished.refused,
        protocol=cell.protocol,
        backend=cell.backend,
        dtype=cell.dtype,
        kernel=cell.kernel,
        corpus=cell.corpus,
        version=cell.version,
    )


def _attention_line(attention: Mapping[str, Any]) -> str | None:
    """An Attention's data in a line: `inv_freq 1..0.0001, scale 1.2, remap Remap(window 8, query Line(...), ...)`."""
    return ", ".join(f"{slot} {_slot_text(slot, value)}" for slot, value in attention.items()) or None


def _slot_text(slot: str, value: Any) -> str:
    if slot == "inv_freq":
        return f"{value[0]:.6g}..{value[-1]:.6g}"
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{key} {_slot_text(key, item)}" for key, item in value.items() if key not in ("kind", "file")
        )
        return f"{value.get('kind', '')}({inner})"
    if isinstance(value, list):
        return "[" + ", ".join(_slot_text("", item) for item in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def records_dataframe(records: Sequence[Record]) -> "pd.DataFrame":
    """One row per record, with `multiple`: length / trained_length."""
    import pandas as pd

    names = [field.name for field in fields(Record)]
    return pd.DataFrame(rows_of(records), columns=[*names, "multiple"])


def sample_count(record: Record) -> int:
    """Number of samples of the cell or part, with failed ones that the value leaves out."""
    held = facts_of(record.metric).of_cell or failed_value(record.metric) is not None
    return record.n if held else record.n + record.failed


def rows_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row per record, with `multiple`: length / trained_length."""
    return [{**record.as_row(), "multiple": record.multiple} for record in records]

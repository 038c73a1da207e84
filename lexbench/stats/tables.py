"""Tables of one metric, methods by lengths; cells of a table differ only in method and length."""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey, sort_by_name
from lexbench.core.metric import Metric
from lexbench.core.record import Cell, Record
from lexbench.stats import metrics
from lexbench.stats.floors import NGRAM_FLOOR_NAMES
from lexbench.stats.prices import price_rows
from lexbench.stats.records import records_of
from lexbench.stats.rescore import unmeasured_metrics
from lexbench.stats.same_attention import attention_forms
from lexbench.stats.shortcuts import Shortcut, shortcut_of_cell
from lexbench.store.cell_rows import with_purposes
from lexbench.store.format import FinishedCell

log = logging.getLogger(__name__)

TELLING_IDENTITY_FIELDS = ("backend.name", "seed", "corpus.name", "backend.dtype")
"""Fields of an identity that tell tables apart in words that readers know, the first choice first."""
IMPORT_ONLY_METHOD_KEYS = ("set_to", "samples")
"""Keys of an imported cell's method that are no parameters: they may differ by length within a row."""
Place = tuple[MethodKey, int]
"""Row and length."""


@dataclass(frozen=True, eq=False)
class Table:
    """Records of one metric, of cells that share everything but method and length."""

    name: str
    """Unique file name within a report."""
    setting: str
    """Hash of what the cells share."""
    metric: str | None
    """Metric of the records; None: nothing was scored."""
    cell: Cell
    """One of the cells, for the fields that all share."""
    differs: Mapping[str, str | None]
    """Values of the fields that differ from other tables of the same model and task; empty without such tables."""
    entries: dict[Place, Record]
    """Records over all samples of a cell."""
    methods: list[MethodKey]
    lengths: list[int]
    parts: dict[Place, dict[str, Record]] = field(default_factory=dict)
    """Records of the parts of a cell, by the part's name, in their order."""
    highlight: frozenset[str] = frozenset()
    """Names of methods that figures and summaries always show, like those outside the registry."""
    deployed: dict[MethodKey, MethodKey] = field(default_factory=dict)
    """Row of a method that follows the length, and the row set as for its longest length."""
    follows: frozenset[MethodKey] = frozenset()
    """Methods whose factor follows the length: inside the trained length they are none, by construction."""
    states: Mapping[MethodKey, Mapping[str, str]] = field(default_factory=dict)
    """Parameters that tell rows of twin keys apart."""
    attentions: Mapping[str, str] = field(default_factory=dict)
    """Normal form of each cell's attention by cell id, where it is known: equal forms are one function."""
    prices: dict[Place, Record] = field(default_factory=dict)
    """Entries of deployed rows that were measured inside the trained length alone; they are not in `methods`."""
    shortcuts: Mapping[int, Shortcut] = field(default_factory=dict)
    """Score of a perfect reader of the last tokens, by length, where the task states it."""
    unmeasured: tuple[Metric, ...] = ()
    """Metrics of the task that a cell lacks, because its version, or its backend, did not tell them."""

    @property
    def better(self) -> int:
        """1 where higher is better, -1 where lower is, 0 where neither."""
        return metrics.better_direction(self.metric)

    @property
    def scored(self) -> bool:
        """Whether the metric is a score in [0, 1]."""
        return metrics.is_score(self.metric)

    @property
    def truncated(self) -> bool:
        """Whether any sample of any cell was truncated."""
        return any(record.truncated for record in self.entries.values())

    def price_of(self, row: MethodKey) -> Record | None:
        """The deployed form of a row, at its longest length within the trained one."""
        name = self.deployed.get(row)
        every = {**self.entries, **self.prices}
        inside = [at for at in every if at[0] == name and at[1] <= self.cell.trained_length]
        return every[max(inside, key=lambda at: at[1])] if inside else None

    def of(self, row: MethodKey) -> list[Record]:
        """Records of one method, by length."""
        return [self.entries[row, length] for length in self.lengths if (row, length) in self.entries]

    def at(self, length: int) -> list[Record]:
        """Records of one length, by method."""
        return [self.entries[row, length] for row in self.methods if (row, length) in self.entries]


def build_tables(finished: Iterable[FinishedCell], highlight: Iterable[str] = ()) -> list[Table]:
    """Tables by model and task; headline metrics first. `highlight` names methods as in `Table.highlight`."""
    shown = frozenset(highlight)
    ordered = sorted(finished, key=lambda each: (each.cell.model, each.cell.task, each.cell.seed, each.cell.id))
    forms = attention_forms(each.cell for each in ordered)
    groups = group_by_key(ordered, lambda each: _setting_hash(each.cell))
    rivals = group_by_key((group[0].cell for group in groups.values()), lambda cell: (cell.model, cell.task))
    differing = {about: _distinguishing_fields(cells) for about, cells in rivals.items()}
    made = []
    for setting, group in groups.items():
        cell = group[0].cell
        about, own = (cell.model, cell.task), flatten_leaves(cell.identity)
        twins, stated = _twins(group)
        placed, states = _place_cells(group, twins), _states(stated)
        every = {place: records_of(each) for place, each in placed.items()}
        deployed, priced = price_rows(
            dict(zip(placed, with_purposes(each.cell for each in placed.values()), strict=True))
        )
        entries = {place: records for place, records in every.items() if place[0] not in priced}
        known = {record.metric for records in entries.values() for record in records} - {None}
        unmeasured = tuple(dict.fromkeys(metric for each in placed.values() for metric in unmeasured_metrics(each)))
        shortcuts = {place[1]: found for place, each in placed.items() if (found := shortcut_of_cell(each))}
        for metric in sorted(known, key=metrics.metric_sort_key) or [None]:
            name = "-".join(filter(None, [cell.model, cell.task, metric, setting if len(rivals[about]) > 1 else None]))
            made.append(
                Table(
                    name=re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-"),
                    setting=setting,
                    metric=metric,
                    cell=cell,
                    differs={name: own.get(name) for name in differing[about]},
                    entries={place: _of_metric(records, metric) for place, records in entries.items()},
                    methods=sort_by_name({row for row, _ in entries}),
                    lengths=sorted({length for _, length in entries}),
                    deployed=deployed,
                    follows=frozenset(
                        each.cell.method for each in group if _factor_follows(each.cell.identity.get("method"))
                    ),
                    attentions={each.cell.id: forms[each.cell.id] for each in group if each.cell.id in forms},
                    prices={place: _of_metric(every[place], metric) for place in every if place[0] in priced},
                    parts={place: _parts_of(records, metric) for place, records in entries.items()},
                    highlight=shown,
                    states=states,
                    shortcuts=shortcuts if metrics.is_headline_score(metric) else {},
                    unmeasured=unmeasured,
                )
            )
    return made


def _setting_hash(cell: Cell) -> str:
    """Hash of everything that cells of one table must share: the identity without method and length."""
    # The attention is the method at one length.
    shared = {key: value for key, value in cell.identity.items() if key not in ("method", "attention", "length")}
    names = ("model", "task", "protocol", "backend", "dtype", "kernel", "corpus", "n", "seed", "trained_length")
    shown = [getattr(cell, name) for name in names]
    return hashlib.sha256(json.dumps([shared, shown], sort_keys=True).encode()).hexdigest()[:8]


def _place_cells(group: Sequence[FinishedCell], twins: Mapping[str, int]) -> dict[Place, FinishedCell]:
    """Cells by row and length; methods with one key that meet at a length have a row each, numbered: `pi`, `pi #2`.

    Methods with one key differ in a default that has changed. Cells that differ in the attention alone, as after a
    change of a method's code, cannot be told apart over lengths: a row may mix them, and a warning says so.
    """
    placed: dict[Place, FinishedCell] = {}
    mixed = set()
    for finished in group:
        cell = finished.cell
        twin = twins[cell.id]
        while (row := replace(cell.method, twin=twin), cell.length) in placed:
            mixed.add(cell.method)
            twin += 1
        placed[row, cell.length] = finished
    for method in sorted(mixed):
        log.warning(
            "cells of %s on %s differ in the attention alone, as after a change of its code: a row may mix both; run "
            "each into a folder of its own",
            *(method, group[0].cell.task),
        )
    return placed


def _states(stated: Mapping[MethodKey, Sequence[Mapping[str, str]]]) -> dict[MethodKey, dict[str, str]]:
    """Parameters that tell the twins of one key apart, by row."""
    found = {}
    for method, rows in stated.items():
        names = dict.fromkeys(name for stated in rows for name in stated)
        odd = [name for name in names if len({stated.get(name) for stated in rows}) > 1]
        for twin, each in enumerate(rows if odd else (), 1):
            found[replace(method, twin=twin)] = {name: each[name] for name in odd if name in each}
    return found


def _twins(group: Sequence[FinishedCell]) -> tuple[dict[str, int], dict[MethodKey, list[dict[str, str]]]]:
    """Number of each cell's row among all rows of its method's key, by cell id; and the rows' parameters, by key.

    The row is the first of that key that the cell may continue: a row has no length twice, and no parameter in two
    states; a parameter that older cells lack may be new.
    """
    cells = group_by_key((finished.cell for finished in group), lambda cell: (cell.method, _method_spec(cell)))
    rows: dict[MethodKey, list[tuple[set[int], dict[str, str]]]] = {}
    numbers = {}
    for (method, spec), alike in cells.items():
        own = {cell.length for cell in alike}
        stated = {
            name: value
            for name, value in flatten_leaves(json.loads(spec)).items()
            if name not in IMPORT_ONLY_METHOD_KEYS
        }
        taken = rows.setdefault(method, [])
        fits = (
            place
            for place, (held, known) in enumerate(taken)
            if not held & own and all(known.get(name, value) == value for name, value in stated.items())
        )
        place = next(fits, len(taken))
        if place == len(taken):
            taken.append((set(), {}))
        taken[place][0].update(own)
        taken[place][1].update(stated)
        numbers.update(dict.fromkeys((cell.id for cell in alike), place + 1))
    return numbers, {method: [stated for _, stated in taken] for method, taken in rows.items()}


def _method_spec(cell: Cell) -> str:
    """The method with its parameters."""
    return json.dumps(cell.identity.get("method"), sort_keys=True)


def _factor_follows(method: Any) -> bool:
    """Whether a method, as the identity of a cell holds it, or a part of it has no factor of its own."""
    if isinstance(method, Mapping):
        return ("factor" in method and method["factor"] is None) or any(map(_factor_follows, method.values()))
    return isinstance(method, list) and any(map(_factor_follows, method))


def _of_metric(records: Sequence[Record], metric: str | None) -> Record:
    """The record over all samples; without one of the metric, the first record without its value.

    The first record holds the reason of a refusal. A cell without the bytes of its texts has NLL and no bits per byte.
    """
    nothing: dict[str, Any] = dict.fromkeys(("value", "low", "high", "interval", "chance", *NGRAM_FLOOR_NAMES))
    found = (record for record in records if record.metric == metric and record.part is None)
    return next(found, None) or replace(records[0], metric=records[0].metric and metric, **nothing)


def _parts_of(records: Sequence[Record], metric: str | None) -> dict[str, Record]:
    return {record.part: record for record in records if record.metric == metric and record.part is not None}


def _distinguishing_fields(rivals: Iterable[Cell]) -> list[str]:
    """Fields of the identity that tell tables of one model and task apart.

    A field that follows from those before it is left out: with another backend come its version, its kernel and more.
    """
    parts = [flatten_leaves(other.identity) for other in rivals]
    names = {name for part in parts for name in part} - {"length"}
    names = {name for name in names if not name.startswith(("method.", "attention"))}
    odd = [name for name in names if len({part.get(name) for part in parts}) > 1]
    telling: list[str] = []
    for name in sorted(
        odd,
        key=lambda name: (
            TELLING_IDENTITY_FIELDS.index(name) if name in TELLING_IDENTITY_FIELDS else len(TELLING_IDENTITY_FIELDS),
            name,
        ),
    ):
        groups = group_by_key(parts, lambda part: tuple(part.get(each) for each in telling))
        if any(len({part.get(name) for part in group}) > 1 for group in groups.values()):
            telling.append(name)
    return telling


def flatten_leaves(value: Any, name: str = "") -> dict[str, str]:
    """The values of nested data as text, by their paths: `task.version`."""
    if not isinstance(value, Mapping):
        return {name: str(value)}
    found: dict[str, str] = {}
    for key, part in value.items():
        found.update(flatten_leaves(part, f"{name}.{key}" if name else key))
    return found

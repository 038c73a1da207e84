"""Data that all formats take from a cell: its records, its answers, and the person and time of the measurement."""

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from lexbench.core.record import Record, Sample, expected_texts
from lexbench.stats.records import records_of
from lexbench.store.format import FinishedCell

File = tuple[str, str]
"""Path below the folder that is written, and content."""


@dataclass(frozen=True, kw_only=True)
class SharedDetails:
    """Details of all cells that the cells themselves do not hold."""

    measured: datetime
    """Time in UTC at which the youngest cell was finished."""
    organization: str | None = None
    """Organization that measured; None: not stated."""
    developer: str | None = None
    """Maker of the model, where its name is not ORG/NAME."""


def complete_records(finished: FinishedCell) -> list[Record]:
    """Records of all samples of a cell that have a value."""
    return [each for each in records_of(finished) if each.part is None and each.value is not None]


def written_answer(sample: Sample) -> str | None:
    """Written answer, or the likeliest option, counted from 1: `option 2`; None: the question has neither."""
    options = sample.statistics.get("option_nll")
    return f"option {int(np.argmin(options)) + 1}" if sample.output is None and options is not None else sample.output


def reference_texts(sample: Sample) -> list[str]:
    """The texts that are right."""
    return expected_texts(sample.facts.get("expected"))


def shared_conditions(finished: FinishedCell) -> dict[str, Any]:
    """The conditions of a cell."""
    cell = finished.cell
    names = ("length", "trained_length", "seed", "n", "protocol", "backend", "dtype", "kernel", "corpus")
    return {
        "lexbench": cell.version,
        "cell": cell.id,
        "method": str(cell.method),
        **{name: getattr(cell, name) for name in names},
    }


def identity_part(finished: FinishedCell, name: str) -> dict[str, Any]:
    """Part of a cell's identity, as a mapping; a list, which composed methods have, stands under `compose`."""
    value = finished.cell.identity.get(name)
    return value if isinstance(value, dict) else {"compose": value} if value else {}


def task_version(finished: FinishedCell) -> Any:
    """Version of the task; 0 where the cell has none."""
    return identity_part(finished, "task").get("version", 0)


def interval_fields(record: Record) -> dict[str, Any]:
    """Interval, counts and floors of a record, without those that it lacks."""
    counts = ("low", "high", "interval", "n", "clusters", "failed", "truncated")
    names = (*counts, "chance", "uniform", "unigram", "bigram")
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def group_cells(cells: Sequence[FinishedCell], *names: str) -> Iterator[list[FinishedCell]]:
    """Cells that share these fields and the model's and backend's identity, sorted."""
    found: dict[str, list[FinishedCell]] = {}
    for each in sorted(cells, key=lambda each: (each.cell.task, each.cell.length, each.cell.id)):
        identity = [each.cell.identity.get(part) for part in ("model", "method", "backend")]
        key = [each.cell.model, str(each.cell.method), *(getattr(each.cell, name) for name in names), identity]
        found.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(each)
    yield from (found[key] for key in sorted(found))


def plain_name(name: object) -> str:
    """A name for a file or a folder."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", str(name)).strip("-.") or "unnamed"


def stable_uuid(*parts: object) -> str:
    """UUID in the form of version 4 that is the same for the same parts."""
    # `version` only sets the six bits that mark a UUID of version 4.
    return str(uuid.UUID(bytes=hashlib.sha256(json.dumps(parts, default=str).encode()).digest()[:16], version=4))


def dump_strict_json(data: Mapping[str, Any], indent: int | None = 1) -> str:
    """JSON without NaN and infinity, which other readers refuse."""
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)

"""Scores of published predictions: rows by data set, metric and bucket, as a table or as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rescored:
    """Score of a data set, or of one of its buckets, under one metric."""

    dataset: str
    metric: str
    bucket: str | None
    value: float
    """Mean x 100, two decimals; NaN without predictions."""
    n: int
    official: bool = True
    """Whether this is the metric of the published tables."""


def example_below(folder: Path, pattern: str) -> str:
    """`, such as FOLDER`, where a folder inside has such files; or nothing."""
    inner = next((each.parent for each in sorted(folder.glob(f"*/{pattern}"))), None)
    return "" if inner is None else f", such as {inner}"


def as_data(rescored: Sequence[Rescored]) -> dict[str, Any]:
    """Official scores: data set to score, or data set to bucket to score (LongBench's official result.json)."""
    found: dict[str, Any] = {}
    for row in rescored:
        if row.official and row.bucket is None:
            found[row.dataset] = row.value
        elif row.official:
            found.setdefault(row.dataset, {})[row.bucket] = row.value
    return found


def as_json(rescored: Sequence[Rescored]) -> str:
    """`as_data` as JSON; a score without predictions, NaN, is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return None if math.isnan(value) else value

    return json.dumps(plain(as_data(rescored)), indent=1, allow_nan=False)


def as_table(rescored: Sequence[Rescored], remarks: Sequence[str] = ()) -> str:
    """One line per data set and metric, with the number of predictions in each bucket; remarks below."""
    names = list(dict.fromkeys(row.bucket or "score" for row in rescored))
    cells = {(row.dataset, row.metric, row.bucket or "score"): row for row in rescored}
    lines = [["data set", "metric", *(column for name in names for column in (name, "n"))]]
    for dataset, metric in dict.fromkeys((row.dataset, row.metric) for row in rescored):
        rows = [cells.get((dataset, metric, name)) for name in names]
        texts = [(f"{row.value:.2f}", str(row.n)) if row else ("-", "0") for row in rows]
        lines.append([dataset, metric, *(text for pair in texts for text in pair)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join([*map(str.ljust, line[:2], widths[:2]), *map(str.rjust, line[2:], widths[2:])]) for line in lines
    ]
    return "\n".join([*table, *remarks])

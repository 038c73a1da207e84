"""Official scores of published predictions, without a model."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lexbench.core.errors import ConfigError
from lexbench.core.files import why_not_a_folder
from lexbench.taskkit import rescored
from lexbench.taskkit.longbench.datasets import (
    BUCKET_BOUNDS_WORDS,
    LONGBENCH_DATASETS,
    bucket_names,
    bucket_of_length,
    check_similarity,
    dataset_named,
    official_score,
    summary_scores,
)
from lexbench.taskkit.longbench.examples import STRING_LIST_TYPE, STRING_TYPE, WHOLE_NUMBER_TYPE, read_rows
from lexbench.taskkit.rescored import Rescored, as_table


def rescore_predictions(
    folder: str | Path, e: bool | None = None, buckets: Sequence[int] | None = None, similarity: str = "difflib"
) -> list[Rescored]:
    """Score a folder of predictions: DATASET.jsonl with `pred`, `answers`, `all_classes` and `length` per line.

    Raises ConfigError for a missing or empty folder, an unknown data set, and a wrong line, with its number.

    Args:
        folder: as written by the official pred.py.
        e: whether the predictions are of LongBench-E; None: if the folder or its parent is named `..._e`, like pred_e.
        buckets: group examples by these bounds of their stored lengths; (): no buckets. None: LongBench-E's official
            bounds, no buckets for LongBench.
        similarity: for code, `difflib` or `levenshtein`.
    """
    check_similarity(similarity)
    files = _files(Path(folder).expanduser())
    bounds = BUCKET_BOUNDS_WORDS if buckets is None and (_is_e(folder) if e is None else e) else tuple(buckets or ())
    names: list[str | None] = [*bucket_names(bounds)] if bounds else [None]
    found = []
    for file in files:
        rows = _scores(file, bounds, similarity)
        for metric in rows[0][1]:
            for name in names:
                values = [scores[metric] for place, scores in rows if place == name]
                is_official = metric == LONGBENCH_DATASETS[file.stem].metric_name(similarity)
                found.append(Rescored(file.stem, metric, name, _mean(values, name), len(values), is_official))
    return found


def score_folder(
    folder: str | Path,
    e: bool | None = None,
    buckets: Sequence[int] | None = None,
    similarity: str = "difflib",
    as_json: bool = False,
) -> str:
    """The output of `lexbench score longbench` (see `rescore_predictions`): table or JSON; of an empty bucket NaN or
    null."""
    found = rescore_predictions(folder, e, buckets, similarity)
    return rescored.as_json(found) if as_json else as_table(found, _remarks(found))


def _files(folder: Path) -> list[Path]:
    """The folder's files in the official order of data sets."""
    if not folder.is_dir():
        raise ConfigError(f"folder {folder} {why_not_a_folder(folder)}: give one with predictions, DATASET.jsonl")
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"folder {folder} has no .jsonl: give one with predictions, DATASET.jsonl")
    for file in files:
        try:
            dataset_named(file.stem)
        except ValueError as error:
            raise ConfigError(f"{file}: {error}") from None
    return sorted(files, key=lambda file: list(LONGBENCH_DATASETS).index(file.stem))


def _is_e(folder: str | Path) -> bool:
    place = Path(folder).expanduser().resolve()
    return any(name.endswith("_e") for name in (place.name, place.parent.name))


def _scores(file: Path, bounds: Sequence[int], similarity: str) -> list[tuple[str | None, dict[str, float]]]:
    """Bucket and scores by metric of each prediction, the official metric first."""
    name = file.stem
    needed = {"pred": STRING_TYPE, "answers": STRING_LIST_TYPE}
    if LONGBENCH_DATASETS[name].metric == "classification":
        needed["all_classes"] = STRING_LIST_TYPE
    if bounds:
        needed["length"] = WHOLE_NUMBER_TYPE
    metric = LONGBENCH_DATASETS[name].metric_name(similarity)
    found = []
    for number, row in read_rows(str(file), file.read_bytes(), needed):
        try:
            score = official_score(name, row["pred"], row["answers"], row.get("all_classes"), similarity)
        except ValueError as error:
            raise ConfigError(f"{file}:{number}: {error}") from None
        scores = {metric: score, **summary_scores(name, row["pred"], row["answers"])}
        found.append((bucket_of_length(row["length"], bounds) if bounds else None, scores))
    return found


def _mean(values: Sequence[float], name: str | None) -> float:
    """Mean x 100, two decimals, summed and rounded as by the official scorers; the bucketed scorer uses numpy."""
    if not values:
        return math.nan
    if name is None:
        return round(100 * sum(values) / len(values), 2)
    # np.mean adds in pairs, sum() one after another: the last digit may differ, as in the official files.
    return float(np.round(100 * np.mean(values), 2))


def _remarks(rescored: Sequence[Rescored]) -> list[str]:
    """A line per data set without the official number of predictions; it doubles if one run is appended to another."""
    counts: dict[str, int] = {}
    for row in rescored:
        if row.official:
            counts[row.dataset] = counts.get(row.dataset, 0) + row.n
    remarks = []
    for name, n in counts.items():
        sizes = {LONGBENCH_DATASETS[name].n, LONGBENCH_DATASETS[name].n_e} - {None}
        if n not in sizes:
            expected = " or ".join(map(str, sorted(sizes, key=str)))
            remarks.append(f"{name} has {n} predictions, its official data {expected}")
    return remarks

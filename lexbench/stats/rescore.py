"""Scores that a cell's stored samples tell, though they were measured by a version that did not give them.

A metric that its task states and that follows from output and facts (`Metric.of`) is derived anew wherever samples are
read, as records are. What is stored stays as it is. Where a sample does not tell, the metric is not measured in its
cell. A score that cannot be derived needs a new version of its task: then old and new cells are different ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from lexbench.core.groups import group_by_key
from lexbench.core.metric import Metric
from lexbench.core.record import Sample
from lexbench.metrics.of_task import metrics_of_task
from lexbench.store.format import FinishedCell

_rescored: WeakKeyDictionary[FinishedCell, FinishedCell] = WeakKeyDictionary()


def rescore_cell(finished: FinishedCell) -> FinishedCell:
    """The cell with all scores that its samples tell; the same object where they tell no further one."""
    if finished.refused is not None or not finished.samples:
        return finished
    if finished not in _rescored:
        samples = rescore_samples(finished.samples, metrics_of_task(finished.cell.task_name))
        same = all(new is old for new, old in zip(samples, finished.samples, strict=True))
        if same:
            return finished
        _rescored[finished] = replace(finished, samples=samples)
    return _rescored[finished]


def samples_by_cell(cells: Iterable[FinishedCell]) -> dict[str, list[Sample]]:
    """Samples by cell id with all scores that they tell, as the records of the cells have them."""
    return {each.cell.id: rescore_cell(each).samples for each in cells}


def rescore_samples(samples: Sequence[Sample], metrics: Sequence[Metric]) -> list[Sample]:
    """All samples of a cell, with those of the metrics that every answered sample tells."""
    answered = [sample for sample in samples if sample.failed is None]
    clusters = group_by_key(samples, lambda sample: sample.cluster)
    found: dict[int, dict[str, float]] = {sample.index: {} for sample in answered}
    for metric in metrics:
        values = {each.index: _value(metric, each, clusters) for each in answered if metric.name not in each.scores}
        if all(value is not None for value in values.values()):
            for index, value in values.items():
                found[index][metric.name] = value if value is not None else 0.0
    return [_with_scores(sample, found.get(sample.index, {})) for sample in samples]


def _value(metric: Metric, sample: Sample, clusters: Mapping[str, Sequence[Sample]]) -> float | None:
    return metric.of(sample, clusters[sample.cluster]) if metric.of else None


def _with_scores(sample: Sample, more: Mapping[str, float]) -> Sample:
    return replace(sample, scores={**sample.scores, **more}) if more else sample


def unmeasured_metrics(finished: FinishedCell) -> list[Metric]:
    """Metrics that the task states and that a measured cell lacks, though it has others of them."""
    stated = metrics_of_task(finished.cell.task_name)
    names = {name for sample in rescore_cell(finished).samples for name in sample.scores}
    lacking = [each for each in stated if each.name not in names]
    return lacking if 0 < len(lacking) < len(stated) else []

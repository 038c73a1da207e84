"""Metrics that a task states, by the task's name."""

import functools

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.core.guard import plugin_guard
from lexbench.core.metric import Metric
from lexbench.core.record import Refused
from lexbench.metrics import declare_metrics


@functools.lru_cache(maxsize=256)
def metrics_of_task(name: str) -> tuple[Metric, ...]:
    """The metrics of a task; none where it is not here, or cannot be loaded."""
    try:
        with plugin_guard(f"task {name}"):
            if name not in registry.registered_names("task"):
                return ()
            found = tuple(getattr(objects.class_of(registry.read_named_config("task", name), "task"), "metrics", ()))
    except (ConfigError, Refused, OSError):
        return ()
    declare_metrics(found)
    return found


def metric_of_task(metric: str | None, task: str) -> Metric | None:
    """A metric as a task states it; None: it does not."""
    return next((each for each in metrics_of_task(task) if each.name == metric), None)

"""Metrics, one a file: what each number means, and how it follows from stored samples.

`lexbench.stats.metrics` asks here first. A task's own are declared when its class is loaded, and when a cell is read.
"""

from collections.abc import Iterable, Mapping

from lexbench.core.errors import ConfigError
from lexbench.core.metric import Metric
from lexbench.metrics import chosen, copied_whole, forced, in_place, reached

KEY_METRICS = (copied_whole.METRIC, in_place.METRIC, reached.METRIC, chosen.METRIC, forced.METRIC)
"""Scores of tasks whose answer is a key of the text."""

_known = {each.name: each for each in KEY_METRICS[1:]}  # many tasks have an accuracy


def declare_metrics(metrics: Iterable[Metric]) -> None:
    """Make metrics known by their names; ConfigError where another one has the name."""
    for each in metrics:
        if _known.setdefault(each.name, each) != each:
            raise ConfigError(f"metric {each.name} is declared twice, with other facts: rename one of them")


def metric_named(name: str | None) -> Metric | None:
    """The declared metric of a name; None: none is declared."""
    return _known.get(name or "")


def declared_metrics() -> Mapping[str, Metric]:
    """All declared metrics by name."""
    return _known

"""Suites: yamls of the group task that name other tasks."""

from collections.abc import Mapping
from typing import Any

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError

OF_SUITES = ("n", "multiples")
"""Keys of a suite that no task takes."""


def expand_suite(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The yamls of a suite's tasks: `suite: [passkey, {name: last_segment, targets: 64}, another_suite]`.

    Other keys beside `suite` go to every task that has such a parameter; `n` and `multiples` are the suite's own. A
    config without `suite` is its own only entry. Raises ConfigError for a suite that is no list of tasks.
    """
    if "suite" not in config:
        return [dict(config)]
    shared = {key: value for key, value in config.items() if key not in ("suite", "name", *OF_SUITES)}
    named = [entry for part in suite_members(config) for entry in expand_suite(part)]
    takes = [objects.class_parameters(objects.class_of(entry, "task")) for entry in named]
    for key in shared:
        if not any(key in known for known in takes):
            meant = registry.did_you_mean(key, sorted({each for known in takes for each in known}))
            raise ConfigError(
                f"unknown parameter task.{key}: {meant}no task of {[entry['name'] for entry in named]} has it"
            )
    return [
        {**entry, **{key: value for key, value in shared.items() if key in known}}
        for entry, known in zip(named, takes, strict=True)
    ]


def suite_members(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The yamls that a suite names, each with the parameters that it gives them."""
    return registry.expand_entries("task", config["suite"], "a suite", "[passkey,{name: needle, options: 4}]")

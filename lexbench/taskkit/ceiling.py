"""Tasks whose length is a ceiling: prompts have lengths of their own, for which a method that follows it is set.

factor=prompt     the least of 1, 2, 4, ... times the trained length that holds prompt and answer ("local static")
factor=ceiling    the factor of the cell's length for all prompts, as a deployment has it
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lexbench.core.errors import ConfigError

FACTOR_OF_PROMPT, FACTOR_OF_CEILING = FACTOR_POLICIES = ("prompt", "ceiling")
FACTOR_NOTE = "the factor is that of each prompt with its answer"


def check_factor_policy(task: str, policy: str) -> None:
    """ConfigError for another policy than prompt and ceiling."""
    if policy not in FACTOR_POLICIES:
        raise ConfigError(f"{task}'s factor must be prompt or ceiling, got {policy!r}: e.g. task.factor=ceiling")


def factor_parts(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """`factor 2`, the group of a prompt; empty where its factor is that of the ceiling."""
    return (f"factor {facts['factor']:g}",) if "factor" in facts else ()


def are_ceilings(tasks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the length of all tasks, as configs, is a ceiling."""
    return bool(tasks) and all(config.get("factor") in FACTOR_POLICIES for config in tasks)

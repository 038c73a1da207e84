"""Group values by a key."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def group_by_key(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Values by their key; keys in the order in which they come, and values within each."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups

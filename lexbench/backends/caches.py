"""Reuse of the previous prompt."""

from typing import Generic, TypeVar

import numpy as np

from lexbench.core.task import Tokens

State = TypeVar("State")


class PrefixCache(Generic[State]):
    """Holds the last prompt with the backend's state for it (a KV cache), for a next prompt with the same beginning."""

    def __init__(self) -> None:
        self._kept: tuple[Tokens, State] | None = None

    def keep(self, prompt: Tokens, state: State) -> None:
        """Store a prompt and its state; replaces the previous one."""
        self._kept = prompt, state

    def take(self, prompt: Tokens) -> tuple[State, int] | None:
        """Remove and return the state, and the number of first tokens it shares with `prompt`; None if they share none.

        The last token of the prompt never counts: the model must read at least one token to give logits.
        """
        # Taken, not copied: whoever goes on from the state changes it.
        count, kept, self._kept = self.shared_length(prompt), self._kept, None
        return (kept[1], count) if kept is not None and count else None

    def shared_length(self, prompt: Tokens) -> int:
        """Number of first tokens that `take` would give."""
        return 0 if self._kept is None else min(common_prefix_length(self._kept[0], prompt), len(prompt) - 1)

    def forget(self) -> None:
        """Drop the cached prompt when the method changes."""
        self._kept = None


def common_prefix_length(one: Tokens, other: Tokens) -> int:
    """Length of the common prefix."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size

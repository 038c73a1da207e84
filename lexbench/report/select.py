"""Resolve a user's names of tasks and methods to labels in runs."""

import difflib
from collections.abc import Iterable, Sequence

from lexbench.stats.wording import some


def named(known: Iterable[str], wanted: Sequence[str], noun: str) -> set[str]:
    """Labels that match the wanted names; all labels if none are wanted.

    A name matches its own label, `passkey(digits=7)`; without parameters, every label of that name. Raises ValueError
    for a name without a match.
    """
    labels = sorted(set(known))
    bare = {label.split("(")[0] for label in labels}
    for name in wanted:
        if name not in {*labels, *bare}:
            close = difflib.get_close_matches(name, [*labels, *sorted(bare)], n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"unknown {noun} {name!r} in these runs: {hint}choose from {some(labels, 40)}")
    return {label for label in labels if not wanted or {label, label.split("(")[0]} & set(wanted)}

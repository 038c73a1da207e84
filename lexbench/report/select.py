"""Which labels of runs the names mean that a user gives: of tasks, of methods."""

import difflib
from collections.abc import Iterable, Sequence

from lexbench.stats.wording import some


def named(known: Iterable[str], wanted: Sequence[str], noun: str) -> set[str]:
    """The labels that are meant; none wanted: all of them.

    A name means its own label, `passkey(digits=7)`, and without parameters every label that begins so. Raises
    ValueError for a name that means none.
    """
    labels = sorted(set(known))
    bare = {label.split("(")[0] for label in labels}
    for name in wanted:
        if name not in {*labels, *bare}:
            close = difflib.get_close_matches(name, [*labels, *sorted(bare)], n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"unknown {noun} {name!r} in these runs: {hint}choose from {some(labels, 40)}")
    return {label for label in labels if not wanted or {label, label.split("(")[0]} & set(wanted)}

"""Resolve a user's names of tasks and methods to labels in runs."""

from collections.abc import Collection, Iterable, Sequence

from lexbench.core.registry import nearest
from lexbench.report.looks import names_in
from lexbench.stats.wording import some


def named(known: Iterable[str], wanted: Sequence[str], noun: str) -> set[str]:
    """Labels that match the wanted names; all labels if none are wanted.

    A name matches its own label, `passkey(digits=7)`; without parameters, every label of that name. Raises ValueError
    for a name without a match.
    """
    labels = sorted(set(known))
    _check(wanted, noun, labels, {label.split("(")[0] for label in labels})
    return {label for label in labels if not wanted or {label, label.split("(")[0]} & set(wanted)}


def check_highlight(known: Iterable[str], wanted: Collection[str]) -> None:
    """ValueError for a method to highlight that these labels do not name, with or without their parameters."""
    labels = sorted(set(known))
    _check(wanted, "method to highlight", labels, {name for label in labels for name in names_in(label)})


def _check(wanted: Iterable[str], noun: str, labels: Sequence[str], bare: Collection[str]) -> None:
    for name in wanted:
        if name not in {*labels, *bare}:
            close = nearest(name, [*labels, *sorted(bare)])
            raise ValueError(f"unknown {noun} {name!r} in these runs: {close}choose from {some(labels, 40)}")

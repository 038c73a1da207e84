"""Order of checkpoints in their training: what they store, else their names, else dates on the hub; else refused.

A stored step counts, whatever the name says. Checkpoints without one are placed among those with one where their names
tell a step. Where none stores a step, names decide (`name_numbers`), and where those of revisions leave it open, the
dates of the revisions' last commits.
"""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from lexbench.checkpoints.checkpoint import hub_is_reached
from lexbench.core.errors import ConfigError
from lexbench.parts.search.trace.checkpoints import Checkpoint
from lexbench.parts.search.trace.name_numbers import OpenOrderError, order_by_names
from lexbench.parts.search.trace.settings import AS_GIVEN

MAX_NAMES = 4
"""Names of checkpoints in an error."""
DEFAULT_BRANCH = "main"
"""Branch of the hub that a later commit of a README moves: its date is no date of the training."""


def order_checkpoints(found: Sequence[Checkpoint], order: Sequence[str] | None) -> tuple[list[Checkpoint], str]:
    """Checkpoints in the order of their training, and the rule in words: `step`.

    Args:
        found: each once.
        order: names, the oldest first; `AS_GIVEN` alone: as found; None: by what is known of them.

    Raises ConfigError where nothing tells the order, and for an order that names others.
    """
    if order is not None and [*order] == [AS_GIVEN]:
        return [*found], f"order={AS_GIVEN}"
    if order is not None:
        return _in_order_of(found, [str(name) for name in order]), "order=[...]"
    if len(found) < 2:
        return [*found], "name"
    try:
        places, rule = _order_by_steps(found) if any(each.step_is_stored for each in found) else _order_by_names(found)
    except OpenOrderError as error:
        raise ConfigError(
            f"the order of the checkpoints is open: {error}: give order=[{_names_in_short(found)}], the oldest first, "
            f"or order={AS_GIVEN}"
        ) from None
    return [found[place] for place in places], rule


def _names_in_short(found: Sequence[Checkpoint]) -> str:
    return ",".join([*(each.name for each in found[:MAX_NAMES]), *(["..."] if len(found) > MAX_NAMES else [])])


def _in_order_of(found: Sequence[Checkpoint], names: Sequence[str]) -> list[Checkpoint]:
    ordered = []
    for name in names:
        fitting = [each for each in found if name in (each.name, each.path, each.revision, Path(each.path).name)]
        if len(fitting) != 1 or fitting[0] in ordered:
            what = "no checkpoint" if not fitting else "one twice" if len(fitting) == 1 else "several checkpoints"
            raise ConfigError(f"order names {what} by {name}: name each once, of {_names_in_short(found)}")
        ordered += fitting
    if left := [each.name for each in found if each not in ordered]:
        raise ConfigError(f"order lacks {left[0]}: name each checkpoint once, the oldest first")
    return ordered


def _order_by_steps(found: Sequence[Checkpoint]) -> tuple[list[int], str]:
    """By stored steps, and by steps in names where none is stored."""
    if lacking := next((each for each in found if each.step is None), None):
        raise OpenOrderError(f"some store a step, {lacking.name} neither stores nor names one")
    places = sorted(range(len(found)), key=lambda place: found[place].step or 0)
    try:
        by_name, rule = _order_by_names(found)
    except OpenOrderError:
        by_name, rule = places, ""
    if by_name != places and "stage" in rule:
        raise OpenOrderError("stored steps rise in another order than the stages in the names")
    named = "" if all(each.step_is_stored for each in found) else ", or in the name"
    return places, f"step in trainer_state.json{named}"


def _order_by_names(found: Sequence[Checkpoint]) -> tuple[list[int], str]:
    """By names; of revisions whose names leave the order open, by date."""
    try:
        return order_by_names(_compared_names(found))
    except OpenOrderError:
        dates = _dates(found)
        if dates is None or len(set(dates)) < len(dates):
            raise
    return sorted(range(len(found)), key=lambda place: dates[place]), "date of the revision's last commit"


def _compared_names(found: Sequence[Checkpoint]) -> list[str]:
    """Revisions, names on the hub, and folders below the one that holds them all."""
    folders = [Path(each.path).expanduser().absolute() for each in found if each.is_folder]
    top = os.path.commonpath([folder.parent for folder in folders]) if folders else ""
    return [
        Path(each.path).expanduser().absolute().relative_to(top).as_posix()
        if each.is_folder
        else each.revision or each.path
        for each in found
    ]


def _dates(found: Sequence[Checkpoint]) -> list[datetime.datetime] | None:
    """Dates of the last commits of revisions; None unless all are revisions, none the default branch, and known."""
    if any(each.revision in (None, DEFAULT_BRANCH) for each in found) or not hub_is_reached():
        return None
    from huggingface_hub import model_info

    known = [model_info(each.path, revision=each.revision).last_modified for each in found]
    dates = [date for date in known if date is not None]
    return dates if len(dates) == len(found) else None

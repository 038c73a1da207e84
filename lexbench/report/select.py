"""Select what is shown: a user's names of tasks and methods among those in runs, and tables of many cells."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell
from lexbench.core.registry import did_you_mean
from lexbench.core.text import join_first_few
from lexbench.stats.tables import Table

MAX_CELLS_WITH_ALL_TABLES, MAX_TABLES_OF_MANY_CELLS = 5000, 100
"""With more cells than the first, only so many tables are shown: every seed has tables, which nobody reads."""
TABLES_REMEDY = "lexbench report --tables N shows N; records.jsonl holds the numbers of all."


def tables_to_show(every: Sequence[Table], cells: int, most: int | None = None) -> list[Table]:
    """Tables that are shown, in their order: the first of each model and task, then the second of each, ...

    Args:
        every: all tables.
        cells: number of cells that they are of.
        most: tables to show, at most; None: all, or `MAX_TABLES_OF_MANY_CELLS` of many cells.
    """
    if most is None:
        most = MAX_TABLES_OF_MANY_CELLS if cells > MAX_CELLS_WITH_ALL_TABLES else len(every)
    before, places = Counter[tuple[str, str]](), list[tuple[int, int]]()
    for place, table in enumerate(every):
        about = table.cell.model, table.cell.task
        places.append((before[about], place))
        before[about] += 1
    return [every[place] for place in sorted(place for _, place in sorted(places)[:most])]


def left_out_sentence(every: Sequence[Table], shown: Sequence[Table], remedy: str) -> str:
    """Line with the number of tables that are not shown, and the way to have them; empty where all are."""
    if len(shown) == len(every):
        return ""
    return f"{len(every):,} tables: only {len(shown):,} are shown, the first of each model and task. {remedy}"


def named_methods(known: Iterable[MethodKey], wanted: Sequence[str]) -> set[MethodKey]:
    """Methods that match the wanted names; all methods if none are wanted.

    A name matches the method whose label it is; without parameters, every method of that name. Raises ConfigError for a
    name without a match.
    """
    methods = set(known)
    _check(wanted, "method", sorted(map(str, methods)), {method.bare for method in methods})
    return {method for method in methods if not wanted or {str(method), method.bare} & set(wanted)}


def named_tasks(cells: Iterable[Cell], wanted: Sequence[str]) -> set[str]:
    """Labels of tasks that match the wanted names; all labels if none are wanted.

    A name matches its own label, `passkey(digits=7)`; without parameters, every label of that name. Raises ConfigError
    for a name without a match.
    """
    names = {cell.task: cell.task_name for cell in cells}
    _check(wanted, "task", sorted(names), set(names.values()))
    return {label for label, name in names.items() if not wanted or {label, name} & set(wanted)}


def check_highlight(known: Iterable[MethodKey], wanted: Collection[str]) -> None:
    """ConfigError for a wanted name that no known method has, with or without its parameters."""
    methods = set(known)
    names = {name for method in methods for name in method.names}
    _check(wanted, "method to highlight", sorted(map(str, methods)), names)


def _check(wanted: Iterable[str], noun: str, labels: Sequence[str], bare: Collection[str]) -> None:
    for name in wanted:
        if name not in {*labels, *bare}:
            close = did_you_mean(name, [*labels, *sorted(bare)])
            raise ConfigError(f"unknown {noun} {name!r} in these runs: {close}choose from {join_first_few(labels, 40)}")

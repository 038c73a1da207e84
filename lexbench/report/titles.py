"""Titles of figures and captions of tables, for readers who know the field: what is asked, of which model."""

import functools

from lexbench.core import objects, registry
from lexbench.core.record import Cell
from lexbench.corpora import OF_THIS_MACHINE
from lexbench.report.wording import format_ratio
from lexbench.stats.tables import Table


def title_of(table: Table) -> str:
    """Two lines, and a third where other tables of the same task and model differ from this one."""
    cell = table.cell
    asked = asked_by(cell.task_name)
    lines = [
        f"{cell.task}: {asked}" if asked else cell.task,
        f"{cell.model}, trained at {cell.trained_length:,} tokens; {cell.n} questions at each length",
        differences_of(table),
    ]
    return "\n".join(filter(None, lines))


def short_title_of(table: Table) -> str:
    """One line for a panel of a paper's figure, whose caption says the rest; a second one where tables differ."""
    asked = asked_by(table.cell.task_name) or table.cell.task
    first = f"{asked[:1].upper()}{asked[1:]} ({table.cell.task}, {table.cell.model})"
    return f"{first}\n{differences_of(table)}" if table.differs else first


def differences_of(table: Table) -> str:
    """Settings in which a table differs from others of its task and model, with their values."""
    return ", ".join(f"{name} {value}" for name, value in table.differs.items())


def differences_in_brackets(table: Table) -> str:
    """The settings `differences_of` a table behind a name; nothing where there are none."""
    return f" ({differences_of(table)})" if table.differs else ""


@functools.cache
def asked_by(task: str) -> str:
    """The question of a task, as the first line of its docstring says it, without sources; empty of an unknown task."""
    if task not in registry.registered_names("task"):
        return ""
    first = objects.docstring_summary("task", task).partition(" (")[0].partition(" [")[0].replace("`", "").rstrip(".")
    return first[:1].lower() + first[1:]


def corpus_of(cell: Cell) -> str:
    """`, corpus NAME`, and whether only this machine has its text; nothing where the task reads none."""
    if not cell.corpus:
        return ""
    own = " (this machine's text)" if cell.corpus_name in OF_THIS_MACHINE else ""
    return f", corpus {cell.corpus}{own}"


def table_caption(table: Table) -> str:
    """Settings that all cells of a table share: the protocol, and the rest in a second line."""
    cell = table.cell
    own = f"; this table: {differences_of(table)}" if table.differs else ""
    return (
        f"{cell.protocol}\n{cell.n} samples a cell, seed {cell.seed}{corpus_of(cell)}, "
        f"{cell.backend} in {cell.dtype} ({cell.kernel}), trained length {cell.trained_length}{own}"
    )


def length_heading(table: Table, length: int) -> str:
    """A length as the head of a column: tokens, and the multiple of the trained length."""
    return f"{length} ({format_ratio(length / table.cell.trained_length)})"

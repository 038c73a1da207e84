"""Titles of figures, for readers who know the field and not lexbench: what is asked, of which model, how often."""

import functools

from lexbench.core import objects, registry
from lexbench.stats.tables import Table


def title_of(table: Table) -> str:
    """Two lines, and a third where other tables of the same task and model differ from this one."""
    cell = table.cell
    asked = asked_by(cell.task_name)
    lines = [
        f"{cell.task}: {asked}" if asked else cell.task,
        f"{cell.model}, trained at {cell.trained_length:,} tokens; {cell.n} questions at each length",
        table.differs,
    ]
    return "\n".join(filter(None, lines))


def short_title_of(table: Table) -> str:
    """One line for a panel of a paper's figure, whose caption says the rest; a second one where tables differ."""
    asked = asked_by(table.cell.task_name) or table.cell.task
    first = f"{asked[:1].upper()}{asked[1:]} ({table.cell.task}, {table.cell.model})"
    return f"{first}\n{table.differs}" if table.differs else first


@functools.cache
def asked_by(task: str) -> str:
    """The question of a task, as the first line of its docstring says it, without sources; empty of an unknown task."""
    if task not in registry.registered_names("task"):
        return ""
    first = objects.docstring_summary("task", task).partition(" (")[0].partition(" [")[0].replace("`", "").rstrip(".")
    return first[:1].lower() + first[1:]

"""Say which tasks a model can do inside its trained length: only there a method has something to keep."""

from collections.abc import Sequence

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Record
from lexbench.core.text import plain_text
from lexbench.stats.floors import at_floor
from lexbench.stats.tables import Table


def ability_sentence(tables: Sequence[Table]) -> str:
    """The tasks that the unmodified model does above its floor, and the others; empty for one task, or without it.

    Asked at the longest length within the trained one, of the first metric of each task.
    """
    first = {key: group[0] for key, group in group_by_key(tables, lambda each: each.setting).items()}
    known = [record for each in first.values() if (record := _longest_inside(each)) is not None]
    if len(known) < 2:
        return ""
    kinds = [sorted({plain_text(each.task) for each in known if at_floor(each) == low}) for low in (False, True)]
    above, below = (", ".join(names) for names in kinds)
    said = f"Inside its trained length the unmodified model is above chance in {above or 'none of these'}"
    return f"{said}; not in {below}: there nothing tells a method from another." if below else f"{said}."


def _longest_inside(table: Table) -> Record | None:
    """The unmodified model's record at the longest length within the trained one."""
    inside = [
        record
        for (method, length), record in sorted(table.entries.items(), key=lambda item: item[0][1])
        if method == BASELINE_METHOD and length <= table.cell.trained_length and record.value is not None
    ]
    return inside[-1] if inside else None

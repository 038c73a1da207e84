"""Groups of a cell's samples as tables of their own: methods and lengths down, parts across."""

from collections.abc import Sequence

from lexbench.core.record import Record
from lexbench.stats.entries import CUT, best_of, columns, entry, noted
from lexbench.stats.records import by_number, dataframe
from lexbench.stats.tables import Table


def parts_of(table: Table) -> list[str]:
    """All parts of a table's cells, by name; none where samples are in no groups."""
    return sorted({part for records in table.parts.values() for part in records}, key=by_number)


def markdown(table: Table) -> str:
    """Value, interval and number of samples of every part, the best of each length and part bold, and notes below."""
    notes: dict[str, int] = {}
    parts = parts_of(table)
    rows = []
    for length in table.lengths:
        at_length = [(row, length) for row in table.methods if (row, length) in table.entries]
        best = {part: best_of(_records(table, part, length)) for part in parts}
        for place in at_length:
            refused = table.entries[place] if table.entries[place].refused else None
            found = {part: table.parts[place].get(part, refused) for part in parts}
            said = [
                entry(record, notes, best=best[part], counted=True, truncated=table.truncated) if record else ""
                for part, record in found.items()
            ]
            rows.append([place[0], str(length), *said])
    below = [*noted(notes), "n: samples of the part.", *([CUT] if table.truncated else [])]
    return "\n".join([*columns(["method", "length", *parts], rows), "", "  \n".join(below)]) + "\n"


def _records(table: Table, part: str, length: int) -> Sequence[Record]:
    """Records of one part at one length, by method."""
    return [table.parts[row, length][part] for row in table.methods if part in table.parts.get((row, length), {})]


def csv(table: Table) -> str:
    """All fields of the records, one line a part of a cell."""
    records = [
        record
        for row in table.methods
        for length in table.lengths
        for record in table.parts.get((row, length), {}).values()
    ]
    return str(dataframe(records).to_csv(index=False, lineterminator="\n"))

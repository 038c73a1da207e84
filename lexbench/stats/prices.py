"""Price cells: inside the trained length, a method set as its longest length asks for.

Defaults follow the length of a cell: inside the trained length a factor is 1, a group is one token, and the method
equals none by construction. A deployment has one setting, of its longest length, for short texts, too. Cells of a
method with this factor, or with all that it sets at this length, are rows of their own, `ntk(factor=8.0)` and
`self_extend(at=2048)`; those measured inside the trained length alone tell the price of the row `ntk`, and take part in
no mean.
"""

from collections.abc import Mapping
from dataclasses import replace

from lexbench.core.groups import group_by_key
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Cell
from lexbench.stats.notes import Note, NoteKind


def price_rows(cells: Mapping[tuple[MethodKey, int], Cell]) -> tuple[dict[MethodKey, MethodKey], set[MethodKey]]:
    """Row of a fixed setting, by the row that follows the length; and the rows that only measure a price.

    The deployed setting is that of the longest length; where several were measured, the largest up to it. `cells` are
    of one setting, by row and length, each with its purpose.
    """
    rows = group_by_key(cells, lambda place: place[0])
    deployed: dict[MethodKey, tuple[float, MethodKey]] = {}
    priced = set()
    for row, places in rows.items():
        purposes = [purpose for place in places if (purpose := cells[place].purpose) is not None]
        deploying = next((each for each in purposes if each.deploys is not None and each.stretch is not None), None)
        if deploying is None or deploying.deploys is None or deploying.stretch is None:
            continue
        base = replace(deploying.deploys, twin=row.twin)
        reach = max((cells[place].length / cells[place].trained_length for place in rows.get(base, ())), default=0.0)
        if not 1 < deploying.stretch <= reach:
            continue
        best = deployed.get(base)
        if best is None or best < (deploying.stretch, row):
            deployed[base] = deploying.stretch, row
        if all(each.price_only for each in purposes):
            priced.add(row)
    return {base: row for base, (_, row) in deployed.items()}, priced


def setting_of(row: MethodKey) -> Note:
    """The setting of a deployed row: the length that it is set for, or else its factor."""
    if row.at is not None:
        return Note(NoteKind.SET_FOR, (row.at,))
    factor = next(value for _, given in row.parts for name, value in given if name == "factor")
    return Note(NoteKind.FACTOR, (float(factor),))

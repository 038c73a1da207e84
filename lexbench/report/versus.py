"""One method against others: a figure, the headline's table, and a sentence a task that may be quoted."""

from collections.abc import Collection, Iterator
from pathlib import Path

import matplotlib as mpl

from lexbench.core.files import write_text
from lexbench.core.method_key import BASELINE, MethodKey
from lexbench.core.record import Record
from lexbench.report import formats, headline
from lexbench.report.grid import ends_of
from lexbench.report.leaderboard.leaderboard import headlines as judged
from lexbench.report.plots import paper
from lexbench.report.plots.style import STYLE, save_as
from lexbench.report.tables import headline_tables
from lexbench.report.verdicts import verdict_text
from lexbench.stats.compare import compare
from lexbench.stats.headline import headlines
from lexbench.stats.tables import Table, tables
from lexbench.stats.values import number
from lexbench.stats.wording import escaped, times
from lexbench.store.store import Store


def write_versus(folder: Path, cells: Collection[str], mine: MethodKey, out: Path) -> str:
    """Write versus.md, .svg and .pdf into `out`.

    Args:
        folder: run folder.
        cells: ids of the cells to show.
        mine: the method that is compared with all others.
        out: is made where it is missing.

    Returns the text of versus.md.
    """
    finished = Store(folder).load(cells)
    shown = [table for table in headline_tables(finished) if table.metric != "perplexity"]
    out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = paper.figure(shown, paper.WIDTHS["page"], [str(mine)])
        for suffix in (".svg", ".pdf"):
            save_as(figure, out / f"versus{suffix}")
    lines = [f"# {escaped(mine)} against others on {escaped(shown[0].cell.model)}", "", "![](versus.svg)", ""]
    for table in judged(shown):
        lines += [f"- {escaped(sentence)}" for sentence in _sentences(table, folder, cells, mine)]
    samples = {each.cell.id: each.samples for each in finished}
    for found in headlines(tables(finished), samples):
        lines += ["", formats.markdown(headline.grid_of(found))]
    text = "\n".join(lines).rstrip() + "\n"
    write_text(out / "versus.md", text)
    return text


def _sentences(table: Table, folder: Path, cells: Collection[str], mine: MethodKey) -> Iterator[str]:
    """What a table says of the method: beside none, and beside the best of the others, at the longest length."""
    name = table.cell.task + (f" ({table.differs})" if table.differs else "")
    valued = {row: records for row in table.methods if (records := [r for r in table.of(row) if r.value is not None])}
    if mine not in valued:
        reason = next((record.refused for record in table.of(mine) if record.refused), None)
        yield f"{name}: {mine} has no value{f' ({reason})' if reason else ''}."
        return
    own = valued[mine][-1]
    others = [records[-1] for row, records in valued.items() if row != mine and records[-1].length == own.length]
    said = f"{name} at {own.length:,} tokens ({times(own.multiple)}): {mine} has {_value(own)}"
    rivals = [each for each in others if each.method != BASELINE and table.better]
    best = max(rivals, key=lambda each: table.better * (each.value or 0.0), default=None)
    for rival in [each for each in others if each.method == BASELINE] + ([best] if best else []):
        # Compared with each rival alone: so Holm's correction does not count the other methods.
        one, other = ([f"method={method}", f"seed={table.cell.seed}"] for method in (rival.method, mine))
        found = compare(folder, folder, one, other, cells)
        [task] = [each for each in found.tasks if each.task == table.cell.task]
        role = rival.method if rival.method == BASELINE else f"the best of the others, {rival.method},"
        said += f"; {role} has {_value(rival)}: {verdict_text(task, str(mine))}"
    yield f"{said}."


def _value(record: Record) -> str:
    ends = ends_of(record.low, record.high, lambda end: number(record, end))
    return f"{number(record, record.value or 0.0)}{f' [{ends[0]}, {ends[1]}]' if ends else ''}"

"""Reports: records, tables and plots of run folders, made from their samples, without a model."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lexbench.core.files import write_text
from lexbench.report import unchanged

if TYPE_CHECKING:
    from lexbench.core.record import Sample
    from lexbench.stats.costs import Cost
    from lexbench.stats.differences import Differences
    from lexbench.stats.records import Loaded
    from lexbench.stats.tables import Table

LEGEND = """\
Brackets hold 95 % intervals: over resampled documents or haystacks (2000 times), or Wilson's for independent answers
that are right or wrong. **Bold**: best of its column at the displayed precision, significant or not;
never a value at its floor, one whose interval reaches chance, or what counting n-grams has on the same targets.
Lengths are in tokens, with their multiple of the trained length. *refused*: not measurable; reason below.
"""


SAME_SUMS = ("bits_per_byte", "word_perplexity")
"""The NLL in other units: tables without figures."""
DRAWN = 40
"""Tables with figures: each takes half a second, and every seed has a table."""


@dataclass(frozen=True)
class Out:
    """The folder of a report, and the forms of its figures."""

    folder: Path
    png: bool
    """Whether figures are drawn as PNG, too."""

    def plot(self, name: str) -> Path:
        """The stem of a figure's files."""
        return self.folder / "plots" / name

    def figure(self, name: str, text: str) -> list[str]:
        """The lines that show a figure."""
        png = f"[PNG](plots/{name}.png), " if self.png else ""
        return [f"![{text}](plots/{name}.svg)", "", f"{png}[numbers](plots/{name}.csv)", ""]

    def table(self, name: str, content: str) -> None:
        """Write a file of numbers."""
        write_text(self.folder / "tables" / name, content)

    def numbers(self, name: str, content: str) -> list[str]:
        """Keep a table's numbers; the lines that link them."""
        self.table(f"{name}.csv", content)
        return [f"All lengths: [{name}.csv](tables/{name}.csv)", ""]


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    highlight: Collection[str] = (),
    png: bool = False,
    aside: bool = False,
) -> Path:
    """Write report.md, tables/*.csv and plots/* of run folders, and their records.jsonl anew.

    Nothing is done where neither they nor lexbench have changed since, and the report is as it was written.

    Args:
        folders: run folders, or folders of run folders.
        out: where to write; None: `report` in the first folder.
        highlight: names of methods to show always, like those outside the registry.
        png: draw figures as PNG, too.
        aside: draw some of them in a process beside this one, where it can be forked and has a core.

    Returns the path of report.md. Raises ValueError where there is no run.
    """
    to = Out(Path(folders[0]) / "report" if out is None else Path(out), png)
    sources = unchanged.sources(folders, to.folder, (DRAWN, png, sorted(highlight), *map(str, folders)))
    if unchanged.unchanged(folders, to.folder, sources):
        return to.folder / "report.md"
    from lexbench.report.formats import markdown
    from lexbench.report.headline import grid_of
    from lexbench.report.tables import setting_heading
    from lexbench.stats import costs, records
    from lexbench.stats.differences import BASELINE, differences
    from lexbench.stats.headline import headlines
    from lexbench.stats.tables import tables

    loaded = records.load(folders, afresh=True)
    samples = {finished.cell.id: finished.samples for finished in loaded.finished}
    every, spent = tables(loaded.finished, highlight), costs.load(folders)
    first = {table.setting: table for table in reversed(every)}
    figures = _beside(_curves_and_depths(every[:DRAWN], first, samples, to), aside)
    found = {table.name: each for table in every if (each := differences(table, samples, BASELINE))}
    lines = ["# lexbench report", "", _summary(folders, loaded), "", LEGEND, *_summaries(every, samples, spent, to)]
    lines += [markdown(grid_of(headline)) for headline in headlines(every, samples)]
    lines += [*_longbench(loaded, to), *_differences(list(found.values()), to)]
    if len(every) > DRAWN:
        lines += [
            f"{len(every)} tables: only the first {DRAWN} have figures. Report fewer run folders to see more.",
            "",
        ]
    for place, table in enumerate(every):
        if table is first[table.setting]:
            lines += setting_heading(table)
        lines += _section(table, samples if table is first[table.setting] else {}, to, place < DRAWN)
        if place < DRAWN:
            lines += _difference_map(table, found.get(table.name), to) + _cost(table, spent, to)
    figures()
    write_text(to.folder / "report.md", "\n".join(lines))
    if not loaded.problems:
        unchanged.made(folders, to.folder, sources)
    return to.folder / "report.md"


def _beside(draw: Callable[[], None], aside: bool) -> Callable[[], None]:
    """Start drawing in a child process if that is wanted and possible; the function that ends it, or draws here."""
    if not (aside and sys.platform == "linux" and threading.active_count() == 1 and len(os.sched_getaffinity(0)) > 1):
        return draw
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: those of BLAS take care of them
        child = os.fork()
    if child == 0:
        failed = 1
        try:
            draw()
            failed = 0
        finally:
            os._exit(failed)

    def ended() -> None:
        if os.waitpid(child, 0)[1]:  # whatever it was, here it says so
            draw()

    return ended


def _curves_and_depths(
    every: "Sequence[Table]", first: "Mapping[str, Table]", samples: "dict[str, list[Sample]]", out: Out
) -> Callable[[], None]:
    """A function that draws the figures made from tables alone; its modules are loaded before any fork."""
    from lexbench.report.plots import heatmaps, over_length

    def draw() -> None:
        for table in every:
            if _curved(table):
                over_length.plot(table, out.plot(table.name), out.png)
                if table is first[table.setting]:
                    heatmaps.heatmap(table, samples, out.plot(f"{table.name}-by-depth"), out.png)

    return draw


def _curved(table: "Table") -> bool:
    return table.metric is not None and table.metric not in SAME_SUMS


def _summary(folders: Sequence[Path], loaded: "Loaded") -> str:
    """Number of cells behind the report, and what is missing."""
    refused = sum(finished.refused is not None for finished in loaded.finished)
    lines = [f"{len(loaded.finished)} cells, {refused} of them refused, from {', '.join(map(str, folders))}."]
    if loaded.unfinished:
        names = [f"{cell.method} {cell.task} at {cell.length}" for cell in loaded.unfinished]
        lines.append(f"\n**Unfinished, not shown:** {'; '.join(names)}. Repeat the run command to finish them.")
    lines += [f"\n**Not readable:** {problem}" for problem in loaded.problems]
    return "\n".join(lines)


def _summaries(
    every: "Sequence[Table]", samples: "dict[str, list[Sample]]", spent: "dict[str, Cost]", out: Out
) -> list[str]:
    """Write the summaries of all curves; the line that links them."""
    from lexbench.report.leaderboard.leaderboard import by_method
    from lexbench.report.leaderboard.page import Leaderboard, as_csv, markdown

    if not any(table.metric == "nll" or table.scored for table in every):
        return []
    boards = by_method(every, samples, "summary", costs=spent)
    found = Leaderboard(rows="method", columns="summary", boards=boards, published=[], unreadable=[], unfinished=[])
    out.table("summaries.md", f"# Summaries of the curves\n\n{markdown(found)}")
    out.table("summaries.csv", as_csv(found))
    links = "[summaries](tables/summaries.md), [numbers](tables/summaries.csv)"
    return [
        f"Summaries of each curve (effective length, collapse, area, price inside the trained length): {links}.",
        "",
    ]


def _longbench(loaded: "Loaded", out: Out) -> list[str]:
    """The table of LongBench's paper, one per model and method."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.longbench import grid, layouts, rows_of

    found = layouts(loaded.finished)
    if not found:
        return []
    return [*(markdown(grid(layout)) for layout in found), *out.numbers("longbench", csv(rows_of(found)))]


def _differences(found: "Sequence[Differences]", out: Out) -> list[str]:
    """Write the paired differences to the baseline method; the line that links them."""
    from lexbench.report.formats import csv
    from lexbench.report.tables import differences_page
    from lexbench.stats.differences import BASELINE, rows_of

    if not found:
        return []
    out.table("differences.md", differences_page(found))
    out.table("differences.csv", csv(rows_of(found)))
    links = "[differences](tables/differences.md), [numbers](tables/differences.csv)"
    return [f"What each method changes against {BASELINE}, on the same questions, with tests: {links}.", ""]


def _section(table: "Table", samples: "dict[str, list[Sample]]", out: Out, figures: bool) -> list[str]:
    """A table, its CSV and, if asked for, its figures; those from samples only where samples are given."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.tables import grid_of, part_records, parts_grid, parts_of
    from lexbench.stats.records import rows_of

    out.table(
        f"{table.name}.csv",
        csv(rows_of([*(record for row in table.methods for record in table.of(row)), *table.prices.values()])),
    )
    lines = [
        f"### {table.label}",
        "",
        markdown(grid_of(table)),
        f"All fields: [{table.name}.csv](tables/{table.name}.csv)",
        "",
    ]
    if table.metric is None:
        return lines
    if parts_of(table):
        lines += [f"By part of the samples, {table.label}:", "", markdown(parts_grid(table))]
        lines += out.numbers(f"{table.name}-by-part", csv(rows_of(part_records(table))))
    if not _curved(table):
        return lines
    if figures:
        lines += out.figure(table.name, f"{table.label} of {table.cell.task} over length")
    further = (_gain, _length_effect, *((_depths, _positions, _curves) if figures else ()))
    return lines + [line for more in further for line in more(table, samples, out)]


def _gain(table: "Table", samples: "dict[str, list[Sample]]", out: Out) -> list[str]:
    """Context gain, where all lengths share their targets."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.tables import GAIN, gain_grid
    from lexbench.stats import gain

    found = gain.gains(table, samples)
    if not found:
        return []
    text = ["#### Context gain", "", GAIN, markdown(gain_grid(table, found))]
    return text + out.numbers(f"{table.name}-gain", csv(gain.rows_of(table, found)))


def _length_effect(table: "Table", samples: "dict[str, list[Sample]]", out: Out) -> list[str]:
    """Effect of the length relative to the same questions at the shortest one."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.tables import LENGTH_EFFECT, length_effect_grid
    from lexbench.stats import length_effect

    found = length_effect.length_effects(table, samples)
    if not found:
        return []
    text = ["#### Effect of the length", "", LENGTH_EFFECT, markdown(length_effect_grid(table, found))]
    return text + out.numbers(f"{table.name}-length-effect", csv(length_effect.rows_of(table, found)))


def _depths(table: "Table", samples: "dict[str, list[Sample]]", out: Out) -> list[str]:
    from lexbench.report.plots import heatmaps

    name = f"{table.name}-by-depth"
    if not any(heatmaps.depth_strata(table, samples)):
        return []
    return out.figure(name, f"{table.label} of {table.cell.task} by depth and length")


def _positions(table: "Table", samples: "dict[str, list[Sample]]", out: Out) -> list[str]:
    """Values by position in the window, and the collapse of NLL."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.plots import position_plots
    from lexbench.report.tables import COLLAPSE, collapse_grid
    from lexbench.stats import positions

    found = positions.curves_by_position(table, samples)
    if not found:
        return []
    name = f"{table.name}-by-position"
    position_plots.plot(table, found, out.plot(name), out.png)
    lines = out.figure(name, f"{table.label} of {table.cell.task} by position in the window")
    collapse = collapse_grid(table, found)
    if collapse:
        lines = [
            f"#### By position, at {found[-1].length} tokens",
            "",
            COLLAPSE,
            markdown(collapse),
            *out.numbers(f"{table.name}-collapse", csv(positions.rows_of(table, found))),
            *lines,
        ]
    return lines


def _curves(table: "Table", samples: "dict[str, list[Sample]]", out: Out) -> list[str]:
    """Attention over distance."""
    from lexbench.report.plots import attention

    name = f"{table.name}-curves"
    if not attention.curves(table, samples, out.plot(name), out.png):
        return []
    return out.figure(name, f"attention of {table.cell.task}")


def _difference_map(table: "Table", found: "Differences | None", out: Out) -> list[str]:
    """Paired differences to the baseline by method and length."""
    from lexbench.report.plots import difference_maps

    name = f"{table.name}-differences"
    if found is None or not difference_maps.plot(found, out.plot(name), out.png):
        return []
    return out.figure(name, f"{table.label} of {table.cell.task}: difference to {found.baseline}")


def _cost(table: "Table", costs: "dict[str, Cost]", out: Out) -> list[str]:
    """Quality against seconds per token."""
    from lexbench.report.plots import cost_plots

    name = f"{table.name}-cost"
    if table.metric in SAME_SUMS or not any(record.cell in costs for record in table.entries.values()):
        return []
    if not cost_plots.plot(table, costs, out.plot(name), png=out.png):
        return [f"Cost: not shown, {cost_plots.missing(table, costs)}.", ""] if table.better else []
    return out.figure(name, f"{table.label} of {table.cell.task} against seconds per token")


__all__ = ["write_report"]

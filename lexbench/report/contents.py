"""The parts of a report: its page, its tables and their numbers, its figures."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lexbench.core.files import write_text
from lexbench.core.machine import cores
from lexbench.core.method_key import BASELINE
from lexbench.core.record import Sample
from lexbench.report import longbench
from lexbench.report.formats import as_json, csv, markdown
from lexbench.report.headline import grid_of as headline_grid
from lexbench.report.leaderboard import leaderboard, page
from lexbench.report.plots import attention, cost_plots, difference_maps, heatmaps, over_length, position_plots
from lexbench.report.select import check_highlight
from lexbench.report.tables import (
    COLLAPSE,
    GAIN,
    LENGTH_EFFECT,
    collapse_grid,
    differences_page,
    gain_grid,
    grid_of,
    length_effect_grid,
    part_records,
    parts_grid,
    parts_of,
    setting_heading,
)
from lexbench.report.unchanged import HEAD
from lexbench.stats import costs, differences, gain, length_effect, positions, records
from lexbench.stats.costs import Cost
from lexbench.stats.differences import Differences
from lexbench.stats.headline import headlines
from lexbench.stats.records import Loaded, rows_of
from lexbench.stats.tables import Table, tables
from lexbench.stats.wording import bracketed, escaped

LEGEND = """\
Brackets hold 95 % intervals: over resampled documents or haystacks (2000 times), or Wilson's for independent answers
that are right or wrong. **Bold**: best of its column at the displayed precision, significant or not;
never a value at its floor, one whose interval reaches chance, or what counting n-grams has on the same targets.
Lengths are in tokens, with their multiple of the trained length. *refused*: not measurable; reason below.
"""
SAME_SUMS = ("perplexity", "bits_per_byte", "word_perplexity")
"""The NLL in other units: tables without figures."""
MOST = 8
"""Processes of a report: each copies what it counts references to, two GB of 100,000 cells."""


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
        return [f"![{bracketed(text)}](plots/{name}.svg)", "", f"{png}[numbers](plots/{name}.csv)", ""]

    def table(self, name: str, content: str) -> None:
        """Write a file of numbers."""
        write_text(self.folder / "tables" / name, content, durable=False)

    def numbers(self, name: str, content: str) -> list[str]:
        """Keep a table's numbers; the lines that link them."""
        self.table(f"{name}.csv", content)
        return [f"All lengths: [{name}.csv](tables/{name}.csv)", ""]


def write(
    folders: Sequence[Path], to: Out, highlight: Collection[str], most: Callable[[int], int], aside: bool
) -> bool:
    """Write all files of a report; whether every file of the run folders could be read.

    Args:
        folders: run folders, or folders of run folders.
        to: where to write.
        highlight: names of methods to show always.
        most: tables with figures, at most, of a report of so many cells.
        aside: share the work with processes beside this one.
    """
    # A report that is written elsewhere leaves the run folder as it is: it may be another's, or on a read-only disk.
    own = [folder for folder in folders if to.folder.resolve().is_relative_to(folder.resolve())]
    loaded = records.load(folders, afresh=own)
    samples = {finished.cell.id: finished.samples for finished in loaded.finished}
    check_highlight((finished.cell.method for finished in loaded.finished), highlight)
    every, spent = tables(loaded.finished, highlight), costs.load(folders)
    first = {table.setting: table for table in reversed(every)}
    drawn = most(len(loaded.finished))
    curved = [table for table in every[:drawn] if _curved(table)]
    compared = partial(differences.differences, samples=samples, baseline=BASELINE)
    # Of tables with figures before processes part, as each may draw them; of the others, of which there may be
    # thousands, while some of these draw.
    found = {table.name: each for table in every[:drawn] if (each := compared(table))}
    figures = [
        partial(_draw, table, found.get(table.name), samples, spent, to, table is first[table.setting])
        for table in curved
    ]
    maps = [partial(difference_maps.plot, each, to.plot(f"{name}-differences"), to.png) for name, each in found.items()]
    rest = _beside([partial(_summaries, every, samples, spent, to), *figures, *maps], aside)
    found |= {table.name: each for table in every[drawn:] if (each := compared(table))}
    lines = [HEAD, "", _summary(folders, loaded), "", LEGEND, *_summaries_link(every)]
    told = headlines(every, samples)
    lines += [markdown(headline_grid(headline)) for headline in told]
    # For who prints what the report says first.
    picture = f"plots/{curved[0].name}.svg" if curved else None
    to.table("first.json", as_json({"sentence": told[0].sentence if told else None, "figure": picture}) + "\n")
    lines += [*_longbench(loaded, to), *_differences(list(found.values()), to)]
    if len(every) > drawn:
        lines += [
            f"{len(every)} tables: only the first {drawn} have figures. `lexbench report --figures N` draws N.",
            "",
        ]
    for place, table in enumerate(every):
        if table is first[table.setting]:
            lines += setting_heading(table)
        lines += _section(table, samples if table is first[table.setting] else {}, to, place < drawn)
        if place < drawn:
            lines += _difference_map(table, found.get(table.name), to) + _cost(table, spent, to)
    rest()
    write_text(to.folder / "report.md", "\n".join(lines))
    return not loaded.problems


def _beside(tasks: Sequence[Callable[[], object]], aside: bool) -> Callable[[], None]:
    """Start tasks in child processes if that is wanted and possible; the function that does those that are left.

    Each process, one a core and `MOST` at most, takes the next task until there is none.
    """
    able = sys.platform == "linux" and threading.active_count() == 1
    count = min(cores(), MOST, len(tasks) + 1) - 1
    if not (aside and able and count and len(tasks) <= 1 << 14):  # a pipe holds so many numbers
        return lambda: _each(tasks)
    ahead, behind = os.pipe()
    os.write(behind, b"".join(number.to_bytes(2) for number in range(len(tasks))))
    os.close(behind)

    def take() -> None:
        while number := os.read(ahead, 2):
            tasks[int.from_bytes(number)]()

    sys.stdout.flush()
    children = [_forked(take) for _ in range(count)]

    def ended() -> None:
        try:
            take()
        finally:
            os.close(ahead)
            failed = [os.waitpid(child, 0)[1] for child in children]
        if any(failed):  # whatever it was, here it says so
            _each(tasks)

    return ended


def _forked(work: Callable[[], None]) -> int:
    """Begin work in a fork, which has tables and samples in memory: nothing is sent to it. Returns its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: those of BLAS take care of them
        child = os.fork()
    if child == 0:
        failed = 1
        try:
            work()
            failed = 0
        finally:
            os._exit(failed)  # no exit handler of the parent runs twice
    return child


def _each(tasks: Iterable[Callable[[], object]]) -> None:
    for task in tasks:
        task()


def _draw(
    table: Table,
    found: Differences | None,
    samples: Mapping[str, Sequence[Sample]],
    spent: Mapping[str, Cost],
    out: Out,
    by_depth: bool,
) -> None:
    """Draw the figures of a table."""
    over_length.plot(table, out.plot(table.name), out.png, found)
    if by_depth:
        heatmaps.heatmap(table, samples, out.plot(f"{table.name}-by-depth"), out.png)
    if _timed(table, spent):
        cost_plots.plot(table, spent, out.plot(f"{table.name}-cost"), png=out.png)


def _curved(table: Table) -> bool:
    return table.metric is not None and table.metric not in SAME_SUMS


def _summary(folders: Sequence[Path], loaded: Loaded) -> str:
    """Number of cells behind the report, and what is missing."""
    refused = sum(finished.refused is not None for finished in loaded.finished)
    lines = [f"{len(loaded.finished)} cells, {refused} of them refused, from {', '.join(map(escaped, folders))}."]
    if loaded.unfinished:
        names = [escaped(f"{cell.method} {cell.task} at {cell.length}") for cell in loaded.unfinished]
        lines.append(f"\n**Unfinished, not shown:** {'; '.join(names)}. Repeat the run command to finish them.")
    lines += [f"\n**Not readable:** {escaped(problem)}" for problem in loaded.problems]
    return "\n".join(lines)


def _summaries(
    every: Sequence[Table], samples: Mapping[str, Sequence[Sample]], spent: Mapping[str, Cost], out: Out
) -> None:
    """Write the summaries of all curves, where there are any."""
    boards = leaderboard.by_method(every, samples, "summary", costs=spent)
    if boards:
        found = page.Leaderboard(rows="method", columns="summary", boards=boards)
        out.table("summaries.md", f"# Summaries of the curves\n\n{page.markdown(found)}")
        out.table("summaries.csv", page.as_csv(found))


def _summaries_link(every: Sequence[Table]) -> list[str]:
    """The line that links them."""
    if not any(table.metric == "nll" or table.scored for table in leaderboard.headlines(every)):
        return []
    links = "[summaries](tables/summaries.md), [numbers](tables/summaries.csv)"
    return [
        f"Summaries of each curve (effective length, collapse, area, price inside the trained length): {links}.",
        "",
    ]


def _longbench(loaded: Loaded, out: Out) -> list[str]:
    """The table of LongBench's paper, one per model and method."""
    found = longbench.layouts(loaded.finished)
    if not found:
        return []
    pages = [markdown(longbench.grid(layout)) for layout in found]
    return [*pages, *out.numbers("longbench", csv(longbench.rows_of(found)))]


def _differences(found: Sequence[Differences], out: Out) -> list[str]:
    """Write the paired differences to the baseline method; the line that links them."""
    if not found:
        return []
    out.table("differences.md", differences_page(found))
    out.table("differences.csv", csv(differences.rows_of(found)))
    links = "[differences](tables/differences.md), [numbers](tables/differences.csv)"
    return [f"What each method changes against {BASELINE}, on the same questions, with tests: {links}.", ""]


def _section(table: Table, samples: Mapping[str, Sequence[Sample]], out: Out, figures: bool) -> list[str]:
    """A table, its CSV and, if asked for, its figures; those from samples only where samples are given."""
    out.table(
        f"{table.name}.csv",
        csv(rows_of([*(record for row in table.methods for record in table.of(row)), *table.prices.values()])),
    )
    lines = [
        f"### {escaped(table.label)}",
        "",
        markdown(grid_of(table)),
        f"All fields: [{table.name}.csv](tables/{table.name}.csv)",
        "",
    ]
    if table.metric is None:
        return lines
    if parts_of(table):
        lines += [f"By part of the samples, {escaped(table.label)}:", "", markdown(parts_grid(table))]
        lines += out.numbers(f"{table.name}-by-part", csv(rows_of(part_records(table))))
    if not _curved(table):
        return lines
    if figures:
        lines += out.figure(table.name, f"{table.label} of {table.cell.task} over length")
    further = (_gain, _length_effect, *((_depths, _positions, _curves) if figures else ()))
    return lines + [line for more in further for line in more(table, samples, out)]


def _gain(table: Table, samples: Mapping[str, Sequence[Sample]], out: Out) -> list[str]:
    """Context gain, where all lengths share their targets."""
    found = gain.gains(table, samples)
    if not found:
        return []
    text = ["#### Context gain", "", GAIN, markdown(gain_grid(table, found))]
    return text + out.numbers(f"{table.name}-gain", csv(gain.rows_of(table, found)))


def _length_effect(table: Table, samples: Mapping[str, Sequence[Sample]], out: Out) -> list[str]:
    """Effect of the length relative to the same questions at the shortest one."""
    found = length_effect.length_effects(table, samples)
    if not found:
        return []
    text = ["#### Effect of the length", "", LENGTH_EFFECT, markdown(length_effect_grid(table, found))]
    return text + out.numbers(f"{table.name}-length-effect", csv(length_effect.rows_of(table, found)))


def _depths(table: Table, samples: Mapping[str, Sequence[Sample]], out: Out) -> list[str]:
    name = f"{table.name}-by-depth"
    if not any(heatmaps.depth_strata(table, samples)):
        return []
    return out.figure(name, f"{table.label} of {table.cell.task} by depth and length")


def _positions(table: Table, samples: Mapping[str, Sequence[Sample]], out: Out) -> list[str]:
    """Values by position in the window, and the collapse of NLL."""
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


def _curves(table: Table, samples: Mapping[str, Sequence[Sample]], out: Out) -> list[str]:
    """Attention over distance."""
    name = f"{table.name}-curves"
    if not attention.curves(table, samples, out.plot(name), out.png):
        return []
    return out.figure(name, f"attention of {table.cell.task}")


def _difference_map(table: Table, found: Differences | None, out: Out) -> list[str]:
    """Paired differences to the baseline by method and length."""
    if found is None or found.empty:
        return []
    text = f"{table.label} of {table.cell.task}: difference to {found.baseline}"
    return out.figure(f"{table.name}-differences", text)


def _timed(table: Table, costs: Mapping[str, Cost]) -> bool:
    return any(record.cell in costs for record in table.entries.values())


def _cost(table: Table, costs: Mapping[str, Cost], out: Out) -> list[str]:
    """Quality against seconds per token."""
    if table.metric in SAME_SUMS or not _timed(table, costs):
        return []
    if why := cost_plots.missing(table, costs):
        return [f"Cost: not shown, {why}.", ""] if table.better else []
    return out.figure(f"{table.name}-cost", f"{table.label} of {table.cell.task} against seconds per token")

"""The parts of a report: its page, its tables and their numbers, its figures."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lexbench.core.files import write_text
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Sample
from lexbench.report import longbench
from lexbench.report.formats import as_json, grid_markdown, rows_as_csv
from lexbench.report.headline import grid_of_headline as headline_grid
from lexbench.report.headline import headline_sentence
from lexbench.report.leaderboard import leaderboard, page
from lexbench.report.plots import attention, cost_plots, difference_maps, heatmaps, over_length, position_plots
from lexbench.report.select import TABLES_REMEDY, check_highlight, left_out_sentence, tables_to_show
from lexbench.report.stopping import stopped_grid
from lexbench.report.tables import (
    COLLAPSE_LEGEND,
    GAIN_LEGEND,
    LENGTH_EFFECT_LEGEND,
    collapse_grid,
    difference_rows,
    differences_page,
    gain_grid,
    length_effect_grid,
    part_records,
    parts_grid,
    parts_of,
    setting_heading,
    table_grid,
)
from lexbench.report.wording import escape_link_text, escape_markdown, metric_label
from lexbench.stats import costs, differences, gain, length_effect, positions, records
from lexbench.stats.costs import Cost
from lexbench.stats.differences import Differences
from lexbench.stats.headline import build_headlines
from lexbench.stats.metrics import follows_another, is_token_loss
from lexbench.stats.records import LoadedCells, rows_of
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.tables import Table, build_tables

REPORT_LEGEND = """\
Brackets hold 95 % intervals: over resampled documents or haystacks (2000 times), or Wilson's for independent answers
that are right or wrong. **Bold**: best of its column at the displayed precision, significant or not;
never a value at its floor, one whose interval reaches chance, or what counting n-grams has on the same targets.
Lengths are in tokens, with their multiple of the trained length. *refused*: not measurable; reason below.
"""
REPORT_FIRST_LINE = "# lexbench report"
"""The first line of report.md."""


@dataclass(frozen=True)
class ReportFolder:
    """The folder of a report, and the forms of its figures."""

    folder: Path
    png: bool
    """Whether figures are drawn as PNG, too."""

    def plot_stem(self, name: str) -> Path:
        """The stem of a figure's files."""
        return self.folder / "plots" / name

    def figure_lines(self, name: str, text: str) -> list[str]:
        """The lines that show a figure."""
        png = f"[PNG](plots/{name}.png), " if self.png else ""
        return [f"![{escape_link_text(text)}](plots/{name}.svg)", "", f"{png}[numbers](plots/{name}.csv)", ""]

    def table(self, name: str, content: str) -> None:
        """Write a file of numbers."""
        write_text(self.folder / "tables" / name, content, durable=False)

    def linked_numbers_lines(self, name: str, content: str) -> list[str]:
        """Keep a table's numbers; the lines that link them."""
        self.table(f"{name}.csv", content)
        return [f"All lengths: [{name}.csv](tables/{name}.csv)", ""]


def write_contents(
    folders: Sequence[Path],
    to: ReportFolder,
    highlight: Collection[str],
    most: Callable[[int], int],
    tables: int | None = None,
) -> None:
    """Write all files of a report.

    Args:
        folders: run folders, or folders of run folders.
        to: where to write.
        highlight: names of methods to show always.
        most: tables with figures, at most, of a report of so many cells.
        tables: tables to show, at most; None: as `select.tables_to_show` does.
    """
    # A report that is written elsewhere leaves the run folder as it is: it may be another's, or on a read-only disk.
    own = [folder for folder in folders if to.folder.resolve().is_relative_to(folder.resolve())]
    loaded = records.load_cells(folders, afresh=own)
    samples = samples_by_cell(loaded.finished)
    check_highlight((finished.cell.method for finished in loaded.finished), highlight)
    whole, spent = build_tables(loaded.finished, highlight), costs.load_costs(folders)
    every = tables_to_show(whole, len(loaded.finished), tables)
    first = {table.setting: table for table in reversed(every)}
    drawn = most(len(loaded.finished))
    curved = [table for table in every[:drawn] if _has_curves(table)]
    compared = partial(differences.paired_differences, samples=samples, baseline=BASELINE_METHOD)
    found = {table.name: each for table in every if (each := compared(table))}
    _summaries(every, samples, spent, to)
    for table in curved:
        _draw_figures(table, found.get(table.name), samples, spent, to, table is first[table.setting])
    for table in every[:drawn]:
        if table.name in found:
            stem = to.plot_stem(f"{table.name}-differences")
            difference_maps.plot_difference_map(found[table.name], stem, to.png)
    lines = [REPORT_FIRST_LINE, "", _summary(folders, loaded), "", REPORT_LEGEND, *_summaries_link(every)]
    told = build_headlines(every, samples)
    lines += [grid_markdown(headline_grid(headline)) for headline in told]
    # For who prints what the report says first.
    picture = f"plots/{curved[0].name}.svg" if curved else None
    to.table(
        "first.json", as_json({"sentence": headline_sentence(told[0]) if told else None, "figure": picture}) + "\n"
    )
    lines += [*_longbench(loaded, to), *_differences(list(found.values()), to)]
    if less := left_out_sentence(whole, every, TABLES_REMEDY):
        lines += [less, ""]
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
    write_text(to.folder / "report.md", "\n".join(lines))


def _draw_figures(
    table: Table,
    found: Differences | None,
    samples: Mapping[str, Sequence[Sample]],
    spent: Mapping[str, Cost],
    out: ReportFolder,
    by_depth: bool,
) -> None:
    """Draw the figures of a table."""
    over_length.plot_over_length(table, out.plot_stem(table.name), out.png, found)
    if by_depth:
        heatmaps.plot_heatmap(table, samples, out.plot_stem(f"{table.name}-by-depth"), out.png)
    if _has_timings(table, spent):
        cost_plots.plot_costs(table, spent, out.plot_stem(f"{table.name}-cost"), png=out.png)


def _has_curves(table: Table) -> bool:
    return table.metric is not None and not follows_another(table.metric)


def _summary(folders: Sequence[Path], loaded: LoadedCells) -> str:
    """Number of cells behind the report, and what is missing."""
    refused = sum(finished.refused is not None for finished in loaded.finished)
    lines = [
        f"{len(loaded.finished)} cells, {refused} of them refused, from {', '.join(map(escape_markdown, folders))}."
    ]
    stopped = {name for each in loaded.stopped for name in (each.cell, each.baseline)}
    if left := [cell for cell in loaded.unfinished if cell.id not in stopped]:
        names = [escape_markdown(f"{cell.method} {cell.task} at {cell.length}") for cell in left]
        lines.append(f"\n**Unfinished, not shown:** {'; '.join(names)}. Repeat the run command to finish them.")
    lines += [f"\n**Not readable:** {escape_markdown(problem)}" for problem in loaded.problems]
    if loaded.stopped:
        lines += ["", grid_markdown(stopped_grid(loaded.stopped))]
    return "\n".join(lines)


def _summaries(
    every: Sequence[Table], samples: Mapping[str, Sequence[Sample]], spent: Mapping[str, Cost], out: ReportFolder
) -> None:
    """Write the summaries of all curves, where there are any."""
    boards = leaderboard.boards_by_method(every, samples, "summary", costs=spent)
    if boards:
        found = page.Leaderboard(rows="method", columns="summary", boards=boards)
        out.table("summaries.md", f"# Summaries of the curves\n\n{page.page_markdown(found)}")
        out.table("summaries.csv", page.page_csv(found))


def _summaries_link(every: Sequence[Table]) -> list[str]:
    """The line that links them."""
    if not any(is_token_loss(table.metric) or table.scored for table in leaderboard.headline_metric_tables(every)):
        return []
    links = "[summaries](tables/summaries.md), [numbers](tables/summaries.csv)"
    return [
        f"Summaries of each curve (effective length, collapse, area, price inside the trained length): {links}.",
        "",
    ]


def _longbench(loaded: LoadedCells, out: ReportFolder) -> list[str]:
    """The table of LongBench's paper, one per model and method."""
    found = longbench.longbench_tables(loaded.finished)
    if not found:
        return []
    pages = [grid_markdown(longbench.longbench_grid(layout)) for layout in found]
    return [*pages, *out.linked_numbers_lines("longbench", rows_as_csv(longbench.rows_of(found)))]


def _differences(found: Sequence[Differences], out: ReportFolder) -> list[str]:
    """Write the paired differences to the baseline method; the line that links them."""
    if not found:
        return []
    out.table("differences.md", differences_page(found))
    out.table("differences.csv", rows_as_csv(difference_rows(found)))
    links = "[differences](tables/differences.md), [numbers](tables/differences.csv)"
    return [f"What each method changes against {BASELINE_METHOD}, on the same questions, with tests: {links}.", ""]


def _section(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder, figures: bool) -> list[str]:
    """A table, its CSV and, if asked for, its figures; those from samples only where samples are given."""
    out.table(
        f"{table.name}.csv",
        rows_as_csv(rows_of([*(record for row in table.methods for record in table.of(row)), *table.prices.values()])),
    )
    label = metric_label(table.metric, table.cell.task_name)
    lines = [
        f"### {escape_markdown(label)}",
        "",
        grid_markdown(table_grid(table)),
        f"All fields: [{table.name}.csv](tables/{table.name}.csv)",
        "",
    ]
    if table.metric is None:
        return lines
    if parts_of(table):
        lines += [
            f"By part of the samples, {escape_markdown(label)}:",
            "",
            grid_markdown(parts_grid(table)),
        ]
        lines += out.linked_numbers_lines(f"{table.name}-by-part", rows_as_csv(rows_of(part_records(table))))
    if not _has_curves(table):
        return lines
    if figures:
        lines += out.figure_lines(
            table.name, f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} over length"
        )
    further = (_gain, _length_effect, *((_depths, _positions, _curves) if figures else ()))
    return lines + [line for more in further for line in more(table, samples, out)]


def _gain(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[str]:
    """Context gain, where all lengths share their targets."""
    found = gain.context_gains(table, samples)
    if not found:
        return []
    text = ["#### Context gain", "", GAIN_LEGEND, grid_markdown(gain_grid(table, found))]
    return text + out.linked_numbers_lines(f"{table.name}-gain", rows_as_csv(gain.rows_of(table, found)))


def _length_effect(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[str]:
    """Effect of the length relative to the same questions at the shortest one."""
    found = length_effect.length_effects(table, samples)
    if not found:
        return []
    text = ["#### Effect of the length", "", LENGTH_EFFECT_LEGEND, grid_markdown(length_effect_grid(table, found))]
    return text + out.linked_numbers_lines(
        f"{table.name}-length-effect", rows_as_csv(length_effect.rows_of(table, found))
    )


def _depths(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[str]:
    name = f"{table.name}-by-depth"
    if not any(heatmaps.depth_strata(table, samples)):
        return []
    return out.figure_lines(
        name, f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} by depth and length"
    )


def _positions(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[str]:
    """Values by position in the window, and the collapse of NLL."""
    found = positions.curves_by_position(table, samples)
    if not found:
        return []
    name = f"{table.name}-by-position"
    position_plots.plot_by_position(table, found, out.plot_stem(name), out.png)
    lines = out.figure_lines(
        name, f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} by position in the window"
    )
    collapse = collapse_grid(table, found)
    if collapse:
        lines = [
            f"#### By position, at {found[-1].length} tokens",
            "",
            COLLAPSE_LEGEND,
            grid_markdown(collapse),
            *out.linked_numbers_lines(f"{table.name}-collapse", rows_as_csv(positions.rows_of(table, found))),
            *lines,
        ]
    return lines


def _curves(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[str]:
    """Attention over distance."""
    name = f"{table.name}-curves"
    if not attention.plot_attention_curves(table, samples, out.plot_stem(name), out.png):
        return []
    return out.figure_lines(name, f"attention of {table.cell.task}")


def _difference_map(table: Table, found: Differences | None, out: ReportFolder) -> list[str]:
    """Paired differences to the baseline by method and length."""
    if found is None or found.empty:
        return []
    text = f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task}: difference to {found.baseline}"
    return out.figure_lines(f"{table.name}-differences", text)


def _has_timings(table: Table, costs: Mapping[str, Cost]) -> bool:
    return any(record.cell in costs for record in table.entries.values())


def _cost(table: Table, costs: Mapping[str, Cost], out: ReportFolder) -> list[str]:
    """Quality against seconds per token."""
    if follows_another(table.metric) or not _has_timings(table, costs):
        return []
    if why := cost_plots.why_no_figure(table, costs):
        return [f"Cost: not shown, {why}.", ""] if table.better else []
    return out.figure_lines(
        f"{table.name}-cost",
        f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} against seconds per token",
    )

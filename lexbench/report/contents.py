"""The parts of a report: its page, its tables and their numbers, its figures."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lexbench.core.files import write_text
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.core.record import Sample
from lexbench.report import longbench
from lexbench.report.formats import as_json, rows_as_csv, sheet_markdown
from lexbench.report.headline import first_sentences, headline_sentence
from lexbench.report.headline import grid_of_headline as headline_grid
from lexbench.report.leaderboard import leaderboard, page
from lexbench.report.plots import (
    attention,
    cost_plots,
    difference_maps,
    first_screen,
    heatmaps,
    over_length,
    position_plots,
)
from lexbench.report.select import TABLES_REMEDY, check_highlight, left_out_sentence, tables_to_show
from lexbench.report.sheet import Block, Figure, Heading, Link, Paragraph
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
from lexbench.report.wording import metric_label
from lexbench.stats import costs, differences, gain, length_effect, positions, records
from lexbench.stats.costs import Cost
from lexbench.stats.differences import Differences
from lexbench.stats.headline import Headline, build_headlines
from lexbench.stats.metrics import follows_another
from lexbench.stats.records import LoadedCells, rows_of
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.tables import Table, build_tables

REPORT_LEGEND = """\
Brackets hold 95 % intervals: over resampled documents or haystacks (2000 times), or Wilson's for independent answers
that are right or wrong. Bold: best of its column at the displayed precision, significant or not;
never a value at its floor, one whose interval reaches chance, or what counting n-grams has on the same targets.
Lengths are in tokens, with their multiple of the trained length. Refused: not measurable; reason below.
"""
FIRST_FIGURE = "first"
"""Stem of the figure that a report begins with."""
REPORT_TITLE = Heading("lexbench report", 1)
REPORT_FIRST_LINE = sheet_markdown([REPORT_TITLE]).rstrip()
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

    def figure(self, name: str, text: str) -> list[Block]:
        """A figure, and the links to its other forms."""
        png = [Link("PNG", f"plots/{name}.png")] if self.png else []
        return [Figure(f"plots/{name}.svg", text), Paragraph("", [*png, Link("numbers", f"plots/{name}.csv")])]

    def table(self, name: str, content: str) -> None:
        """Write a file of numbers."""
        write_text(self.folder / "tables" / name, content, durable=False)

    def linked_numbers(self, name: str, content: str, words: str = "All lengths:") -> Paragraph:
        """Keep a table's numbers; the text that links them."""
        self.table(f"{name}.csv", content)
        return Paragraph(words, [Link(f"{name}.csv", f"tables/{name}.csv")])

    def linked_page(self, name: str, words: str, page: str, numbers: str) -> Paragraph:
        """Keep a page beside the report, and its numbers; the text that links them."""
        self.table(f"{name}.md", page)
        self.table(f"{name}.csv", numbers)
        return Paragraph(words, [Link(name, f"tables/{name}.md"), Link("numbers", f"tables/{name}.csv")])


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
    for table in curved:
        _draw_figures(table, found.get(table.name), samples, spent, to, table is first[table.setting])
    for table in every[:drawn]:
        if table.name in found:
            stem = to.plot_stem(f"{table.name}-differences")
            difference_maps.plot_difference_map(found[table.name], stem, to.png)
    told = build_headlines(every, samples)
    said, figure = _first_screen(told, every, found, to)
    # For who prints what the report says first.
    picture = f"plots/{FIRST_FIGURE if figure else curved[0].name}.svg" if figure or curved else None
    to.table("first.json", as_json({"sentence": " ".join(said) or None, "figure": picture}) + "\n")
    sheet: list[Block] = [REPORT_TITLE, *map(Paragraph, said), *figure, *_contents(folders, loaded)]
    sheet += [*map(headline_grid, told), Paragraph(REPORT_LEGEND), *_summaries(every, samples, spent, to)]
    sheet += [*_longbench(loaded, to), *_differences(list(found.values()), to)]
    if less := left_out_sentence(whole, every, TABLES_REMEDY):
        sheet.append(Paragraph(less))
    if len(every) > drawn:
        sheet.append(
            Paragraph(f"{len(every)} tables: only the first {drawn} have figures. lexbench report --figures N draws N.")
        )
    for place, table in enumerate(every):
        if table is first[table.setting]:
            sheet += setting_heading(table)
        sheet += _section(table, samples if table is first[table.setting] else {}, to, place < drawn)
        if place < drawn:
            sheet += _difference_map(table, found.get(table.name), to) + _cost(table, spent, to)
    write_text(to.folder / "report.md", sheet_markdown(sheet))


def _first_screen(
    told: Sequence[Headline], every: Sequence[Table], found: Mapping[str, Differences], out: ReportFolder
) -> tuple[list[str], list[Block]]:
    """What the first headline says, and its figure: losses beside keys, where both were measured."""
    if not told:
        return [], []
    first = told[0]
    keys, compared = first_screen.key_tables(first, every), found.get(first.table.name)
    if compared is None or compared.empty or not keys:
        return [headline_sentence(first)], []
    first_screen.plot_first_screen(first, compared, keys, out.plot_stem(FIRST_FIGURE), out.png)
    said = first_sentences(first, compared, keys)
    return said, [Figure(f"plots/{FIRST_FIGURE}.svg", said[0])]


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


def _contents(folders: Sequence[Path], loaded: LoadedCells) -> list[Block]:
    """Number of cells behind the report, and what is missing."""
    refused = sum(finished.refused is not None for finished in loaded.finished)
    said: list[Block] = [
        Paragraph(f"{len(loaded.finished)} cells, {refused} of them refused, from {', '.join(map(str, folders))}.")
    ]
    stopped = {name for each in loaded.stopped for name in (each.cell, each.baseline)}
    if left := [cell for cell in loaded.unfinished if cell.id not in stopped]:
        names = "; ".join(f"{cell.method} {cell.task} at {cell.length}" for cell in left)
        said.append(Paragraph(f"Unfinished, not shown: {names}. Repeat the run command to finish them.", strong=True))
    said += [Paragraph(f"Not readable: {problem}", strong=True) for problem in loaded.problems]
    return [*said, *([stopped_grid(loaded.stopped)] if loaded.stopped else [])]


def _summaries(
    every: Sequence[Table], samples: Mapping[str, Sequence[Sample]], spent: Mapping[str, Cost], out: ReportFolder
) -> list[Block]:
    """Write the summaries of all curves, where there are any; the line that links them."""
    boards = leaderboard.boards_by_method(every, samples, "summary", costs=spent)
    if not boards:
        return []
    found = page.Leaderboard(rows="method", columns="summary", boards=boards)
    shown = sheet_markdown([Heading("Summaries of the curves", 1), *page.leaderboard_sheet(found)])
    said = "Summaries of each curve (effective length, collapse, area, price inside the trained length):"
    return [out.linked_page("summaries", said, shown, page.page_csv(found))]


def _longbench(loaded: LoadedCells, out: ReportFolder) -> list[Block]:
    """The table of LongBench's paper, one per model and method."""
    found = longbench.longbench_tables(loaded.finished)
    if not found:
        return []
    return [
        *map(longbench.longbench_grid, found),
        out.linked_numbers("longbench", rows_as_csv(longbench.rows_of(found))),
    ]


def _differences(found: Sequence[Differences], out: ReportFolder) -> list[Block]:
    """Write the paired differences to the baseline method; the line that links them."""
    if not found:
        return []
    said = f"What each method changes against {BASELINE_METHOD}, on the same questions, with tests:"
    numbers = rows_as_csv(difference_rows(found))
    return [out.linked_page("differences", said, differences_page(found), numbers)]


def _section(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder, figures: bool) -> list[Block]:
    """A table, its CSV and, if asked for, its figures; those from samples only where samples are given."""
    records = [*(record for row in table.methods for record in table.of(row)), *table.prices.values()]
    label = metric_label(table.metric, table.cell.task_name)
    sheet: list[Block] = [
        Heading(label, 3),
        table_grid(table),
        out.linked_numbers(table.name, rows_as_csv(rows_of(records)), "All fields:"),
    ]
    if table.metric is None:
        return sheet
    if parts_of(table):
        numbers = out.linked_numbers(f"{table.name}-by-part", rows_as_csv(rows_of(part_records(table))))
        sheet += [Paragraph(f"By part of the samples, {label}:"), parts_grid(table), numbers]
    if not _has_curves(table):
        return sheet
    if figures:
        sheet += out.figure(table.name, f"{label} of {table.cell.task} over length")
    further = (_gain, _length_effect, *((_depths, _positions, _curves) if figures else ()))
    return sheet + [block for more in further for block in more(table, samples, out)]


def _gain(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[Block]:
    """Context gain, where all lengths share their targets."""
    found = gain.context_gains(table, samples)
    if not found:
        return []
    numbers = out.linked_numbers(f"{table.name}-gain", rows_as_csv(gain.rows_of(table, found)))
    return [Heading("Context gain", 4), Paragraph(GAIN_LEGEND), gain_grid(table, found), numbers]


def _length_effect(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[Block]:
    """Effect of the length relative to the same questions at the shortest one."""
    found = length_effect.length_effects(table, samples)
    if not found:
        return []
    numbers = out.linked_numbers(f"{table.name}-length-effect", rows_as_csv(length_effect.rows_of(table, found)))
    grid = length_effect_grid(table, found)
    return [Heading("Effect of the length", 4), Paragraph(LENGTH_EFFECT_LEGEND), grid, numbers]


def _depths(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[Block]:
    name = f"{table.name}-by-depth"
    if not any(heatmaps.depth_strata(table, samples)):
        return []
    return out.figure(
        name, f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} by depth and length"
    )


def _positions(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[Block]:
    """Values by position in the window, and the collapse of NLL."""
    found = positions.curves_by_position(table, samples)
    if not found:
        return []
    name = f"{table.name}-by-position"
    position_plots.plot_by_position(table, found, out.plot_stem(name), out.png)
    shown = out.figure(
        name, f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} by position in the window"
    )
    collapse = collapse_grid(table, found)
    if collapse is None:
        return shown
    numbers = out.linked_numbers(f"{table.name}-collapse", rows_as_csv(positions.rows_of(table, found)))
    heading = Heading(f"By position, at {found[-1].length} tokens", 4)
    return [heading, Paragraph(COLLAPSE_LEGEND), collapse, numbers, *shown]


def _curves(table: Table, samples: Mapping[str, Sequence[Sample]], out: ReportFolder) -> list[Block]:
    """Attention over distance."""
    name = f"{table.name}-curves"
    if not attention.plot_attention_curves(table, samples, out.plot_stem(name), out.png):
        return []
    return out.figure(name, f"attention of {table.cell.task}")


def _difference_map(table: Table, found: Differences | None, out: ReportFolder) -> list[Block]:
    """Paired differences to the baseline by method and length."""
    if found is None or found.empty:
        return []
    text = f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task}: difference to {found.baseline}"
    return out.figure(f"{table.name}-differences", text)


def _has_timings(table: Table, costs: Mapping[str, Cost]) -> bool:
    return any(record.cell in costs for record in table.entries.values())


def _cost(table: Table, costs: Mapping[str, Cost], out: ReportFolder) -> list[Block]:
    """Quality against seconds per token."""
    if follows_another(table.metric) or not _has_timings(table, costs):
        return []
    if why := cost_plots.why_no_figure(table, costs):
        return [Paragraph(f"Cost: not shown, {why}.")] if table.better else []
    return out.figure(
        f"{table.name}-cost",
        f"{metric_label(table.metric, table.cell.task_name)} of {table.cell.task} against seconds per token",
    )

"""Reports: records, tables and plots of run folders, made from their samples, without a model."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lexbench.core.files import write_text

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
"""Tables with figures: a figure takes half a second, and every seed has a table."""


def write_report(folders: Sequence[Path], out: Path | None = None, highlight: Collection[str] = ()) -> Path:
    """Write report.md, tables/*.csv and plots/* of run folders, and their records.jsonl anew.

    Args:
        folders: run folders, or folders of run folders.
        out: where to write; None: `report` in the first folder.
        highlight: names of methods to show always, like those outside the registry.

    Returns the path of report.md. Raises ValueError where there is no run.
    """
    from lexbench.report.formats import markdown
    from lexbench.report.headline import grid_of
    from lexbench.report.tables import setting_heading
    from lexbench.stats import costs, records
    from lexbench.stats.differences import BASELINE, differences
    from lexbench.stats.headline import headlines
    from lexbench.stats.tables import tables

    loaded = records.load(folders, afresh=True)
    out = Path(folders[0]) / "report" if out is None else Path(out)
    samples = {finished.cell.id: finished.samples for finished in loaded.finished}
    every, spent = tables(loaded.finished, highlight), costs.load(folders)
    found = {table.name: each for table in every if (each := differences(table, samples, BASELINE))}
    lines = ["# lexbench report", "", _summary(folders, loaded), "", LEGEND, *_summaries(every, samples, spent, out)]
    lines += [markdown(grid_of(headline)) for headline in headlines(every, samples)]
    lines += [*_longbench(loaded, out), *_differences(list(found.values()), out)]
    shown: set[str] = set()
    if len(every) > DRAWN:
        lines += [
            f"{len(every)} tables: only the first {DRAWN} have figures. Report fewer run folders to see more.",
            "",
        ]
    for place, table in enumerate(every):
        if table.setting not in shown:
            lines += setting_heading(table)
        lines += _section(table, samples if table.setting not in shown else {}, out, place < DRAWN)
        if place < DRAWN:
            lines += _difference_map(table, found.get(table.name), out) + _cost(table, spent, out)
        shown.add(table.setting)
    write_text(out / "report.md", "\n".join(lines))
    return out / "report.md"


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
    every: "Sequence[Table]", samples: "dict[str, list[Sample]]", spent: "dict[str, Cost]", out: Path
) -> list[str]:
    """Write the summaries of all curves; the line that links them."""
    from lexbench.report.leaderboard.leaderboard import by_method
    from lexbench.report.leaderboard.page import Leaderboard, as_csv, markdown

    if not any(table.metric == "nll" or table.scored for table in every):
        return []
    boards = by_method(every, samples, "summary", costs=spent)
    found = Leaderboard(rows="method", columns="summary", boards=boards, published=[], unreadable=[], unfinished=[])
    write_text(out / "tables" / "summaries.md", f"# Summaries of the curves\n\n{markdown(found)}")
    write_text(out / "tables" / "summaries.csv", as_csv(found))
    links = "[summaries](tables/summaries.md), [numbers](tables/summaries.csv)"
    return [
        f"Summaries of each curve (effective length, collapse, area, price inside the trained length): {links}.",
        "",
    ]


def _longbench(loaded: "Loaded", out: Path) -> list[str]:
    """The table of LongBench's paper, one per model and method."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.longbench import grid, layouts, rows_of

    found = layouts(loaded.finished)
    if not found:
        return []
    return [*(markdown(grid(layout)) for layout in found), *_numbers(out, "longbench", csv(rows_of(found)))]


def _differences(found: "Sequence[Differences]", out: Path) -> list[str]:
    """Write the paired differences to the baseline method; the line that links them."""
    from lexbench.report.formats import csv
    from lexbench.report.tables import differences_page
    from lexbench.stats.differences import BASELINE, rows_of

    if not found:
        return []
    write_text(out / "tables" / "differences.md", differences_page(found))
    write_text(out / "tables" / "differences.csv", csv(rows_of(found)))
    links = "[differences](tables/differences.md), [numbers](tables/differences.csv)"
    return [f"What each method changes against {BASELINE}, on the same questions, with tests: {links}.", ""]


def _section(table: "Table", samples: "dict[str, list[Sample]]", out: Path, figures: bool) -> list[str]:
    """A table, its CSV and, if asked for, its figures; those from samples only where samples are given."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.plots import over_length
    from lexbench.report.tables import grid_of, part_records, parts_grid, parts_of
    from lexbench.stats.records import rows_of

    write_text(
        out / "tables" / f"{table.name}.csv",
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
        lines += _numbers(out, f"{table.name}-by-part", csv(rows_of(part_records(table))))
    if table.metric in SAME_SUMS:
        return lines
    if figures:
        over_length.plot(table, out / "plots" / table.name)
        lines += _figure(table.name, f"{table.label} of {table.cell.task} over length")
    further = (_gain, _length_effect, *((_depths, _positions, _curves) if figures else ()))
    return lines + [line for more in further for line in more(table, samples, out)]


def _gain(table: "Table", samples: "dict[str, list[Sample]]", out: Path) -> list[str]:
    """Context gain, where all lengths share their targets."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.tables import GAIN, gain_grid
    from lexbench.stats import gain

    found = gain.gains(table, samples)
    if not found:
        return []
    text = ["#### Context gain", "", GAIN, markdown(gain_grid(table, found))]
    return text + _numbers(out, f"{table.name}-gain", csv(gain.rows_of(table, found)))


def _length_effect(table: "Table", samples: "dict[str, list[Sample]]", out: Path) -> list[str]:
    """Effect of the length relative to the same questions at the shortest one."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.tables import LENGTH_EFFECT, length_effect_grid
    from lexbench.stats import length_effect

    found = length_effect.length_effects(table, samples)
    if not found:
        return []
    text = ["#### Effect of the length", "", LENGTH_EFFECT, markdown(length_effect_grid(table, found))]
    return text + _numbers(out, f"{table.name}-length-effect", csv(length_effect.rows_of(table, found)))


def _depths(table: "Table", samples: "dict[str, list[Sample]]", out: Path) -> list[str]:
    from lexbench.report.plots import heatmaps

    name = f"{table.name}-by-depth"
    if not heatmaps.heatmap(table, samples, out / "plots" / name):
        return []
    return _figure(name, f"{table.label} of {table.cell.task} by depth and length")


def _positions(table: "Table", samples: "dict[str, list[Sample]]", out: Path) -> list[str]:
    """Values by position in the window, and the collapse of NLL."""
    from lexbench.report.formats import csv, markdown
    from lexbench.report.plots import position_plots
    from lexbench.report.tables import COLLAPSE, collapse_grid
    from lexbench.stats import positions

    found = positions.curves_by_position(table, samples)
    if not found:
        return []
    name = f"{table.name}-by-position"
    position_plots.plot(table, found, out / "plots" / name)
    lines = _figure(name, f"{table.label} of {table.cell.task} by position in the window")
    collapse = collapse_grid(table, found)
    if collapse:
        lines = [
            f"#### By position, at {found[-1].length} tokens",
            "",
            COLLAPSE,
            markdown(collapse),
            *_numbers(out, f"{table.name}-collapse", csv(positions.rows_of(table, found))),
            *lines,
        ]
    return lines


def _curves(table: "Table", samples: "dict[str, list[Sample]]", out: Path) -> list[str]:
    """Attention over distance."""
    from lexbench.report.plots import attention

    name = f"{table.name}-curves"
    if not attention.curves(table, samples, out / "plots" / name):
        return []
    return _figure(name, f"attention of {table.cell.task}")


def _difference_map(table: "Table", found: "Differences | None", out: Path) -> list[str]:
    """Paired differences to the baseline by method and length."""
    from lexbench.report.plots import difference_maps

    name = f"{table.name}-differences"
    if found is None or not difference_maps.plot(found, out / "plots" / name):
        return []
    return _figure(name, f"{table.label} of {table.cell.task}: difference to {found.baseline}")


def _cost(table: "Table", costs: "dict[str, Cost]", out: Path) -> list[str]:
    """Quality against seconds per token."""
    from lexbench.report.plots import cost_plots

    name = f"{table.name}-cost"
    if table.metric in SAME_SUMS or not any(record.cell in costs for record in table.entries.values()):
        return []
    if not cost_plots.plot(table, costs, out / "plots" / name):
        return [f"Cost: not shown, {cost_plots.missing(table, costs)}.", ""] if table.better else []
    return _figure(name, f"{table.label} of {table.cell.task} against seconds per token")


def _numbers(out: Path, name: str, content: str) -> list[str]:
    """Keep a table's numbers, and link them."""
    write_text(out / "tables" / f"{name}.csv", content)
    return [f"All lengths: [{name}.csv](tables/{name}.csv)", ""]


def _figure(name: str, text: str) -> list[str]:
    return [f"![{text}](plots/{name}.svg)", "", f"[PNG](plots/{name}.png), [numbers](plots/{name}.csv)", ""]


__all__ = ["write_report"]

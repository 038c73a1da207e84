"""One method against each of several others: a figure, a LaTeX table, and a page with sentences to quote."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record, Sample
from lexbench.core.text import plain_text
from lexbench.report import formats, headline, paper_table
from lexbench.report.leaderboard.leaderboard import headline_metric_tables as judged
from lexbench.report.notes import language_sentences
from lexbench.report.plots import paper
from lexbench.report.plots.style import MATPLOTLIB_STYLE, save_figure_as
from lexbench.report.rivals import lead_grid, lead_sentences
from lexbench.report.sheet import Figure, Heading, Paragraph, Remark, Sheet
from lexbench.report.tables import headline_tables
from lexbench.stats.differences import Differences, leads, with_sign
from lexbench.stats.floors import language_not_learned
from lexbench.stats.headline import build_headlines
from lexbench.stats.notes import Note
from lexbench.stats.rescore import samples_by_cell
from lexbench.stats.summaries import SummaryValue, method_prices
from lexbench.stats.tables import Table, build_tables
from lexbench.store.store import Store

LATEX_TABLE_WIDTH = "neurips"
"""Width of the LaTeX table, by its name in `paper.WIDTH_INCHES_OF_SIZE`."""


@dataclass(frozen=True)
class Versus:
    """The answer of `versus`."""

    text: str
    """Text for a terminal."""
    files: tuple[Path, ...]


def check_name(name: str | None, methods: Collection[MethodKey]) -> None:
    """ConfigError for a display name that is empty, of several lines, or another method's."""
    if name is None:
        return
    if not name.strip() or name != plain_text(name):
        raise ConfigError(f'name must be a text in one line, got {name!r}: e.g. name="CosRamp (ours)"')
    if name in {text for method in methods for text in (str(method), method.bare)}:
        raise ConfigError(f"name {name} is that of another method in this comparison: give one of your own")


def write_versus(folder: Path, cells: Collection[str], mine: MethodKey, out: Path, name: str | None = None) -> Versus:
    """Write versus.md, .svg, .pdf and .tex into `out`.

    Args:
        folder: run folder.
        cells: ids of the cells to show.
        mine: the method that is compared with each other one.
        out: is made where it is missing.
        name: of the method in all of these; None: its label.
    """
    finished = Store(folder).load(cells)
    samples = samples_by_cell(finished)
    shown = [table for table in headline_tables(finished) if table.metric != "perplexity"]
    every = build_tables(finished)
    if name is not None:
        called = MethodKey.of_method(name)
        shown, every = ([rename_methods(table, {mine: called}) for table in found] for found in (shown, every))
        mine = called
    found = {table.name: each for table in shown if (each := _leads(table, samples, mine))}
    said = [each for table in judged(shown) for each in sentences(table, found.get(table.name), mine)]
    grids = [lead_grid(found[table.name], _silent_text(table)) for table in judged(shown) if table.name in found]
    out.mkdir(parents=True, exist_ok=True)
    files = tuple(out / f"versus{suffix}" for suffix in (".md", ".svg", ".pdf", ".tex"))
    with mpl.rc_context(MATPLOTLIB_STYLE):
        compared = {name: _over_method(each) for name, each in found.items()}
        figure = paper.paper_figure(shown, paper.WIDTH_INCHES_OF_SIZE["page"], [str(mine)], compared)
        for file in files[1:3]:
            save_figure_as(figure, file)
    title = Heading(f"{mine} against others on {shown[0].cell.model}", 1)
    about = map(headline.grid_of_headline, build_headlines(every, samples))
    page: Sheet = [title, Figure("versus.svg", title.text), *map(Remark, said), *grids, *about]
    write_text(files[0], formats.sheet_markdown(page))
    prices = {table.name: method_prices(table, samples) for table in shown if table.metric == "nll" or table.scored}
    write_text(files[3], latex(shown, found, mine, prices))
    return Versus(formats.sheet_text([title, *map(Paragraph, said), *grids]).rstrip(), files)


def sentences(table: Table, found: Differences | None, mine: MethodKey) -> list[str]:
    """The result of a method in one table; where nothing can be compared, this."""
    if found is None:
        return [f"{table.cell.task}: {mine} is {'the only method' if mine in table.methods else 'not measured'} there."]
    return lead_sentences(found, _silent_text(table))


def _leads(table: Table, samples: Mapping[str, Sequence[Sample]], mine: MethodKey) -> Differences | None:
    """The leads of a method; none is significant on a text whose language the model has not learned."""
    found, silent = leads(table, samples, mine), _why_silent(table)
    if found is None or silent is None:
        return found
    return replace(found, entries={place: replace(each, limit=silent) for place, each in found.entries.items()})


def _over_method(found: Differences) -> Differences:
    """The others over the method, above 0 where they are better, as a figure draws them, of its leads."""
    return replace(found, entries={place: with_sign(each, -1) for place, each in found.entries.items()})


def _why_silent(table: Table) -> Note | None:
    # The first method is none, where it was measured.
    return language_not_learned(table.of(table.methods[0])) if table.metric == "nll" else None


def _silent_text(table: Table) -> str | None:
    silent = _why_silent(table)
    return language_sentences(silent) if silent else None


def rename_methods(table: Table, names: Mapping[MethodKey, MethodKey]) -> Table:
    """The table with other keys for some methods."""

    def key(method: MethodKey) -> MethodKey:
        return names.get(method, method)

    def record(each: Record) -> Record:
        return replace(each, method=key(each.method))

    return replace(
        table,
        entries={(key(row), at): record(each) for (row, at), each in table.entries.items()},
        methods=[key(row) for row in table.methods],
        parts={
            (key(row), at): {part: record(each) for part, each in found.items()}
            for (row, at), found in table.parts.items()
        },
        deployed={key(row): key(form) for row, form in table.deployed.items()},
        follows=frozenset(map(key, table.follows)),
        states={key(row): stated for row, stated in table.states.items()},
        prices={(key(row), at): record(each) for (row, at), each in table.prices.items()},
    )


def latex(
    shown: list[Table],
    found: Mapping[str, Differences],
    mine: MethodKey,
    prices: Mapping[str, Mapping[MethodKey, SummaryValue]],
) -> str:
    """A floating table of all methods by length, with prices; without intervals where it is too wide with them."""
    width, stars = paper.WIDTH_INCHES_OF_SIZE[LATEX_TABLE_WIDTH], paper_table.significant_places(found)
    about: dict[str, Any] = {"highlight": [str(mine)], "starred": stars, "prices": prices}
    try:
        made = paper_table.paper_latex(shown, width, **about)
    except ConfigError:
        made = paper_table.paper_latex(shown, width, **about, interval="none")
    return paper_table.floating_table(made, shown, "versus", mine, priced=True)

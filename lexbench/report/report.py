"""Reports: records, tables and plots of run folders, made from their samples, without a model."""

from collections.abc import Collection, Sequence
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object

MAX_TABLES_WITH_FIGURES = 40
"""Tables with figures: each takes half a second, and every seed has a table."""
MAX_CELLS_WITH_ALL_FIGURES, MAX_FIGURES_OF_MANY_CELLS = 5000, 5
"""With more cells than the first, only so many tables have figures: one with 50 lengths takes more than a second."""


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    highlight: Collection[str] = (),
    png: bool = False,
    figures: int | None = None,
    tables: int | None = None,
) -> Path:
    """Write report.md, tables/*.csv and plots/* of run folders; and anew the records.jsonl of those that hold it.

    Args:
        folders: run folders, or folders of run folders.
        out: where to write; None: `report` in the first folder.
        highlight: names of methods to show always, like those outside the registry.
        png: draw figures as PNG, too.
        figures: tables with figures, at most; None: 40, or 5 in a report of more than 5,000 cells.
        tables: tables, at most; None: all, or 100 in a report of more than 5,000 cells.

    Returns the path of report.md. Raises ConfigError where there is no run.
    """
    for noun, count, least in (("figures", figures, 0), ("tables", tables, 1)):
        if count is not None and count < least:
            raise ConfigError(f"{noun} must be a number of tables, {least} or more, got {count}: e.g. 40")
    to = Path(folders[0]) / "report" if out is None else Path(out)
    from lexbench.report import contents  # takes half a second

    page = to / "report.md"
    if page.is_file() and not page.read_bytes().startswith(contents.REPORT_FIRST_LINE.encode()):
        raise ConfigError(f"{page} is not of lexbench report, which would replace it: give another --out")

    def drawn(cells: int) -> int:
        if figures is not None:
            return figures
        many = cells > MAX_CELLS_WITH_ALL_FIGURES
        return min(MAX_TABLES_WITH_FIGURES, MAX_FIGURES_OF_MANY_CELLS if many else MAX_TABLES_WITH_FIGURES)

    contents.write_contents(folders, contents.ReportFolder(to, png), highlight, drawn, tables)
    return page


def first_of(page: Path) -> list[str]:
    """First sentence of a report and path of its first figure; it may lack one or both."""
    told = read_object(page.parent / "tables" / "first.json", "write the report anew")
    figure = told.get("figure")
    return [*([told["sentence"]] if told.get("sentence") else []), *([str(page.parent / figure)] if figure else [])]


__all__ = ["first_of", "write_report"]

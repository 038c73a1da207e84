"""Reports: records, tables and plots of run folders, made from their samples, without a model."""

from collections.abc import Collection, Sequence
from pathlib import Path

from lexbench.report import unchanged

DRAWN = 40
"""Tables with figures: each takes half a second, and every seed has a table."""


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
    to = Path(folders[0]) / "report" if out is None else Path(out)
    sources = unchanged.sources(folders, to, (DRAWN, png, sorted(highlight), *map(str, folders)))
    if not unchanged.unchanged(folders, to, sources):
        from lexbench.report import contents  # takes half a second

        if contents.write(folders, contents.Out(to, png), highlight, DRAWN, aside):
            unchanged.made(folders, to, sources)
    return to / "report.md"


__all__ = ["write_report"]

"""`lexbench board`: admit a submission, recompute all of them, write the site."""

from datetime import UTC, datetime
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.parts.web.board.audit import Finding
from lexbench.parts.web.board.ledger import proposed, read, write
from lexbench.parts.web.board.site import write_site
from lexbench.stats.wording import plain, several

SHOWN = 5
"""Findings that are printed."""


def command(
    ledger: Path,
    out: Path | None = None,
    add: Path | None = None,
    name: str | None = None,
    by: str | None = None,
    url: str | None = None,
) -> tuple[Path, list[str], list[Finding]]:
    """The page of the site, notes to print, and the refused cells.

    Args:
        ledger: folder with ledger.jsonl.
        out: folder of the site; None: board in the ledger's folder.
        add: run folder to admit first, below the ledger's folder.
        name: of the new submission; None: its folder's name.
        by: who measured the new one.
        url: where the new one is described.

    Raises ConfigError where the ledger or the new submission cannot be read, or a cell of the new one is refused:
    then the ledger stays as it is, and the site shows why.
    """
    if add is None and (name or by or url):
        raise ConfigError("--name, --by and --url describe a submission: give --add RUN, too")
    if add is not None:
        if not by:
            raise ConfigError(f"a submission says who measured it: give --by NAME for {add}")
        today = datetime.now(UTC).date().isoformat()
        submissions = proposed(ledger, add, name or add.resolve().name, by, url, today)
    else:
        submissions = read(ledger)
    page, audited = write_site(ledger, submissions, ledger / "board" if out is None else out)
    if add is not None:
        own = [each for each in audited.refused if each.submission == submissions[-1].name]
        if own:
            raise ConfigError(
                f"{several(len(own), 'cell')} of {add} cannot be admitted, the first is {own[0].cell}: {own[0].why}"
            )
        write(ledger, submissions)
    marked = sum(bool(each.marks) for each in audited.entries)
    count = len(audited.entries)
    notes = [f"{count} {'entry' if count == 1 else 'entries'} of {several(len(submissions), 'submission')}"]
    if marked:
        notes.append(f"{marked} marked, not ranked")
    if audited.refused:
        notes.append(f"{several(len(audited.refused), 'cell')} refused, not shown")
    notes += [f"refused: {each.submission} {each.cell}: {plain(each.why)}" for each in audited.refused[:SHOWN]]
    return page, notes, audited.refused

"""`lexbench board`: admit a submission, recompute all of them, write the page."""

from datetime import UTC, datetime
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.text import count_with_noun, plain_text
from lexbench.parts.web.board.audit import AuditFinding
from lexbench.parts.web.board.ledger import propose_submission, read_ledger, write_ledger
from lexbench.parts.web.board.site import write_site

MAX_PRINTED_FINDINGS = 5
"""Findings that are printed."""


def update_board(
    ledger: Path,
    out: Path | None = None,
    add: Path | None = None,
    name: str | None = None,
    by: str | None = None,
    url: str | None = None,
) -> tuple[Path, list[str], list[AuditFinding]]:
    """The page, notes to print, and the refused cells.

    Args:
        ledger: folder with ledger.jsonl.
        out: folder of the page; None: board in the ledger's folder.
        add: run folder to admit first, below the ledger's folder.
        name: of the new submission; None: its folder's name.
        by: who measured the new one.
        url: where the new one is described.

    Raises ConfigError where the ledger or the new submission cannot be read, or a cell of the new one is refused:
    then the ledger stays as it is, and the page shows why.
    """
    if add is None and (name or by or url):
        raise ConfigError("--name, --by and --url describe a submission: give --add RUN, too")
    if add is not None:
        if not by:
            raise ConfigError(f"a submission says who measured it: give --by NAME for {add}")
        today = datetime.now(UTC).date().isoformat()
        submissions = propose_submission(ledger, add, name or add.resolve().name, by, url, today)
    else:
        submissions = read_ledger(ledger)
    page, audited = write_site(ledger, submissions, ledger / "board" if out is None else out)
    if add is not None:
        own = [each for each in audited.refused if each.submission == submissions[-1].name]
        if own:
            raise ConfigError(
                f"{count_with_noun(len(own), 'cell')} of {add} cannot be admitted, the first is {own[0].cell}: "
                f"{own[0].why}"
            )
        write_ledger(ledger, submissions)
    marked = sum(bool(each.marks) for each in audited.entries)
    count = len(audited.entries)
    notes = [f"{count} {'entry' if count == 1 else 'entries'} of {count_with_noun(len(submissions), 'submission')}"]
    if marked:
        notes.append(f"{marked} marked, not ranked")
    if audited.refused:
        notes.append(f"{count_with_noun(len(audited.refused), 'cell')} refused, not shown")
    notes += [
        f"refused: {each.submission} {each.cell}: {plain_text(each.why)}"
        for each in audited.refused[:MAX_PRINTED_FINDINGS]
    ]
    return page, notes, audited.refused

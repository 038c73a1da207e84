"""The board: the leaderboard's web page of all cells that the audit ranks; submissions, marks and refusals below."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import write_text
from lexbench.core.text import count_with_noun
from lexbench.parts.web.board.audit import AuditedBoard, BoardEntry, audit_submissions
from lexbench.parts.web.board.ledger import Submission
from lexbench.report.formats import html_page
from lexbench.report.grid import Grid
from lexbench.report.leaderboard.leaderboard import leaderboard_of
from lexbench.report.leaderboard.page import html_sheet
from lexbench.report.sheet import Block, Heading, Paragraph
from lexbench.store.format import read_cell_file

BOARD_TITLE = "lexbench board"
MAX_NAMED_CELLS = 500
"""Marked cells, and refused ones, that the page names."""
UNSEEN_SENTENCE = (
    "What no check finds: a likelihood or a text that the model never gave, where nobody else has measured the same "
    "cell."
)


def write_site(ledger: Path, submissions: Sequence[Submission], out: Path) -> tuple[Path, AuditedBoard]:
    """Audit all submissions and write index.html; its path."""
    page = out / "index.html"
    if page.is_file() and f"<title>{BOARD_TITLE}</title>".encode() not in page.read_bytes()[: 1 << 16]:
        raise ConfigError(f"{page} is not of lexbench board, which would replace it: give another --out")
    audited = audit_submissions(ledger, submissions)
    ranked = {each.checked.cell.id: each.submission.folder for each in reversed(audited.entries) if not each.marks}
    finished = [read_cell_file(ledger / folder / "cells" / f"{name}.parquet") for name, folder in ranked.items()]
    shown = html_sheet(leaderboard_of(finished)) if finished else []
    write_text(page, html_page(BOARD_TITLE, [*shown, *_audit_blocks(audited)]))
    return page, audited


def _audit_blocks(audited: AuditedBoard) -> list[Block]:
    """Submissions, cells that are not ranked, and refused ones."""
    marked = [each for each in audited.entries if each.marks]
    of_marked = Counter(_name(each) for each in marked)
    of_refused = Counter(each.submission for each in audited.refused)
    said = (
        f"Every number is recomputed from samples: {count_with_noun(len(audited.entries), 'cell')} of "
        f"{count_with_noun(len(audited.submissions), 'submission')}, {len(marked)} not ranked; "
        f"{len(audited.refused)} refused. {UNSEEN_SENTENCE}"
    )
    blocks: list[Block] = [
        Heading("Submissions"),
        Paragraph(said),
        Grid(
            head=["submission", "by", "admitted", "cells", "not ranked", "refused", "described at"],
            labels=3,
            rows=[
                [
                    *(each.name, each.by, each.date),
                    *map(str, (len(each.cells), of_marked[each.name], of_refused[each.name])),
                    each.url or "",
                ]
                for each in audited.submissions
            ],
        ),
    ]
    for title, rows in (
        ("Not ranked", [[_name(each), _cell(each), "; ".join(each.marks)] for each in marked]),
        ("Refused", [[each.submission, each.cell, each.why] for each in audited.refused]),
    ):
        left = len(rows) - MAX_NAMED_CELLS
        below = [f"and {left:,} more"] if left > 0 else []
        if rows:
            head = ["submission", "cell", "why"]
            blocks += [Heading(title), Grid(head=head, labels=3, rows=rows[:MAX_NAMED_CELLS], below=below)]
    return blocks


def _name(entry: BoardEntry) -> str:
    return entry.submission.name


def _cell(entry: BoardEntry) -> str:
    cell = entry.checked.cell
    return f"{cell.method} {cell.task} at {cell.length} on {cell.model}"

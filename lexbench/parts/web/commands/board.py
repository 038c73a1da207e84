"""`lexbench board`."""

import argparse
import sys
from pathlib import Path

from lexbench.commands.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ledger", type=Path, metavar="LEDGER", help="folder with ledger.jsonl and the submissions")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the page (default: LEDGER/board)")
    parser.add_argument("--add", type=Path, metavar="RUN", help="first admit this run folder, which lies in LEDGER")
    parser.add_argument("--name", metavar="NAME", help="of the submission (default: the run folder's name)")
    parser.add_argument("--by", metavar="NAME", help="who measured it")
    parser.add_argument("--url", metavar="URL", help="where it is described")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Admit a submission, if there is one; write the page; 1 where a cell is refused."""
    from lexbench.parts.web.board.board import update_board

    page, notes, refused = update_board(options.ledger, options.out, options.add, options.name, options.by, options.url)
    print(page)
    for note in notes:
        print(f"lexbench: {note}", file=sys.stderr)
    return 1 if refused else 0


COMMAND = Command(
    name="board",
    heading="decide",
    help="recompute a ledger of submissions from their samples, and write it as a leaderboard's web page",
    call=call,
    arguments=_arguments,
    epilog="""\
Exit code 1 where a cell is refused: it was changed, or its numbers do not follow from its samples. See docs/board.md.
  lexbench board results --add results/runs/mine --by "a laboratory"
""",
)

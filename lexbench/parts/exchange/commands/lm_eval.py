"""`lexbench lm_eval`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command, Parser


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Run the harness, or write tasks for it."""
    from lexbench.parts.exchange import lm_eval

    return _write_tasks(words[1:]) if words[:1] == ["tasks"] else lm_eval.main(words)


def _write_tasks(words: list[str]) -> int:
    """Write yamls of tasks, and print their names."""
    from lexbench.parts.exchange.lm_eval.task_files import write_task_files

    parser = Parser(
        prog="lexbench lm_eval tasks",
        description="write tasks of lexbench for lm-evaluation-harness; print their names there",
        epilog="Run them by: lm_eval run --include_path DIR --tasks lexbench ...",
    )
    parser.add_argument("names", nargs="+", metavar="TASK", help="names of tasks (lexbench list task)")
    parser.add_argument("--lengths", nargs="+", type=int, required=True, metavar="N", help="tokens of a question")
    parser.add_argument("--n", type=int, metavar="N", help="questions of each task and length (default: as in a run)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the questions (default: 0)")
    parser.add_argument("--corpus", metavar="NAME", help="the texts (default: as in a run)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the yamls")
    given = parser.parse_args(words)
    for name in write_task_files(given.names, given.lengths, given.n, given.seed, given.corpus, given.out):
        print(name)
    return 0


COMMAND = Command(
    name="lm_eval",
    heading="exchange",
    help="run lm-evaluation-harness with --model lexbench, or write it tasks: --help, tasks --help",
    call=call,
    passthrough=True,
)

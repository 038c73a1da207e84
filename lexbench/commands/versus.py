"""`lexbench versus`."""

import argparse
from pathlib import Path

from lexbench.commands import hydra_config, run
from lexbench.commands.command import CONFIG_DIR, METHOD, RESUMES, Command, method_of, settings_apart
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder, check_writable
from lexbench.methods.composition import method_config

AGAINST = ("pi", "ntk", "yarn", "self_extend", "rerope")
"""The usual five: three scalings of frequencies, two groupings of distances."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        nargs="+",
        default=list(AGAINST),
        metavar="NAME",
        help=f"at most six methods to compare with, besides none (default: {' '.join(AGAINST)})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the figure and the text (default: RUN/versus)"
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Measure all methods, then write the figure, the table and what may be quoted."""
    from lexbench.report.versus import write_versus
    from lexbench.runner.execute import execute

    against, behind = settings_apart(options.against)
    if not against:
        raise ConfigError(f"--against must name methods, got only {behind[0]}: e.g. --against {' '.join(AGAINST)}")
    config, choices = hydra_config.composed(COMMAND, [*words, *behind])
    mine = method_of(config, choices, COMMAND.name)
    if mine["name"] == "none":
        raise ConfigError("versus needs a method to compare with others: give method=NAME, e.g. method=dca")
    names = [name for name in dict.fromkeys(("none", *against)) if name != mine["name"]]
    others = [method_config(name) for name in names]
    job = run.job_of(config, choices, [*others, mine])
    out = options.out or job.results / "versus"
    check_folder("--out", out, "--out DIR")
    check_writable("--out", out, "give another --out DIR")
    ids = [cell.id for cell in execute(job)]
    print(write_versus(job.results, set(ids), job.methods[-1].key, out))
    return run.exit_code([(job.results, ids)])


COMMAND = Command(
    name="versus",
    help="compare a method with the usual five: a figure, a table, and sentences to quote",
    call=call,
    arguments=_arguments,
    settings=[METHOD if each.name == METHOD.name else each for each in run.MEASURED],
    config="run",
    epilog=f"{run.EXIT_CODE}{RESUMES}{CONFIG_DIR}\n",
)

"""`lexbench versus`."""

import argparse
from pathlib import Path

from lexbench.commands import hydra_config, run
from lexbench.commands.command import (
    CONFIG_DIR_HELP,
    METHOD_SETTING,
    RESUME_HELP,
    Command,
    Setting,
    chosen_method,
    split_settings,
)
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder, check_writable
from lexbench.core.method_key import BASELINE_METHOD
from lexbench.methods.composition import method_config

COMPARED_METHODS = ("pi", "ntk", "yarn", "self_extend", "rerope")
"""The usual five: three scalings of frequencies, two groupings of distances."""
DISPLAY_NAME_SETTING = Setting(
    "name=NAME", 'of the method in figure, tables and sentences: name="CosRamp (ours)"', default="the method's label"
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        nargs="+",
        default=list(COMPARED_METHODS),
        metavar="NAME",
        help=f"at most six methods to compare with, besides none (default: {' '.join(COMPARED_METHODS)})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the figure, the LaTeX table and the text (default: RUN/versus)",
    )
    parser.add_argument("--dry-run", action="store_true", help=run.DRY_RUN)


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Measure all methods, then write the figure, the tables and what may be quoted, and print it with its files."""
    from lexbench.report.versus import check_name, write_versus
    from lexbench.runner.execute import execute_job

    against, behind = split_settings(options.against)
    if not against:
        raise ConfigError(
            f"--against must name methods, got only {behind[0]}: e.g. --against {' '.join(COMPARED_METHODS)}"
        )
    given = [word for word in (*words, *behind) if word.startswith("name=")]
    settings = [word for word in (*words, *behind) if word not in given]
    name = given[-1].removeprefix("name=") if given else None
    config, choices = hydra_config.compose_config(COMMAND, settings)
    config["dry_run"] = options.dry_run
    mine = chosen_method(config, choices, COMMAND.name)
    if mine["name"] == "none":
        raise ConfigError("versus needs a method to compare with others: give method=NAME, e.g. method=dca")
    names = [each for each in dict.fromkeys(("none", *against)) if each != mine["name"]]
    others = [method_config(each) for each in names]
    job = run.job_of(config, choices, [*others, mine])
    check_name(name, [BASELINE_METHOD, *(method.key for method in job.methods[:-1])])
    out = options.out or job.results / "versus"
    check_folder("--out", out, "--out DIR")
    if options.dry_run:
        execute_job(job, dry_run=True)
        return 0
    check_writable("--out", out, "give another --out DIR")
    ids = [cell.id for cell in execute_job(job)]
    found = write_versus(job.results, set(ids), job.methods[-1].key, out, name)
    print(found.text, "", *found.files, sep="\n")
    return run.exit_code([(job.results, ids)])


COMMAND = Command(
    name="versus",
    heading="decide",
    help="is my method better than each of the usual five? a figure, tables, and sentences to quote",
    call=call,
    own_progress=True,
    arguments=_arguments,
    settings=[
        *(METHOD_SETTING if each.name == METHOD_SETTING.name else each for each in run.MEASURING_SETTINGS),
        DISPLAY_NAME_SETTING,
    ],
    config="run",
    epilog=f"{run.EXIT_CODE_HELP}{RESUME_HELP}{CONFIG_DIR_HELP}\n",
)

"""`lexbench versus`."""

import argparse
from pathlib import Path

from lexbench.commands import hydra_config, run
from lexbench.commands.command import CONFIG_DIR, METHOD, RESUMES, Command, Setting, method_of, settings_apart
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder, check_writable
from lexbench.core.method_key import BASELINE
from lexbench.methods.composition import method_config

AGAINST = ("pi", "ntk", "yarn", "self_extend", "rerope")
"""The usual five: three scalings of frequencies, two groupings of distances."""
NAME = Setting(
    "name=NAME", 'of the method in figure, tables and sentences: name="CosRamp (ours)"', default="the method's label"
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        nargs="+",
        default=list(AGAINST),
        metavar="NAME",
        help=f"at most six methods to compare with, besides none (default: {' '.join(AGAINST)})",
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
    from lexbench.runner.execute import execute

    against, behind = settings_apart(options.against)
    if not against:
        raise ConfigError(f"--against must name methods, got only {behind[0]}: e.g. --against {' '.join(AGAINST)}")
    given = [word for word in (*words, *behind) if word.startswith("name=")]
    settings = [word for word in (*words, *behind) if word not in given]
    name = given[-1].removeprefix("name=") if given else None
    config, choices = hydra_config.composed(COMMAND, settings)
    config["dry_run"] = options.dry_run
    mine = method_of(config, choices, COMMAND.name)
    if mine["name"] == "none":
        raise ConfigError("versus needs a method to compare with others: give method=NAME, e.g. method=dca")
    names = [each for each in dict.fromkeys(("none", *against)) if each != mine["name"]]
    others = [method_config(each) for each in names]
    job = run.job_of(config, choices, [*others, mine])
    check_name(name, [BASELINE, *(method.key for method in job.methods[:-1])])
    out = options.out or job.results / "versus"
    check_folder("--out", out, "--out DIR")
    if options.dry_run:
        execute(job, dry_run=True)
        return 0
    check_writable("--out", out, "give another --out DIR")
    ids = [cell.id for cell in execute(job)]
    found = write_versus(job.results, set(ids), job.methods[-1].key, out, name)
    print(found.text, "", *found.files, sep="\n")
    return run.exit_code([(job.results, ids)])


COMMAND = Command(
    name="versus",
    help="is my method better than each of the usual five? a figure, tables, and sentences to quote",
    call=call,
    own_progress=True,
    arguments=_arguments,
    settings=[*(METHOD if each.name == METHOD.name else each for each in run.MEASURED), NAME],
    config="run",
    epilog=f"{run.EXIT_CODE}{RESUMES}{CONFIG_DIR}\n",
)

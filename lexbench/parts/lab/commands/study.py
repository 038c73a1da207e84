"""`lexbench study`."""

import argparse
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import CONFIG_DIR_HELP, RESUME_HELP, Command, Setting
from lexbench.core import registry


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        metavar="NAME",
        help=f"a yaml of parts/lab/configs/study: {', '.join(registry.registered_names('study'))}",
    )
    parser.add_argument(
        "--gates",
        action="store_true",
        help="train what is missing, print the four gates of each model (does it beat a trigram, does it use context, "
        "does it find and copy, does it break beyond its length), and stop",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and every command, and stop")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Run the study; the highest exit code of its processes."""
    codes: list[int] = []

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.parts.lab.study import study

        codes.append(study.run_study(study.read_study(config, choices["study"]), options.dry_run, options.gates))

    hydra_config.run_jobs(COMMAND, job, [f"study={options.study}", *words])
    return max(codes, default=0)


COMMAND = Command(
    name="study",
    heading="train",
    help="train many small models alike, evaluate them alike, and write a page of results",
    call=call,
    own_progress=True,
    arguments=_arguments,
    config="study",
    settings=(
        Setting(
            "study.recipe=zoo_tiny",
            "change a value of parts/lab/configs/study/NAME.yaml, here the recipe of all",
            default="",
        ),
        Setting("results=DIR", "folder of the models, the runs and the page", default="runs/NAME"),
        Setting("encodings=[rope,alibi]", "entries to take", default="all that are trained from scratch"),
        Setting("finetuned=true", "take the entries that continue from another one, too"),
        Setting("seeds=[0,1,2]", "seeds of the trainings", default="those of the study"),
        Setting("tasks=[last_segment]", "tasks", default="those of the study"),
        Setting("methods=[none,bca]", "methods", default="those of the study"),
        Setting("multiples=[0.5,1,2,4]", "lengths as multiples of the trained length", default="those of the study"),
        Setting("n=16", "samples of a cell", default="what the study has for each task"),
        Setting("workers=2", "processes that run at once and share the cores"),
    ),
    epilog=f"{RESUME_HELP}Every training and every evaluation is a process of its own.\n\n{CONFIG_DIR_HELP}\n",
)

"""`lexbench trace`."""

import argparse
import re
from pathlib import Path
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    DEFAULT_CORPUS_SETTING,
    RESUME_HELP,
    TASK_SETTING,
    Command,
    Setting,
    group_config,
    settings_object,
)

EXAMPLE_COMMAND = "lexbench trace 'out/checkpoint-*' lengths=[4096,32768] out=runs/trace"

SETTING_PREFIX = re.compile(r"[+~]*[\w./]+=")
"""Beginning of KEY=VALUE; a folder may have it, too."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoints",
        nargs="*",
        metavar="CKPT",
        help="folder, folder of checkpoints, glob in quotes, ORG/NAME@REVISION or ORG/NAME@'step*'; none: make the "
        "page of what a training has kept in out=DIR",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="measure checkpoints as they appear, until Ctrl-C; repeat without it to end",
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print what to take, the falls and the page."""
    # argparse gives all words without a dash to CKPT: those of a setting come back.
    given = [word for word in options.checkpoints if SETTING_PREFIX.match(word) and not Path(word).exists()]
    checkpoints = [word for word in options.checkpoints if word not in given]
    config, choices = hydra_config.compose_config(COMMAND, [*given, *words])

    def show(found: Any) -> None:
        from lexbench.parts.search.trace import page
        from lexbench.report.formats import sheet_text

        written = page.write(found, settings.folder)
        print(sheet_text(page.screen(found)), written, sep="\n", flush=True)

    from lexbench.parts.search.trace.trace import trace
    from lexbench.parts.search.trace.watch import watch

    settings = settings_object("trace", "lexbench.parts.search.trace.settings.Settings", config)
    asked = {
        "tasks": [group_config(config, choices, "task")],
        "corpus": group_config(config, choices, "corpus"),
        "backend": group_config(config, choices, "backend"),
        "settings": settings,
    }
    if options.watch:
        watch(checkpoints, **asked, show=show)
    show(trace(checkpoints, **asked))
    return 0


COMMAND = Command(
    name="trace",
    heading="train",
    help="follow the checkpoints of a training over lengths: falls, and which checkpoint to take",
    call=call,
    arguments=_arguments,
    settings=(
        *(TASK_SETTING, DEFAULT_CORPUS_SETTING, BACKEND_SETTING),
        Setting("lengths=[4096,32768]", "lengths in tokens, inside the training's window and beyond"),
        Setting("out=DIR", "folder of the results"),
        Setting("n=32", "questions of a checkpoint at each length; finalists and falls get as many new ones"),
        Setting("seed=0", "seed of the questions; the new ones have the next"),
        Setting("trained_length=4096", "trained length of all checkpoints", default="as each one states it"),
        Setting(
            "order=[base,checkpoint-20]",
            "checkpoints, the oldest first, or given: as in the command",
            default="by the step that each one stores, else by their names",
        ),
    ),
    interrupted="all checkpoints measured so far are kept: repeat the command, without --watch to end the trace",
    epilog=f"Of several tasks the first decides. {RESUME_HELP}{EXAMPLE_COMMAND}\n",
)

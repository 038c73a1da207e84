"""`lexbench keys`."""

import argparse
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    CORPUS_SETTING,
    METHOD_SETTING,
    MODEL_SETTING,
    RESUME_HELP,
    SWEEP_HELP,
    Command,
    Setting,
    chosen_method,
    group_config,
)


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print how many key tokens were found, and their file."""

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.checkpoints.checkpoint import read_model
        from lexbench.core import objects
        from lexbench.parts.search.find_key_tokens import find_in_corpus

        found = find_in_corpus(
            model=read_model(config["model"]),
            method=chosen_method(config, choices, COMMAND.name),
            corpus=objects.build_object(config["corpus"], "corpus"),
            backend=group_config(config, choices, "backend"),
            **{name: config[name] for name in COMMAND.names(groups=False)},
        )
        print(f"{found.count} of {found.tokens} tokens in {len(found.spans)} documents are key tokens ({found.hash})")
        print(config["out"])

    hydra_config.run_jobs(COMMAND, job, words)
    return 0


COMMAND = Command(
    name="keys",
    heading="measure",
    help="find the key tokens of a corpus with an evaluator model, for task=long_ppl",
    call=call,
    settings=(
        *(MODEL_SETTING, METHOD_SETTING, CORPUS_SETTING, BACKEND_SETTING),
        Setting("out=FILE.jsonl", "file of the key tokens; then task=long_ppl task.keys=FILE.jsonl"),
        Setting("longest=8192", "tokens to read of a document", default="the trained length, at most 32768"),
        Setting("short=1024", "tokens of the short context, at least", default="longest / 8"),
        Setting("window=256", "tokens that share one short context", default="short / 4"),
        Setting("gain=2.0", "least gain of the whole context over the short one, in nats"),
        Setting("loss=2.0", "highest loss of the token with the whole context, in nats"),
        Setting("n=50", "documents", default="all that are long enough"),
    ),
    epilog=RESUME_HELP + SWEEP_HELP,
)

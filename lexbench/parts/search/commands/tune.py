"""`lexbench tune`."""

import argparse
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    DEFAULT_CORPUS_SETTING,
    MODEL_SETTING,
    RESUME_HELP,
    SWEEP_HELP,
    Command,
    Setting,
    checked_length,
    group_config,
    settings_object,
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", choices=("transformers", "vllm", "llama.cpp"), help="try only what this software can be told to serve"
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the ranking and the file of the best method."""

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.checkpoints.checkpoint import read_model
        from lexbench.parts.search.tune.page import terminal_text
        from lexbench.parts.search.tune.tune import tune

        result = tune(
            model=read_model(config["model"]),
            corpus=group_config(config, choices, "corpus"),
            backend=group_config(config, choices, "backend"),
            settings=settings_object(
                "tune",
                "lexbench.parts.search.tune.settings.TuneSettings",
                {**config, "length": checked_length(config), "to": options.to},
            ),
        )
        print(terminal_text(result))
        print(result.file)

    hydra_config.run_jobs(COMMAND, job, words)
    return 0


COMMAND = Command(
    name="tune",
    heading="decide",
    help="find the best method and its parameters for a model at one length",
    call=call,
    own_progress=True,
    arguments=_arguments,
    settings=(
        *(MODEL_SETTING, DEFAULT_CORPUS_SETTING, BACKEND_SETTING),
        Setting("length=32768", "tokens in use, prompt and answer; more than the trained length"),
        Setting(
            "budget=30min", "time (30min, 2h, 90s), including that of earlier calls; or a number of candidates (40)"
        ),
        Setting("out=DIR", "folder of the results"),
        Setting("price=0.02", "allowed loss inside the trained length against the unchanged model, in nats per token"),
        Setting("worth=1", "value of finding all needles, in nats per token; 0 counts only the text"),
        Setting(
            "methods=[yarn,ntk]", "methods to try", default="all that change frequencies or distances and hide no key"
        ),
        Setting(
            "n=32", "questions of the last rung; finalists get as many new ones, up to 4 times if that tells them apart"
        ),
        Setting("first=4", "questions of the first rung, at least"),
        Setting("eta=2", "one candidate in eta goes to the next rung, which has eta times as many questions"),
        Setting("seed=0", "seed of the candidates and the questions; the new questions use the next seed"),
        Setting("nll=last_segment", "task whose likelihood counts"),
        Setting(
            "needles=[needle,passkey]",
            "tasks of finding a needle; the first that the model solves inside its trained length counts",
        ),
        Setting(
            "common.factor.high=2",
            "range of a parameter, for every method that has it (parts/search/configs/tune.yaml)",
        ),
        Setting(
            "space.yarn.beta_fast.low=16",
            "range of a method's parameter (parts/search/configs/tune.yaml); +space.pi.factor=[4,8] adds one",
        ),
    ),
    epilog=RESUME_HELP + SWEEP_HELP,
)

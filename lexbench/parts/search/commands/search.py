"""`lexbench search`."""

import argparse
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import (
    BACKEND_SETTING,
    CORPUS_SETTING,
    MODEL_SETTING,
    RESUME_HELP,
    SWEEP_HELP,
    Command,
    Setting,
    checked_length,
    group_config,
    settings_object,
)


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the factors and the file of the method."""

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.checkpoints.checkpoint import read_model
        from lexbench.core import objects
        from lexbench.parts.search.longrope_search.search import find_factors

        result = find_factors(
            model=read_model(config["model"]),
            corpus=objects.build_object(config["corpus"], "corpus"),
            backend=group_config(config, choices, "backend"),
            length=checked_length(config),
            out=config["out"],
            n=config["n"],
            settings=settings_object(
                "search", "lexbench.parts.search.longrope_search.evolution.EvolutionSettings", config
            ),
        )
        print(result.table())
        print(result.file)

    hydra_config.run_jobs(COMMAND, job, words)
    return 0


COMMAND = Command(
    name="search",
    heading="decide",
    help="search LongRoPE's factors for a model and a length, by perplexity",
    call=call,
    own_progress=True,
    settings=(
        *(MODEL_SETTING, CORPUS_SETTING, BACKEND_SETTING),
        Setting("length=2048", "tokens in use; more than the trained length"),
        Setting("out=MY/method/NAME.yaml", "file of the method; then --config-dir MY adds method=NAME"),
        Setting("n=4", "texts for measuring a candidate, and as many others for the final comparison"),
        Setting(
            "rule=longrope2",
            "longrope: search every pair's factor in [1, 1.25 s]; longrope2: from the critical pair on in [s, 2 s], "
            "before it by NTK; s = length / trained length",
        ),
        Setting(
            "critical_pair=20", "critical pair of longrope2", default="the first with a period above the trained length"
        ),
        Setting("ceiling=1.5", "highest factor, in multiples of s", default="1.25, or 2 in longrope2"),
        Setting("step=0.01", "grid of the factors"),
        Setting(
            "start_tokens=[0,4]", "choices for the number of tokens at the start that keep the model's frequencies"
        ),
        Setting("seed=0", "seed of all random draws"),
        Setting("population=64", "candidates at the start"),
        Setting("iterations=40", "generations; a higher number continues an old search"),
        Setting("parents=32", "best candidates that each generation keeps"),
        Setting("mutations=16", "new candidates of a generation, from one parent each"),
        Setting("crossovers=16", "new candidates of a generation, from two parents each"),
        Setting("probability=0.3", "probability that a factor mutates, or comes from the second parent"),
    ),
    epilog=f"{RESUME_HELP}Search on texts that you do not measure the method on: corpus=NAME.\n\n{SWEEP_HELP}",
)

"""`lexbench train`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import RESUME_HELP, SWEEP_HELP, Command, Setting, chosen_method
from lexbench.core import objects


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Train, and print the model's folder."""

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.parts.lab.native.train import PreparedTraining, TrainingJob, build_corpora, train

        named = {"name": choices["encoding"]} if choices.get("encoding") else {}
        unseen = config["corpora"] if config["held_out"] is None else config["held_out"]
        asked = TrainingJob(
            recipe=objects.build_object(config["recipe"], "recipe"),
            corpora=build_corpora(config["corpora"], "train", "corpora"),
            held_out=build_corpora(unseen, "test", "corpora" if config["held_out"] is None else "held_out"),
            encoding={**(config.get("encoding") or {}), **named},
            start=config["start"],
            method=chosen_method(config, choices, COMMAND.name),
            command=shlex.join(["lexbench", "train", *words]),
            rows=None if config["rows"] is None else Path(config["rows"]),
        )
        prepared = PreparedTraining(asked)
        out = Path(config["out"] or Path("runs", "trained", choices["recipe"], prepared.name))
        train(prepared, out)
        print(out)

    hydra_config.run_jobs(COMMAND, job, words)
    return 0


COMMAND = Command(
    name="train",
    heading="train",
    help="train a small model with any encoding, or continue from a trained one",
    call=call,
    own_progress=True,
    settings=(
        Setting(
            "recipe=NAME",
            "the recipe (parts/lab/configs/recipe); recipe.trained_length=128 or recipe.seed=1 sets a parameter, "
            "recipe.shape.layers=2 a size: layers, width, heads, kv_heads, hidden, block=llama|gpt",
        ),
        Setting(
            "encoding=NAME",
            "the encoding; encoding.base=500000 sets a parameter, encoding.over={name:kerple,form:power} the inner "
            "encoding of a wrapper",
            default="that of start, else rope",
        ),
        Setting("method=pi", "with start: train with the frequencies of this method; method.factor=8 sets a parameter"),
        Setting("out=DIR", "folder of the model", default="runs/trained/RECIPE/ENCODING[-METHOD]-seedSEED"),
        Setting(
            "start=DIR",
            "continue from a trained folder: its sizes, tokenizer, weights and encoding; often with recipe=finetune",
        ),
        Setting(
            "corpora=[stdlib,pydoc]",
            "texts to train on (of their train split), each a name or {name:files,path:book.txt}",
        ),
        Setting("rows=DIR", "folder of rows drawn ahead, shared by trainings that differ in their encoding only"),
        Setting("held_out=[pydoc]", "texts of the held-out loss", default="the test split of corpora"),
    ),
    epilog=f"{RESUME_HELP}{SWEEP_HELP}Example of several trainings: -m encoding=rope,alibi,xpos recipe.seed=0,1,2\n",
)

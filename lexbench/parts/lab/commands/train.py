"""`lexbench train`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from lexbench.commands import hydra_config
from lexbench.commands.command import RESUMES, SWEEPS, Command, Setting, method_of
from lexbench.core import registry


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Train, and print the model's folder."""

    def job(config: dict[str, Any], choices: dict[str, str]) -> None:
        from lexbench.parts.lab.native.train import Job, Prepared, texts, train

        named = {"name": choices["encoding"]} if choices.get("encoding") else {}
        unseen = config["corpora"] if config["held_out"] is None else config["held_out"]
        asked = Job(
            recipe=registry.build(config["recipe"], "recipe"),
            corpora=texts(config["corpora"], "train", "corpora"),
            held_out=texts(unseen, "test", "corpora" if config["held_out"] is None else "held_out"),
            encoding={**(config.get("encoding") or {}), **named},
            start=config["start"],
            method=method_of(config, choices, COMMAND.name),
            command=shlex.join(["lexbench", "train", *words]),
            rows=None if config["rows"] is None else Path(config["rows"]),
        )
        prepared = Prepared(asked)
        out = Path(config["out"] or Path("runs", "trained", choices["recipe"], prepared.name))
        train(prepared, out)
        print(out)

    hydra_config.jobs(COMMAND, job, words)
    return 0


COMMAND = Command(
    name="train",
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
    epilog=f"{RESUMES}{SWEEPS}Example of several trainings: -m encoding=rope,alibi,xpos recipe.seed=0,1,2\n",
)

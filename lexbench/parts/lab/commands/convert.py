"""`lexbench convert`."""

import argparse
from pathlib import Path

from lexbench.commands.command import Command
from lexbench.core.errors import ConfigError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that lexbench train wrote")
    parser.add_argument("--into", required=True, type=Path, metavar="OUT", help="folder to write, new or empty")


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the new folder and its architecture."""
    from lexbench.parts.lab.native.foreign import convert_folder

    if not options.folder.is_dir():
        raise ConfigError(
            f"convert needs a folder on disk, {options.folder} is none: give one that lexbench train made"
        )
    print(f"{options.into}: {convert_folder(options.folder, options.into)}")
    return 0


COMMAND = Command(
    name="convert",
    heading="train",
    help="convert a trained folder to an architecture of transformers: Llama, SmolLM3, MPT or GPT-2",
    call=call,
    arguments=_arguments,
    epilog="""\
recipe.shape.block=llama: RoPE becomes Llama, or SmolLM3 if some layers have no positions.
recipe.shape.block=gpt: ALiBi becomes MPT, learned positions become GPT-2.
Other models are refused.
""",
)

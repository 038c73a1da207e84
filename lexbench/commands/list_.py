"""`lexbench list`."""

import argparse

from lexbench.commands.command import Command
from lexbench.core import objects, registry


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="?", choices=registry.REGISTRY_GROUPS, help="list only these names")
    parser.add_argument(
        "--config-dir",
        "-cd",
        action="append",
        default=[],
        metavar="DIR",
        help="add your own names: yamls in DIR/method/, DIR/task/, ...",
    )


def call(options: argparse.Namespace, words: list[str]) -> int:
    """Print the names of a group, or of all groups, with one line on each."""
    for folder in options.config_dir:
        registry.add_config_dir(folder, "--config-dir")
    for group in [options.group] if options.group else registry.REGISTRY_GROUPS:
        print(f"{group}:")
        names = registry.registered_names(group)
        for name in names:
            print(f"  {name:{max(map(len, names))}} {_summary(group, name)}".rstrip())
    return 0


def _summary(group: str, name: str) -> str:
    """Line of the list for a name: its docstring's first line, or the fault of its yaml."""
    try:
        return objects.docstring_summary(group, name)
    except ValueError as error:
        return f"(broken: {error})"


COMMAND = Command(
    name="list",
    help="list the names of models, methods, encodings, tasks, corpora and backends",
    call=call,
    arguments=_arguments,
)

"""`lexbench list`."""

import argparse
from pathlib import Path

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
    """Print the names of a group, or of all groups, with one line on each; of tasks also their files."""
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
        said = objects.docstring_summary(group, name)
        source = objects.source_file(group, name) if group == "task" else None
        return f"{said} ({_shown_path(source)})" if source else said
    except ValueError as error:
        return f"(broken: {error})"


def _shown_path(file: Path) -> Path:
    """A file below the working folder from there, another by its whole path."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


COMMAND = Command(
    name="list",
    heading="everybody",
    help="list the names of models, methods, encodings, tasks, corpora and backends",
    call=call,
    arguments=_arguments,
)

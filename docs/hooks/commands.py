"""Make the page of all commands from their --help."""

import argparse
import os
from typing import Any

from mkdocs.structure.files import File

from lexbench.commands import main


def on_files(files: Any, config: Any) -> Any:
    """Add the page to the site."""
    files.append(File.generated(config, "commands.md", content=page()))
    return files


def page() -> str:
    """The page: a section with the help of each command."""
    os.environ["COLUMNS"] = "100"
    parser = main.build_parser()
    [group] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    lines = [
        "# Commands\n",
        "What `lexbench COMMAND --help` prints. Exit codes: 0 success; 1 a finding (`check`: regressed; `verify`: a "
        "check failed); 2 wrong input or not comparable, with one line that says why; 3 nothing measured, because all "
        "cells are refused (`run`, `versus`); 4 a method, a protocol or questions changed (`check`); "
        "130 interrupted: repeat the command to resume.\n",
    ]
    for name, command in group.choices.items():
        lines += [f"## {name}\n", f"```text\n{command.format_help().strip()}\n```\n"]
    return "\n".join(lines)

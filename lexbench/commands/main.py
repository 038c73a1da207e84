"""The command line: parse the words, call the command, report errors in one line."""

import argparse
import errno
import gc
import importlib
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from lexbench.commands import (
    check,
    compare,
    doctor,
    export,
    figure,
    hydra_config,
    leaderboard,
    list_,
    power,
    report,
    run,
    score,
    show,
    verify,
    versus,
)
from lexbench.commands.command import Command, CommandHelpFormatter, Parser, list_of_commands, shorten_message
from lexbench.core import parts, registry
from lexbench.core.console import at_work
from lexbench.core.errors import ConfigError
from lexbench.core.extras import missing_package
from lexbench.core.guard import failure_text, plugin_guard
from lexbench.core.record import Refused
from lexbench.core.version import full_version

CORE_COMMAND_MODULES = (
    run,
    versus,
    report,
    figure,
    leaderboard,
    compare,
    check,
    power,
    doctor,
    show,
    score,
    export,
    verify,
    list_,
)


def _commands() -> tuple[dict[str, Command], dict[str, str]]:
    """The commands of the core and of all parts, by name; and the part of each that others wrote.

    A part's command cannot replace another. One that cannot be loaded is named on standard error and left out.
    """
    found: dict[str, Command] = {module.COMMAND.name: module.COMMAND for module in CORE_COMMAND_MODULES}
    of_others: dict[str, str] = {}
    for part in parts.all_parts():
        for name in part.commands:
            what = f"part {part.name}'s command module {name}"
            try:
                with plugin_guard(what):
                    command: Command = importlib.import_module(name).COMMAND
                    if not part.is_ours:
                        _check_command(command)
            except (Refused, ConfigError, OSError) as failure:
                parts.tell_left_out(what, failure)
                continue
            if command.name in found:
                print(f"lexbench: {part.name}'s command {command.name} is left out: the name is taken", file=sys.stderr)
            elif not part.is_ours:
                of_others[command.name] = part.name
            found.setdefault(command.name, command)
    return found, of_others


def _check_command(command: Any) -> None:
    """Fail where a command would fail while the command line is built: of a part that others wrote."""
    assert isinstance(command, Command), "COMMAND is no lexbench.commands.command.Command"
    command.add_to(Parser().add_subparsers())


COMMANDS_BY_NAME, PART_OF_COMMAND = _commands()
GARBAGE_THRESHOLDS = (100_000, 20, 20)
"""Objects after which Python looks for garbage. By its usual 700, torch and transformers are looked through so often
while they load that it takes a seventh of a short command."""


def main(given: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns 0 if it succeeded, 2 for wrong input (in one line), 1 for a bug of lexbench (with a traceback) or of another
    package's command (in one line), 130 if interrupted, or the command's own code.
    """
    if given is None:  # a process of our own
        gc.set_threshold(*GARBAGE_THRESHOLDS)
    words = list(sys.argv[1:] if given is None else given)
    if words[:1] == ["-sc"]:
        return _print_completions(words)
    options, rest = build_parser().parse_known_args(words)
    command: Command = options.command
    try:
        if rest and not (command.settings or command.passthrough):
            hint = registry.did_you_mean(rest[0].partition("=")[0], command.options())
            raise ConfigError(f"unexpected argument {rest[0]}: {hint}see lexbench {command.name} --help")
        of_others = given is not None or command.own_progress or command.passthrough
        with nullcontext() if of_others else at_work(command.name):
            return command.call(options, rest)
    except KeyboardInterrupt:
        print(f"\nlexbench: interrupted; {command.interrupted}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `lexbench list | head`
        # Else Python would fail once more when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ConfigError, Refused, OSError, MemoryError) as error:
        if os.environ.get("LEXBENCH_TRACEBACK"):
            raise
        print(f"lexbench: {shorten_message(_one_line(error))}", file=sys.stderr)
        return 2
    except Exception as error:
        if isinstance(error.__context__, OSError) and error.__context__.errno == errno.ELOOP:  # pathlib hides it
            print(f"lexbench: {shorten_message(_one_line(error.__context__))}", file=sys.stderr)
            return 2
        if lacking := missing_package(error, f"lexbench {command.name}"):
            print(f"lexbench: {lacking}", file=sys.stderr)
            return 2
        if part := PART_OF_COMMAND.get(command.name):
            if os.environ.get("LEXBENCH_TRACEBACK"):
                traceback.print_exc()
            print(f"lexbench: {failure_text(f'part {part}, command {command.name}', error)}", file=sys.stderr)
            return 1
        _report_bug(words)
        return 1


def build_parser() -> Parser:
    """The whole command line."""
    whole = Parser(
        prog="lexbench",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Measure how a language model's quality changes with length, with any positional method.\n"
        + list_of_commands(COMMANDS_BY_NAME.values()),
        epilog='Completion in bash: eval "$(lexbench -sc install=bash)"\n'
        "In zsh the same, behind: autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
        "In fish: lexbench -sc install=fish | source\n"
        "LEXBENCH_TRACEBACK=1 shows the full traceback of an error.",
        formatter_class=CommandHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=full_version())
    commands = whole.add_subparsers(prog="lexbench", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    for name, command in COMMANDS_BY_NAME.items():
        with redirect_stdout(sys.stderr) if name in PART_OF_COMMAND else nullcontext():  # what it prints is no output
            command.add_to(commands)
    return whole


def _report_bug(words: list[str]) -> None:
    """Print the traceback of the exception at hand, say that it is a bug of lexbench, and keep both in a log file."""
    log = f"lexbench {full_version()}, Python {sys.version.split()[0]}: {shlex.join(words)}\n\n{traceback.format_exc()}"
    print(log, file=sys.stderr)
    place = ""
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", prefix="lexbench-bug-", suffix=".log", delete=False
        ) as file,
    ):
        file.write(log)
        place = f", with {file.name}"
    print(f"lexbench: this is a bug of lexbench, please report it{place}", file=sys.stderr)


def _one_line(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory; all results so far are kept: repeat the command with fewer processes or more memory"
    if isinstance(error, OSError) and error.strerror:
        return _why_no_file(error)
    return " ".join(str(error).split())


def _why_no_file(error: OSError) -> str:
    """What the system refused; it names no file where a write into an open one failed."""
    name = error.filename2 or error.filename  # not the temporary file that would replace it
    if error.errno in NO_ROOM_ERRORS:
        return f"{NO_ROOM_ERRORS[error.errno]} while writing {name or 'results'}: {ROOM_REMEDY}"
    if name is None:
        return f"a file cannot be read or written ({error.strerror}): repeat the command, or give another place"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"{error.filename} cannot be read or written ({error.strerror}): change that, or give another place"
    if isinstance(error, NotADirectoryError | FileExistsError):
        place = Path(error.filename)
        file = next((each for each in (place, *place.parents) if each.is_file()), place)
        return f"{file} is a file where a folder is needed: give another place"
    if isinstance(error, IsADirectoryError):
        return f"{name} is a folder where a file is needed: give another place"
    return f"{error.strerror}: {name}"


NO_ROOM_ERRORS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "quota of the disk exceeded",
    errno.EFBIG: "file larger than this system allows (ulimit -f)",
}
"""Why a file takes no more bytes."""
ROOM_REMEDY = "free space or raise the limit, then repeat the command"


def _print_completions(words: list[str]) -> int:
    """Shell completion: commands, then options and settings of the command; hydra completes names and parameters."""
    apart = {"query=bash": " ", "query=fish": "\n"}.get(" ".join(words[1:]))
    if apart is None:
        hydra_config.print_hydra_flags("run", words)
        return 0
    program, *typed = os.environ.get("COMP_LINE", "").split(" ")
    typed = [word for word in typed[:-1] if word] + typed[-1:]
    name, last = typed[0], typed[-1]
    if len(typed) == 1 or name not in COMMANDS_BY_NAME:
        found = list(COMMANDS_BY_NAME) if len(typed) == 1 else []
    elif last.startswith("-"):
        found = COMMANDS_BY_NAME[name].options()
    elif not COMMANDS_BY_NAME[name].settings:
        return 0
    elif not any(mark in last for mark in "=./"):
        found = [*COMMANDS_BY_NAME[name].keys(), "hydra/", "hydra."]
    else:
        # Hydra completes `lexbench KEY=...`: the subcommand and options are left out of its line.
        line = " ".join([program, *(word for word in typed[1:-1] if "=" in word), last])
        os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line)))
        with suppress(ValueError):  # words that hydra cannot read yet
            hydra_config.print_hydra_flags(COMMANDS_BY_NAME[name].config_name, words)
        return 0
    print(apart.join(each for each in found if each.startswith(last)))
    return 0

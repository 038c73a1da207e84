"""A fence around plug-ins: a failure of one is recorded at its cells, or printed in one line, and the sweep goes on."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NoReturn

from lexbench.core.code_places import is_user_code
from lexbench.core.errors import ConfigError
from lexbench.core.extras import missing_package
from lexbench.core.record import Deferred, Refused


@contextmanager
def plugin_guard(what: str) -> Iterator[None]:
    """Turn a failure inside into Deferred, with its type and line; what is printed goes to standard error.

    ConfigError and OSError rise: they speak of wrong settings; so does a package of an extra that is not installed.
    LEXBENCH_TRACEBACK=1 prints where a failure comes from.
    """
    try:
        with _no_silent_exit(), redirect_stdout(sys.stderr):  # standard output may be JSON, or a table
            yield
    except (Refused, ConfigError, OSError, KeyboardInterrupt, GeneratorExit):
        raise
    # A plug-in may call sys.exit, or raise an exception of its own that is no Exception.
    except BaseException as error:
        if lacking := missing_package(error, what):
            raise lacking from None
        if os.environ.get("LEXBENCH_TRACEBACK"):
            traceback.print_exception(error, file=sys.stderr)
        raise Deferred(failure_text(what, error)) from error


def failure_text(what: str, error: BaseException) -> str:
    """Say that code of others fails: type and message of the error, and the line, the user's own if there is one."""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename  # Python's, where a module is not found
    ]
    own = [frame for frame in frames if is_user_code(frame[0])]
    # A syntax error is raised by the importer, and names its own line.
    named = [(error.filename, error.lineno)] if isinstance(error, SyntaxError) and error.filename else own or frames
    place = f" in {Path(named[-1][0]).name}, line {named[-1][1]}" if named else ""
    return f"{what} fails with {type(error).__name__} ({_one_line_message(error)}){place}"


@contextmanager
def _no_silent_exit() -> Iterator[None]:
    """Let `os._exit` raise SystemExit inside: it would end the sweep without a word, with any exit code."""
    home = os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() != home:  # a process that the plug-in has forked ends itself
            END_PROCESS(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = leave
    try:
        yield
    finally:
        os._exit = END_PROCESS


END_PROCESS = os._exit
"""Python's own, also while another thread is inside a fence."""


def _one_line_message(error: BaseException) -> str:
    """An error's message as one short printable line."""
    try:
        text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    except Exception:
        return "nothing that can be said"
    return "".join(each if each.isprintable() else "?" for each in text)[:200] or "nothing said"

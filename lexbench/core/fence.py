"""A fence around plug-ins: a failure of one is recorded at its cells, or said in one line, and the sweep goes on."""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import AnyQuestion, Choose, Mark, Tokenizer, Write


@contextmanager
def fenced(what: str) -> Iterator[None]:
    """Turn a failure inside into Deferred, with its type and line; ValueError and OSError, of wrong settings, rise.

    LEXBENCH_TRACEBACK=1 prints where it comes from.
    """
    try:
        yield
    except (Refused, ValueError, OSError):
        raise
    # A plug-in may call sys.exit; Ctrl-C is the user's and rises.
    except (Exception, SystemExit) as error:
        if os.environ.get("LEXBENCH_TRACEBACK"):
            traceback.print_exception(error, file=sys.stderr)
        # The innermost frame: the line that failed.
        where = traceback.extract_tb(error.__traceback__)[-1]
        file, line = where.filename, where.lineno
        # A syntax error is raised by the importer, and names its own line.
        if isinstance(error, SyntaxError) and error.filename:
            file, line = error.filename, error.lineno
        place = f"{Path(file).name}, line {line}"
        raise Deferred(f"{what} fails with {type(error).__name__} ({_said(error)}) in {place}") from error


def _said(error: BaseException) -> str:
    """An error's message as one short printable line."""
    try:
        text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    except Exception:
        return "nothing that can be said"
    return "".join(each if each.isprintable() else "?" for each in text)[:200] or "nothing said"


def check_questions(questions: Sequence[AnyQuestion], tokenizer: Tokenizer, length: int) -> None:
    """AssertionError unless questions can be asked: none longer than `length`, of known tokens, each index once."""
    assert len({question.index for question in questions}) == len(questions), "two questions have one index"
    for question in questions:
        assert isinstance(question, AnyQuestion), f"{type(question).__name__} is no question"
        named = isinstance(question.index, int) and isinstance(question.cluster, str)
        assert named and isinstance(question.facts, Mapping), (
            f"question {question.index} has a wrong index, cluster or facts"
        )
        room = question.room if isinstance(question, Write) else 1
        assert isinstance(room, int) and room > 0, f"question {question.index} has a room of {room!r} tokens"
        chance = getattr(question, "chance", 0.0)
        assert isinstance(chance, int | float) and 0 <= chance <= 1, f"question {question.index} has chance {chance!r}"
        assert question.length <= length, f"question {question.index} has {question.length} tokens, asked for {length}"
        parts = [question.prompt] if isinstance(question, Write | Choose) else [question.tokens]
        if isinstance(question, Choose):
            parts += question.options
        elif isinstance(question, Mark):
            parts.append(question.options)
        for ids in parts:
            known = ids.dtype.kind == "i" and ids.ndim == 1
            known = known and (not len(ids) or (ids.min() >= 0 and ids.max() < tokenizer.vocabulary))
            assert known, f"question {question.index} holds ids that are no tokens of the vocabulary"

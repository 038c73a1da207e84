"""A fence around methods and tasks: a failure of one of them is recorded at its cell, and the sweep goes on."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    except (Exception, SystemExit) as error:
        if os.environ.get("LEXBENCH_TRACEBACK"):
            traceback.print_exception(error, file=sys.stderr)
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:200] or "nothing said"
        place = f"{where.filename.rpartition('/')[2]}, line {where.lineno}"
        raise Deferred(f"{what} fails with {type(error).__name__} ({said}) in {place}") from error


def check_questions(questions: Sequence[AnyQuestion], tokenizer: Tokenizer, length: int) -> None:
    """AssertionError unless questions can be asked: none longer than `length`, of known tokens, each index once."""
    assert len({question.index for question in questions}) == len(questions), "two questions have one index"
    for question in questions:
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

"""A loaded model that answers the questions of cells: what a run does in its own process, or in each of its workers."""

import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from lexbench.backends import Backend, Batching, Recalling, Remote
from lexbench.core import machine
from lexbench.core.model import Model
from lexbench.core.record import Refused, Sample, Unavailable
from lexbench.core.task import Answer, AnyQuestion, Choose, Mark, Probe, Score, Task, Tokenizer, Write
from lexbench.runner.plan import Step, least_memory
from lexbench.runner.reuse import Prefixes, by_prefix
from lexbench.runner.verify import Preflight
from lexbench.taskkit.excerpt import excerpt


class Examiner:
    """Cells' questions, asked of one backend.

    Args:
        backend: with the model loaded.
        tokenizer: the checkpoint's.
        preflight: what methods prove before they are measured.
        reuse: take what earlier answers already hold; the numbers are the same to rounding.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, preflight: Preflight, reuse: bool) -> None:
        self._backend, self._tokenizer, self._preflight = backend, tokenizer, preflight
        self._prefixes = Prefixes() if reuse else None

    def settle(self, step: Step, n: int) -> None:
        """Put the model under a step's Attention.

        Raises Refused where there is no honest way to, or no question, and Unavailable where memory is short.
        """
        assert step.attention is not None, "a refused step is not measured"
        _, none = self._questions(step, n)
        if none:
            raise Refused(none)
        if not isinstance(self._backend, Remote):
            check_memory(self._backend.model, step, self._backend.dtype)
        if failed := self._preflight.failure(step.attention, step.length):
            raise Refused(f"{step.method.label} {failed}")
        self._backend.attend(step.attention)

    def samples(self, step: Step, n: int, done: Collection[int] = ()) -> Iterator[Sample]:
        """Samples of a settled step's cell, but for those that are `done`, as they are measured.

        Raises Refused where a question has no honest answer.
        """
        asked, _ = self._questions(step, n)
        missing = [question for question in asked if question.index not in done]
        longest = max((question.length for question in missing), default=0)
        assert longest <= step.length, f"a question of {longest} tokens at {step.length}"
        if self._prefixes is not None and not isinstance(self._backend, Remote):
            missing = by_prefix(missing)
        for question, answer in zip(missing, self._answers(step, missing), strict=True):
            yield sample(self._backend, step.task.built, question, answer)

    def asked(self, step: Step, n: int) -> list[int]:
        """Indices of a step's questions: they may be fewer than n."""
        return [question.index for question in self._questions(step, n)[0]]

    def _questions(self, step: Step, n: int) -> tuple[Sequence[AnyQuestion], str | None]:
        return questions(step.task.built, self._tokenizer, step.length, n, step.seed)

    def _answers(self, step: Step, missing: Sequence[AnyQuestion]) -> Iterator[Answer]:
        backend = self._backend
        if self._prefixes is not None and isinstance(backend, Recalling) and backend.sees_no_future():
            return self._prefixes.answers(step, missing, functools.partial(answers, backend))
        return answers(backend, missing)


def check_memory(model: Model, step: Step, dtype: str) -> None:
    """Unavailable where not even the least that a cell needs is free, beside the weights, which are loaded."""
    needed, free = least_memory(model, step, dtype), machine.free_bytes()
    if free is not None and needed > free:
        raise Unavailable(
            f"needs at least {needed / 2**30:.1f} GiB beside the weights, {free / 2**30:.1f} GiB are free: "
            "take shorter lengths, or a device or dtype that holds them"
        )


@functools.lru_cache(maxsize=1)
def questions(
    task: Task, tokenizer: Tokenizer, length: int, n: int, seed: int
) -> tuple[Sequence[AnyQuestion], str | None]:
    """A cell's questions, kept for the next method; or why there are none."""
    try:
        return task.questions(tokenizer, length, n, seed), None
    except Refused as refusal:
        return [], refusal.reason


def answered(backend: Backend, task: Task, question: AnyQuestion) -> Sample:
    """The sample of one question, with what was asked as text."""
    return sample(backend, task, question, answer(backend, question))


def sample(backend: Backend, task: Task, question: AnyQuestion, given: Answer) -> Sample:
    """What an answer is worth, with what was asked as text."""
    return replace(task.score(question, given), prompt=excerpt(question, backend.tokenizer))


def answers(backend: Backend, asked: Sequence[AnyQuestion]) -> Iterator[Answer]:
    """Many at once where the backend gains from it, else one by one."""
    if isinstance(backend, Remote):
        yield from backend.answers(asked)
        return
    together = backend if isinstance(backend, Batching) else None
    for alike, group in itertools.groupby(asked, together.alike if together else lambda _: None):
        if together is None or alike is None:
            yield from (answer(backend, question) for question in group)
        else:
            yield from together.together(list(group))


def answer(backend: Backend, question: AnyQuestion) -> Answer:
    """Of one question, by its kind."""
    if isinstance(question, Write):
        return backend.write(question)
    if isinstance(question, Choose):
        return backend.choose(question)
    if isinstance(question, Mark):
        return backend.mark(question)
    if isinstance(question, Score):
        return backend.score(question)
    assert isinstance(question, Probe)
    return backend.probe(question)

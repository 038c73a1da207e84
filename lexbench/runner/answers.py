"""Answers of a loaded model: reused, batched or one by one."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lexbench.backends import Backend, capabilities
from lexbench.core import machine
from lexbench.core.guard import plugin_guard
from lexbench.core.memory import defer_on_oom
from lexbench.core.record import Deferred, Refused, Sample
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ClassifyTokens,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    MeasureDivergence,
    ProbeAttention,
    Task,
    Tokenizer,
)
from lexbench.runner.cells import OpenCell
from lexbench.runner.plan import min_memory_bytes
from lexbench.runner.prompt_factors import questions_by_group
from lexbench.runner.reuse import PrefixAnswers, cheapest_order
from lexbench.runner.verify import Preflight
from lexbench.stats.invariants import sample_faults
from lexbench.stats.shortcuts import SHORTCUT_FACT
from lexbench.store.checksum import with_checksum
from lexbench.store.format import check_sample
from lexbench.taskkit.asked import question_hash
from lexbench.taskkit.excerpt import question_excerpt


@dataclass(frozen=True)
class MemoryPeak:
    """Most memory that a model's process has held."""

    bytes: int | None
    """None: it is another process's, and not known."""
    own: bool
    """Counted from the cell's start, not the process's."""


class Answerer(Protocol):
    """A loaded model, in this process or in a worker, as the loop sees it."""

    def attend(self, cell: OpenCell) -> None:
        """Apply a cell's method to the model; Refused or Deferred where that cannot be."""

    def answers(self, cell: OpenCell, questions: Sequence[AnyQuestion]) -> Iterator[tuple[AnyQuestion, Answer]]:
        """Each question with its answer, in the order that takes least work."""

    def peak(self) -> MemoryPeak | None:
        """Memory of the cell; None where the worker is lost: then only a finished cell has a cost."""


class LoadedModel:
    """A backend in this process, as the loop sees it.

    Args:
        backend: with the model loaded.
        preflight: checks that a method passes before it is measured.
        reuse: take from earlier answers what they hold; the numbers are the same to rounding.
    """

    def __init__(self, backend: Backend, preflight: Preflight, reuse: bool) -> None:
        self.backend, self._preflight = backend, preflight
        self._can = capabilities(backend)
        self._prefixes = PrefixAnswers() if reuse else None
        self._own_peak = False
        self._device: str | None = getattr(backend, "device", None)  # a plug-in may lack it
        if self._can.prefix_reuse:
            backend.reuse = reuse

    def attend(self, cell: OpenCell) -> None:
        """Apply the cell's method, once it has passed its checks; Deferred where memory does not suffice."""
        # First of all: what the method takes counts as the cell's.
        self._own_peak = machine.forget_peak(self._device)
        step, backend = cell.step, self.backend
        assert step.attention is not None, "a refused step is not measured"
        if step.groups and self._can.one_method:
            raise Refused(
                f"{cell.method} has a factor for each prompt, {backend.name} one for all: give task.factor=ceiling"
            )
        for length, attention in (step.groups or {step.length: step.attention}).items():
            if failed := self._preflight.failure(attention, length):
                raise Refused(f"{cell.method} {failed}")
        backend.attend(step.attention)
        if not self._can.remote:  # last of all: to attend drops the prompt that an earlier cell has left
            needed, free = min_memory_bytes(backend.model, step, backend.dtype), machine.free_bytes(self._device)
            if free is not None and needed > free:
                raise Deferred(
                    f"needs at least {needed / 2**30:.1f} GiB beside the weights, {free / 2**30:.1f} GiB are free: "
                    "take shorter lengths, or a device or dtype that holds them"
                )

    def answers(self, cell: OpenCell, questions: Sequence[AnyQuestion]) -> Iterator[tuple[AnyQuestion, Answer]]:
        """Each question with its answer, in the order that takes least work.

        Questions of one group come together, under its Attention. Refused where answers go on from a prompt, and the
        model read in pieces is not the model read at once.
        """
        if not cell.step.groups:
            return self._answers(cell, questions)
        return self._answers_by_group(cell, questions)

    def _answers_by_group(
        self, cell: OpenCell, questions: Sequence[AnyQuestion]
    ) -> Iterator[tuple[AnyQuestion, Answer]]:
        for each, asked in questions_by_group(cell, questions):
            if asked:
                assert each.step.attention is not None, "a group has one"
                self.backend.attend(each.step.attention)
                yield from self._answers(each, asked)

    def _answers(self, cell: OpenCell, questions: Sequence[AnyQuestion]) -> Iterator[tuple[AnyQuestion, Answer]]:
        attention = cell.step.attention
        assert attention is not None, "a refused step is not measured"
        goes_on = any(isinstance(question, Generate | Choose) for question in questions)
        if goes_on and (failed := self._preflight.failure_of_cache(attention, cell.step.length)):
            raise Refused(f"{cell.method} {failed}")
        ask = functools.partial(answer_questions, self.backend)
        known = self._prefixes if self._can.prefix_reuse and self.backend.is_causal() else None
        if not self._can.remote:
            questions = cheapest_order(questions, reuse=known is not None)
        found = ask(questions) if known is None else known.answers(cell, questions, ask)
        return zip(questions, found, strict=True)

    def peak(self) -> MemoryPeak:
        """None where the model runs in other processes."""
        found = None if self._can.remote else machine.peak_bytes(self._device)
        return MemoryPeak(found, self._own_peak and found is not None)


def sample_of_answer(task: Task, tokenizer: Tokenizer, question: AnyQuestion, given: Answer) -> Sample:
    """The sample of an answered question, with the question as text."""
    with plugin_guard(f"{type(task).__name__}.score"):
        sample = task.score(question, given)
        assert isinstance(sample, Sample) and sample.index == question.index, f"no sample of question {question.index}"
        fault = next(sample_faults(sample), None)
        assert fault is None, f"sample {question.index} with {fault}"
        thought = {}
        if isinstance(given, GenerateAnswer) and (given.thought or given.thought_cut):
            thought = {"thought": given.thought, "thought_cut": given.thought_cut}
        shortcut = {SHORTCUT_FACT: [list(step) for step in question.shortcut]} if question.shortcut else {}
        kept = replace(
            sample,
            prompt=question_excerpt(question, tokenizer),
            facts={**sample.facts, **thought, **shortcut},
            question=question_hash(question),
        )
        check_sample(kept)
        return with_checksum(kept)


def answer_questions(backend: Backend, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
    """Answers in the order of the questions: many at once where the backend gains from it, else one by one."""
    can = capabilities(backend)
    if any(question.layout for question in questions) and not can.layouts:
        raise Refused(
            f"{backend.name} counts the positions of a text by itself, this question's jump: use backend=hf or native"
        )
    if can.remote:
        yield from backend.answers(questions)
        return
    # Neighbours only: the order of the questions is already the one that takes least work.
    for alike, group in itertools.groupby(questions, backend.batch_key if can.batches else lambda _: None):
        if alike is None:
            yield from (answer_question(backend, question) for question in group)
        else:
            yield from backend.answer_batch(list(group))


def answer_question(backend: Backend, question: AnyQuestion) -> Answer:
    """The answer of one question, by its kind; Deferred where memory does not suffice."""
    with defer_on_oom(f"{question.length} tokens of {backend.model.name} in {backend.dtype}"):
        if isinstance(question, Generate):
            return backend.write(question)
        if isinstance(question, Choose):
            return backend.choose(question)
        if isinstance(question, ClassifyTokens):
            return backend.mark(question)
        if isinstance(question, Loglikelihood):
            return backend.score(question)
        if isinstance(question, MeasureDivergence):
            if not hasattr(backend, "diverge"):  # a plug-in may lack it
                raise Refused(f"{backend.name} does not show the logits of a whole vocabulary: use backend=hf")
            return backend.diverge(question)
        assert isinstance(question, ProbeAttention)
        return backend.probe(question)

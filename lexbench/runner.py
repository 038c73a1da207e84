"""A run: from a job to its cells, and from cells to samples in the run folder."""

import functools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

import lexbench
from lexbench import provenance
from lexbench.attention import Attention
from lexbench.backends import Backend, Remote
from lexbench.checkpoint import locate
from lexbench.excerpt import excerpt
from lexbench.job import Job, cell_of, keep_job
from lexbench.loading import checkpoint_of, done_with, opened
from lexbench.methods import Method
from lexbench.model import Model
from lexbench.plan import Step, describe, estimate
from lexbench.record import Cell, Refused, Sample, Unavailable
from lexbench.report.records import records_of
from lexbench.store import Store
from lexbench.task import Answer, AnyQuestion, Choose, Mark, Probe, Score, Task, Write
from lexbench.tokenizer import FastTokenizer, load_tokenizer
from lexbench.verify import Preflight


def plan(job: Job, tokenizer: FastTokenizer) -> list[Step]:
    """All cells of a job with their cost, in the order in which they run: methods side by side at each length."""
    steps = []
    for task in job.tasks:
        for length in job.lengths:
            for seed in job.seeds:
                questions, no_questions = _questions(task.built, tokenizer, length, job.n, seed)
                for method in job.methods:
                    attention, no_attention = _attention(method.built, job.model, length)
                    refused = no_attention or no_questions
                    cost = estimate(job.model, () if refused else questions)
                    steps.append(Step(method, task, length, seed, attention, refused, cost))
    return steps


def execute(job: Job, dry_run: bool = False, quiet: bool = False) -> list[Cell]:
    """Run a job's cells that its folder does not hold yet, and derive the folder's records; all its cells.

    Raises ValueError for a wrong configuration; a KeyboardInterrupt leaves every sample measured so far.
    """
    folder = locate(checkpoint_of(job.model), job.model.revision, weights=False)
    tokenizer = load_tokenizer(folder, job.model.bos)
    steps = plan(job, tokenizer)
    if dry_run or not quiet:
        print(describe(job.model, steps, job.results), file=sys.stderr, flush=True)
    if dry_run:
        return []

    store = Store(job.results)
    backend = opened(job.model, job.backend, max(job.lengths))
    try:
        cells = [(cell_of(job, step, backend), step) for step in steps]
        keep_job(store, job, backend, cells)
        costs = [1.0 if store.finished(cell) else max(step.estimate.flops, 1.0) for cell, step in cells]
        preflight = Preflight(job.results, backend, lexbench.__version__)
        with tqdm(total=sum(costs), unit_scale=True, disable=quiet, dynamic_ncols=True, bar_format=BAR) as bar:
            for (cell, step), cost in zip(cells, costs, strict=True):
                bar.set_description(f"{step.task.label} {step.method.label} {step.length}")
                if store.finished(cell):
                    bar.update(cost)
                else:
                    _measure(store, backend, preflight, tokenizer, cell, step, bar, cost)
    finally:
        done_with(backend)
    store.write_records(record for finished in store.load() for record in records_of(finished))
    return [cell for cell, _ in cells]


BAR = "{percentage:3.0f}% |{bar:20}| {elapsed} gone, {remaining} to go  {desc}"


def _measure(
    store: Store,
    backend: Backend,
    preflight: Preflight,
    tokenizer: FastTokenizer,
    cell: Cell,
    step: Step,
    bar: Any,
    cost: float,
) -> None:
    """One cell: ask what is not answered yet, and finish it; or record why there is no honest answer."""
    started, tokens = time.monotonic(), 0
    own_peak = provenance.forget_peak()
    try:
        if step.refused or step.attention is None:
            raise Refused(step.refused or "no attention")
        if failed := preflight.failure(step.attention, step.length):
            raise Refused(f"{step.method.label} {failed}")
        backend.attend(step.attention)
        started = time.monotonic()  # an engine may have been started for it, and serves all cells
        done = {sample.index for sample in store.resume(cell)}
        questions, _ = _questions(step.task.built, tokenizer, step.length, cell.n, step.seed)
        missing = [question for question in questions if question.index not in done]
        longest = max((question.length for question in missing), default=0)
        assert longest <= step.length, f"a question of {longest} tokens at {step.length}"
        bar.update(cost * (1 - len(missing) / len(questions)))
        for question, answer in zip(missing, answers(backend, missing), strict=True):
            store.append(cell, _sample(backend, step.task.built, question, answer))
            tokens += question.length
            bar.update(cost / len(questions))
        store.finish(cell)
    except Unavailable as refusal:
        store.put_off(cell, refusal.reason)
    except Refused as refusal:
        store.refuse(cell, refusal.reason)
    finally:  # an interrupted cell has cost something, too
        note_cost(store, backend, cell, time.monotonic() - started, tokens, own_peak)


def note_cost(store: Store, backend: Backend, cell: Cell, seconds: float, tokens: int, own_peak: bool) -> None:
    """Keep what a cell took; memory where it is this process's own."""
    peak = None if isinstance(backend, Remote) else provenance.peak_bytes()
    store.cost(cell, seconds=seconds, tokens=tokens, peak_bytes=peak, own_peak=own_peak and peak is not None)


def answered(backend: Backend, task: Task, question: AnyQuestion) -> Sample:
    """The sample of one question, with what was asked as text."""
    return _sample(backend, task, question, _ask(backend, question))


def _sample(backend: Backend, task: Task, question: AnyQuestion, answer: Answer) -> Sample:
    return replace(task.score(question, answer), prompt=excerpt(question, backend.tokenizer))


def answers(backend: Backend, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
    """Many at once where the backend gains from it, else one by one."""
    if isinstance(backend, Remote):
        return backend.answers(questions)
    return (_ask(backend, question) for question in questions)


def _ask(backend: Backend, question: AnyQuestion) -> Answer:
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


@functools.lru_cache(maxsize=1)
def _questions(
    task: Task, tokenizer: FastTokenizer, length: int, n: int, seed: int
) -> tuple[Sequence[AnyQuestion], str | None]:
    """A cell's questions, kept for the next method; or why there are none."""
    try:
        return task.questions(tokenizer, length, n, seed), None
    except Refused as refusal:
        return [], refusal.reason


def _attention(method: Method, model: Model, length: int) -> tuple[Attention | None, str | None]:
    try:
        return method.attention(model, length), None
    except Refused as refusal:
        return None, refusal.reason

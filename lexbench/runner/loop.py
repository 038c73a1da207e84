"""The one loop of lexbench: it measures the open cells of a run.

    claim -> questions -> attend -> answers -> score -> append -> finish

Every cell that is measured passes through `measure_run`: in this process, or with a model on a Ray worker
(`executor=ray`, a thread of this process per worker).
"""

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokenizer
from lexbench.runner.answers import Answerer, MemoryPeak, sample_of_answer
from lexbench.runner.cells import OpenCell
from lexbench.runner.clock import CellClock
from lexbench.runner.prompt_factors import with_used_groups
from lexbench.runner.questions import questions_of
from lexbench.runner.run import RunState
from lexbench.stats.invariants import score_keys_differ


def measure_run(run: RunState, model: Answerer, tokenizer: Tokenizer, by_method: bool = False) -> None:
    """Measure cells of a run until none is left; what cannot be measured is recorded as refused or deferred.

    An error that rises (a vanished folder, a lost worker, Ctrl-C) puts the cell back; its samples so far are kept.
    """
    for cell in run.queue.cells(by_method):
        with run.claim(cell) as mine:
            if mine and not run.settle_cell(cell):
                measure_cell(run, model, tokenizer, cell)


def measure_cell(
    run: RunState, model: Answerer, tokenizer: Tokenizer, cell: OpenCell, until: int | None = None
) -> int | None:
    """Measure one claimed cell, from the first sample that its file lacks.

    With `until`, only its questions of a lower index, and the cell stays unfinished. Returns the number of all of its
    questions; None where it was refused or deferred.
    """
    try:
        with run.progress.show_questions(cell):
            questions = questions_of(cell, tokenizer)
    except Refused as refusal:
        keep = run.store.defer if isinstance(refusal, Deferred) else run.store.refuse
        keep(cell, refusal.reason)
        run.end_cell(cell)
        return None
    cell = with_used_groups(cell, questions)
    clock, finished, refused = CellClock(), False, False
    done: set[int] = set()
    try:
        model.attend(cell)  # apply the method, which must pass its checks
        clock = CellClock()  # an engine may have started just now: no cost of this cell
        resumed = run.keep_samples(cell, questions, model, tokenizer)
        clock = CellClock(run.store.sample_costs(cell))
        done, first = {sample.index for sample in resumed}, next((s for s in resumed if s.failed is None), None)
        run.progress.begin_cell(cell, len(done))
        asked = questions if until is None else [question for question in questions if question.index < until]
        missing = [question for question in asked if question.index not in done]
        for question, answer in clock.time_answers(model.answers(cell, missing)):
            sample = sample_of_answer(cell.step.task.obj, tokenizer, question, answer)
            if sample.failed is None:
                first = first or sample
                if fault := score_keys_differ((first, sample)):
                    raise Deferred(explain_scores(cell, fault, stored=first.index in done))
            run.store.append(cell, sample, clock.count(sample.index, sample.tokens))
            run.progress.count_sample(cell)
        if until is not None:
            return len(questions)
        run.store.finish(cell, [question.index for question in questions])
        finished = True
    except Deferred as refusal:
        run.store.defer(cell, refusal.reason)
    except Refused as refusal:
        run.store.refuse(cell, refusal.reason)
        refused = True
    # What an interrupted or deferred cell has taken lies with its samples. A worker may die with its last answer given.
    seconds, peak = clock.own_seconds, model.peak()
    if finished or (refused and peak is not None):
        run.record_cost(cell, clock, peak or MemoryPeak(bytes=None, own=False))
    run.end_cell(cell, seconds if finished and not done else None)
    return len(questions) if finished else None


def explain_scores(cell: OpenCell, fault: str, stored: bool) -> str:
    """Why samples with different scores make no cell; `stored`: some are of an earlier run, of any version."""
    task = type(cell.step.task.obj).__name__
    if stored:
        return (
            f"{task}.score gave {fault}, one of them stored by an earlier run: raise the version of {task}, or delete "
            f"cells/{cell.id}.jsonl to measure all of them"
        )
    return f"{task}.score gave {fault}: give it for every sample, or say failed"

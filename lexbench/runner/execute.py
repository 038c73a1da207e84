"""Plan a job, measure what its folder lacks, and derive the folder's records."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lexbench.backends import Backend, capabilities
from lexbench.checkpoints.checkpoint import holds_adapter, refuse_adapter
from lexbench.core import objects, parts
from lexbench.core.errors import ConfigError, FetchError
from lexbench.core.files import check_writable
from lexbench.core.guard import plugin_guard
from lexbench.core.model import Model
from lexbench.core.record import Cell, Deferred
from lexbench.core.task import Tokenizer
from lexbench.core.text import count_with_noun
from lexbench.core.version import __version__
from lexbench.runner import progress
from lexbench.runner.answers import LoadedModel
from lexbench.runner.backend_pool import backend_for_job, tokenizer_of
from lexbench.runner.cells import BackendFacts
from lexbench.runner.job import Job
from lexbench.runner.loop import measure_run
from lexbench.runner.plan import describe_plan, fit_lengths, open_cell_of, plan_cells, refusal_lines, write_job_file
from lexbench.runner.rounds import measure_in_rounds
from lexbench.runner.run import RunState
from lexbench.runner.verify import Preflight
from lexbench.stats.invariants import record_problems
from lexbench.stats.records import records_of
from lexbench.store.store import Store


def execute_job(job: Job, dry_run: bool = False, quiet: bool = False, backend: Backend | None = None) -> list[Cell]:
    """Measure a job's cells that its folder does not hold yet, and derive the folder's records; returns all its cells.

    Other runs may work on the same folder: cells that they measure are waited for at the end. Raises ConfigError for a
    wrong configuration; a KeyboardInterrupt leaves every sample measured so far.

    Args:
        job: the job.
        dry_run: print the plan, and do nothing else.
        quiet: print neither plan nor progress.
        backend: with the job's model loaded, stays open; None: the job's own, opened and closed here.
    """
    _check_executors(job)
    if not dry_run:
        check_writable("results", job.results, "give another results=DIR")
    if backend is None:
        _check_backend(job, dry_run)
    try:
        tokenizer = tokenizer_of(job.model, job.backend) if backend is None else backend.tokenizer
    except FetchError as missing:
        if not dry_run:
            raise
        tokenizer = tokenizer_of(Model(name="lexlet", trained_length=1, head_dim=1, path="lexbench:lexlet"))
        print(f"{missing}\nthe plan counts tokens by lexlet's tokenizer: a guess", file=sys.stderr)
    steps = plan_cells(job, tokenizer)
    if dry_run or not quiet:
        text = describe_plan(job.model, steps, job.results, job.corpus.label, job.backend)
        if job.stopping is not None:
            text += "\n  at most: n=auto stops as soon as each method is decided"
        tqdm.write(progress.plan_lines(text, steps), file=sys.stderr)  # above the bar of a sweep
    if dry_run:
        return []

    doing = f"looking for texts of {count_with_noun(len(job.tasks), 'task')} at up to {max(job.lengths):,} tokens"
    with progress.print_when_slow(doing, quiet):
        if (fitted := fit_lengths(job, tokenizer)) is not job:
            job = fitted
            steps = plan_cells(job, tokenizer)
            if not quiet:
                late = [step for step in steps if (step.task.label, step.length) in job.too_long]
                tqdm.write("\n".join(refusal_lines(late)), file=sys.stderr)
    store = Store(job.results)
    with _models(job, backend, len(steps), tokenizer) as models:
        cells = [open_cell_of(job, step, models.facts) for step in steps]
        write_job_file(store, job, models.facts, cells)
        with store.group_writes(), RunState(job, store, cells, quiet) as run:
            if run.measured and not quiet:
                rest = len(cells) - run.measured
                still = f", {rest} left" if rest else ": nothing is left to do"
                tqdm.write(f"  {count_with_noun(run.measured, 'cell')} measured before{still}", file=sys.stderr)
            models.measure(run, tokenizer)
    # Records first: what is wrong with them can be seen in the folder.
    ids = {cell.id for cell in cells}
    read = [each for each in store.write_records(records_of) if each.cell.id in ids]
    held = [*read, *store.load(ids - {each.cell.id for each in read})]
    if odd := record_problems(held):
        raise ConfigError(next(iter(odd.values())))
    if store.problems and len(held) < len(ids):
        raise ConfigError(store.problems[0])
    return list[Cell](cells)


def _check_executors(job: Job) -> None:
    """ConfigError for wrong settings of any executor; one that fails itself ends only a run that asks for it."""
    for name in parts.names_provided("executor"):
        try:
            parts.load_provided("executor", name).settings_of(job)
        except Deferred as failure:
            if name == job.executor:
                raise
            parts.tell_left_out(f"executor {name}", failure)


def _backend_class(job: Job) -> type:
    """The class of the backend, which loads torch where the backend will."""
    return objects.checked_class(job.backend, "backend")


def _check_backend(job: Job, dry_run: bool) -> None:
    """ConfigError for a parameter of the backend or a model's folder that is seen to be wrong before anything loads.

    A plan may be made for another machine: whether this one has the device is asked for a run only.
    """
    folder = Path(job.model.path or "").expanduser()
    if job.model.path and holds_adapter(folder) and capabilities(_backend_class(job)).loads_weights:
        refuse_adapter(folder)
    given = {key: value for key, value in job.backend.items() if key not in ("_target_", "file", "name")}
    if not given:
        return
    cls = _backend_class(job)
    if check := getattr(cls, "check_settings", None):
        with plugin_guard(f"{cls.__name__}.check_settings"):
            check(given, job.model)
    if not dry_run and "device" in given and capabilities(cls).device_setting:
        from lexbench.backends.devices import device_of

        device_of(given["device"])


class _LocalModel:
    """The model in this process."""

    def __init__(self, job: Job, backend: Backend) -> None:
        self._model = LoadedModel(backend, Preflight(job.results, backend, __version__), job.reuse)
        self.facts = BackendFacts.of(backend)

    def measure(self, run: RunState, tokenizer: Tokenizer) -> None:
        """Measure all open cells of a run."""
        measure = measure_run if run.job.stopping is None else measure_in_rounds
        measure(run, self._model, tokenizer)


def _models(job: Job, backend: Backend | None, cells: int, tokenizer: Tokenizer) -> AbstractContextManager[Any]:
    """The models that measure: one in this process, or those of the job's executor."""
    if job.executor == "here":
        return _load_local_model(job, backend)
    opened: AbstractContextManager[Any] = parts.load_provided("executor", job.executor).cluster(job, cells, tokenizer)
    return opened


@contextmanager
def _load_local_model(job: Job, given: Backend | None) -> Iterator[_LocalModel]:
    with backend_for_job(job.model, job.backend, max(job.lengths)) if given is None else nullcontext(given) as backend:
        yield _LocalModel(job, backend)

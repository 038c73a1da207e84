"""Plan a job, measure what its folder lacks, and derive the folder's records."""

import sys

from lexbench.core.checkpoint import locate
from lexbench.core.record import Cell
from lexbench.core.tokenizer import load_tokenizer
from lexbench.runner import loop, ray
from lexbench.runner.backend_pool import checkpoint_of
from lexbench.runner.job import Job
from lexbench.runner.loop import plan
from lexbench.runner.plan import describe
from lexbench.stats.records import records_of
from lexbench.store.store import Store


def execute(job: Job, dry_run: bool = False, quiet: bool = False) -> list[Cell]:
    """Run a job's cells that its folder does not hold yet, and derive the folder's records; all its cells.

    Other runs may work on the same folder: cells that they measure are waited for at the end. Raises ValueError for a
    wrong configuration; a KeyboardInterrupt leaves every sample measured so far.
    """
    folder = locate(checkpoint_of(job.model), job.model.revision, weights=False)
    tokenizer = load_tokenizer(folder, job.model.bos)
    steps = plan(job, tokenizer)
    if dry_run or not quiet:
        print(describe(job.model, steps, job.results), file=sys.stderr, flush=True)
    if dry_run:
        return []

    store = Store(job.results)
    measured = ray.measured if job.executor == "ray" else loop.measured
    cells = measured(job, store, steps, tokenizer, quiet)
    store.write_records(records_of)
    return cells

"""Progress and remaining time of jobs, as data for the page."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lexbench.parts.web.view.estimate import cell_seconds, remaining_seconds, seconds_per_token
from lexbench.parts.web.view.folders import JobCell, UnfinishedCell, WatchedJob, WatchedRun

SILENT_AFTER_SECONDS = 60.0
"""Seconds without a new sample, besides 3 times a sample's own time, until a job counts as silent."""


def progress_data(runs: Sequence[WatchedRun], now: float | None = None) -> dict[str, Any]:
    """Plain JSON: counts over all folders, and the state of each job.

    Args:
        runs: from `Watch.runs`.
        now: seconds since the epoch; None: the current time.
    """
    moment = time.time() if now is None else now
    jobs = [_job_data(run, job, moment) for run in runs for job in run.jobs]
    planned = {cell for run in runs for job in run.jobs for cell in job.planned}
    finished = {cell for run in runs for cell in run.finished}
    # A job of an older version lists no cells: then nobody knows how many are planned in all.
    told = all(job.planned for run in runs for job in run.jobs)
    spans = [job["remaining"] for job in jobs if job["state"] == "running"]
    return {
        "planned": len(planned) if planned and told else None,
        "finished": len(finished & planned) if planned and told else len(finished),
        "refused": len({cell for run in runs for cell in run.refused}),
        "running": [_begun_share(cell, each, moment) for run in runs for cell, each in run.unfinished.items()],
        "remaining": _longest_time(spans),
        "jobs": jobs,
        "problems": [f"{run.folder.name}/{problem}" for run in runs for problem in run.problems],
    }


def _begun_share(cell: str, each: UnfinishedCell, now: float) -> dict[str, Any]:
    return {
        "cell": cell,
        "method": each.method,
        "task": each.task,
        "length": each.length,
        "samples": each.samples,
        "n": each.n,
        "silent": max(0.0, now - each.written),
    }


def _longest_time(spans: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    """The longest time of parallel jobs; None if there is no job, or if one has no estimate."""
    known = [each for each in spans if each]
    if not known or len(known) < len(spans):
        return None
    return {end: max(each[end] for each in known) for end in ("low", "high")}


def _job_data(run: WatchedRun, job: WatchedJob, now: float) -> dict[str, Any]:
    finished = [cell for cell in job.planned if cell in run.finished]
    left = {cell: planned for cell, planned in job.planned.items() if cell not in run.finished}
    begun = {cell: run.unfinished[cell] for cell in left if cell in run.unfinished}
    known = seconds_per_token(run, job.model)
    spans = {cell: cell_seconds(planned, known, begun.get(cell)) for cell, planned in left.items()}
    written = [job.begun, *(run.finished[cell] for cell in finished), *(each.written for each in begun.values())]
    silent = max(0.0, now - max(written))
    slowest = max((each.high / job.n for each in spans.values() if each), default=0.0)
    measured = [cell for cell in finished if cell not in run.refused and run.seconds.get(cell)]
    seconds = math.fsum(run.seconds[cell] for cell in measured)
    return {
        "folder": run.folder.name,
        "job": job.name,
        "model": job.model,
        "methods": list(dict.fromkeys(planned.method for planned in job.planned.values())),
        "tasks": list(dict.fromkeys(planned.task for planned in job.planned.values())),
        "planned": len(job.planned) or None,
        "finished": len(finished),
        "refused": len(run.refused.intersection(finished)),
        "running": sorted(begun),
        "state": _job_state(job, left, silent <= SILENT_AFTER_SECONDS + 3 * slowest),
        "begun": max(0.0, now - job.begun),
        "silent": silent,
        "seconds": math.fsum(run.seconds.get(cell, 0.0) for cell in finished),
        "tokens_per_second": sum(job.planned[cell].tokens for cell in measured) / seconds if seconds else None,
        "remaining": remaining_seconds(spans, begun),
    }


def _job_state(job: WatchedJob, left: Mapping[str, JobCell], heard: bool) -> str:
    """State of a job, from files alone: a job without new samples for long is `silent`, its process may have ended."""
    if not job.planned:
        return "unknown"
    if not left:
        return "finished"
    return "running" if heard else "silent"

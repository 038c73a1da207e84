"""Logs of Inspect (inspect_ai), a file for each measured cell: version 2 of its JSON log, which `inspect view` shows.

Format: https://inspect.aisi.org.uk/eval-logs.html
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lexbench.core.record import Record, Sample
from lexbench.parts.exchange.files import common
from lexbench.parts.exchange.files.common import File, SharedDetails
from lexbench.stats.metrics import is_token_loss
from lexbench.store.format import FinishedCell


def log_files(cells: Sequence[FinishedCell], about: SharedDetails) -> Iterator[File]:
    """A log for each cell that was measured: DATE_TASK_ID.json."""
    when = about.measured.isoformat(timespec="seconds")
    for run in common.group_cells(cells):
        for each in run:
            if each.samples:
                name = "_".join([when.replace(":", "-"), common.plain_name(each.cell.task), each.cell.id])
                unique = common.stable_uuid(run[0].cell.model, str(run[0].cell.method))
                yield f"{name}.json", common.dump_strict_json(_log_of_cell(each, when, unique))


def _log_of_cell(finished: FinishedCell, when: str, run: str) -> dict[str, Any]:
    cell = finished.cell
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": cell.id,
            "run_id": run,
            "created": when,
            "task": cell.task,
            "task_id": common.stable_uuid(cell.task, cell.length, cell.protocol),
            "task_version": common.task_version(finished),
            "task_display_name": f"{cell.task} at {cell.length} tokens, {cell.method}",
            "task_args": {"length": cell.length, "method": str(cell.method), "seed": cell.seed},
            "dataset": {
                "name": cell.corpus or cell.task,
                "samples": len(finished.samples),
                "sample_ids": [sample.index for sample in finished.samples],
                "shuffled": False,
            },
            "model": f"lexbench/{cell.model}",
            "model_args": {"method": str(cell.method), "dtype": cell.dtype, "kernel": cell.kernel},
            "config": {"limit": cell.n},
            "packages": {"lexbench": cell.version},
            "metadata": common.shared_conditions(finished),
        },
        "plan": {"name": str(cell.method), "steps": [], "config": {}},
        "results": {
            "total_samples": len(finished.samples),
            "completed_samples": sum(sample.failed is None for sample in finished.samples),
            "scores": _score_entries(common.complete_records(finished)),
        },
        "stats": {"started_at": when, "completed_at": when, "model_usage": {}},
        "samples": [_sample_entry(finished, sample) for sample in finished.samples],
    }


def _score_entries(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A scorer for each score; one for the likelihoods, which are made of the same NLL."""
    scorers: dict[str, list[Record]] = {}
    likelihoods = records[0].metric
    for record in records:
        scorers.setdefault(str(likelihoods if is_token_loss(likelihoods) else record.metric), []).append(record)
    return [
        {
            "name": name,
            "scorer": name,
            "scored_samples": found[0].n,
            "metrics": {
                (shown := str(record.metric) if is_token_loss(name) else "mean"): {
                    "name": shown,
                    "value": record.value,
                    "params": {},
                    "metadata": common.interval_fields(record),
                }
                for record in found
            },
        }
        for name, found in scorers.items()
    ]


def _sample_entry(finished: FinishedCell, sample: Sample) -> dict[str, Any]:
    written, model = common.written_answer(sample), f"lexbench/{finished.cell.model}"
    said = [] if written is None else [{"role": "assistant", "content": written, "source": "generate", "model": model}]
    stop = "max_tokens" if sample.hit_room else "stop"
    row: dict[str, Any] = {
        "id": sample.index,
        "epoch": 1,
        "input": sample.prompt or "",
        "target": common.reference_texts(sample),
        "messages": [{"role": "user", "content": sample.prompt or ""}, *said],
        "output": {
            "model": model,
            "choices": [{"message": each, "stop_reason": stop} for each in said],
            "completion": written or "",
        },
        "scores": {name: {"value": value, "answer": written} for name, value in _sample_values(sample).items()},
        "metadata": {
            "tokens": sample.tokens,
            "cluster": sample.cluster,
            "truncated": sample.truncated,
            "depth": sample.depth,
            "parts": list(sample.parts),
            "facts": {name: _to_python(value) for name, value in sample.facts.items()},
        },
        "model_usage": {},
    }
    if sample.failed:
        row["error"] = {"message": sample.failed, "traceback": "", "traceback_ansi": ""}
    return row


def _sample_values(sample: Sample) -> dict[str, float]:
    """Scores, or the mean NLL of a sample; nothing of a failed one."""
    if sample.failed:
        return {}
    if sample.nll is not None and len(sample.nll):
        return {"nll": float(sample.nll.astype(np.float64).mean())}
    return {name: float(value) for name, value in sample.scores.items()}


def _to_python(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value

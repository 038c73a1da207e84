"""Records of Every Eval Ever, the EvalEval coalition's database: schema 0.3.0, https://github.com/evaleval/every_eval_ever.

    data/lexbench/DEVELOPER/MODEL/UUID.json              every value of one model under one method, with its interval
    data/lexbench/DEVELOPER/MODEL/UUID_samples.jsonl     a line for each sample and score

A sample of a likelihood has no line: the schema wants to know whether it is right.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.record import Record, Sample
from lexbench.parts.exchange.files import common
from lexbench.parts.exchange.files.common import About, File
from lexbench.stats import metrics
from lexbench.stats.intervals import CONFIDENCE
from lexbench.store.format import Finished

VERSION = "0.3.0"
MARK = "lexbench"


def files(cells: Sequence[Finished], about: About) -> Iterator[File]:
    """Two files for each model and method, one where no sample has a score.

    Raises ConfigError where who measured, or who made the model, is not known.
    """
    if not about.organization:
        raise ConfigError("Every Eval Ever asks who measured: give --by ORGANIZATION")
    # Of backend=chance nothing: random answers are no results of the model.
    for group in common.groups([each for each in cells if each.cell.backend != "chance"]):
        kept = [(each, record) for each in group for record in common.whole(each) if metrics.better(record.metric)]
        if kept:
            yield from _evaluation(group, kept, about)


def _evaluation(group: Sequence[Finished], kept: Sequence[tuple[Finished, Record]], about: About) -> Iterator[File]:
    cell = group[0].cell
    model = cell.model if "/" in cell.model else f"{about.developer}/{cell.model}"
    if "/" not in cell.model and not about.developer:
        raise ConfigError(f"Every Eval Ever asks who made {cell.model}: give --developer NAME")
    unique = common.identifier(VERSION, [each.cell.id for each in group])
    folder = "/".join(["data", MARK, *map(common.plain_name, model.split("/", 1))])
    when = str(about.measured.timestamp())
    evaluation = f"{MARK}-{common.plain_name(cell.method)}-{unique[:8]}/{model}/{when}"
    lines = [common.dumped(line, None) for each, record in kept for line in _instances(each, record, evaluation, model)]
    log: dict[str, Any] = {
        "schema_version": VERSION,
        "evaluation_id": evaluation,
        "evaluation_timestamp": when,
        "retrieved_timestamp": when,
        "source_metadata": {
            "source_name": MARK,
            "source_type": "evaluation_run",
            "source_organization_name": about.organization,
            "evaluator_relationship": "first_party" if about.organization == model.split("/")[0] else "third_party",
        },
        "eval_library": {"name": MARK, "version": cell.version},
        "model_info": {
            "name": cell.model,
            "id": model,
            "developer": model.split("/")[0],
            "inference_engine": {"name": cell.backend, "version": str(common.part(group[0], "backend").get("version"))},
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if cell.backend != "openai" else "unknown",
                "method": str(cell.method),
                "trained_length": str(cell.trained_length),
                "dtype": cell.dtype,
                "kernel": cell.kernel,
                "revision": str(common.part(group[0], "model").get("revision")),
            },
        },
        "evaluation_results": [_result(each, record) for each, record in kept],
    }
    if lines:
        samples = "".join(f"{line}\n" for line in lines)
        log["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": f"{folder}/{unique}_samples.jsonl",
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(samples.encode()).hexdigest(),
            "total_rows": len(lines),
        }
        yield f"{folder}/{unique}_samples.jsonl", samples
    yield f"{folder}/{unique}.json", common.dumped(log)


def _name(finished: Finished) -> str:
    return f"{finished.cell.task} at {finished.cell.length} tokens"


def _result(finished: Finished, record: Record) -> dict[str, Any]:
    scored = metrics.is_score(record.metric)
    conditions = {**common.shared(finished), **common.interval(record)}
    said = {key: str(value) for key, value in conditions.items() if value is not None}
    uncertainty: dict[str, Any] = {"num_samples": record.n}
    if record.low is not None and record.high is not None:
        ends = {"lower": record.low, "upper": record.high, "confidence_level": CONFIDENCE}
        uncertainty["confidence_interval"] = {**ends, "method": str(record.interval)}
    return {
        "evaluation_result_id": f"{finished.cell.id}/{record.metric}",
        "evaluation_name": _name(finished),
        "source_data": {"dataset_name": finished.cell.corpus or finished.cell.task, "source_type": "other"},
        "metric_config": {
            "evaluation_description": finished.cell.protocol,
            "metric_id": record.metric if scored else f"{MARK}.{record.metric}",
            "metric_name": metrics.label(record.metric),
            "metric_unit": "proportion" if scored else metrics.label(record.metric),
            "metric_parameters": {"length": finished.cell.length, "multiple": record.multiple},
            "lower_is_better": metrics.better(record.metric) < 0,
            "score_type": "continuous",
            "min_score": 0.0 if scored or record.metric in metrics.LIKELIHOODS else "-Infinity",
            "max_score": 1.0 if scored else "Infinity",
        },
        "score_details": {"score": record.value, "details": said, "uncertainty": uncertainty},
    }


def _instances(finished: Finished, record: Record, evaluation: str, model: str) -> Iterator[dict[str, Any]]:
    """A line for each sample that has this score; a failed one scores 0."""
    for sample in finished.samples:
        if not metrics.is_score(record.metric) or sample.nll is not None:
            return
        score = 0.0 if sample.failed else float(sample.scores[str(record.metric)])
        written = common.answer(sample) or ""
        asked = "".join([sample.prompt or "", *common.references(sample)])
        yield {
            "schema_version": VERSION,
            "evaluation_id": evaluation,
            "model_id": model,
            "evaluation_name": _name(finished),
            "evaluation_result_id": f"{finished.cell.id}/{record.metric}",
            "sample_id": str(sample.index),
            "sample_hash": hashlib.sha256(asked.encode()).hexdigest(),
            "interaction_type": "single_turn",
            "input": {"raw": sample.prompt or "", "reference": common.references(sample)},
            "output": {"raw": [written]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": written,
                    "extraction_method": str(record.metric),
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": score, "is_correct": score >= 1},
            "error": sample.failed,
            "metadata": _metadata(sample),
        }


def _metadata(sample: Sample) -> dict[str, str]:
    about = {"tokens": sample.tokens, "cluster": sample.cluster, "depth": sample.depth, "truncated": sample.truncated}
    return {name: str(value) for name, value in about.items() if value is not None}

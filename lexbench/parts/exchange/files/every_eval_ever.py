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
from lexbench.parts.exchange.files.common import File, SharedDetails
from lexbench.report.wording import metric_label
from lexbench.stats import metrics
from lexbench.stats.intervals import CONFIDENCE_LEVEL
from lexbench.store.format import FinishedCell

SCHEMA_VERSION = "0.3.0"
SOURCE_NAME = "lexbench"


def evaluation_files(cells: Sequence[FinishedCell], about: SharedDetails) -> Iterator[File]:
    """Two files for each model and method, one where no sample has a score.

    Raises ConfigError where who measured, or who made the model, is not known.
    """
    if not about.organization:
        raise ConfigError("Every Eval Ever asks who measured: give --by ORGANIZATION")
    # Of backend=chance nothing: random answers are no results of the model.
    for group in common.group_cells([each for each in cells if each.cell.backend != "chance"]):
        kept = [
            (each, record)
            for each in group
            for record in common.complete_records(each)
            if metrics.better_direction(record.metric)
        ]
        if kept:
            yield from _evaluation_files(group, kept, about)


def _evaluation_files(
    group: Sequence[FinishedCell], kept: Sequence[tuple[FinishedCell, Record]], about: SharedDetails
) -> Iterator[File]:
    cell = group[0].cell
    model = cell.model if "/" in cell.model else f"{about.developer}/{cell.model}"
    if "/" not in cell.model and not about.developer:
        raise ConfigError(f"Every Eval Ever asks who made {cell.model}: give --developer NAME")
    unique = common.stable_uuid(SCHEMA_VERSION, [each.cell.id for each in group])
    folder = "/".join(["data", SOURCE_NAME, *map(common.plain_name, model.split("/", 1))])
    when = str(about.measured.timestamp())
    evaluation = f"{SOURCE_NAME}-{common.plain_name(cell.method)}-{unique[:8]}/{model}/{when}"
    lines = [
        common.dump_strict_json(line, None)
        for each, record in kept
        for line in _instance_lines(each, record, evaluation, model)
    ]
    log: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation,
        "evaluation_timestamp": when,
        "retrieved_timestamp": when,
        "source_metadata": {
            "source_name": SOURCE_NAME,
            "source_type": "evaluation_run",
            "source_organization_name": about.organization,
            "evaluator_relationship": "first_party" if about.organization == model.split("/")[0] else "third_party",
        },
        "eval_library": {"name": SOURCE_NAME, "version": cell.version},
        "model_info": {
            "name": cell.model,
            "id": model,
            "developer": model.split("/")[0],
            "inference_engine": {
                "name": cell.backend,
                "version": str(common.identity_part(group[0], "backend").get("version")),
            },
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if cell.backend != "openai" else "unknown",
                "method": str(cell.method),
                "trained_length": str(cell.trained_length),
                "dtype": cell.dtype,
                "kernel": cell.kernel,
                "revision": str(common.identity_part(group[0], "model").get("revision")),
            },
        },
        "evaluation_results": [_result_entry(each, record) for each, record in kept],
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
    yield f"{folder}/{unique}.json", common.dump_strict_json(log)


def _setup_name(finished: FinishedCell) -> str:
    return f"{finished.cell.task} at {finished.cell.length} tokens"


def _result_entry(finished: FinishedCell, record: Record) -> dict[str, Any]:
    scored = metrics.is_score(record.metric)
    conditions = {**common.shared_conditions(finished), **common.interval_fields(record)}
    said = {key: str(value) for key, value in conditions.items() if value is not None}
    uncertainty: dict[str, Any] = {"num_samples": record.n}
    if record.low is not None and record.high is not None:
        ends = {"lower": record.low, "upper": record.high, "confidence_level": CONFIDENCE_LEVEL}
        uncertainty["confidence_interval"] = {**ends, "method": str(record.interval)}
    return {
        "evaluation_result_id": f"{finished.cell.id}/{record.metric}",
        "evaluation_name": _setup_name(finished),
        "source_data": {"dataset_name": finished.cell.corpus or finished.cell.task, "source_type": "other"},
        "metric_config": {
            "evaluation_description": finished.cell.protocol,
            "metric_id": record.metric if scored else f"{SOURCE_NAME}.{record.metric}",
            "metric_name": metric_label(record.metric),
            "metric_unit": "proportion" if scored else metric_label(record.metric),
            "metric_parameters": {"length": finished.cell.length, "multiple": record.multiple},
            "lower_is_better": metrics.better_direction(record.metric) < 0,
            "score_type": "continuous",
            "min_score": 0.0 if scored or metrics.is_likelihood(record.metric) else "-Infinity",
            "max_score": 1.0 if scored else "Infinity",
        },
        "score_details": {"score": record.value, "details": said, "uncertainty": uncertainty},
    }


def _instance_lines(finished: FinishedCell, record: Record, evaluation: str, model: str) -> Iterator[dict[str, Any]]:
    """A line for each sample that has this score; a failed one scores 0."""
    for sample in finished.samples:
        if not metrics.is_score(record.metric) or sample.nll is not None:
            return
        score = 0.0 if sample.failed else float(sample.scores[str(record.metric)])
        written = common.written_answer(sample) or ""
        asked = "".join([sample.prompt or "", *common.reference_texts(sample)])
        yield {
            "schema_version": SCHEMA_VERSION,
            "evaluation_id": evaluation,
            "model_id": model,
            "evaluation_name": _setup_name(finished),
            "evaluation_result_id": f"{finished.cell.id}/{record.metric}",
            "sample_id": str(sample.index),
            "sample_hash": hashlib.sha256(asked.encode()).hexdigest(),
            "interaction_type": "single_turn",
            "input": {"raw": sample.prompt or "", "reference": common.reference_texts(sample)},
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
            "metadata": _sample_metadata(sample),
        }


def _sample_metadata(sample: Sample) -> dict[str, str]:
    about = {"tokens": sample.tokens, "cluster": sample.cluster, "depth": sample.depth, "truncated": sample.truncated}
    return {name: str(value) for name, value in about.items() if value is not None}

"""Results of lm-evaluation-harness 0.4: the files of `--output_path` with `--log_samples`.

    MODEL/METHOD-LENGTH-ID/results_DATE.json           aggregates, settings and versions of one model, method and length
    MODEL/METHOD-LENGTH-ID/samples_TASK_DATE.jsonl     an example per line

The section `lexbench` of the config says what was measured, as our own model of the harness writes it; `lexbench import
lm_eval` reads it. A likelihood is a task of the kind loglikelihood_rolling, a measure of attention is left out.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lexbench.core.record import Record, Sample
from lexbench.parts.exchange.files import common
from lexbench.parts.exchange.files.common import File, SharedDetails
from lexbench.parts.exchange.hub.dataset_files import configuration_names
from lexbench.parts.exchange.lm_eval import MODEL_NAME
from lexbench.stats import metrics
from lexbench.store.format import FinishedCell

HARNESS_VERSION = "0.4.13"
"""The release whose files these are like."""
HARNESS_NAME_OF_METRIC = {"accuracy": "acc"}


def harness_files(cells: Sequence[FinishedCell], about: SharedDetails) -> Iterator[File]:
    """Aggregates and samples of each model, method, length and seed.

    A results file names a task once: cells of one task, on several corpora for example, go into several files.
    """
    date = about.measured.strftime("%Y-%m-%dT%H-%M-%S.%f")
    for group in common.group_cells(cells, "length", "seed"):
        apart: list[dict[str, FinishedCell]] = []
        for each in (each for each in group if each.samples and _records(each)):
            kept = next((kept for kept in apart if each.cell.task not in kept), None)
            if kept is None:
                apart.append(kept := {})
            kept[each.cell.task] = each
        for kept in apart:
            names = configuration_names(kept)
            cell = group[0].cell
            unique = common.stable_uuid([each.cell.id for each in kept.values()])[:8]
            place = f"{common.plain_name(cell.method)}-{cell.length}-{unique}"
            folder = f"{common.plain_name(cell.model)}/{place}"
            for task, each in kept.items():
                lines = "".join(
                    f"{common.dump_strict_json(_sample_line(each, sample), None)}\n" for sample in each.samples
                )
                yield f"{folder}/samples_{names[task]}_{date}.jsonl", lines
            by_name = {names[task]: each for task, each in kept.items()}
            yield f"{folder}/results_{date}.json", common.dump_strict_json(_results_content(by_name, about))


def _records(finished: FinishedCell) -> list[Record]:
    # The harness knows no mean NLL; perplexity and bits per byte, which are made of it, say the same.
    return [
        each
        for each in common.complete_records(finished)
        if not metrics.is_measure(each.metric) and not metrics.is_token_loss(each.metric)
    ]


def _output_type(finished: FinishedCell) -> str:
    sample = finished.samples[0]
    if sample.nll is not None:
        return "loglikelihood_rolling"
    return "multiple_choice" if "option_nll" in sample.statistics else "generate_until"


def _harness_metric_name(metric: str | None) -> str:
    return HARNESS_NAME_OF_METRIC.get(str(metric), str(metric))


def _results_content(tasks: dict[str, FinishedCell], about: SharedDetails) -> dict[str, Any]:
    first = next(iter(tasks.values()))
    cell = first.cell
    config = {
        name: {
            "task": name,
            "description": each.cell.protocol,
            "output_type": _output_type(each),
            "metadata": {"version": common.task_version(each)},
        }
        for name, each in tasks.items()
    }
    model = {"trained_length": cell.trained_length, "name": cell.model}
    ours = {
        "version": cell.version,
        "model": {**model, **common.identity_part(first, "model")},
        "method": common.identity_part(first, "method"),
        "label": str(cell.method),
        "method_key": cell.method.as_data(),
        "length": cell.length,
        "attention": common.identity_part(first, "attention"),
        "backend": {
            **{"name": cell.backend, "dtype": cell.dtype, "kernel": cell.kernel},
            **common.identity_part(first, "backend"),
        },
        "truncated": {},
        "intervals": {
            name: {_harness_metric_name(each.metric): common.interval_fields(each) for each in _records(found)}
            for name, found in tasks.items()
        },
    }
    return {
        "results": {name: _metric_values(name, each) for name, each in tasks.items()},
        "group_subtasks": {name: [] for name in tasks},
        "configs": config,
        "versions": {name: common.task_version(each) for name, each in tasks.items()},
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {
            name: {
                _harness_metric_name(each.metric): metrics.better_direction(each.metric) > 0 for each in _records(found)
            }
            for name, found in tasks.items()
        },
        "n-samples": {
            name: {"original": len(each.samples), "effective": len(each.samples)} for name, each in tasks.items()
        },
        "config": {
            "model": "lexbench",
            "model_args": {"model": cell.model, "method": str(cell.method), "max_length": cell.length},
            "model_dtype": f"torch.{cell.dtype}",
            "random_seed": cell.seed,
            "fewshot_seed": cell.seed,
            "lexbench": ours,
        },
        "date": about.measured.timestamp(),
        "model_name": cell.model,
        "max_length": cell.length,
        "lm_eval_version": HARNESS_VERSION,
    }


def _metric_values(name: str, finished: FinishedCell) -> dict[str, Any]:
    """The harness's keys: `acc,none`, `acc_stderr,none`."""
    found: dict[str, Any] = {"alias": name, "sample_len": len(finished.samples)}
    for record in _records(finished):
        found[f"{_harness_metric_name(record.metric)},none"] = record.value
        found[f"{_harness_metric_name(record.metric)}_stderr,none"] = _standard_error(finished, record)
    return found


def _standard_error(finished: FinishedCell, record: Record) -> float | str:
    """The harness's standard error of a mean, where examples are independent: s / sqrt(n), with n - 1 in s."""
    if not metrics.is_score(record.metric) or record.clusters < record.n or record.n < 2:
        return "N/A"
    scores = [0.0 if each.failed else float(each.scores[str(record.metric)]) for each in finished.samples]
    return statistics.stdev(scores) / math.sqrt(len(scores))


def _sample_line(finished: FinishedCell, sample: Sample) -> dict[str, Any]:
    kind, target = _output_type(finished), "\n".join(common.reference_texts(sample))
    prompt = sample.prompt or ""
    options = sample.statistics.get("option_nll", np.zeros(0))
    requests: list[list[Any]]
    if kind == "multiple_choice":
        requests = [[prompt, f"option {place + 1}"] for place in range(len(options))]
        responses: list[Any] = [[[str(-float(nll)), str(nll == min(options))]] for nll in options]
        target = str(sample.facts.get("expected_option", target))
    elif kind == "generate_until":
        requests, responses = [[prompt, {}]], [[common.written_answer(sample) or ""]]
    else:
        requests, responses = [[prompt]], [[str(-_log_likelihood(sample))]]
    return {
        "doc_id": sample.index,
        # Our import reads the last: prompts are shortened here, and do not say how much room their answers had.
        "doc": {
            "cluster": sample.cluster,
            MODEL_NAME: {"tokens": sample.tokens, "truncated": sample.truncated, "chance": sample.chance},
        },
        "target": target,
        "arguments": {
            f"gen_args_{place}": {f"arg_{part}": each for part, each in enumerate(request)}
            for place, request in enumerate(requests)
        },
        "resps": responses,
        "filtered_resps": [each[0] for each in responses],
        "filter": "none",
        "metrics": [_harness_metric_name(each.metric) for each in _records(finished)],
        "doc_hash": common.stable_uuid(sample.cluster),
        "prompt_hash": common.stable_uuid(prompt),
        "target_hash": common.stable_uuid(target),
        **{_harness_metric_name(each.metric): _logged_value(sample, str(each.metric)) for each in _records(finished)},
    }


def _log_likelihood(sample: Sample) -> float:
    return 0.0 if sample.nll is None else float(sample.nll.astype(np.float64).sum())


def _logged_value(sample: Sample, metric: str) -> Any:
    """A score; of a likelihood the pair (log-likelihood, units), which the harness adds up."""
    if sample.nll is None:
        return 0.0 if sample.failed or metric not in sample.scores else float(sample.scores[metric])
    units = {"bits_per_byte": sample.bytes, "word_perplexity": sample.words}.get(metric, len(sample.nll))
    return [-_log_likelihood(sample), units]

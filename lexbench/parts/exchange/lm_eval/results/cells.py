"""One task of a results file as cells with samples: one cell, or one per length that the task defines."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.record import Cell, Sample
from lexbench.core.text import count_with_noun, plain_text
from lexbench.parts.exchange.lm_eval.results.examples import LoggedExample, RequestTokenCounter, read_examples
from lexbench.parts.exchange.lm_eval.results.files import (
    HarnessResults,
    mapping_or_empty,
    read_samples,
    whole_number_or_none,
)
from lexbench.parts.exchange.lm_eval.results.metrics import LoggedMetric, example_scores, logged_metrics, why_no_score
from lexbench.parts.exchange.lm_eval.results.setup import LoggedSetup, one_line_value


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptLengths:
    """Prompt lengths, for results that do not state them."""

    stated: int | None
    """Tokens, given by the user."""
    tokens: RequestTokenCounter | None
    """Token counter; None: tokens are not counted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedTask:
    """Task of a results file, with its examples and metrics."""

    results: HarnessResults
    setup: LoggedSetup
    task: str
    kind: str
    """The task's output_type."""
    every: Sequence[LoggedExample]
    fit: Sequence[LoggedMetric]
    """Metrics that can be scores of samples."""
    left_out: Sequence[str]
    """The other metrics, one line per reason."""
    keys: Sequence[str]
    """All metrics, as the harness names them."""

    def task_entry(self, name: str) -> Any:
        """The task's entry in a section of the results; None if there is none."""
        return self.results.section(name).get(self.task)


def read_task(results: HarnessResults, setup: LoggedSetup, task: str, lengths: PromptLengths) -> LoggedTask:
    """Read a task, its examples, and the metrics that can be scores.

    Raises ConfigError without logged samples, for malformed ones, and if truncated prompts cannot be identified.
    """
    name = plain_text(task)
    file = results.samples.get(task)
    stated = mapping_or_empty(results.section("results")[task])
    keys = [key for key in stated if "," in key and not key.partition(",")[0].endswith("_stderr")]
    if file is None:
        reason = "an aggregate alone has no interval and cannot be paired"
        raise ConfigError(f"{name} of {results.file} has no samples, and {reason}: run lm_eval with --log_samples")
    if not keys:
        raise ConfigError(f"{name} of {results.file} has no metrics: run it again, with lm_eval 0.4 or newer")
    if setup.cut.get(task) and lengths.tokens is None:
        lost = count_with_noun(setup.cut[task], "request")
        raise ConfigError(f"{lost} of {name} lost their first tokens: give --tokenizer DIR to find out which")
    kind = one_line_value(mapping_or_empty(results.section("configs").get(task)).get("output_type"))
    every = read_examples(read_samples(file), keys, kind, lengths.tokens)
    count = mapping_or_empty(results.section("n-samples").get(task)).get(
        "effective", stated.get("sample_len", len(every))
    )
    if count != len(every):
        raise ConfigError(
            f"samples {file} hold {len(every)} examples, the results {one_line_value(count)}: use files of one run"
        )
    better = mapping_or_empty(results.section("higher_is_better").get(task))
    fit: list[LoggedMetric] = []
    odd: dict[str, list[str]] = {}
    for metric in logged_metrics(every, keys):
        if why := why_no_score(metric, stated[metric.key], better.get(metric.name)):
            odd.setdefault(why, []).append(metric.key.removesuffix(",none"))
        else:
            fit.append(metric)
    return LoggedTask(
        results=results,
        setup=setup,
        task=task,
        kind=kind,
        every=every,
        fit=fit,
        left_out=[f"{name} {plain_text(', '.join(names))}: {why}" for why, names in odd.items()],
        keys=keys,
    )


def cells_of_task(task: LoggedTask, lengths: PromptLengths) -> Iterator[tuple[Cell, list[Sample]]]:
    """The cells of a task with their samples; none if no metric can be imported."""
    for made_for in sorted({each.made_for for each in task.every}, key=lambda each: each or 0):
        group = [example for example in task.every if example.made_for == made_for]
        fit = [metric for metric in task.fit if metric.of(made_for)]
        if fit:
            length = _cell_length(task, group, made_for, lengths)
            yield (
                _build_cell(task, group, length, lengths),
                [_build_sample(task, example, fit, length) for example in group],
            )


def _cell_length(task: LoggedTask, group: Sequence[LoggedExample], made_for: int | None, lengths: PromptLengths) -> int:
    """The cell's length: the task's, else the method's, else the user's, else that of the longest prompt."""
    longest = max((example.tokens or 0 for example in group), default=0)
    known = made_for or task.setup.length or lengths.stated or longest
    where = f"{plain_text(task.task)} of {task.results.file}"
    if not known:
        raise ConfigError(f"{where} does not state the length of its prompts: give --tokenizer DIR, or --length N")
    if known == lengths.stated and longest > known:
        raise ConfigError(f"{where} has prompts of {longest} tokens: --length must be at least that, got {known}")
    return known


def _build_sample(task: LoggedTask, example: LoggedExample, fit: Sequence[LoggedMetric], length: int) -> Sample:
    limit = task.setup.limit or math.inf
    read = (example.tokens or 0) - (task.kind != "generate_until")  # the last token is scored, not read
    answers = {"answers": example.answers} if example.output is not None else {}
    return Sample(
        index=example.index,
        cluster=example.cluster,
        tokens=min(example.tokens or length, length),  # of a truncated prompt, what the model read
        truncated=example.cut or read > limit,
        scores=example_scores(example, fit),
        chance=example.chance,
        statistics={} if example.option_nll is None else {"option_nll": example.option_nll},
        prompt=example.prompt,
        output=example.output,
        facts={**example.expected, **answers},
    )


def _build_cell(task: LoggedTask, group: Sequence[LoggedExample], length: int, lengths: PromptLengths) -> Cell:
    setup, config = task.setup, task.results.section("config")
    set_to = setup.length if setup.attention else None  # without changes the length does not matter
    by_length = set_to is not None and group[0].made_for is not None
    seed = config.get("fewshot_seed") or config.get("random_seed")
    identity = {
        "model": setup.model,
        "method": {**setup.method, "set_to": set_to, "samples": _hash_of_lines(group)},
        "attention": setup.attention,
        "task": _task_identity(task),
        "corpus": None,
        "backend": setup.backend,
        "seeds": {name: config.get(f"{name}_seed") for name in ("random", "numpy", "torch")},
        "counted": lengths.tokens is not None,
        "length": length,
        "seed": whole_number_or_none(seed) or 0,
        "n": len(group),
    }
    return Cell(
        model=str(setup.model["name"]),
        method=replace(setup.key, at=set_to) if by_length else setup.key,
        task=f"lm_eval:{plain_text(task.task)}",
        length=length,
        trained_length=int(setup.model["trained_length"]),
        seed=whole_number_or_none(seed) or 0,
        n=len(group),
        protocol=_protocol_line(task, lengths),
        backend=str(setup.backend["name"]),
        dtype=str(setup.backend["dtype"]),
        kernel=str(setup.backend["kernel"]),
        corpus=None,
        version=setup.version,
        identity=json.loads(json.dumps(identity, default=str)),
    )


def _task_identity(task: LoggedTask) -> Mapping[str, Any]:
    """Everything that the questions and their scores depend on."""
    content, config = task.results.content, mapping_or_empty(task.task_entry("configs"))
    return {
        "name": f"lm_eval:{plain_text(task.task)}",
        "version": one_line_value(task.task_entry("versions")),
        "harness": one_line_value(content.get("lm_eval_version")),
        "kind": task.kind,
        "fewshot": task.task_entry("n-shot"),
        "generation": [config.get("generation_kwargs"), task.results.section("config").get("gen_kwargs")],
        "description": _hash_of_text(config.get("description")),
        "system_instruction": _hash_of_text(content.get("system_instruction")),
        "chat_template": _hash_of_text(content.get("chat_template")),
        "turns": content.get("fewshot_as_multiturn"),
    }


def _hash_of_lines(group: Sequence[LoggedExample]) -> str:
    """Hash of the logged lines of a cell, so that the same lines in another file give the same cell."""
    return hashlib.sha256(b"".join(line for example in group for line in sorted(example.hashes))).hexdigest()[:16]


def _hash_of_text(text: Any) -> str | None:
    return hashlib.sha256(str(text).encode(errors="replace")).hexdigest()[:8] if text else None


def _protocol_line(task: LoggedTask, lengths: PromptLengths) -> str:
    """The protocol in one line: harness, task, shots, scores, chat template."""
    about = _task_identity(task)
    shots, turns = about["fewshot"], " in turns" if about["turns"] else ""
    names = {f"{each.name} as {each.label}" if each.renamed else each.label for each in task.fit}
    parts = [
        f"lm-evaluation-harness {about['harness']}",
        f"task {plain_text(task.task)} version {about['version']} ({about['kind']})",
        f"{one_line_value(shots)}-shot{turns}",
        f"scored by {', '.join(sorted(names))}",
        f"chat template {about['chat_template']}" if about["chat_template"] else "no chat template",
        f"system instruction {about['system_instruction']}" if about["system_instruction"] else "",
        "" if lengths.tokens else "tokens not counted",
    ]
    return ", ".join(part for part in parts if part)

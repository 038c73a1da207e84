"""A job's cells with their workload, before the model is loaded; and what the run will cost."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lexbench.backends import capabilities
from lexbench.checkpoints.checkpoint import BYTES_PER_NUMBER
from lexbench.core import machine, objects
from lexbench.core.attention import Attention, Shift, sees_prompt_end
from lexbench.core.errors import ConfigError
from lexbench.core.guard import plugin_guard
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokenizer
from lexbench.core.text import count_with_noun, join_first_few
from lexbench.core.version import full_version
from lexbench.methods.composition import Method
from lexbench.methods.scaled import attention_of, grows_with_length
from lexbench.metrics import own_metrics
from lexbench.runner.cells import BackendFacts, Component, MethodComponent, OpenCell, PlannedCell, Workload
from lexbench.runner.forecast import cell_workload, format_duration, operations_per_second, parameter_count
from lexbench.runner.job import Job
from lexbench.runner.prompt_factors import group_lengths
from lexbench.runner.questions import outline_or_reason, questions_or_reason
from lexbench.store.folder_faults import job_name
from lexbench.store.store import Store
from lexbench.taskkit.prompt import context_prefix


def plan_cells(job: Job, tokenizer: Tokenizer) -> list[PlannedCell]:
    """All cells of a job with their cost, in the order in which they run: methods side by side at each length.

    The longest come first, so that shorter ones can take what these hold, and no long one is left for the end; the
    shortest where longer ones may be skipped. What is named twice is planned once. No question is written: cost and
    refusals are what the tasks foresee for the first seed.
    """
    by_prompt = any(task.obj.factor_of_prompt for task in job.tasks)
    attentions = {
        (method.label, at): _attention(method.obj, job.model, at)
        for length in job.lengths
        for method in _methods(job, length)
        for at in (group_lengths(job.model.trained_length, length) if by_prompt else [length])
    }
    steps: dict[tuple[str, str, int, int], PlannedCell] = {}
    for task in job.tasks:
        _, unstated = _protocol(task, tokenizer)
        outlines = {
            length: outline_or_reason(task, tokenizer, length, job.n, job.seeds[0])
            for length in job.lengths
            if unstated is None and (task.label, length) not in job.too_long
        }
        for seed in job.seeds:
            for length in sorted(job.lengths, reverse=not job.stop_after_collapse):
                outline, foreseen = outlines.get(length, (None, None))
                for method in _methods(job, length):
                    attention, no_attention = attentions[method.label, length]
                    if attention is not None:
                        attention, no_attention = _join_attention(attention, task, method, length)
                    groups: Mapping[int, Attention] = {}
                    if attention is not None and task.obj.factor_of_prompt:
                        lengths = group_lengths(job.model.trained_length, length)
                        made = {at: attentions[method.label, at] for at in lengths}
                        groups, no_attention = _groups(made, task, method)
                    known = no_attention or unstated or job.too_long.get((task.label, length))
                    refused = known or foreseen
                    steps[method.label, task.label, length, seed] = PlannedCell(
                        method,
                        task,
                        length,
                        seed,
                        attention,
                        refused.reason if refused else None,
                        Workload()
                        if refused or outline is None
                        else cell_workload(job.model, outline, outline.per_text > 1 and _reads_once(job, attention)),
                        retry=isinstance(refused, Deferred),
                        is_foreseen=known is None and foreseen is not None,
                        groups=groups,
                    )
    return list(steps.values())


def _reads_once(job: Job, attention: Attention | None) -> bool:
    """Whether a text is read once for all questions behind it; not where its end or length changes how it is read."""
    parts = attention.parts() if attention else []
    ranked = any(part.head_ratios is not None or part.dynamic is not None for part in parts)
    ranked |= any(part.cache is not None and sees_prompt_end(part.cache) for part in parts)
    growing = grows_with_length(job.model) and any(part.inv_freq is None for part in parts)
    return job.reuse and not ranked and not growing and _keeps_texts(job.backend)


def _keeps_texts(backend: Mapping[str, Any]) -> bool:
    """Whether a backend keeps a prompt for the next question, or its engine the beginnings of texts."""
    with suppress(ConfigError, Refused):  # of a package that is not here: a plan needs none
        can = capabilities(objects.checked_class(backend, "backend"))
        return can.prefix_reuse or (can.engine_cache and bool(backend.get("prefix_caching", True)))
    return False


def _protocol(task: Component, tokenizer: Tokenizer) -> tuple[str, Refused | None]:
    """The protocol of a task; or why it cannot state one, also as its text."""
    try:
        with plugin_guard(f"{type(task.obj).__name__}.protocol"):
            found = task.obj.protocol(tokenizer)
            assert isinstance(found, str), "a protocol is a text"
        return found, None
    except Refused as refusal:
        return refusal.reason, refusal


def fit_lengths(job: Job, tokenizer: Tokenizer) -> Job:
    """Drop lengths that the corpus cannot fill, and set tasks up for the rest; returns the job.

    Only a task that is set by the longest length is changed, as this enters the identity of all its cells. Writes the
    questions of such a task at its longest length.
    """
    if any(map(uses_corpus, job.tasks)):
        with suppress(Refused):  # its cells say why
            _ = job.corpus.fingerprint  # before its texts are read
    fitted, too_long = list[Component](), dict[tuple[str, int], Refused]()
    for task in job.tasks:
        fits, refusals = _drop_unfillable_lengths(task, job, tokenizer)
        fitted.append(fits)
        too_long |= {(task.label, length): refusal for length, refusal in refusals.items()}
    return replace(job, tasks=fitted, too_long=too_long) if too_long else job


def _drop_unfillable_lengths(
    task: Component, job: Job, tokenizer: Tokenizer
) -> tuple[Component, Mapping[int, Refused]]:
    """The task as in a run of the lengths that it has questions for, and for each longer one why it has none.

    Only for a task whose questions depend on the longest length; how many texts a corpus has does not depend on the
    seed.
    """
    lengths, too_long = sorted(job.lengths), dict[int, Refused]()
    # Questions of all lengths are made for the longest one; while that has none, it is dropped.
    while (
        task.unresolved is not None
        and len(lengths) > 1
        and task.unresolved.for_lengths(lengths) != task.unresolved.for_lengths(lengths[:-1])
    ):
        built = task.unresolved.for_lengths(lengths)
        _, refused = questions_or_reason(replace(task, obj=built), tokenizer, lengths[-1], job.n, job.seeds[0])
        if refused is None:
            break
        too_long[lengths.pop()] = refused
    return replace(task, obj=task.unresolved.for_lengths(lengths)) if too_long else task, too_long


def _methods(job: Job, length: int) -> list[MethodComponent]:
    """Methods of the cells of a length."""
    return [*job.methods, *(job.deployed if length == job.price_length else ())]


def _attention(method: Method, model: Model, length: int) -> tuple[Attention | None, Refused | None]:
    try:
        return attention_of(method, model, length), None
    except Refused as refusal:
        return None, refusal


def _join_attention(
    attention: Attention, task: Component, method: MethodComponent, length: int
) -> tuple[Attention | None, Refused | None]:
    """A method's Attention with that of the task, if it has one; or why they cannot be combined."""
    own = task.obj.attention(length)
    if not own.slots():
        return attention, None
    try:
        return attention.merge_with(own), None
    except ConfigError as clash:
        return None, Refused(f"{method.label} cannot be combined with the positions of {task.label}: {clash}")


def _groups(
    made: Mapping[int, tuple[Attention | None, Refused | None]], task: Component, method: MethodComponent
) -> tuple[Mapping[int, Attention], Refused | None]:
    """A method's Attention for the prompts up to each length, with the task's; empty where all are one; or why not."""
    found = dict[int, Attention]()
    for length, (attention, refused) in made.items():
        joined = None
        if attention is not None:
            joined, refused = _join_attention(attention, task, method, length)
        if joined is None:
            return {}, refused
        found[length] = joined
    differ = len({json.dumps(each.as_data(), sort_keys=True) for each in found.values()}) > 1
    return found if differ else {}, None


def _read_at_once(step: PlannedCell) -> int:
    """Tokens of the longest text of a step; positions that begin beyond 0 hold none."""
    shift = step.attention.remap if step.attention else None
    return step.length - (shift.offset if isinstance(shift, Shift) else 0)


def peak_memory_bytes(model: Model, length: int, dtype: str = "float32") -> float:
    """Bytes, roughly: weights, keys and values of all layers that keep them, and a dozen activations of one."""
    return BYTES_PER_NUMBER.get(dtype, 2) * (
        parameter_count(model) + length * 12 * (model.width or 0) + model.kept_numbers(length)
    )


def min_memory_bytes(model: Model, step: PlannedCell, dtype: str) -> float:
    """Bytes beside the weights, estimated from below: one layer's activations of one text, and a cache to write.

    Activations: the state, queries, keys, values and what attention gives, while one text is read at once. A cell takes
    more for the MLP, logits, states and further texts, and where a method keeps all keys of layers with windows.
    """
    heads, kv_heads = _head_counts(model)
    # Of multi-head latent attention, head_dim is that of queries and keys only.
    vectors = (heads + kv_heads) * (1 if model.decoupled else 2)
    length = _read_at_once(step)
    cache = model.kept_numbers(length) if step.workload.steps else 0
    return BYTES_PER_NUMBER.get(dtype, 2) * (length * ((model.width or 0) + vectors * model.head_dim) + cache)


def _head_counts(model: Model) -> tuple[int, int]:
    """Query heads and key heads of a layer. Unknown: as many as the width holds, and keys of as many as queries."""
    heads = model.heads or (model.width or 0) // model.head_dim
    return heads, model.kv_heads or heads


def describe_plan(
    model: Model,
    steps: Sequence[PlannedCell],
    folder: Path,
    corpus: str | None = None,
    backend: Mapping[str, Any] | None = None,
) -> str:
    """The plan in a few lines; time from a matrix product measured here and now.

    Args:
        model: its facts.
        steps: of the plan.
        folder: of the run.
        corpus: label of the texts; None: no task reads any. Whether they suffice is not known yet.
        backend: its config. Of its dtype, auto is taken for bfloat16 on a GPU, for float32 on a CPU.
    """
    given = {"dtype": "auto", "device": "auto", **(backend or {})}
    dtype = str(given["dtype"])
    if dtype == "auto":
        dtype = "bfloat16" if machine.has_gpu_driver() and given["device"] != "cpu" else "float32"
    asked = [step for step in steps if step.refusal_reason is None]
    seconds = sum(step.workload.flops for step in asked) / operations_per_second(dtype, str(given["device"]))
    tokens = sum(step.workload.tokens for step in asked)
    longest = max(map(_read_at_once, asked), default=0)
    names = {
        "methods": list(dict.fromkeys(step.method.label for step in steps)),
        "tasks": list(dict.fromkeys(step.task.label for step in steps)),
        "lengths": [str(length) for length in dict.fromkeys(sorted(step.length for step in steps))],
    }
    lines = [f"{model.name}, trained at {model.trained_length} tokens, into {folder}"]
    names["texts"] = (
        [f"{corpus} (as planned; the questions decide)"]
        if corpus and any(uses_corpus(step.task) for step in asked)
        else []
    )
    lines += [f"  {noun:8} {', '.join(values)}" for noun, values in names.items() if values]
    lines.append(
        f"  {count_with_noun(len(asked), 'cell')}, {tokens:,} tokens, about {format_duration(seconds)} "
        f"and {_format_bytes(peak_memory_bytes(model, longest, dtype))} of model memory in {dtype}"
    )
    return "\n".join([*lines, *refusal_lines(steps)])


def refusal_lines(steps: Sequence[PlannedCell]) -> list[str]:
    """A line for each reason, with the cells that are refused for it."""
    refused: dict[str, dict[str, None]] = {}  # of several seeds, a cell once
    for step in steps:
        if step.refusal_reason:
            refused.setdefault(step.refusal_reason, {})[f"{step.method.label} {step.task.label} {step.length}"] = None
    return [f"  refused  {join_first_few([*cells])}: {reason}" for reason, cells in refused.items()]


def _format_bytes(held: float) -> str:
    """Bytes in GiB, or in MiB where that would be below 0.1."""
    return f"{held / 2**30:.1f} GiB" if held >= 2**30 / 10 else f"{held / 2**20:.0f} MiB"


def write_job_file(store: Store, job: Job, backend: BackendFacts, cells: Sequence[OpenCell] = ()) -> None:
    """Write jobs/<hash>.json: the settings, the backend that measures, and the cells in their order."""
    measured = {
        "model_revision": backend.revision,
        "backend": backend.version,
        "dtype": backend.dtype,
        "kernel": backend.kernel,
        "corpus_fingerprint": job.corpus.fingerprint if any(map(uses_corpus, job.tasks)) else None,
    }
    if said := getattr(backend.tokenizer, "disagreement", None):
        measured["tokenizer"] = said
    names = ("task", "length", "seed")
    planned = [
        {
            "cell": cell.id,
            **{name: getattr(cell, name) for name in names},
            "protocol": cell.protocol,
            "method": str(cell.method),
            "tokens": cell.step.workload.tokens,
        }
        for cell in cells
    ]
    page = {"config": job.config, "provenance": {**machine.collect_provenance(), **measured}, "cells": planned}
    text = json.dumps(page, indent=1, sort_keys=True, default=str)
    # By the settings alone: the same job has one page, whatever measures it.
    store.write_text(f"jobs/{job_name(job.config)}.json", f"{text}\n")


def open_cell_of(job: Job, step: PlannedCell, backend: BackendFacts) -> OpenCell:
    """The cell of a step, as the loaded backend measures it."""
    corpus = job.corpus if uses_corpus(step.task) else None
    form = getattr(backend.tokenizer, "form", "")  # of a chat server
    uses_chat = getattr(step.task.obj, "uses_chat", lambda _: bool(getattr(step.task.obj, "chat", False)))
    protocol = _protocol(step.task, backend.tokenizer)[0]
    # Whatever changes a sample, and nothing else. Its hash names the cell: with a new key all cells that users have
    # measured would be measured again.
    identity = {
        "model": {
            "name": job.model.name,
            "revision": backend.revision,
            "trained_length": job.model.trained_length,
            "begins_with": list(context_prefix(backend.tokenizer, uses_chat(backend.tokenizer))),
        },
        "method": step.method.identity,
        "attention": _attention_data(step),
        "task": {**step.task.identity, "version": step.task.obj.edition},
        "corpus": {**corpus.identity, "fingerprint": corpus.fingerprint} if corpus else None,
        "backend": {"name": backend.name, "version": backend.version, "dtype": backend.dtype, "kernel": backend.kernel}
        | ({"chat": form} if form else {})
        | ({"file": backend.file} if backend.file else {}),
        "length": step.length,
        "seed": step.seed,
        "n": job.n,
    }
    return OpenCell(
        model=job.model.name,
        method=step.method.key,
        purpose=step.method.purpose,
        task=step.task.label,
        length=step.length,
        trained_length=job.model.trained_length,
        seed=step.seed,
        n=job.n,
        protocol=f"{protocol}, {form}" if form else protocol,
        backend=backend.name,
        dtype=backend.dtype,
        kernel=backend.kernel,
        corpus=corpus.label if corpus else None,
        version=full_version(),
        identity=identity,
        own_metrics=own_metrics(getattr(step.task.obj, "metrics", ())),
        step=step,
        weights_known=backend.weights_known,
    )


def _attention_data(step: PlannedCell) -> Mapping[str, Any] | None:
    """The Attention of a step as an identity holds it; of groups of questions each, by its length."""
    if step.groups:
        return {"groups": {str(length): each.as_data() for length, each in step.groups.items()}}
    return step.attention.as_data() if step.attention else None


def uses_corpus(task: Component) -> bool:
    """Whether a task's questions are made of texts of the corpus."""
    return getattr(task.obj, "corpus", None) is not None

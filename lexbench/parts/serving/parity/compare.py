"""Compare backends: put the same questions to each and compare the answers token by token."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import yaml
from tqdm import tqdm

from lexbench.backends import Backend
from lexbench.checkpoints.checkpoint import end_tokens, folder_of
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import machine, registry
from lexbench.core.console import must_hide_bar
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.task import Answer, AnyQuestion, ProbeAttention, Tokenizer, Tokens
from lexbench.core.text import count_with_noun
from lexbench.methods.composition import method_configs
from lexbench.parts.serving.parity.tolerance import answer_differences, rounding_tolerance
from lexbench.report.formats import grid_markdown
from lexbench.report.grid import Grid, GridEntry, Line
from lexbench.runner.answers import answer_questions
from lexbench.runner.backend_pool import open_backend, release_backend
from lexbench.runner.cells import PlannedCell
from lexbench.runner.job import Job
from lexbench.runner.plan import fit_lengths, plan_cells
from lexbench.runner.questions import questions_or_reason

DEFAULT_N_QUESTIONS = 2
"""Default questions per cell; each compares many tokens."""
SWEEP_CONSTANT_SETTINGS = ("model", "n", "seed")
"""Settings, beside the registry groups, that must be equal over a sweep."""

Answers = list[Answer] | str
"""Answers to a cell's questions, or the reason for none."""


@dataclass(frozen=True, kw_only=True)
class ComparedBackend:
    """A compared backend."""

    label: str
    """`vllm(dtype=bfloat16)`: name and given parameters."""
    version: str | None = None
    """None, like the fields below: not loaded."""
    dtype: str | None = None
    kernel: str | None = None
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class CellAgreement:
    """Difference of one backend to the reference in one cell, in nats per token."""

    task: str
    method: str
    length: int
    """Tokens."""
    backend: str
    """Label of its side."""
    tokens: int = 0
    """Compared tokens."""
    largest: float | None = None
    """Largest difference of a token in nats; None beside tokens: a likelihood is not a number."""
    largest_allowed: float | None = None
    mean: float | None = None
    """Mean difference in nats per token."""
    mean_allowed: float | None = None
    refused: str | None = None
    """Why no token was compared."""

    @property
    def failed(self) -> bool:
        """Whether differences exceed the tolerance; a refusal is no failure."""
        return self.refused is None and not (
            _is_within(self.largest, self.largest_allowed) and _is_within(self.mean, self.mean_allowed)
        )


@dataclass(frozen=True, kw_only=True)
class ParityResult:
    """Differences of several backends to a reference, in nats per token, with the setup of all sides."""

    model: str
    protocols: Mapping[str, str]
    """Protocol in words, by task."""
    corpus: str
    n: int
    seed: int
    reference: ComparedBackend
    others: Sequence[ComparedBackend]
    rows: Sequence[CellAgreement]

    @property
    def failed(self) -> bool:
        """Whether any backend exceeds the tolerance."""
        return any(row.failed for row in self.rows)

    def as_data(self) -> dict[str, Any]:
        """Plain JSON, with every row's verdict and the machine's description."""
        rows = [{**asdict(row), "failed": row.failed} for row in self.rows]
        return {**asdict(self), "rows": rows, "failed": self.failed, "provenance": machine.collect_provenance()}


def _is_within(found: float | None, allowed: float | None) -> bool:
    return found is not None and allowed is not None and found <= allowed


def backend_config_of_word(word: str) -> dict[str, Any]:
    """The config of a backend given as `--against NAME` or `NAME,parameter=value,...`"""
    # Only commas in front of KEY=: a value may hold commas itself, as in [1,2].
    name, *given = re.split(r",(?=\w+=)", word)
    try:
        parameters = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in given)}
    except yaml.YAMLError:
        raise ConfigError(f"--against {word} cannot be read: write NAME,parameter=value") from None
    return {**registry.read_named_config("backend", name), **parameters, "name": name}


def job_of(asked: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> Job:
    """One job of a sweep over methods and lengths: the composed config and the chosen names of each of its points.

    Raises ConfigError where something else is swept over. Without a length: twice the trained one.
    """
    groups = ("method", "task", "corpus", "backend")
    points = [
        {key: config[key] for key in SWEEP_CONSTANT_SETTINGS}
        | {group: {**(config.get(group) or {}), "name": names.get(group)} for group in groups}
        for config, names in asked
    ]
    first, lengths = points[0], [config["length"] for config, _ in asked]
    for part in [key for key in first if key != "method"]:
        if any(point[part] != first[part] for point in points):
            raise ConfigError(f"parity sweeps over method and length, got several of {part}: give one")
    every = [each for point in points for each in method_configs(point["method"])]
    methods = {json.dumps(each, sort_keys=True, default=str): each for each in every}
    return Job.of(
        model=first["model"],
        methods=list(methods.values()),
        tasks=[first["task"]],
        corpus=first["corpus"],
        backend=first["backend"],
        lengths=None if None in lengths else lengths,
        multiples=[2],
        n=DEFAULT_N_QUESTIONS if first["n"] is None else first["n"],
        seeds=[first["seed"]],
        results=None,
    )


# asking


@dataclass(frozen=True)
class PosedCell:
    """A cell and its questions; none if refused."""

    step: PlannedCell
    questions: Sequence[AnyQuestion]


def compare_backends(job: Job, others: Sequence[Mapping[str, Any]]) -> ParityResult:
    """Run every cell of a job on its backend, the reference, and on others; measure the differences.

    Each backend is opened once for all cells and closed before the next. The reference comes last: where another
    backend writes another text, it scores both.

    Args:
        job: methods, lengths and tasks; its backend is the reference.
        others: configs of backends, with their `name`.
    """
    labels = [_backend_label(config) for config in others]
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"--against needs backends, each once, got {', '.join(labels)}: e.g. --against native vllm")
    folder = folder_of(job.model, weights=False)
    tokenizer = load_tokenizer(folder, job.model.bos)
    ends = np.array(sorted(end_tokens(folder)), dtype=np.int64)
    tasks, methods = [task.label for task in job.tasks], [method.label for method in job.methods]
    steps = sorted(
        plan_cells(fit_lengths(job, tokenizer), tokenizer),
        key=lambda s: (tasks.index(s.task.label), methods.index(s.method.label), s.length),
    )
    cells = [_pose_cell(job, step, tokenizer) for step in steps]
    heard = [_collect_answers(job, config, cells) for config in others]
    rows = []
    with _open_backend(job, job.backend) as (reference, backend):
        for place, cell in enumerate(tqdm(cells, reference.label, disable=must_hide_bar())):
            ours = _answer_cell(backend, cell)
            rows += [_compare_cell(cell, (reference, side), ours, said[place], backend, ends) for side, said in heard]
    return ParityResult(
        model=job.model.name,
        protocols={step.task.label: step.task.obj.protocol(tokenizer) for step in steps},
        corpus=job.corpus.label,
        n=job.n,
        seed=job.seeds[0],
        reference=reference,
        others=[side for side, _ in heard],
        rows=rows,
    )


def _collect_answers(
    job: Job, config: Mapping[str, Any], cells: Sequence[PosedCell]
) -> tuple[ComparedBackend, list[Answers]]:
    """Answers of one backend in all cells; the backend is closed afterwards."""
    with _open_backend(job, config) as (side, backend):
        return side, [_answer_cell(backend, cell) for cell in tqdm(cells, side.label, disable=must_hide_bar())]


def _pose_cell(job: Job, step: PlannedCell, tokenizer: Tokenizer) -> PosedCell:
    if step.refusal_reason and not step.is_foreseen:
        return PosedCell(step, ())
    asked, refused = questions_or_reason(step.task, tokenizer, step.length, job.n, step.seed)
    if refused:
        return PosedCell(replace(step, refusal_reason=refused.reason), ())
    if any(isinstance(question, ProbeAttention) for question in asked):
        raise ConfigError(
            f"parity compares likelihoods and texts, {step.task.label} probes attention: take another task"
        )
    return PosedCell(step, asked)


@contextmanager
def _open_backend(job: Job, config: Mapping[str, Any]) -> Iterator[tuple[ComparedBackend, Backend | str]]:
    """A backend, or the reason why it cannot be loaded; closed at the end of the block."""
    label = _backend_label(config)
    try:
        backend = open_backend(job.model, config, max(job.lengths))
    except Refused as refusal:
        yield ComparedBackend(label=label), refusal.reason
        return
    try:
        shown = {name: getattr(backend, name) for name in ("version", "dtype", "kernel", "revision")}
        yield ComparedBackend(label=label, **shown), backend
    finally:
        release_backend(backend)


def _backend_label(config: Mapping[str, Any]) -> str:
    """Name, and parameters that differ from its yaml."""
    usual = registry.read_named_config("backend", config["name"])
    given = [f"{key}={value}" for key, value in config.items() if key != "name" and value != usual.get(key)]
    return f"{config['name']}({', '.join(given)})" if given else str(config["name"])


def _answer_cell(backend: Backend | str, cell: PosedCell) -> Answers:
    """Answers of a backend in a cell, or the reason for none."""
    if isinstance(backend, str):
        return backend
    if cell.step.attention is None or cell.step.refusal_reason:
        return str(cell.step.refusal_reason)
    try:
        backend.attend(cell.step.attention)
        return list(answer_questions(backend, cell.questions))
    except Refused as refusal:
        return refusal.reason


# comparing


def _compare_cell(
    cell: PosedCell,
    sides: tuple[ComparedBackend, ComparedBackend],
    ours: Answers,
    theirs: Answers,
    backend: Backend | str,
    ends: Tokens,
) -> CellAgreement:
    """Difference of two sides in a cell; the first is the reference, which is still open."""
    step, dtypes = cell.step, [side.dtype for side in sides]
    row = CellAgreement(task=step.task.label, method=step.method.label, length=step.length, backend=sides[1].label)
    refusals = [each for each in (ours, theirs, backend) if isinstance(each, str)]
    if isinstance(ours, str) or isinstance(theirs, str) or isinstance(backend, str):
        return replace(row, refused=refusals[0])
    try:
        # `backend.choose` is of the reference, which is still open and has the Attention of this cell.
        triples = zip(cell.questions, ours, theirs, strict=True)
        apart = np.concatenate([answer_differences(*triple, backend.choose, ends) for triple in triples])
    except Refused as refusal:
        return replace(row, refused=refusal.reason)
    known, allowed = bool(np.isfinite(apart).all()), rounding_tolerance(dtypes, step.length, len(apart))
    return replace(
        row,
        tokens=len(apart),
        largest=float(apart.max()) if known else None,
        largest_allowed=allowed.largest,
        mean=float(apart.mean()) if known else None,
        mean_allowed=allowed.mean,
    )


# showing


def agreement_table(found: ParityResult) -> str:
    """Markdown table of differences in nats per token, cells by backends; lines on setup and protocol stand below."""
    tasks = len(found.protocols) > 1
    lines: dict[tuple[str, ...], Line] = {}
    for row in found.rows:
        where = (*([row.task] if tasks else []), row.method, str(row.length))
        lines.setdefault(where, [*where]).append(_agreement_entry(row))
    said = [
        f"Entries: differences of log-probabilities to those of {found.reference.label}, in nats: "
        "the largest of what it may be, the mean of what it may be.",
        f"{found.model}, {count_with_noun(found.n, 'question')} a cell, seed {found.seed}, corpus {found.corpus}.",
        *(f"{task}: {protocol}." for task, protocol in found.protocols.items()),
        *(_describe_backend(side) for side in (found.reference, *found.others)),
    ]
    head = [*(["task"] if tasks else []), "method", "length", *(side.label for side in found.others)]
    return grid_markdown(Grid(head=head, rows=list(lines.values()), remarks=said)).rstrip("\n")


def _agreement_entry(row: CellAgreement) -> GridEntry:
    if row.refused is not None:
        return GridEntry(text="refused", notes=(row.refused,))
    if row.largest is None:
        return GridEntry(text="FAILED: no number")
    found = f"{row.largest:.1e} of {row.largest_allowed:.1e}, {row.mean:.1e} of {row.mean_allowed:.1e}"
    return GridEntry(text=f"{'FAILED' if row.failed else 'ok'} {found}")


def _describe_backend(side: ComparedBackend) -> str:
    if side.version is None:
        return f"{side.label}: not loaded."
    return f"{side.label}: {side.dtype}, {side.kernel}, {side.version}."

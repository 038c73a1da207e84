"""Scores of stored answers against what the task gives for them today, without a model and without the prompt.

A sample keeps the answer and the facts of its question. Where a task's `score` asks for more, or where another version
of the task has scored the sample, nothing is said.
"""

import functools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.core.record import Cell, Sample
from lexbench.core.task import Choose, ChooseAnswer, Generate, GenerateAnswer, Task
from lexbench.metrics.of_task import metrics_of_task

SCORE_TOLERANCE = 1e-6
"""Largest difference of one score on two processors."""
KEPT_FIELDS = ("index", "cluster", "facts", "chance", "expected", "length")
"""What a sample keeps of its question."""
NOT_SCORABLE = (LookupError, TypeError, ValueError, AttributeError, AssertionError)
"""Errors of `score` where the stored facts are not those that it needs, or it asks for what no sample keeps."""


class EmptyCorpus:
    """A corpus for tasks that only score."""

    def documents(self) -> Iterator[Any]:
        """None."""
        return iter(())


class _KeptGenerate(Generate):
    """A written question, as far as its sample keeps it."""

    def __getattribute__(self, name: str) -> Any:
        return _kept_field(self, name, Generate, super().__getattribute__)


class _KeptChoose(Choose):
    """A choice, as far as its sample keeps it."""

    def __getattribute__(self, name: str) -> Any:
        return _kept_field(self, name, Choose, super().__getattribute__)


def _kept_field(question: Any, name: str, kind: type, get: Any) -> Any:
    """A field of a question; AttributeError for one that no sample keeps."""
    held: Mapping[str, Any] = get("__dict__").get("_sample", {})
    if name in held:
        return held[name]
    if held and name in kind.__dataclass_fields__ and name not in KEPT_FIELDS:  # type: ignore[attr-defined]
        raise AttributeError(f"no sample keeps {name}")
    return get(name)


def score_faults(cell: Cell, sample: Sample) -> Iterator[str]:
    """Scores of a sample that its task does not give for the stored answer, in words; none where that is not known."""
    scored = scored_again(cell, sample)
    if scored is None:
        return
    if (scored.failed is None) != (sample.failed is None):
        yield f"failed={sample.failed!r}, though its answer gives {scored.failed!r}"
        return
    # An earlier version may have given fewer scores.
    gives = {**derived_scores(cell, sample), **scored.scores}
    known = sample.scores.keys() & gives.keys()
    if sample.scores.keys() - known or (_is_of_today(cell) and gives.keys() - known):
        yield f"scores {', '.join(sorted(sample.scores))}, though its task gives {', '.join(sorted(gives))}"
    else:
        for name, value in sorted((name, gives[name]) for name in known):
            if not math.isclose(value, sample.scores[name], rel_tol=0, abs_tol=SCORE_TOLERANCE):
                yield f"{name} {sample.scores[name]:g}, though its answer gives {value:g}"


def derived_scores(cell: Cell, sample: Sample) -> dict[str, float]:
    """Scores that follow from what a sample keeps beside its answer's text, such as likelihoods of options.

    One whose facts are not those that it needs is left out.
    """
    found = dict[str, float]()
    for metric in metrics_of_task(cell.task_name):
        try:
            value = metric.of(sample, [sample]) if metric.of else None
        except (*NOT_SCORABLE, ArithmeticError):
            continue
        if value is not None:
            found[metric.name] = value
    return found


def scored_again(cell: Cell, sample: Sample) -> Sample | None:
    """The sample as its task scores the stored answer; None where that cannot be told."""
    stated = cell.identity.get("task")
    task = _task_of(json.dumps(stated, sort_keys=True)) if isinstance(stated, Mapping) else None
    if task is None:
        return None
    try:
        if sample.output is not None and sample.hit_room is not None:
            return task.score(*_question_and_answer(sample, sample.output, sample.hit_room))
        if "option_nll" in sample.statistics and "expected_option" in sample.facts:
            return task.score(*_choice_and_answer(sample))
    except NOT_SCORABLE:
        return None
    return None


@functools.lru_cache(maxsize=256)
def _task_of(identity: str) -> Task | None:
    """The task of an identity; None for one of the user's own, of another version, or with other parameters."""
    stated = dict(json.loads(identity))
    name, version = stated.pop("name", None), stated.pop("version", None)
    if name not in registry.registered_names("task") or "file" in stated:
        return None
    try:
        config = {**registry.read_named_config("task", name), **stated, "name": name}
        built: Task = objects.build_object(config, "task", corpus=EmptyCorpus())
    except (ConfigError, *NOT_SCORABLE):
        return None
    return built if built.gives_scores_of(version) else None


def _is_of_today(cell: Cell) -> bool:
    """Whether a cell has the version that its task has now."""
    stated = cell.identity["task"]
    task = _task_of(json.dumps(stated, sort_keys=True))
    return task is not None and task.edition == stated.get("version")


def _question_and_answer(sample: Sample, text: str, hit_room: bool) -> tuple[Generate, GenerateAnswer]:
    facts = dict(sample.facts)
    thought, cut = str(facts.pop("thought", "")), bool(facts.pop("thought_cut", False))
    question = _KeptGenerate(index=sample.index, cluster=sample.cluster, prompt=np.empty(0, np.int64), max_new_tokens=0)
    answer = GenerateAnswer(
        tokens=np.empty(0, np.int64), text=text, hit_room=hit_room, thought=thought, thought_cut=cut
    )
    return _as_kept(question, sample, facts), answer


def _choice_and_answer(sample: Sample) -> tuple[Choose, ChooseAnswer]:
    nll = sample.statistics["option_nll"]
    facts = {name: value for name, value in sample.facts.items() if name != "expected_option"}
    question = _KeptChoose(
        index=sample.index,
        cluster=sample.cluster,
        prompt=np.empty(0, np.int64),
        options=tuple(np.zeros(1, np.int64) for _ in nll),
        expected=int(sample.facts["expected_option"]),
    )
    return _as_kept(question, sample, facts), ChooseAnswer(nll=nll.astype(np.float64))


def _as_kept(question: Any, sample: Sample, facts: Mapping[str, Any]) -> Any:
    """The question, which gives what its sample holds of it and nothing else."""
    held = {"facts": facts, "chance": sample.chance or 0.0, "length": sample.tokens}
    question.__dict__["_sample"] = held
    return question

"""Every task of lexbench as a task of inspect_ai: `lexbench/passkey`, by its name.

inspect eval lexbench/passkey -T length=4096 -T n=100 --model vllm-completions/ORG/NAME -T tokenizer=ORG/NAME
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import inspect_ai
import numpy as np
from inspect_ai._util.error import PrerequisiteError  # it prints this one in one line
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import Model, ModelName, get_model
from inspect_ai.scorer import SampleScore, Score, Scorer, Target, mean, metric, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from lexbench.core import registry, task
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.parts.exchange.inspect.providers import PROVIDER_REMEDY, PromptReader, reader_of
from lexbench.parts.exchange.lm_eval.questions import HarnessCell, prompt_text, sample_of_text
from lexbench.runner.answers import sample_of_answer
from lexbench.runner.cells import Component

NLL_METADATA_KEY = "nll"
"""Key of a sample's metadata: NLL_METADATA_KEY of its targets, or summed of each option, in nats."""


def make_task(cell: HarnessCell, model: Model, tokenizer: str | None = None) -> inspect_ai.Task:
    """A task whose model reads the tokens of `lexbench run`, and gets its scores.

    Args:
        cell: task and length.
        model: of the evaluation.
        tokenizer: of the model, where it is a server's: a folder, or a name of the registry or the hub.

    Raises:
        ConfigError: the settings are wrong, or the model would read other tokens.
        Refused: there are no such questions.
    """
    provider = ModelName(model).api
    reader = reader_of(model, provider, tokenizer)
    asked, questions = cell.questions(reader.tokenizer)
    kind = type(questions[0])
    if kind in (task.Loglikelihood, task.Choose) and not reader.likelihoods:
        raise ConfigError(
            f"{provider} gives no log-probabilities of prompts, which {asked.label} needs: {PROVIDER_REMEDY}"
        )
    if kind not in (task.Loglikelihood, task.Choose, task.Generate) or any(each.layout for each in questions):
        raise ConfigError(f"{asked.label} measures what inspect_ai does not give: use lexbench run")
    by_index = {question.index: question for question in questions}
    return inspect_ai.Task(
        dataset=MemoryDataset([_sample(reader, question) for question in questions], name=asked.label),
        solver=_solver(reader, by_index),
        scorer=_scorer(asked, reader, by_index, likelihood=kind is task.Loglikelihood),
        version=asked.obj.edition,
    )


def _sample(reader: PromptReader, question: task.AnyQuestion) -> Sample:
    """A question as inspect_ai logs it: of likelihoods, the input is the context."""
    decode = reader.tokenizer.decode
    place = {"cluster": question.cluster, "index": question.index}
    if isinstance(question, task.Generate):
        return Sample(
            input=[reader.message(question.prompt)], target=question.answer, id=question.index, metadata=place
        )
    if isinstance(question, task.Loglikelihood):
        prompt, target = question.tokens[: question.first_target], decode(question.tokens[question.first_target :])
    else:
        assert isinstance(question, task.Choose)
        prompt, target = question.prompt, decode(question.options[question.expected])
    return Sample(input=prompt_text(reader.tokenizer, prompt), target=target, id=question.index, metadata=place)


def _solver(reader: PromptReader, questions: Mapping[int, task.AnyQuestion]) -> Solver:
    """Asks the model the question of a sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        question = questions[state.metadata["index"]]
        if isinstance(question, task.Generate):
            [message] = state.messages
            state = await generate(
                state, stop_seqs=[*question.until] or None, **reader.settings(question.max_new_tokens)
            )
            reader.check(message, state.output)
        elif isinstance(question, task.Loglikelihood):
            state.metadata[NLL_METADATA_KEY] = (await reader.nll(question.tokens, question.first_target)).tolist()
        else:
            assert isinstance(question, task.Choose)
            rows = [
                await reader.nll(np.append(question.prompt, each), len(question.prompt)) for each in question.options
            ]
            state.metadata[NLL_METADATA_KEY] = [float(row.sum(dtype=np.float64)) for row in rows]
        return state

    def ask() -> Solver:
        return solve

    return solver("lexbench")(ask)()


def _scorer(
    asked: Component, reader: PromptReader, questions: Mapping[int, task.AnyQuestion], likelihood: bool
) -> Scorer:
    """Scores an answer as the task does."""

    async def score(state: TaskState, target: Target) -> Score:
        question = questions[state.metadata["index"]]
        if isinstance(question, task.Generate):
            text = state.output.completion
            return Score(value=dict(sample_of_text(asked, reader.tokenizer, question, text).scores), answer=text)
        if isinstance(question, task.Choose):
            chosen = task.ChooseAnswer(nll=np.array(state.metadata[NLL_METADATA_KEY]))
            return Score(value=dict(sample_of_answer(asked.obj, reader.tokenizer, question, chosen).scores))
        assert isinstance(question, task.Loglikelihood)
        answer = task.LoglikelihoodAnswer(nll=np.array(state.metadata[NLL_METADATA_KEY], dtype=np.float32))
        sample = sample_of_answer(asked.obj, reader.tokenizer, question, answer)
        if sample.nll is None:
            raise ConfigError(f"{asked.label} has more scores than inspect_ai takes: use lexbench run")
        nats, targets = float(sample.nll.astype(np.float64).sum()), len(sample.nll)
        units = {"nats": nats, "targets": targets, "bytes": sample.bytes, "words": sample.words}
        return Score(value=nats / targets, metadata=units)

    def own() -> Scorer:
        return score

    metrics: Any = [metric("likelihood")(_likelihood)()] if likelihood else {"*": [mean(), stderr(cluster="cluster")]}
    return scorer(metrics=metrics, name="lexbench")(own)()


def _likelihood() -> Any:
    """nll, perplexity, bits_per_byte and word_perplexity, as in a record."""

    def likelihood(scores: list[SampleScore]) -> dict[str, float]:
        if not scores:  # asked for its keys
            return {}
        known: list[Mapping[str, Any]] = [each.score.metadata or {} for each in scores]
        nats, targets, size, words = (
            np.array([each[name] for each in known], np.float64).sum() for name in ("nats", "targets", "bytes", "words")
        )
        return {
            "nll": float(nats / targets),
            "perplexity": math.exp(nats / targets),
            "bits_per_byte": float(nats / size) / math.log(2),
            "word_perplexity": math.exp(nats / words),
        }

    return likelihood


def _whole(given: Sequence[Any]) -> list[Any]:
    """Numbers, which inspect_ai leaves as texts where they stand in a list: `-T lengths=512,1024`."""
    return [int(each) if isinstance(each, str) and each.isdecimal() else each for each in given]


def _registered_task(name: str) -> Any:
    """The task of inspect_ai for a name of the registry."""

    def ask(
        length: int,
        lengths: int | list[int | str] | None = None,
        n: int | None = None,
        seed: int = 0,
        corpus: str | None = None,
        tokenizer: str | None = None,
        **parameters: Any,
    ) -> inspect_ai.Task:
        cell = HarnessCell(
            task={"name": name, **parameters},
            length=length,
            lengths=None if lengths is None else _whole(lengths if isinstance(lengths, list) else [lengths]),
            n=n,
            seed=seed,
            corpus=None if corpus is None else {"name": corpus},
        )
        try:
            return make_task(cell, get_model(), tokenizer)
        except (ConfigError, Refused) as error:
            raise PrerequisiteError(str(error)) from None

    return inspect_ai.task(name=name)(ask)


INSPECT_TASKS = {name: _registered_task(name) for name in registry.registered_names("task")}
"""Tasks by name, as registered with inspect_ai."""

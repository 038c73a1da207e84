"""Tasks of lexbench as tasks of the harness: yamls made by `lexbench lm_eval tasks` name this class."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig
from lm_eval.filters import build_filter_ensemble

from lexbench.checkpoints.tokenizer import wrap_loaded_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.task import (
    AnyQuestion,
    Choose,
    ChooseAnswer,
    Generate,
    Loglikelihood,
    LoglikelihoodAnswer,
    Tokenizer,
)
from lexbench.parts.exchange.lm_eval.questions import HarnessCell, prompt_text, sample_of_text
from lexbench.parts.exchange.lm_eval.tokens import ExactPrompt, LoglikelihoodRequest, asking_model, read_exactly
from lexbench.runner.answers import sample_of_answer
from lexbench.runner.cells import Component

UNSET_GENERATION_SETTINGS: Mapping[str, Any] = {"until": []}
"""Generation settings until the questions are made; others are the user's --gen_kwargs."""


class LexbenchTask(Task):  # type: ignore[misc]
    """A task of lexbench at one length: the model reads the tokens of `lexbench run`, and gets its scores.

    Metrics: the scores of the task; of likelihoods those of `LIKELIHOOD_METRICS`.

    Args:
        config: of a yaml; `metadata.lexbench` holds the settings of a `HarnessCell`.
    """

    OUTPUT_TYPE = "generate_until"

    # The harness's own constructor downloads a data set.
    def __init__(self, config: Mapping[str, Any]) -> None:
        metadata = dict(config.get("metadata") or {})
        self._cell = HarnessCell.read(metadata.get("lexbench"))
        job = self._cell.job()
        self.VERSION = job.tasks[0].obj.edition
        self._config = TaskConfig(
            task=config["task"],
            tag=config.get("tag"),
            num_fewshot=0,
            generation_kwargs=dict(UNSET_GENERATION_SETTINGS),
            metadata={**metadata, "version": self.VERSION},
        )
        self._filters = [build_filter_ensemble("none", [["take_first", None]])]
        self._instances: list[Instance] | None = None
        self.fewshot_rnd = None
        self._asked: tuple[Component, Tokenizer, Mapping[int, AnyQuestion]] | None = None
        self._documents: list[dict[str, Any]] = [{"index": index} for index in range(job.n)]
        self._metrics: dict[str, None] = {}

    # documents: a question each, written once the model is known

    def has_training_docs(self) -> bool:
        """None are there."""
        return False

    def has_validation_docs(self) -> bool:
        """None are there."""
        return False

    def has_test_docs(self) -> bool:
        """Always."""
        return True

    def test_docs(self) -> list[dict[str, Any]]:
        """Index, cluster, length in tokens, right answer and facts of each question."""
        return self._documents

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The prompt."""
        assert self._instances is not None
        return str(next(each.args[0] for each in self._instances if each.doc is doc))

    def doc_to_target(self, doc: Mapping[str, Any]) -> Any:
        """The right answer."""
        return doc["answer"]

    # requests

    def build_all_requests(
        self,
        *,
        limit: int | None = None,
        samples: list[int] | None = None,
        rank: int = 0,
        world_size: int = 1,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **others: Any,
    ) -> None:
        """Write the questions in the tokens of the evaluation's model, and request its answers.

        Raises ConfigError where the model would read other tokens.
        """
        name = self._config.task
        if apply_chat_template or system_instruction is not None:
            raise ConfigError(
                f"{name} asks with exact tokens: leave out --apply_chat_template and --system_instruction"
            )
        if self._config.generation_kwargs != UNSET_GENERATION_SETTINGS:
            raise ConfigError(f"{name} decodes greedily, with its own stop texts: leave out --gen_kwargs")
        model = asking_model(name)
        read_exactly(model)
        tokenizer = wrap_loaded_tokenizer(model.tokenizer)
        task, questions = self._cell.questions(tokenizer)
        if isinstance(questions[0], Loglikelihood):
            check_sums_suffice(task, tokenizer, questions[0])
        self._asked = task, tokenizer, {question.index: question for question in questions}
        self._documents = [_document(tokenizer, question) for question in questions]
        longest = max(question.length for question in questions)
        if longest > model.max_length:
            raise ConfigError(
                f"{name} needs {longest} tokens, the model reads {model.max_length}: give max_length={longest} in "
                "--model_args"
            )
        asked = self.doc_iterator(rank=rank, limit=limit, samples=samples, world_size=world_size)
        self._instances = [
            request for number, doc in asked for request in self.construct_requests(doc, "", metadata=(name, number, 1))
        ]
        self.OUTPUT_TYPE = self._instances[0].request_type
        writes = isinstance(questions[0], Generate)
        self._config.output_type = "generate_until" if writes else "loglikelihood"
        self._config.generation_kwargs = _greedily(questions[0]) if isinstance(questions[0], Generate) else None

    def construct_requests(self, doc: Mapping[str, Any], ctx: str, **given: Any) -> list[Instance]:
        """Requests of a question: one, or of a choice one for each option."""
        assert self._asked is not None
        _, tokenizer, questions = self._asked
        question = questions[doc["index"]]
        shared = {"doc": doc, "metadata": given["metadata"]}
        if question.layout is not None:
            raise ConfigError(
                f"{self._config.task} has positions that jump, which the harness has not: use lexbench run"
            )
        if isinstance(question, Generate):
            prompt = ExactPrompt(prompt_text(tokenizer, question.prompt), question.prompt)
            return [Instance("generate_until", arguments=(prompt, _greedily(question)), idx=0, **shared)]
        if isinstance(question, Loglikelihood):
            pairs = [(question.tokens[: question.first_target], question.tokens[question.first_target :])]
        elif isinstance(question, Choose):
            pairs = [(question.prompt, option) for option in question.options]
        else:
            raise ConfigError(f"{self._config.task} measures what the harness does not give: use lexbench run")
        return [
            LoglikelihoodRequest(
                context,
                continuation,
                arguments=(prompt_text(tokenizer, context), tokenizer.decode(continuation)),
                idx=index,
                **shared,
            )
            for index, (context, continuation) in enumerate(pairs)
        ]

    # results

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """The scores of a question; of likelihoods, nats and units."""
        assert self._asked is not None
        task, tokenizer, questions = self._asked
        question = questions[doc["index"]]
        found: dict[str, Any]
        if isinstance(question, Loglikelihood):
            units = (
                question.length - question.first_target,
                question.length - question.first_target,
                question.bytes,
                question.words,
            )
            found = {name: (-results[0][0], each) for name, each in zip(LIKELIHOOD_METRICS, units, strict=True)}
        elif isinstance(question, Choose):
            nll = np.array([-total for total, _ in results])
            found = dict(sample_of_answer(task.obj, tokenizer, question, ChooseAnswer(nll=nll)).scores)
        else:
            assert isinstance(question, Generate)
            found = dict(sample_of_text(task, tokenizer, question, results[0]).scores)
        self._metrics |= dict.fromkeys(found)
        return found

    def aggregation(self) -> dict[str, Callable[[Sequence[Any]], float]]:
        """Aggregation of each metric, as in the records of `lexbench run`."""
        return {metric: LIKELIHOOD_METRICS.get(metric, _mean) for metric in self._metrics}

    def higher_is_better(self) -> dict[str, bool]:
        """Scores; likelihoods are better where they are low."""
        return {metric: metric not in LIKELIHOOD_METRICS for metric in self._metrics}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _per_unit(pairs: Sequence[tuple[float, int]]) -> float:
    """Nats per unit over all samples."""
    nats, units = np.array(pairs, dtype=np.float64).T
    return float(nats.sum() / units.sum())


LIKELIHOOD_METRICS: Mapping[str, Callable[[Sequence[Any]], float]] = {
    "nll": _per_unit,
    "perplexity": lambda pairs: math.exp(_per_unit(pairs)),
    "bits_per_byte": lambda pairs: _per_unit(pairs) / math.log(2),
    "word_perplexity": lambda pairs: math.exp(_per_unit(pairs)),
}
"""Metrics of likelihoods from (nats, units) of each sample: targets, targets, bytes, words."""


def _document(tokenizer: Tokenizer, question: AnyQuestion) -> dict[str, Any]:
    """A question as the harness logs it."""
    answer: Any = None
    if isinstance(question, Generate):
        answer = question.answer
    elif isinstance(question, Choose):
        answer = tokenizer.decode(question.options[question.expected])
    elif isinstance(question, Loglikelihood):
        answer = tokenizer.decode(question.tokens[question.first_target :])
    return {
        "index": question.index,
        "cluster": question.cluster,
        "length": question.length,
        "answer": answer,
        "facts": dict(question.facts),
    }


def _greedily(question: Generate) -> dict[str, Any]:
    """The harness's settings of generation."""
    return {"until": [*question.until], "max_gen_toks": question.max_new_tokens, "do_sample": False, "temperature": 0.0}


def check_sums_suffice(task: Component, tokenizer: Tokenizer, question: Loglikelihood) -> None:
    """ConfigError for a task that scores more than the sum of its targets' likelihoods, which the harness gives."""
    targets = question.length - question.first_target
    sample = sample_of_answer(task.obj, tokenizer, question, LoglikelihoodAnswer(nll=np.zeros(targets, np.float32)))
    if sample.scores or sample.nll is None or len(sample.nll) != targets:
        raise ConfigError(f"{task.label} scores single tokens, of which the harness gives the sum: use lexbench run")

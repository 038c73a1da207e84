"""Likelihoods and whether greedy writing gives them: of a table, and of lexlet against transformers' own logits."""

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lexbench.backends import Backend, Capabilities, capabilities
from lexbench.core.attention import Attention
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
    Tokens,
)
from lexbench.parts.exchange.lm_eval import asking
from lexbench.parts.exchange.lm_eval.arguments import load_backend, read_model_arguments
from lexbench.parts.exchange.lm_eval.asking import continuation_likelihoods

LEXLET = Path(__file__).parents[4] / "lexbench" / "lexlet"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}

# likelihoods, of a model whose every number is known

SIZE, END = 7, 6


class Bigram(Backend):
    """The next token depends on the last one and on where the answer begins; `END` ends what it writes."""

    name, version, dtype, kernel, revision = "bigram", "1", "float64", "none", "1"

    def __init__(self, spread: float = 2.0) -> None:
        logits = np.random.default_rng(0).normal(0.0, spread, (3, SIZE, SIZE))
        self.table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self.model: Any = SimpleNamespace(vocabulary=SIZE)
        self.tokenizer: Any = SimpleNamespace(decode=lambda ids: "".join("abcdef"[i] for i in ids if i != END))
        self.asked: list[str] = []

    def rows(self, tokens: Tokens, begin: int) -> NDArray[np.float64]:
        """[T, SIZE] ln p of what follows each token."""
        return np.asarray(self.table[begin % 3, tokens])

    def attend(self, attention: Attention) -> None:
        raise AssertionError("it is")

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        self.asked.append("score")
        rows = self.rows(question.tokens[question.first_target - 1 : -1], question.first_target)
        return LoglikelihoodAnswer(
            nll=-rows[np.arange(len(rows)), question.tokens[question.first_target :]].astype(np.float32)
        )

    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        self.asked.append("mark")
        rows = self.rows(question.tokens[question.places - 1], int(question.places[0]))
        return ClassifyTokensAnswer(nll=-rows[:, question.options].astype(np.float32))

    def write(self, question: Generate) -> GenerateAnswer:
        self.asked.append("write")
        tokens, begin = list(question.prompt), len(question.prompt)
        while len(tokens) < begin + question.max_new_tokens:
            following = int(self.rows(np.array(tokens[-1:]), begin)[0].argmax())
            if following == END:
                break
            tokens.append(following)
        new = np.array(tokens[begin:], dtype=np.int64)
        return GenerateAnswer(tokens=new, text=self.tokenizer.decode(new), hit_room=len(new) == question.max_new_tokens)

    def choose(self, question: Choose) -> ChooseAnswer:
        raise AssertionError("no choice is asked")

    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        raise AssertionError("no attention is asked")


class Afar(Bigram):
    """The same, in another process."""

    capabilities = Capabilities(remote=True)

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        for question in questions:
            ask: Any = {Loglikelihood: self.score, Generate: self.write, ClassifyTokens: self.mark}[type(question)]
            yield ask(question)

    def close(self) -> None:
        """Nothing to end."""


def asked(count: int = 300) -> list[Loglikelihood]:
    """Questions of random tokens, half of them with the continuation that is written."""
    rng, bigram = np.random.default_rng(1), Bigram()
    found = []
    for index in range(count):
        start, targets = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        tokens = rng.integers(0, SIZE, start + targets)
        if index % 2:
            for place in range(start, len(tokens)):
                tokens[place] = bigram.rows(tokens[place - 1 : place], start)[0].argmax()
        found.append(Loglikelihood(index=index, cluster="", tokens=tokens, first_target=start, bytes=0, words=0))
    return found


def expected(question: Loglikelihood) -> tuple[float, bool]:
    """Sum of the table's entries, and whether each is the largest of its row."""
    table = Bigram().table[question.first_target % 3]
    targets = question.tokens[question.first_target :]
    steps = [
        (table[last], token)
        for last, token in zip(question.tokens[question.first_target - 1 : -1], targets, strict=True)
    ]
    return sum(row[b] for row, b in steps), all(row[b] == max(row) for row, b in steps)


@pytest.mark.parametrize("kind", [Bigram, Afar])
@pytest.mark.parametrize("held", [asking.MAX_HELD_LIKELIHOODS, SIZE])  # at once; the many blocks of long continuations
def test_likelihoods_are_the_tables_and_greedy_is_what_is_written(
    kind: type[Bigram], held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_HELD_LIKELIHOODS", held)
    backend, questions = kind(), asked()
    assert capabilities(backend).remote == (kind is Afar)
    found = {index: (total, best) for index, total, best in continuation_likelihoods(backend, questions)}
    wanted = {question.index: expected(question) for question in questions}
    assert {index: best for index, (_, best) in found.items()} == {i: best for i, (_, best) in wanted.items()}
    assert 100 < sum(best for _, best in wanted.values()) < 200
    for index, (total, _) in wanted.items():
        assert found[index][0] == pytest.approx(total, abs=1e-5)


def test_options_of_one_token_are_read_from_one_forward_pass() -> None:
    backend = Bigram()
    choices = [
        Loglikelihood(index=last, cluster="", tokens=np.array([0, 1, 2, last]), first_target=3, bytes=0, words=0)
        for last in range(5)
    ]
    found = list(continuation_likelihoods(backend, choices))
    assert backend.asked == ["mark"]
    assert sorted(index for index, _, _ in found) == [0, 1, 2, 3, 4]


def test_of_a_long_continuation_few_likelihoods_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_HELD_LIKELIHOODS", 2 * SIZE)
    held, mark = [], Bigram.mark

    def counted(self: Bigram, question: ClassifyTokens) -> ClassifyTokensAnswer:
        held.append(len(question.places))
        return mark(self, question)

    monkeypatch.setattr(Bigram, "mark", counted)
    backend, tokens = Bigram(spread=0.3), [0]  # nothing has half of the probability
    while len(tokens) < 20:  # what it writes, END and all
        tokens.append(int(backend.rows(np.array(tokens[-1:]), 1)[0].argmax()))
    asked_for = Loglikelihood(index=0, cluster="", tokens=np.array(tokens), first_target=1, bytes=0, words=0)
    assert [best for _, _, best in continuation_likelihoods(backend, [asked_for])] == [True]
    assert max(held) <= 3 < sum(held)  # blocks of two, and the first token with each


def test_a_remote_backend_writes_only_where_likelihoods_leave_it_open() -> None:
    backend, questions = Afar(), asked()
    list(continuation_likelihoods(backend, questions))
    steps = {q.index: -backend.score(q).nll for q in questions}
    sure = [(nll > -math.log(2)).all() or (nll < -math.log(SIZE)).any() for nll in steps.values()]
    assert backend.asked.count("write") == len(questions) - sum(sure)
    assert 0 < sum(sure) < len(questions)


# likelihoods of lexlet, against transformers' own logits


@functools.cache
def network(rope: str | None) -> Any:
    """The checkpoint in transformers, under its own YaRN or unchanged."""
    from transformers import AutoModelForCausalLM

    changed = {} if rope is None else {"rope_parameters": YARN, "max_position_embeddings": 1024}
    return AutoModelForCausalLM.from_pretrained(LEXLET, dtype=torch.float32, **changed).eval()


def from_logits(rope: str | None, tokens: Sequence[int], start: int) -> tuple[float, bool]:
    """ln p of tokens[start:] and whether each is the argmax, from one forward pass of transformers."""
    with torch.inference_mode():
        rows = network(rope)(torch.tensor([list(tokens)])).logits[0, start - 1 : -1].double().log_softmax(-1)
    targets = torch.tensor(list(tokens[start:]))
    best = bool((rows.argmax(-1) == targets).all())
    return float(rows.gather(1, targets[:, None]).sum()), best


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rope"), [({}, None), ({"method": "yarn", "factor": 4}, "yarn")])
def test_likelihoods_of_lexlet_are_those_of_transformers(method: dict[str, Any], rope: str | None) -> None:
    setting = read_model_arguments({"model": "lexlet", **method})
    backend = load_backend(setting)
    rng, questions = np.random.default_rng(2), []
    for index, targets in enumerate([1, 1, 4, 20]):
        tokens = rng.integers(2, 2048, 400 if rope else 200)
        if index % 2:  # what it would write itself
            start = len(tokens) - targets
            written = backend.write(Generate(index=0, cluster="", prompt=tokens[:start], max_new_tokens=targets)).tokens
            tokens[start:] = written
        questions.append(
            Loglikelihood(index=index, cluster="", tokens=tokens, first_target=len(tokens) - targets, bytes=0, words=0)
        )
    for index, total, best in continuation_likelihoods(backend, questions):
        right, right_best = from_logits(rope, [*questions[index].tokens], questions[index].first_target)
        assert total == pytest.approx(right, abs=1e-3, rel=1e-5)
        assert best == right_best == bool(index % 2)

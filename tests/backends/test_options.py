"""Options behind a written answer have the likelihoods and ranks of whole readings, and change nothing of writing."""

from dataclasses import replace

import numpy as np
import pytest

import lexbench
from lexbench import ClassifyTokens, Generate, GenerateAnswer, Loglikelihood
from lexbench.backends import Backend
from lexbench.backends.chance import Chance
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.task import Tokens
from lexbench.kernels import likelihood
from tests.backends.named import backend_class

MODEL = read_model(registry.read_named_config("model", "lexlet"))
VOCABULARY = MODEL.vocabulary or 0
OPTIONS = tuple(np.random.default_rng(size).integers(3, 2000, size) for size in (1, 4, 2, 4))
METHODS = ["none", "yarn", "rerope", "dynamic_ntk", "ms_poe", "attention_buckets", "sliding_window"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["hf", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    built: Backend = backend_class(request.param)(MODEL, dtype="float64")
    return built


def attend(backend: Backend, name: str) -> None:
    method = lexbench.method(name, **({"window": 16} if name in ("rerope", "sliding_window") else {}))
    try:
        backend.attend(method.attention(MODEL, 512))
    except lexbench.Refused as refusal:
        pytest.skip(refusal.reason)


def question(index: int = 0, expected: int = 1) -> Generate:
    prompt = np.random.default_rng(10 + index).integers(3, VOCABULARY, 60 + 3 * index)
    return Generate(
        index=index, cluster="c", prompt=prompt, max_new_tokens=6, options=OPTIONS, expected=(expected + index) % 4
    )


def summed_nll(backend: Backend, prompt: Tokens, option: Tokens) -> float:
    tokens = np.concatenate([prompt, option])
    asked = Loglikelihood(index=0, cluster="a", tokens=tokens, first_target=len(prompt), bytes=1, words=1)
    return float(backend.score(asked).nll.astype(float).sum())


def ranks_of_whole_readings(backend: Backend, prompt: Tokens, option: Tokens) -> list[int]:
    """From the likelihood of every token of the vocabulary at each place, each place read for itself."""
    found = []
    for place in range(len(option)):
        tokens = np.concatenate([prompt, option[: place + 1]])
        every = np.arange(VOCABULARY)
        asked = ClassifyTokens(
            index=0, cluster="a", tokens=tokens, places=np.array([len(prompt) + place]), options=every
        )
        nll = backend.mark(asked).nll[0]
        found.append(int((nll < nll[option[place]]).sum()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_options_cost_what_whole_readings_say_and_change_nothing_that_is_written(backend: Backend, name: str) -> None:
    attend(backend, name)
    asked = question()
    answer, plain = backend.write(asked), backend.write(replace(asked, options=(), expected=0))
    assert answer.tokens.tolist() == plain.tokens.tolist() and plain.option_nll is None and plain.taught_ranks is None
    assert answer.option_nll is not None and answer.taught_ranks is not None
    expected = [summed_nll(backend, asked.prompt, option) for option in OPTIONS]
    np.testing.assert_allclose(answer.option_nll, expected, atol=2e-5)
    if name != "ms_poe":  # whose heads are ranked by the last token in front of the place that is marked
        assert answer.taught_ranks.tolist() == ranks_of_whole_readings(backend, asked.prompt, OPTIONS[1])


def test_texts_that_are_written_together_have_the_likelihoods_of_each_alone() -> None:
    backend = Hf(MODEL, dtype="float64", batch=3)
    asked = [question(index) for index in range(3)]
    asked[1] = replace(asked[1], options=OPTIONS[:2], expected=0)
    asked[2] = replace(asked[2], options=(), expected=0)
    together = list(backend.answer_batch(asked))
    for each, answer in zip(asked, together, strict=True):
        alone = backend.write(each)
        assert isinstance(answer, GenerateAnswer) and answer.tokens.tolist() == alone.tokens.tolist()
        if not each.options:
            assert answer.option_nll is None and answer.taught_ranks is None
            continue
        assert answer.option_nll is not None and answer.taught_ranks is not None and alone.taught_ranks is not None
        np.testing.assert_allclose(
            answer.option_nll, [summed_nll(backend, each.prompt, o) for o in each.options], atol=2e-5
        )
        assert answer.taught_ranks.tolist() == alone.taught_ranks.tolist()


def test_the_prompt_is_read_once_for_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, read = Hf(MODEL), list[int]()
    whole = backend.reader.states

    def counted(tokens: "object", *given: "object") -> "object":
        read.append(tokens.shape[1])  # type: ignore[attr-defined]
        return whole(tokens, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(backend.reader, "states", counted)
    backend.write(question())
    assert max(read) == 60 and read.count(60) == 1


def test_ranks_count_likelier_tokens_and_of_equal_ones_those_before() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.tensor([[[1.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]]])
    for target, ranks in ((0, [3, 0]), (1, [0, 1]), (2, [2, 2]), (3, [1, 3])):
        found = likelihood.token_ranks(logits, lambda given: given, torch.tensor([target, target]))
        assert found.tolist() == ranks


def test_without_a_model_all_options_are_alike() -> None:
    answer = Chance(MODEL).write(question())
    assert answer.option_nll is not None and len(set(answer.option_nll.tolist())) == 1
    assert answer.taught_ranks is not None and len(answer.taught_ranks) == 4


def test_an_option_longer_than_the_answer_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        replace(question(), max_new_tokens=3)

"""Choices and marks are likelihoods: what `score` gives of the same tokens, by another way through the model."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import lexbench
from lexbench import ChooseAnswer, ClassifyTokens, ClassifyTokensAnswer, Loglikelihood
from lexbench.backends import Backend
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.task import Choose, Tokens
from lexbench.taskkit.scoring import score_choice, score_marks
from tests.backends.named import backend_class

MODEL = read_model(registry.read_named_config("model", "lexlet"))
TOKENS = np.random.default_rng(3).integers(3, MODEL.vocabulary or 0, 90)
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


def nll(backend: Backend, tokens: Tokens, start: int) -> np.ndarray:
    return backend.score(Loglikelihood(index=0, cluster="a", tokens=tokens, first_target=start, bytes=1, words=1)).nll


def choice(expected: int = 1) -> Choose:
    return Choose(index=3, cluster="c", prompt=TOKENS[:60], options=OPTIONS, expected=expected, facts={"key": "v"})


def marks() -> ClassifyTokens:
    tokens = TOKENS.copy()
    places = np.array([20, 21, 50, 88])
    tokens[places] = [7, 9, 7, 8]
    return ClassifyTokens(index=0, cluster="c", tokens=tokens, places=places, options=np.array([9, 8, 7]))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_an_option_costs_the_sum_of_its_tokens(backend: Backend, name: str) -> None:
    attend(backend, name)
    expected = [nll(backend, np.concatenate([TOKENS[:60], option]), 60).astype(float).sum() for option in OPTIONS]
    np.testing.assert_allclose(backend.choose(choice()).nll, expected, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_an_option_at_a_place_costs_what_the_token_there_would(backend: Backend, name: str) -> None:
    attend(backend, name)
    question = marks()
    got = backend.mark(question).nll
    start = int(question.places[0])  # ranks of heads are those of the tokens before it, whatever the target
    for row, column in ((0, 0), (1, 1), (2, 2), (3, 0), (3, 2)):
        tokens = np.concatenate([question.tokens[: question.places[row]], question.options[column : column + 1]])
        assert got[row, column] == pytest.approx(nll(backend, tokens, start)[-1], abs=2e-5)


def test_without_a_model_no_option_is_likelier() -> None:
    chance = Chance(MODEL)
    each = math.log(MODEL.vocabulary or 0)
    np.testing.assert_allclose(chance.choose(choice()).nll, [math.log(4)] * 4)
    np.testing.assert_allclose(chance.mark(marks()).nll, np.full((4, 3), each), rtol=1e-6)


@pytest.mark.parametrize(
    ("nlls", "accuracy"),
    [([3, 1, 2, 4], 1.0), ([1, 3, 2, 4], 0.0), ([1, 1, 2, 4], 0.5), ([2, 2, 2, 2], 0.25), ([1, 2, 1, 3], 0.0)],
)
def test_a_choice_is_right_where_the_right_option_is_the_likeliest_and_ties_share(
    nlls: list[float], accuracy: float
) -> None:
    sample = score_choice(choice(expected=1), ChooseAnswer(nll=np.array(nlls, float)), depth=0.5)
    assert sample.scores == {"accuracy": accuracy}
    assert (sample.chance, sample.depth, sample.tokens, sample.index) == (0.25, 0.5, 64, 3)
    assert sample.facts == {"key": "v", "expected_option": 1}
    assert sample.statistics["option_nll"].tolist() == nlls


def test_marks_are_averaged_over_places_and_kept_for_each() -> None:
    nlls = np.array([[3, 2, 1], [1, 2, 3], [1, 2, 3], [2, 2, 3]], np.float32)  # options 9, 8, 7; right: 7, 9, 7, 8
    sample = score_marks(marks(), ClassifyTokensAnswer(nll=nlls))
    assert sample.scores == {"accuracy": (1 + 1 + 0 + 0.5) / 4, "exact": 0.0}
    assert sample.statistics["right"].tolist() == [1, 1, 0, 0.5]
    assert sample.statistics["nll"].tolist() == [1, 1, 3, 2]
    assert sample.statistics["place"].tolist() == [20, 21, 50, 88]
    assert sample.chance == pytest.approx(1 / 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_finite_likelihood_has_failed(bad: float) -> None:
    assert "no finite" in str(score_choice(choice(), ChooseAnswer(nll=np.array([1, bad, 2, 3.0]))).failed)
    nlls = np.ones((4, 3), np.float32)
    nlls[2, 0] = bad
    assert "1 of 4" in str(score_marks(marks(), ClassifyTokensAnswer(nll=nlls)).failed)


def break_places() -> None:
    ClassifyTokens(index=0, cluster="c", tokens=TOKENS, places=np.array([0, 4]), options=TOKENS)


def break_options() -> None:
    ClassifyTokens(index=0, cluster="c", tokens=TOKENS, places=np.array([4]), options=np.array([2]))


def break_choice() -> None:
    Choose(index=0, cluster="c", prompt=TOKENS, options=(TOKENS[:1],), expected=0)


@pytest.mark.parametrize("broken", [break_places, break_options, break_choice])
def test_a_question_without_a_right_answer_is_our_own_bug(broken: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        broken()

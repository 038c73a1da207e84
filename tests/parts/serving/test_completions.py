"""Questions as completions: an engine that is asked token by token answers as the model itself does."""

from collections.abc import Sequence

import numpy as np
import pytest

from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.record import Refused
from lexbench.core.task import (
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
)
from lexbench.parts.serving.completions import (
    Completions,
    Continue,
    Continued,
    Likely,
    Next,
    Reply,
    Request,
    answer_in_turn,
)

MODEL = read_model(registry.read_named_config("model", "lexlet"))
TOKENS = np.random.default_rng(5).integers(3, 2000, 80)
OPTIONS = tuple(np.random.default_rng(size).integers(3, 2000, size) for size in (1, 3, 2, 3))

pytestmark = pytest.mark.usefixtures("one_thread")


class Engine(Completions):
    """Answers requests by transformers; remembers what was asked, batch by batch."""

    name = "engine"

    def __init__(self, hf: Hf) -> None:
        self.hf = hf
        self.tokenizer = hf.tokenizer
        self.asked: list[list[Request]] = []

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        self.asked.append(list(requests))
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        if isinstance(request, Continue):
            whole = self.hf.write(
                Generate(index=0, cluster="", prompt=request.tokens, max_new_tokens=request.max_new_tokens)
            )
            return Continued(tokens=whole.tokens, hit_room=whole.hit_room)
        if isinstance(request, Likely):
            return self._nll(request.tokens, request.first_target)
        ways = [self._nll(np.append(request.tokens, option), len(request.tokens)) for option in request.options]
        return np.concatenate(ways)

    def _nll(self, tokens: np.ndarray, start: int) -> np.ndarray:
        return self.hf.score(
            Loglikelihood(index=0, cluster="", tokens=tokens, first_target=start, bytes=1, words=1)
        ).nll


class ByPrefix(Engine):
    @property
    def by_prefix(self) -> bool:
        return True


@pytest.fixture(scope="module")
def hf() -> Hf:
    return Hf(MODEL, dtype="float64")


@pytest.fixture(params=[Engine, ByPrefix])
def engine(request: pytest.FixtureRequest, hf: Hf) -> Engine:
    built: Engine = request.param(hf)
    return built


def choose(index: int = 0) -> Choose:
    return Choose(index=index, cluster="c", prompt=TOKENS[: 40 + index], options=OPTIONS, expected=0)


def mark() -> ClassifyTokens:
    tokens = TOKENS.copy()
    places = np.array([10, 11, 40, 79])
    tokens[places] = [7, 9, 7, 8]
    return ClassifyTokens(index=0, cluster="c", tokens=tokens, places=places, options=np.array([9, 8, 7]))


def write(room: int = 12, until: tuple[str, ...] = ()) -> Generate:
    return Generate(index=0, cluster="c", prompt=TOKENS[:30], max_new_tokens=room, until=until)


def score() -> Loglikelihood:
    return Loglikelihood(index=0, cluster="c", tokens=TOKENS, first_target=50, bytes=1, words=1)


@pytest.mark.everyday("ByPrefix")
def test_an_option_of_several_tokens_costs_their_sum(engine: Engine, hf: Hf) -> None:
    np.testing.assert_allclose(engine.choose(choose()).nll, hf.choose(choose()).nll, atol=1e-5)


def test_options_are_asked_behind_the_prompt_where_it_is_read_once(hf: Hf) -> None:
    engine = ByPrefix(hf)
    engine.choose(choose())
    [[first], others] = engine.asked
    assert isinstance(first, Next) and first.tokens.tolist() == TOKENS[:40].tolist()
    assert len(others) == sum(len(option) - 1 for option in OPTIONS)
    assert all(isinstance(other, Next) and len(other.options) == 1 for other in others)


def test_whole_options_are_asked_where_every_request_reads_its_prompt(hf: Hf) -> None:
    engine = Engine(hf)
    engine.choose(choose())
    [requests] = engine.asked
    assert [len(request.tokens) for request in requests] == [40 + len(option) for option in OPTIONS]


@pytest.mark.everyday("ByPrefix")
def test_marks_are_what_comes_next_at_each_place(engine: Engine, hf: Hf) -> None:
    np.testing.assert_allclose(engine.mark(mark()).nll, hf.mark(mark()).nll, atol=1e-5)


def test_a_single_place_is_marked(engine: Engine, hf: Hf) -> None:
    whole = mark()
    alone = ClassifyTokens(index=0, cluster="c", tokens=whole.tokens, places=whole.places[2:3], options=whole.options)
    np.testing.assert_allclose(engine.mark(alone).nll, hf.mark(alone).nll, atol=1e-5)


@pytest.mark.everyday("Engine")
def test_targets_and_what_is_written_are_the_engines(engine: Engine, hf: Hf) -> None:
    np.testing.assert_array_equal(engine.score(score()).nll, hf.score(score()).nll)
    ours, theirs = engine.write(write()), hf.write(write())
    assert (ours.tokens.tolist(), ours.text, ours.hit_room) == (
        theirs.tokens.tolist(),
        theirs.text,
        theirs.hit_room,
    )


def test_an_attention_is_not_shown(engine: Engine) -> None:
    with pytest.raises(Refused, match="engine does not return attention weights: use backend=hf"):
        engine.probe(ProbeAttention(index=0, cluster="c", tokens=TOKENS))


@pytest.mark.slow
def test_answers_come_in_order_and_their_requests_go_together(engine: Engine) -> None:
    questions: list[AnyQuestion] = [choose(), score(), mark(), choose(3), write()]
    together = list(answer_in_turn(engine, questions, at_once=3))
    batches = len(engine.asked)
    kinds = [type(answer) for answer in together]
    assert kinds == [ChooseAnswer, LoglikelihoodAnswer, ClassifyTokensAnswer, ChooseAnswer, GenerateAnswer]
    assert batches == 2 + (2 if engine.by_prefix else 1)  # two rounds of the first three, of the last two one or two
    alone = [engine._answer_of(question) for question in questions]
    for one, other in zip(together, alone, strict=True):
        if isinstance(one, GenerateAnswer):
            assert isinstance(other, GenerateAnswer) and one.text == other.text
        else:
            np.testing.assert_array_equal(one.nll, other.nll)  # type: ignore[union-attr]


def test_writing_may_end_where_a_text_stands(hf: Hf) -> None:
    whole = hf.write(write(room=30))
    end = hf.tokenizer.decode(whole.tokens[:9])[-1:]
    assert end.strip() or end  # something to stop at
    short = hf.write(write(room=30, until=(end,)))
    assert end in short.text and whole.text.startswith(short.text)
    assert not short.hit_room
    assert not hf.tokenizer.decode(short.tokens[:-1]).count(end)  # it ended with the first token that said it

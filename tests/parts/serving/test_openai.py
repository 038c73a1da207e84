"""A server is asked for exactly what a question means, and never believed."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.backends import capabilities
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.attention import Attention, Shift
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Choose, ClassifyTokens, Generate, Loglikelihood, ProbeAttention
from lexbench.parts.serving.openai import http
from lexbench.parts.serving.openai.backend import OpenAI, map_in_order, server_method
from lexbench.parts.serving.openai.dialect import TOKENIZER_TRIAL_TEXT, Dialect
from lexbench.parts.serving.openai.trial_texts import UNRELATED_WORDS
from lexbench.parts.serving.openai.trials import N_COMPARED_PLACES
from lexbench.store.store import Store
from tests.backends import scripted
from tests.backends.scripted import Body, Reply, always, completion, echo, listing, nll, replied, serving, vllm
from tests.backends.speaking import FAULTS, Speaker

MODEL = read_model(registry.read_named_config("model", "lexlet"))
TOKENIZER = load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")
TEXT = (
    "Once there was a grey cat that lived in a small house beside the river, and every day it went to see the boats. "
)
TOKENS = np.append(0, TOKENIZER.encode(TEXT * 4).ids)[:100]
OPTIONS = tuple(np.random.default_rng(size).integers(3, 2000, size) for size in (1, 4, 2, 4))
KEY = "sk-very-secret-0123456789"
LISTED = listing("one", **scripted.VLLM)
TRIALS = 29
"""Requests by which a backend finds out what a server like vLLM understands."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(http, "LONGEST_PAUSE", 0.03)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@contextlib.contextmanager
def asking(
    answer: Callable[[Body], Reply], models: Any = LISTED, **changed: Any
) -> Iterator[tuple[OpenAI, scripted.Server]]:
    """A backend whose server answers so; what it has asked when it was built is forgotten."""
    with serving(answer, models, version="0.30.0") as server:
        backend = OpenAI(MODEL, url=server.url, **{"retries": 2, "timeout": 5.0, **changed})
        server.asked.clear()
        yield backend, server
        backend.close()


def score(tokens: Any = TOKENS, start: int = 1) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="a", tokens=tokens, first_target=start, bytes=1, words=1)


def choice() -> Choose:
    return Choose(index=0, cluster="a", prompt=TOKENS[:50], options=OPTIONS, expected=1)


def mark(options: Sequence[int] = (9, 8, 7)) -> ClassifyTokens:
    tokens = TOKENS.copy()
    tokens[[20, 21, 90]] = options[:3]
    return ClassifyTokens(index=0, cluster="a", tokens=tokens, places=np.array([20, 21, 90]), options=np.array(options))


def write(room: int = 20, until: tuple[str, ...] = ()) -> Generate:
    return Generate(index=0, cluster="a", prompt=TOKENS[:50], max_new_tokens=room, until=until)


def costs(tokens: Any, start: int) -> list[float]:
    """By the formula, nats of tokens[start:]."""
    plain = [int(token) for token in tokens]
    return [nll(plain, place) for place in range(start, len(plain))]


# one question after another

SERVERS: dict[str, Callable[[Body], Reply]] = {
    "vllm": vllm(),
    "echo without writing": echo(TOKENIZER, [(0, 0)]),
    "echo with a candidate": echo(TOKENIZER, [(1, 0)]),
    "echo that must write": echo(TOKENIZER, [(1, 1)]),
    "echo of text": echo(TOKENIZER, [(0, 0)], text=True),
}


@pytest.fixture(scope="module", params=SERVERS)
def backend(request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    with asking(SERVERS[request.param]) as (built, _):
        yield built


@pytest.mark.parametrize("start", [1, 60, 99])
def test_a_score_is_what_the_server_says_of_each_token(backend: OpenAI, start: int) -> None:
    losses = backend.score(score(start=start)).nll
    assert losses.dtype == np.float32
    assert losses.tolist() == costs(TOKENS, start)


def test_an_option_costs_the_sum_of_its_tokens(backend: OpenAI, request: pytest.FixtureRequest) -> None:
    texts = tuple(TOKENIZER.encode(text).ids for text in (" no", " yes it is", " perhaps", " a boat"))
    prompt = TOKENIZER.encode(TEXT).ids
    question = Choose(index=0, cluster="a", prompt=np.append(0, prompt), options=texts, expected=0)
    wholes = [np.concatenate([question.prompt, option]) for option in texts]
    assert backend.choose(question).nll.tolist() == [sum(costs(whole, len(question.prompt))) for whole in wholes]


def test_marks_are_costs_of_each_option_at_each_place() -> None:
    for answer in (vllm(), echo(TOKENIZER, [(1, 1)])):
        with asking(answer) as (backend, _):
            question = mark()
            expected = [
                [costs(np.append(question.tokens[:place], option), place)[0] for option in question.options]
                for place in question.places
            ]
            assert backend.mark(question).nll.tolist() == expected


def test_vllm_is_asked_for_no_token_beyond_a_question() -> None:
    with asking(vllm()) as (backend, server):
        backend.score(score())
        backend.choose(choice())
        backend.mark(mark())
        assert all(len(body["prompt"]) + body["max_tokens"] <= 100 for body in server.asked)
        assert [len(body["prompt"]) for body in server.asked][:1] == [99]
        # The prompt of a choice is read with all first tokens at once, and only scored texts ask for prompt_logprobs.
        heads = [body for body in server.asked if len(body["prompt"]) == 50]
        assert [body["logprob_token_ids"] for body in heads] == [sorted({int(option[0]) for option in OPTIONS})]
        assert [body for body in server.asked if "prompt_logprobs" in body] == server.asked[:1]
        assert all(body["model"] == "one" and body["temperature"] == 0 for body in server.asked)


def test_more_options_than_vllm_takes_are_asked_in_parts() -> None:
    options = [9, 8, 7, *range(100, 397)]
    with asking(vllm()) as (backend, server):
        losses = backend.mark(mark(options)).nll
        assert losses.shape == (3, 300)
        assert losses[2, -1] == costs(np.append(mark(options).tokens[:90], 396), 90)[0]
        assert sorted({len(body["logprob_token_ids"]) for body in server.asked}) == [44, 128]


def test_what_a_server_understands_is_found_out_once() -> None:
    with serving(vllm(), LISTED, version="0.30.0") as server:
        backend = OpenAI(MODEL, url=server.url)
        before = len(server.asked)
        backend.score(score())
        backend.score(score())
        assert (before, len(server.asked) - before) == (TRIALS, 2)


def test_a_form_that_breaks_a_server_is_one_that_it_does_not_know() -> None:
    """`transformers serve` 5.23 ends with HTTP 500 where max_tokens is 0, and with 422 where it knows no field."""
    plain = echo(TOKENIZER, [], text=True, written=" a boat")
    broken: Reply = (500, b"Internal Server Error")
    with serving(lambda body: plain(body) if body["max_tokens"] else broken) as server:
        backend = OpenAI(MODEL, url=server.url, retries=10)
        assert sum(not each["max_tokens"] for each in server.asked) == 4  # two forms of likelihoods, twice each
        with pytest.raises(Refused, match="neither prompt_logprobs nor echo"):
            backend.score(score(TOKENS[:60]))
        server.answer = lambda _: broken  # once it is known, HTTP 500 passes
        server.asked.clear()
        with pytest.raises(Deferred, match="11 attempts"):
            backend.write(write())


def test_a_server_that_scores_no_prompt_is_refused_by_a_clear_word_and_still_writes() -> None:
    with asking(echo(TOKENIZER, [], written=" a boat")) as (backend, _):
        with pytest.raises(Refused, match="neither prompt_logprobs nor echo") as refusal:
            backend.score(score())
        assert not isinstance(refusal.value, Deferred)
        assert backend.write(write()).text == " a boat"
        with pytest.raises(Refused, match="does not return attention weights"):
            backend.probe(ProbeAttention(index=0, cluster="a", tokens=TOKENS))


@pytest.mark.parametrize(("shift", "believed"), [(0, True), (1, False)])
def test_an_echo_whose_rows_are_off_by_one_is_not_believed(shift: int, believed: bool) -> None:
    """As llama-cpp-python's server echoes without BOS: the nats of each token once more behind itself."""

    def answer(body: Body) -> Reply:
        status, whole = replied(echo(TOKENIZER, written=" and"), body)
        if status != 200:
            return status, whole
        [first], tokens = whole["choices"], body["prompt"]
        if body.get("echo"):
            rows = [-nll([*tokens[: p + shift], tokens[p]], p + shift) for p in range(1, len(tokens))]
            first["logprobs"]["token_logprobs"][1:] = rows
        return status, whole

    with asking(answer) as (backend, _):
        if believed:
            assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)
        else:
            tokens, pairs = [*TOKENIZER.prefix, *TOKENIZER.encode(UNRELATED_WORDS[0]).ids.tolist()], []
            for part in UNRELATED_WORDS[1 : 1 + N_COMPARED_PLACES]:
                tokens = [*tokens, TOKENIZER.encode(" and").ids[0]]
                pairs.append((nll(tokens, len(tokens) - 1), nll([*tokens, tokens[-1]], len(tokens))))
                tokens += TOKENIZER.encode(part).ids.tolist()
            _, (written, read) = sorted(pairs, key=lambda pair: -abs(pair[0] - pair[1]))[:2]  # one is allowed
            with pytest.raises(Refused, match=f"a token of {written:.2f} nats when it was written has {read:.2f} when"):
                backend.score(score())
            with pytest.raises(Refused, match=r"contradicts itself: .*, and it is not asked to write"):
                backend.write(write())


# servers that are wrong from the start

FORMS: dict[str, Callable[[Speaker], Callable[[Body], Reply]]] = {
    "vllm": lambda speaker: speaker.vllm,
    "vllm without options": lambda speaker: speaker.without_options,
    "echo": lambda speaker: speaker.echo,
    "echo of text": lambda speaker: speaker.echo_of_text,
}


class Near(http.ServerClient):
    """A server that is asked without a network."""

    def __init__(self, answer: Callable[[Body], Reply]) -> None:
        super().__init__("http://127.0.0.1:1/v1", None, None, timeout=1.0, retries=0, requests_per_minute=None)
        self.answer = answer

    def post(self, path: str, body: Any, most: int = 0, trial: bool = False) -> dict[str, Any]:
        status, whole = replied(self.answer, body)
        if status != 200:
            raise http.Rejected(f"HTTP {status}", status)
        return whole


def met(form: str, **settings: Any) -> list[Dialect]:
    """40 servers, when they are first met."""
    speakers = [Speaker(tokenizer=TOKENIZER, seed=seed, **settings) for seed in range(40)]
    servers = [Near(FORMS[form](speaker)) for speaker in speakers]
    return [Dialect(server, "one", TOKENIZER, [1], TOKENIZER.vocabulary, False) for server in servers]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_of_40_true_servers_all_are_believed(form: str, noise: float) -> None:
    """Rounding of 0.05 in each logit is that of bfloat16 in other batches, and of 0.1 that of fewer bits."""
    found = [dialect.able for dialect in met(form, noise=noise)]
    assert [able.odd or able.sampled for able in found] == [""] * 40
    assert all(able.scoring and able.options == (form == "vllm") for able in found)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", FAULTS)
def test_of_40_servers_with_wrong_likelihoods_at_most_one_is_believed(wrong: str, form: str) -> None:
    found = [dialect.able for dialect in met(form, wrong=wrong, noise=0.02)]
    assert sum(able.scoring is not None or able.options for able in found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_of_40_servers_that_ignore_temperature_0_at_most_one_is_believed(form: str) -> None:
    found = [dialect.able for dialect in met(form, draws=True)]
    assert sum(not able.sampled for able in found) <= 1
    assert all(able.scoring is not None and not able.odd for able in found)  # its likelihoods are right


@pytest.mark.everyday("-vllm", "zero-echo", "shifted right-vllm without options")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", ["", *FAULTS])
def test_a_server_with_wrong_likelihoods_is_not_asked_to_write(wrong: str, form: str) -> None:
    speaker = Speaker(tokenizer=TOKENIZER, seed=3, wrong=wrong)
    with asking(FORMS[form](speaker)) as (backend, _):
        if wrong:
            said = "gives all tokens the same likelihood" if wrong in ("zero", "constant") else "contradicts itself"
            for ask in (
                lambda: backend.score(score()),
                lambda: backend.choose(choice()),
                lambda: backend.write(write()),
            ):
                with pytest.raises(Refused, match=rf"{said}.*: use a vLLM server, or backend=hf"):
                    ask()
        else:
            new, values = speaker.written(TOKENS[:50].tolist(), 6)
            assert backend.write(write(6)).tokens.tolist() == new
            whole = np.append(TOKENS[:50], new)
            np.testing.assert_allclose(backend.score(score(whole, 50)).nll, -np.array(values), rtol=1e-6)


@pytest.mark.everyday("vllm", "echo")
@pytest.mark.parametrize("form", FORMS)
def test_a_server_that_draws_is_asked_for_likelihoods_only(form: str) -> None:
    speaker = Speaker(tokenizer=TOKENIZER, seed=3, draws=True)
    with asking(FORMS[form](speaker)) as (backend, _):
        with pytest.raises(Refused, match=r"does not write greedily: 5 of 5 prompts had other answers .*: start it so"):
            backend.write(write(6))
        expected = [-float(speaker.row(TOKENS[:place].tolist())[TOKENS[place]]) for place in range(40, 60)]
        np.testing.assert_allclose(backend.score(score(TOKENS[:60], 40)).nll, expected, rtol=1e-6)


def test_a_server_whose_likelihoods_cannot_be_checked_is_not_believed() -> None:
    """It tells likelihoods of prompts, and none of what it writes."""

    def answer(body: Body) -> Reply:
        plain = {"echo": False, **body}
        return (400, {"message": "no logprobs"}) if plain.get("logprobs") and not plain["echo"] else known(body)

    known = echo(TOKENIZER, [(1, 0)])
    with (
        asking(answer) as (backend, _),
        pytest.raises(Refused, match="gives no log-probabilities of tokens that it writes, by which"),
    ):
        backend.score(score())


def test_a_server_of_texts_is_asked_only_for_tokens_that_are_a_text() -> None:
    with asking(echo(TOKENIZER, text=True)) as (backend, server):
        backend.score(score())
        assert server.asked[-1]["prompt"] == TOKENIZER.decode(TOKENS[1:])  # it puts BOS there itself
        torn = np.append(TOKENS, TOKENIZER.encode("q").ids.tolist() * 3 + [0])
        with pytest.raises(Refused, match="as text only, and no text has these tokens"):
            backend.score(score(torn))


# writing

BOATS = TOKENIZER.encode(" a boat and a cat. And then").ids


@pytest.mark.parametrize(
    ("room", "ends", "wrote", "hit_room"),
    [(20, True, len(BOATS), False), (3, True, 3, True), (len(BOATS), False, len(BOATS), True)],
)
def test_new_tokens_are_given_without_the_end_token(room: int, ends: bool, wrote: int, hit_room: bool) -> None:
    with asking(vllm(BOATS.tolist(), ends=ends)) as (backend, server):
        answer = backend.write(write(room))
        assert answer.tokens.tolist() == BOATS[:wrote].tolist() and answer.hit_room is hit_room
        assert answer.text == TOKENIZER.decode(BOATS[:wrote])
        [body] = server.asked
        assert body["max_tokens"] == room and body["prompt"] == TOKENS[:50].tolist()
        # vLLM takes all else from the model's own generation_config.json
        assert (body["stop_token_ids"], body["ignore_eos"], body["repetition_penalty"]) == ([1], True, 1.0)


def test_a_server_that_writes_on_behind_the_end_is_cut_there() -> None:
    with asking(vllm([5, 6, 1, 7, 8], ends=False)) as (backend, _):
        answer = backend.write(write(5))
        assert answer.tokens.tolist() == [5, 6] and not answer.hit_room


def test_texts_that_end_it_are_told_to_the_server_four_at_most() -> None:
    until = (".", "", "\n", "a", "b", "c")
    with asking(vllm(BOATS.tolist(), ends=False)) as (backend, server):
        answer = backend.write(write(len(BOATS), until))
        assert server.asked[0]["stop"] == [".", "\n", "a", "b"]
        assert not answer.hit_room  # one of them stands in what it wrote
        backend.write(write(len(BOATS)))
        assert "stop" not in server.asked[1]


@pytest.mark.parametrize("text", [" a boat.", "", "\n\nseven"])
def test_a_server_that_gives_texts_only_is_read_as_text(text: str) -> None:
    with asking(echo(TOKENIZER, written=text)) as (backend, server):
        if text:
            answer = backend.write(write())
            assert (answer.text, answer.hit_room) == (text, False)
            assert answer.tokens.tolist() == TOKENIZER.encode(text).ids.tolist()
        server.answer = lambda body: (200, completion(50, {"text": text, "finish_reason": "length"}))
        assert backend.write(write(1)).hit_room


def test_a_text_beyond_its_room_is_not_scored() -> None:
    long = " a boat on the river" * 3
    said = {"text": long, "finish_reason": "stop"}
    with asking(echo(TOKENIZER)) as (backend, server):
        server.answer = lambda _: (200, completion(50, said))  # it counts 1 token of more than 4
        ids = TOKENIZER.encode(long).ids
        assert backend.write(write(4)).tokens.tolist() == ids[:4].tolist()
        counted = completion(50, said)
        counted["usage"]["completion_tokens"] = len(ids)
        server.answer = lambda _: (200, counted)
        with pytest.raises(Refused, match=rf"wrote {len(ids)} tokens of at most 4: it ignores max_tokens"):
            backend.write(write(4))


def test_an_answer_cut_short_of_its_room_is_refused() -> None:
    for answer in (vllm(), echo(TOKENIZER)):
        with asking(answer) as (backend, server):
            said = {"text": " a boat", "token_ids": [5], "finish_reason": "length"}
            whole = completion(50, said, system_fingerprint="vllm-0.30.0-abc")
            server.answer = always((200, whole))
            with pytest.raises(Refused, match="stopped after 1 of 20 tokens"):
                backend.write(write())


# what is wrong with an answer

MALFORMED: list[tuple[str, Callable[[Body], object], str]] = [
    ("no choices", lambda answer: answer.pop("choices"), "choices must be a list, got NoneType"),
    ("two choices", lambda answer: answer["choices"].append({}), "one choice"),
    ("choices of text", lambda answer: answer.update(choices=["x"]), "choices.0 must be a dict, got str"),
    ("no list", lambda answer: answer["choices"][0].update(prompt_logprobs=7), "prompt_logprobs must be a list"),
    ("nothing", lambda answer: answer["choices"][0].pop("prompt_logprobs"), "prompt_logprobs must be a list"),
    ("too few", lambda answer: answer["choices"][0]["prompt_logprobs"].pop(), "98 entries for 99 tokens"),
    ("too many", lambda answer: answer["choices"][0]["prompt_logprobs"].append(None), "100 entries"),
    ("null", lambda answer: put(answer, None, whole=True), "at 40 lacks token"),
    ("another token", lambda answer: put(answer, {"1": {"logprob": -1.0}}, whole=True), "at 40 lacks token"),
    ("no number", lambda answer: put(answer, "-1.5"), "must be finite and at most 0, got -1.5"),
    ("true", lambda answer: put(answer, True), "got True"),
    ("false", lambda answer: put(answer, False), "got False"),
    ("missing", lambda answer: put(answer, None), "of place 40 must be finite and at most 0, got None"),
    ("NaN", lambda answer: put(answer, math.nan), "got nan"),
    ("infinite", lambda answer: put(answer, -math.inf), "got -inf"),
    ("vLLM's infinite", lambda answer: put(answer, -9999.0), "got -9999.0"),
    ("a logit", lambda answer: put(answer, 3.25), "got 3.25"),
    ("huge", lambda answer: put(answer, 10**400), "got 1000"),
    ("no next", lambda answer: answer["choices"][0].update(logprobs=None), "logprobs.top_logprobs.0 must be a dict"),
    ("no option", lambda answer: answer["choices"][0]["logprobs"]["top_logprobs"][0].clear(), "got None"),
    ("cut", lambda answer: answer["usage"].update(prompt_tokens=64), "has read 64 of 99 tokens"),
    ("BOS twice", lambda answer: answer["usage"].update(prompt_tokens=100), "has read 100 of 99 tokens"),
    ("odd count", lambda answer: answer["usage"].update(prompt_tokens="a\nb"), "has read a b of 99 tokens"),
]


def put(answer: Body, value: Any, whole: bool = False) -> None:
    """In the place of a log-probability, or of all that is said of a token."""
    entries = answer["choices"][0]["prompt_logprobs"]
    if whole:
        entries[40] = value
    else:
        [entry] = entries[40].values()
        entry["logprob"] = value


@pytest.mark.everyday("no choices", "too few", "no number", "NaN", "BOS twice")
@pytest.mark.parametrize(("change", "said"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_a_number_that_cannot_be_trusted_is_refused(change: Callable[[Body], object], said: str) -> None:
    def answer(body: Body) -> Reply:
        status, whole = replied(vllm(), body)
        if len(body["prompt"]) == 99:
            change(whole)
        return status, whole

    with asking(answer) as (backend, _):
        with pytest.raises(Refused) as refusal:
            backend.score(score())
        assert said in refusal.value.reason and "\n" not in refusal.value.reason
        assert type(refusal.value) is Refused


ECHOED: list[tuple[Callable[[Body], object], str]] = [
    (lambda said: said["token_logprobs"].pop(), "99 log-probabilities of 100 tokens for 100"),
    (lambda said: said["tokens"].pop(), "100 log-probabilities of 99 tokens for 100"),
    (lambda said: said.update(token_logprobs=said["token_logprobs"] + [-1, -1]), "102 log-probabilities"),
    (lambda said: said["token_logprobs"].__setitem__(40, None), "of place 40 must be finite"),
    (lambda said: said.update(tokens=None), "logprobs.tokens must be a list"),
    (lambda said: said.update(tokens=[*said["tokens"][1:], "x"]), "are not of"),
]


@pytest.mark.parametrize(("change", "said"), ECHOED)
def test_an_echo_that_cannot_be_trusted_is_refused(change: Callable[[Body], object], said: str) -> None:
    def answer(body: Body) -> Reply:
        status, whole = replied(echo(TOKENIZER), body)
        if len(body["prompt"]) == 100:
            change(whole["choices"][0]["logprobs"])
        return status, whole

    with asking(answer) as (backend, _), pytest.raises(Refused, match="malformed answer") as refusal:
        backend.score(score())
    assert said in refusal.value.reason


@pytest.mark.parametrize("spelling", ["\u2581{}", "\u0120{}", " {}"])
def test_tokens_are_known_in_every_spelling(spelling: str) -> None:
    def answer(body: Body) -> Reply:
        status, whole = replied(echo(TOKENIZER), body)
        if status == 200 and "tokens" in (said := whole["choices"][0]["logprobs"] or {}):
            said["tokens"] = [spelling.format(text.strip()) for text in said["tokens"]]
        return status, whole

    with asking(answer) as (backend, _):
        assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)


@pytest.mark.everyday("None", "ids4")
@pytest.mark.parametrize("ids", [None, "abc", [5, None], [5, -1], [5, 10**9], [5, True], [5] * 21, [5.0]])
def test_new_tokens_that_are_none_are_refused(ids: Any) -> None:
    with asking(vllm()) as (backend, server):
        whole = completion(50, {"token_ids": ids}, system_fingerprint="vllm-0.30.0-abc")
        server.answer = lambda _: (200, whole)
        with pytest.raises(Refused, match="malformed answer"):
            backend.write(write())


def test_an_answer_that_was_broken_off_is_none() -> None:
    with asking(vllm()) as (backend, server):
        whole = completion(50, {"token_ids": [5], "finish_reason": "abort"}, system_fingerprint="vllm-0.30.0-abc")
        server.answer = lambda _: (200, whole)
        with pytest.raises(Deferred, match=r"cut an answer short \(abort\): see its log and settings, then repeat"):
            backend.write(write())
        del whole["choices"][0]["finish_reason"]  # it never says so: repeating the command does not help
        with pytest.raises(
            Deferred, match=r"does not say why an answer ended .*: take a server, or a proxy"
        ) as refused:
            backend.write(write())
        assert "repeat" not in str(refused.value) and "None" not in str(refused.value)


def test_a_text_whose_tokens_the_server_does_not_count_is_refused() -> None:
    def answer(body: Body) -> Reply:
        status, whole = replied(echo(TOKENIZER, text=True), body)
        if status == 200 and not body.get("echo") and len(body["prompt"]) > 60:
            del whole["usage"]
        return status, whole

    with asking(answer) as (backend, _):
        assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)  # the echo itself says which tokens
        with pytest.raises(Refused, match="has read an unknown number of 50 tokens"):
            backend.write(write())


def uncounted(body: Body) -> Reply:
    status, whole = replied(echo(TOKENIZER), body)
    return status, {name: value for name, value in whole.items() if name != "usage"}


def test_ids_that_a_server_does_not_count_are_refused_where_it_names_no_token() -> None:
    with asking(uncounted) as (backend, _):
        assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)
        with pytest.raises(Refused, match="has read an unknown number of 50 tokens"):
            backend.write(write())


@pytest.mark.parametrize("text", [False, True])
def test_a_server_that_repeats_the_prompt_is_no_server_of_answers(text: bool) -> None:
    def answer(body: Body) -> Reply:
        status, whole = replied(echo(TOKENIZER, text=text), body)
        if status == 200:
            whole["choices"][0]["text"] = (body["prompt"] if text else TOKENIZER.decode(body["prompt"])) + " a boat"
        return status, whole

    with pytest.raises(ValueError, match="repeats the prompt in front of its answers"), asking(answer):
        pass


@pytest.mark.parametrize(
    ("read", "fits"),
    [
        (len(TOKENIZER.encode(TOKENIZER_TRIAL_TEXT).ids), True),
        (len(TOKENIZER.encode(TOKENIZER_TRIAL_TEXT).ids) + 2, True),  # BOS and end token
        (len(TOKENIZER_TRIAL_TEXT.encode()), False),  # a model of bytes
        (None, True),  # it does not say
    ],
)
def test_a_server_of_ids_that_cuts_a_text_otherwise_runs_another_model(read: int | None, fits: bool) -> None:
    def answer(body: Body) -> Reply:
        if isinstance(body["prompt"], str):
            counted = completion(0, {}, system_fingerprint="vllm-0.30.0-abc")
            return 200, {**counted, "usage": {"prompt_tokens": read}}
        return vllm()(body)

    said = rf"reads a text as {read} tokens that are \d+ by the tokenizer here: it runs another model"
    with contextlib.nullcontext() if fits else pytest.raises(ValueError, match=said), asking(answer) as (backend, _):
        assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)


def test_an_answer_without_a_choice_defers() -> None:
    with asking(vllm()) as (backend, server):
        server.answer = lambda _: (200, {"choices": [], "system_fingerprint": "vllm-0.30.0-abc"})
        with pytest.raises(Deferred, match="sent an answer without a choice: repeat the command"):
            backend.score(score())


# a server that changes


def named(model: str) -> Callable[[Body], Reply]:
    def answer(body: Body) -> Reply:
        status, whole = replied(echo(TOKENIZER), body)
        return status, {**whole, "model": model}

    return answer


def test_another_model_in_the_answers_is_noticed_and_recorded() -> None:
    with asking(named("one-2026"), listing("one")) as (backend, server):
        assert backend.revision == "one (one-2026)"
        assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)
        server.answer = named("two")
        with pytest.raises(Deferred, match="answers by model two, and by one-2026 when this run began"):
            backend.score(score())
        server.answer = echo(TOKENIZER)  # names none
        assert backend.score(score()).nll.tolist() == costs(TOKENS, 1)
    with asking(named("one"), listing("one")) as (backend, _):
        assert backend.revision == "one"


def test_another_server_under_the_same_name_is_noticed() -> None:
    with asking(vllm()) as (backend, server):
        assert backend.revision == "one (/models/one, vllm-0.30.0-abc, max_model_len 512)"
        assert backend.version == "vLLM 0.30.0"
        server.answer = vllm(fingerprint="vllm-0.30.0-def")
        with pytest.raises(Deferred, match="not the server that this run began with"):
            backend.score(score())


def test_only_a_steady_fingerprint_tells_the_weights() -> None:
    """Else kept answers are asked again (tests/runner/test_kept.py)."""
    with asking(vllm()) as (backend, _):
        assert backend.weights_known
    with asking(echo(TOKENIZER), listing("one")) as (backend, _):
        assert not backend.weights_known


def test_a_model_that_is_gone_is_said_with_what_is_there() -> None:
    with asking(vllm()) as (backend, server):
        server.answer = lambda _: (404, {"error": {"message": "The model `one` does not exist."}})
        with pytest.raises(Refused, match="does not exist"):
            backend.score(score())
        server.models = listing("two", "three|four")
        with pytest.raises(Deferred, match=r"no longer serves one, but two, three\|four: give backend\.served"):
            backend.score(score())


def test_too_long_for_the_server_is_refused_in_its_own_words() -> None:
    with asking(vllm()) as (backend, server):
        server.answer = lambda _: (400, {"error": {"message": "maximum context length\nis 64 tokens"}})
        with pytest.raises(Refused, match="maximum context length is 64 tokens") as refusal:
            backend.score(score())
        assert not isinstance(refusal.value, Deferred) and len(server.asked) == 1


# many questions


def test_answers_come_in_order_and_so_many_are_on_the_way() -> None:
    questions = [score(TOKENS[:size]) for size in range(99, 69, -1)]
    with asking(vllm(), concurrency=4) as (backend, server):
        assert capabilities(backend).remote
        server.seconds = 0.02
        for question, answer in zip(questions, backend.answers(questions), strict=True):
            assert answer.nll.tolist() == costs(question.tokens, 1)  # type: ignore[union-attr]
        assert server.at_once == 4
        assert list(backend.answers([])) == []


def test_what_came_before_a_refusal_is_kept_and_nothing_behind_it_is_begun() -> None:
    begun: list[int] = []

    def work(item: int, _: threading.Event) -> int:
        begun.append(item)
        if item == 3:
            raise Refused("three")
        time.sleep(0.05)
        return item

    results = map_in_order(work, range(50), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Refused, match="three"):
        next(results)
    assert max(begun) <= 4


def test_one_that_is_unavailable_stops_those_that_wait() -> None:
    def work(item: int, stop: threading.Event) -> int:
        if item == 1:
            raise Deferred("down")
        assert stop.wait(30)
        raise Deferred("told to stop")

    begin = time.monotonic()
    with pytest.raises(Deferred, match="down"):
        list(map_in_order(work, range(50), 2))
    assert time.monotonic() - begin < 10


def test_a_question_that_waits_for_the_server_ends_with_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    with asking(vllm()) as (backend, server):
        monkeypatch.setattr(http, "FIRST_PAUSE", 60.0)
        monkeypatch.setattr(http, "LONGEST_PAUSE", 60.0)
        server.answer = lambda body: (500, {}) if len(body["prompt"]) > 60 else (401, {})
        threads, begin = threading.active_count(), time.monotonic()
        with pytest.raises(Deferred, match="HTTP 401"):
            list(backend.answers([score(), score(TOKENS[:50])]))
        while threading.active_count() > threads + 2:  # those of the server, which keep two connections
            assert time.monotonic() - begin < 20
            time.sleep(0.01)


def test_nobody_works_for_one_who_has_gone() -> None:
    stops: list[threading.Event] = []

    def work(item: int, stop: threading.Event) -> int:
        stops.append(stop)
        return item if item == 0 else int(stop.wait(30))

    results = map_in_order(work, range(50), 2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert stops[0].is_set() and len(stops) <= 3


# whole runs


def run(folder: Path, server: scripted.Server, **changed: Any) -> list[Any]:
    """Rows of the records of a run with two cells."""
    config = {
        **registry.read_named_config("backend", "openai"),
        "name": "openai",
        "url": server.url,
        "retries": 3,
        **changed,
    }
    corpus = {"name": "synthetic", "count": 8, "words": 200}
    settings: dict[str, Any] = {"task": "last_segment", "corpus": corpus, "lengths": [64, 100], "n": 6}
    lexbench.run("lexlet", results=folder, backend=config, **settings)
    return sorted(Store(folder).load(), key=lambda finished: finished.cell.length)


def losses(finished: Any) -> list[list[float]]:
    return [sample.nll.tolist() for sample in finished.samples]


def after(good: int, bad: Callable[[Body], Reply], answer: Callable[[Body], Reply]) -> Callable[[Body], Reply]:
    """Good answers so many times, then bad ones."""
    left = iter(range(good))
    return lambda body: answer(body) if next(left, None) is not None else bad(body)


@pytest.mark.slow
def test_a_cell_that_a_dead_server_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    with serving(vllm(), LISTED, version="0.30.0") as server:
        whole = run(tmp_path / "whole", server)
        asked = len(server.asked)
        server.answer = after(TRIALS + 4, lambda _: None, vllm())
        second, first = run(tmp_path / "broken", server, concurrency=1)  # the longest comes first
        assert "does not answer" in str(first.refused) and "4 attempts" in str(first.refused)
        assert "does not answer" in str(second.refused) and "attempts" not in str(second.refused)
        server.answer = vllm()
        server.asked.clear()
        again = run(tmp_path / "broken", server)
    assert [one.refused for one in again] == [None, None]
    assert list(map(losses, again)) == list(map(losses, whole))
    assert asked - len(server.asked) == 4  # samples that were there already


@pytest.mark.slow
def test_a_server_that_comes_back_in_time_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST_PAUSE", 0.2)
    with serving(vllm(), LISTED, version="0.30.0") as server:
        whole = run(tmp_path / "whole", server)
    died = threading.Event()

    def dying(body: Body) -> Reply:
        died.set()
        return None

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(serving(after(TRIALS + 4, dying, vllm()), LISTED, version="0.30.0"))
        port = int(first.url.split(":")[2].removesuffix("/v1"))
        results: list[Any] = []
        runner = threading.Thread(target=lambda: results.extend(run(tmp_path / "died", first, retries=20)))
        runner.start()
        assert died.wait(30)
        stack.close()
        time.sleep(0.3)
        with serving(vllm(), LISTED, port=port, version="0.30.0"):
            runner.join()
    assert [one.refused for one in results] == [None, None]
    assert list(map(losses, results)) == list(map(losses, whole))


def test_only_the_cell_that_is_refused_ends(tmp_path: Path) -> None:
    def answer(body: Body) -> Reply:
        return (400, {"message": "too long"}) if len(body["prompt"]) > 64 else vllm()(body)

    with serving(answer, LISTED, version="0.30.0") as server:
        short, long = run(tmp_path, server)
    assert short.refused is None and "HTTP 400: too long" in str(long.refused)


def test_the_key_is_in_nothing_that_a_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    models = listing("one", root=KEY, owned_by="vllm", parent=f"a{KEY}", max_model_len=KEY)
    for number, reply in enumerate([(429, {"error": {"message": f"key {KEY}"}}), (200, f"no json {KEY}".encode())]):
        answer = after(TRIALS + 2, always(reply), vllm(fingerprint=KEY))
        with serving(answer, models, version=KEY, key=KEY) as server:
            found = run(tmp_path / str(number), server, key_variable="MY_KEY", concurrency=1)
        assert all("***" in str(one.refused) for one in found)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} >= {"cells", "jobs", "0", "1"}
    assert not [file for file in files if KEY.encode() in file.read_bytes()]
    assert KEY not in "".join(capfd.readouterr())


def test_an_answer_that_holds_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    written = TOKENIZER.encode(f" it is {KEY}").ids.tolist()
    for answer in (vllm(written), echo(TOKENIZER, written=f" it is {KEY}")):
        with asking(answer) as (backend, _), pytest.raises(Refused, match="wrote the API key") as refusal:
            backend.write(write(60))
        assert KEY not in refusal.value.reason
        assert KEY not in repr(backend) + repr(backend.revision)


@pytest.mark.parametrize("form", ["vllm", "echo"])
def test_half_of_the_key_where_an_answer_is_cut_is_refused(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut by its room here, or by the server: a sample with half of a key is no better than one with the whole."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    whole = f" it is {KEY}"
    ids = TOKENIZER.encode(whole).ids
    room = next(size for size in range(len(ids)) if TOKENIZER.decode(ids[:size]).endswith("secret-01"))
    for text in (TOKENIZER.decode(ids[:room]), whole):
        said = TOKENIZER.encode(text).ids.tolist()
        with asking(vllm(said, ends=False) if form == "vllm" else echo(TOKENIZER, written=text)) as (backend, _):
            with pytest.raises(Refused, match="wrote the API key") as refusal:
                backend.write(write(room))
            assert "secret" not in refusal.value.reason


def test_half_an_answer_of_a_router_defers() -> None:
    with asking(vllm()) as (backend, server):
        choice = {"token_ids": [5], "finish_reason": "stop", "error": {"message": "Provider\nreturned error"}}
        server.answer = always((200, completion(50, choice, system_fingerprint="vllm-0.30.0-abc")))
        with pytest.raises(Deferred, match=r"sent an answer with an error \(.*Provider.*\): repeat the command"):
            backend.write(write())


# the method that a server has


def test_a_server_has_the_method_that_it_was_started_with() -> None:
    yarn = lexbench.method("yarn", factor=4).attention(MODEL, 1024)
    with asking(vllm()) as (backend, _):
        backend.attend(Attention())
        with pytest.raises(Deferred, match=r"serves none, .*export --to vllm.*backend\.serves=\.\.\."):
            backend.attend(yarn)
    with asking(vllm(), serves={"name": "yarn", "factor": 4}) as (backend, _):
        backend.attend(yarn)
        backend.attend(lexbench.method("yarn").attention(MODEL, 1024))  # the same numbers
        with pytest.raises(Deferred, match=r"serves yarn\(factor=4\)"):
            backend.attend(Attention())
        with pytest.raises(Deferred):
            backend.attend(lexbench.method("yarn").attention(MODEL, 512))


def test_a_server_takes_no_offset_of_positions() -> None:
    with asking(vllm()) as (backend, _), pytest.raises(Refused, match="counts positions from 0 and takes no offset"):
        backend.attend(Attention(remap=Shift(3936)))


def test_a_method_that_follows_the_length_serves_one() -> None:
    label, slots = server_method("ntk", 1024, MODEL)
    assert label == "ntk at 1024 tokens"
    assert slots == lexbench.method("ntk").attention(MODEL, 1024).as_data()
    assert server_method("none", None, MODEL) == ("none", {})
    combined = {"compose": [{"name": "ntk", "factor": 4}, "log_n"]}
    both = lexbench.method(combined).attention(MODEL, 1024)
    assert server_method(combined, None, MODEL) == ("ntk(factor=4)+log_n", both.as_data())
    with pytest.raises(ValueError, match=r"backend\.serves=ntk depends on the length: give backend\.serves_length=N"):
        server_method("ntk", None, MODEL)


# what a user can get wrong

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"url": "127.0.0.1:8000/v1"}, "backend.url must be a complete address"),
    ({"concurrency": 0}, "backend.concurrency must be at least 1, got 0"),
    ({"timeout": -1.0}, "backend.timeout must be seconds above 0, got -1.0"),
    ({"timeout": 0.0}, "backend.timeout must be"),
    ({"timeout": math.nan}, "backend.timeout must be"),
    ({"retries": -1}, "backend.retries must be at least 0, got -1"),
    ({"requests_per_minute": 0.0}, "backend.requests_per_minute must be above 0, got 0.0"),
    ({"serves_length": 0}, "backend.serves_length must be at least 1 token, got 0"),
    ({"serves": "yran"}, "backend.serves: unknown method 'yran': did you mean yarn?"),
    ({"serves": {"name": "yarn", "facto": 4}}, "backend.serves: unknown parameter method.facto"),
    ({"serves": 7}, "backend.serves: a method must be a name, or a name with parameters, or an object with"),
    ({"key_variable": KEY}, "must be the name of an environment variable"),
    ({"served": "tow"}, "does not serve 'tow': give backend.served=NAME from one, two"),
    ({}, "does not serve exactly one model: give backend.served=NAME from one, two"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_what_cannot_be_is_said_in_one_line_with_a_remedy(changed: dict[str, Any], said: str) -> None:
    with serving(vllm(), listing("one", "two")) as server:
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            OpenAI(MODEL, **{"url": server.url, **changed})
        assert said in str(error.value) and KEY not in str(error.value)


def test_a_server_that_cannot_be_asked_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(answer: Callable[[Body], Reply] | None = None, models: Any = LISTED, **changed: Any) -> str:
        with (
            serving(answer or vllm(), models, **changed) as server,
            pytest.raises(ValueError, match=r"^[^\n]*$") as error,
        ):
            OpenAI(MODEL, url=server.url, retries=1)
        return str(error.value)

    with serving(vllm()) as server:
        pass
    with pytest.raises(ValueError, match=r"does not answer .*: start the server, or give backend\.url="):
        OpenAI(MODEL, url=server.url)
    assert "set OPENAI_API_KEY" in said(key=KEY)
    assert "malformed answer" in said(models={"data": "x"})
    assert "backend.served=NAME from none" in said(models={"data": [7, {}, {"id": 5}]})
    assert "HTTP 400: chat only" in said(lambda _: (400, {"message": "chat only"}))
    assert "HTTP 503" in said(lambda _: (503, {}))
    with serving(vllm()) as server, pytest.raises(ValueError, match=r"HTTP 404: Not Found: check backend\.url"):
        OpenAI(MODEL, url=server.url.removesuffix("/v1"))
    with pytest.raises(ValueError, match="model facts has no checkpoint"):
        OpenAI(lexbench.Model(name="facts", trained_length=8, head_dim=8))
    monkeypatch.setenv("OPENAI_API_KEY", "two words")
    assert "the key in OPENAI_API_KEY must be printable ASCII" in said()


def test_a_key_is_sent_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(vllm(), LISTED, key=KEY) as server:
        backend = OpenAI(MODEL, url=server.url)
        assert (backend.name, backend.dtype, backend.kernel, backend.version) == ("openai", "unknown", "server", "vLLM")
    with serving(echo(TOKENIZER)) as server:
        backend = OpenAI(MODEL, url=server.url, key_variable=None, served="one", dtype="bfloat16")
        assert all("Authorization" not in headers for headers in server.headers)
        assert (backend.version, backend.revision, backend.dtype) == ("OpenAI API", "one", "bfloat16")


@pytest.mark.slow
def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lexbench.commands import main

    settings = ["backend=openai", "backend.url=http://127.0.0.1:9/v1", "task=last_segment", "corpus=synthetic", "n=1"]
    assert main.main(["run", *settings, "lengths=[64]", f"results={tmp_path}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("lexbench: http://127.0.0.1:9/v1 does not answer")
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    for backend, remedy in (("openai", "its name on a server is backend.served=foo"), ("hf", "leave it out")):
        words = [f"backend={backend}", "backend.model=foo", *settings[2:], "lengths=[64]", f"results={tmp_path}"]
        assert main.main(["run", *words]) == 2
        [*_, said] = capsys.readouterr().err.splitlines()
        assert said.startswith("lexbench: backend.model is set by model=NAME for the whole run, got 'foo': ")
        assert said.endswith(remedy)


@pytest.mark.everyday("bad0-None", "bad2-models2")
@pytest.mark.parametrize(
    ("bad", "models"),
    [
        ((402, {"error": {"message": "Insufficient Balance"}}), None),
        ((404, b"404 page not found"), (404, b"404 page not found")),  # a gateway without its server
        ((404, b"404 page not found"), (503, b"")),
        ((200, {"error": {"message": "Provider returned error", "code": 502}}), None),
        ((409, {}), None),
    ],
)
def test_a_passing_outage_costs_no_sample(bad: Reply, models: Any, tmp_path: Path) -> None:
    with serving(vllm(), LISTED, version="0.30.0") as server:
        run(tmp_path / "whole", server)
        asked = len(server.asked)

        def fail(_: Body) -> Reply:
            server.models = models or LISTED
            return bad

        server.answer = after(TRIALS + 4, fail, vllm())
        broken = run(tmp_path / "run", server, concurrency=1)
        assert all(one.deferred for one in broken)
        server.answer, server.models = vllm(), LISTED
        server.asked.clear()
        assert [one.refused for one in run(tmp_path / "run", server)] == [None, None]
        assert asked - len(server.asked) == 4  # samples that were there already

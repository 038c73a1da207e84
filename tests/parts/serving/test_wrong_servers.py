"""Servers that are wrong from some length on: each is refused, or said to be one that cannot be judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.record import Refused
from lexbench.core.task import Answer, Generate, GenerateAnswer, Loglikelihood, LoglikelihoodAnswer
from lexbench.parts.serving.openai import again
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.parts.serving.openai.constants import N_TOKENS, ConstantWatch
from lexbench.parts.serving.openai.dialect import Abilities, Dialect
from lexbench.parts.serving.openai.mixing import find_mixing
from lexbench.parts.serving.openai.trial_texts import text_tokens
from tests.backends import scripted
from tests.backends.scripted import Body, Reply, listing, serving, vllm
from tests.backends.speaking import Speaker
from tests.parts.serving.test_openai import TOKENS, Near
from tests.parts.serving.wrong_servers import (
    FORMS,
    LIKELIHOOD_FAULTS,
    PROMPT_FAULTS,
    UNSEEN_FAULTS,
    WRITING_FAULTS,
    Reader,
    exchanging,
    of_another_request,
)

MODEL = read_model(registry.read_named_config("model", "lexlet"))
TOKENIZER = load_tokenizer(registry.PACKAGE_FOLDER / "lexlet")
LENGTHS = (192, 384, 640)
READING = FORMS[:4]
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
LISTED = listing("one", **scripted.VLLM)


def met(answer: Callable[[Body], Reply], length: int) -> Abilities:
    """What is found of a server, on short texts and at a length."""
    dialect = Dialect(Near(answer), "one", TOKENIZER, [1], TOKENIZER.vocabulary, False)
    dialect.try_at(length)
    return dialect.able


def reader(fields: Mapping[str, Any], form: str, seed: int = 3, **more: Any) -> Callable[[Body], Reply]:
    return Reader(tokenizer=TOKENIZER, seed=seed, **{**fields, **more}).told_by(form)


@pytest.mark.everyday("192-0.0-vllm", "384-0.0-text", "640-0.05-echo", "384-0.0-silent")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_true_server_is_believed_at_every_length(length: int, noise: float, form: str) -> None:
    for seed in range(2):
        able = met(reader({}, form, seed, noise=noise), length)
        assert (able.odd, able.sampled, able.cut) == ("", "", "")
        assert bool(able.scoring) == (form in READING)


@pytest.mark.everyday("192-echo-0.0", "384-vllm-scaled by 1.3", "640-text-off by one to the left")
@pytest.mark.parametrize("name", LIKELIHOOD_FAULTS)
@pytest.mark.parametrize("form", READING)
@pytest.mark.parametrize("length", LENGTHS)
def test_likelihoods_that_are_wrong_in_long_texts_are_seen(length: int, form: str, name: str) -> None:
    able = met(reader(LIKELIHOOD_FAULTS[name], form), length)
    assert able.contradicts and able.scoring is None and not able.options


@pytest.mark.everyday("192-echo-temperature ignored", "384-writes-the second likeliest token")
@pytest.mark.parametrize("name", WRITING_FAULTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", LENGTHS)
def test_answers_that_are_not_greedy_behind_long_prompts_are_seen(length: int, form: str, name: str) -> None:
    able = met(reader(WRITING_FAULTS[name], form), length)
    told = not (form == "silent" and name == "the second likeliest token")
    assert able.sampled.startswith("does not write greedily") if told else "writes the likeliest" in able.unknown


@pytest.mark.parametrize("form", ["vllm", "writes"])
def test_the_second_likeliest_token_is_seen_where_no_other_is_named(form: str) -> None:
    """Of 96 tokens one has a probability of one half, or none is the likeliest."""
    able = met(reader(WRITING_FAULTS["the second likeliest token"], form, behind=0, names=False), 192)
    assert "none has a probability of one half" in able.sampled
    assert not met(reader({}, form, names=False), 192).sampled


@pytest.mark.everyday("192-vllm-cut to the last half", "640-text-cut in the middle", "384-writes-first token lost")
@pytest.mark.parametrize("name", PROMPT_FAULTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_that_are_cut_in_silence_are_seen(length: int, form: str, name: str) -> None:
    able = met(reader(PROMPT_FAULTS[name], form), length)
    if form == "text" and name == "first token lost":
        return  # that server puts BOS there itself: it cannot be exchanged
    assert able.cut.startswith("answers a prompt of") if form != "silent" else "the whole" in able.unknown


def test_a_model_that_looks_back_two_tokens_is_not_refused() -> None:
    able = met(Speaker(tokenizer=TOKENIZER, seed=3).vllm, 384)
    assert (able.odd, able.sampled, able.cut) == ("", "", "")
    assert able.unknown == "whether it reads the whole of a long prompt"


def test_a_model_of_windows_is_not_judged_by_what_stands_beyond_them() -> None:
    """An honest model with windows in all layers answers as one that is cut."""
    for sees_all in (True, False):
        answer = reader(PROMPT_FAULTS["cut to the last half"], "vllm")
        dialect = Dialect(Near(answer), "one", TOKENIZER, [1], TOKENIZER.vocabulary, False)
        dialect.try_at(384, sees_all)
        assert bool(dialect.able.cut) == sees_all and bool(dialect.able.unknown) != sees_all


def test_numbers_that_hide_one_token_refuse_no_server() -> None:
    """Nats rounded to 1/100, of a server that reads the last half: another token changes none, of a true one hardly."""
    able = met(reader(PROMPT_FAULTS["cut to the last half"], "vllm", digits=2), 384)
    assert able.cut == "" and able.unknown == "whether it reads the whole of a long prompt"


class Routed(Reader):
    """All places of a long prompt are read wrongly, its beginning, too."""

    def read(self, tokens: Sequence[int]) -> list[float]:
        return Reader.read(replace(self, behind=0) if len(tokens) > self.behind else self, tokens)


@pytest.mark.parametrize("name", UNSEEN_FAULTS)
@pytest.mark.parametrize("form", ["vllm", "echo"])
def test_what_stands_in_front_of_long_prompts_only_is_seen(form: str, name: str) -> None:
    server = Routed(tokenizer=TOKENIZER, seed=3, **UNSEEN_FAULTS[name])
    able = met(server.told_by(form), 384)
    assert able.contradicts and "the first 96 tokens of a prompt of" in able.odd


def test_a_floor_under_likelihoods_is_seen() -> None:
    able = met(reader({"values": lambda row: [max(sorted(row)[len(row) // 10], value) for value in row]}, "echo"), 384)
    assert able.contradicts and "nats, and none a lower one" in able.odd


@pytest.mark.parametrize("wrong", [exchanging, of_another_request])
def test_requests_that_are_mixed_up_are_seen_before_the_run(wrong: Any) -> None:
    true = reader({}, "vllm")
    dialect = Dialect(Near(true), "one", TOKENIZER, [1], TOKENIZER.vocabulary, False)
    said, _ = find_mixing(dialect, 384, 2)
    assert said == ""
    mixed = wrong(true)

    def counted(body: Body) -> Reply:
        status, whole = scripted.replied(mixed, body)
        return status, {**whole, "usage": {"prompt_tokens": len(body["prompt"])}}

    dialect._server.answer = counted  # type: ignore[attr-defined]
    said, _ = find_mixing(dialect, 384, 2)
    assert said.endswith("it mixes requests up")


@pytest.mark.parametrize("name", UNSEEN_FAULTS)
def test_what_stands_in_front_of_every_prompt_is_said_to_need_a_reference(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = reader(UNSEEN_FAULTS[name], "vllm", behind=0)
    with serving(answer, LISTED, version="0.30.0") as server:
        backend = OpenAI(MODEL, url=server.url, retries=0, longest=192)
        for _ in range(2):
            backend.attend(Attention())
        backend.close()
    [said] = capsys.readouterr().err.splitlines()
    assert (
        "a second BOS stands in front of every prompt cannot be judged without a reference: lexbench identify" in said
    )


def test_a_server_is_tried_once_up_to_the_greatest_length_of_the_run() -> None:
    with serving(reader({}, "vllm"), LISTED, version="0.30.0") as server:
        backend = OpenAI(MODEL, url=server.url, retries=0, longest=384)
        server.asked.clear()
        for _ in range(2):
            backend.attend(Attention())
        sizes = [len(body["prompt"]) + body["max_tokens"] for body in server.asked]
        assert 380 <= max(sizes) <= 384 and len(sizes) < 60
        backend.close()


def test_a_server_that_contradicts_itself_is_not_asked_to_write() -> None:
    with serving(reader(LIKELIHOOD_FAULTS["scaled by 1.3"], "echo")) as server:
        backend = OpenAI(MODEL, url=server.url, retries=0, longest=192)
        backend.attend(Attention())
        server.asked.clear()
        with pytest.raises(Refused, match=r"1\.30 times the nats .*, and it is not asked to write: use a vLLM server"):
            backend.write(Generate(index=0, cluster="a", prompt=TOKENS[:50], max_new_tokens=9))
        assert server.asked == []
        backend.close()


# answers


def score(tokens: Any, start: int = 1) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="a", tokens=tokens, first_target=start, bytes=1, words=1)


def test_an_answer_of_one_constant_is_refused_at_any_time() -> None:
    """The server is true when it is met: later a row of it, or short answers together, are one constant."""
    with serving(vllm(), LISTED, version="0.30.0") as server:
        backend = OpenAI(MODEL, url=server.url, retries=0)
        backend.score(score(TOKENS))

        def constant(body: Body) -> Reply:
            status, whole = scripted.replied(vllm(), body)
            [choice] = whole["choices"]
            for row in choice.get("prompt_logprobs") or []:
                for each in (row or {}).values():
                    each["logprob"] = -2.5
            for each in (choice["logprobs"] or {}).get("top_logprobs", []):
                each.update(dict.fromkeys(each, -2.5))
            return status, whole

        server.answer = constant
        with pytest.raises(Refused, match=r"gives all tokens the same likelihood, 2\.50 nats"):
            backend.score(score(TOKENS))
        for _ in range(N_TOKENS - 1):
            assert backend.score(score(TOKENS, 99)).nll.tolist() == [2.5]
        with pytest.raises(Refused, match="gives all tokens the same likelihood"):
            backend.score(score(TOKENS, 99))
        backend.close()


@pytest.mark.parametrize(
    ("row", "constant"),
    [
        ([2.5] * 16, True),
        ([2.5, 2.505] * 8, True),
        ([2.5] * 15, False),  # too few
        ([2.5, 2.6] * 8, False),
        ([0.0] * 16, True),
        ([0.0, 1e-5] * 8, False),  # a text that repeats itself
        ([0.004, 0.009] * 8, False),
    ],
)
def test_certain_tokens_are_no_constant(row: list[float], constant: bool) -> None:
    assert ConstantWatch().is_constant(np.array(row, np.float32)) == constant


# answers of other requests


def questions(n: int = 8) -> list[Generate]:
    whole = text_tokens(TOKENIZER, 190, "The end")
    words = [TOKENIZER.encode(f" {word}").ids[0] for word in NUMBERS]
    return [Generate(index=k, cluster="a", prompt=np.append(whole[:-1], words[k]), max_new_tokens=6) for k in range(n)]


@pytest.mark.parametrize("kind", ["writes", "scores"])
@pytest.mark.parametrize("form", ["vllm", "echo"])
@pytest.mark.parametrize("wrong", [exchanging, of_another_request])
def test_answers_of_other_requests_are_seen_when_asked_again(wrong: Any, form: str, kind: str) -> None:
    """It is true when it is met; then pairs of requests are exchanged, or each gets the answer of the one before."""
    true = reader({}, form)
    asked: list[Any] = [*questions()]
    if kind == "scores":
        asked = [score(each.prompt, 150) for each in asked]
    with serving(true, LISTED, version="0.30.0") as server:
        for answer, seen in ((true, False), (wrong(true), True)):
            server.answer = true
            backend = OpenAI(MODEL, url=server.url, retries=0, concurrency=2, longest=196)
            backend.attend(Attention())
            server.answer = answer
            if seen:
                with pytest.raises(Refused, match=r"mixes requests up|malformed answer"):
                    list(backend.answers(asked))
                if kind == "writes":
                    with pytest.raises(Refused, match="mixes requests up"):
                        backend.answers(asked[:1])
            else:
                server.asked.clear()
                assert len(list(backend.answers(asked))) == 8 and len(server.asked) == 10
                again_asked = [body["prompt"][-1] for body in server.asked[-2:]]
                assert again_asked == [each.prompt[-1] for each in questions()[:-3:-1]] or kind == "scores"
            backend.close()


def test_shorter_questions_than_the_greatest_are_not_asked_again() -> None:
    with serving(reader({}, "vllm"), LISTED, version="0.30.0") as server:
        backend = OpenAI(MODEL, url=server.url, retries=0, longest=384)
        backend.attend(Attention())
        server.asked.clear()
        assert len(list(backend.answers(questions(3)))) == len(server.asked) == 3
        backend.close()


def written(*tokens: int) -> GenerateAnswer:
    return GenerateAnswer(tokens=np.array(tokens), text="", hit_room=True)


def likely(*nats: float) -> LoglikelihoodAnswer:
    return LoglikelihoodAnswer(nll=np.array(nats, np.float32))


LONG = tuple(range(40))


@pytest.mark.parametrize(
    ("pairs", "mixed"),
    [
        ([(written(1, 2, 3), written(1, 2, 3))] * 2, False),
        ([(written(1, 2, 3), written(7, 8, 9))] * 2, True),  # 2 of 2 tokens part
        ([(written(*LONG), written(*LONG[:30], 99))] * 2, False),  # 2 of 62: two equally likely tokens, by rounding
        ([(written(*LONG), written(*LONG[:5], 99))] * 8, True),  # 8 of 48, in all texts
        ([(written(*LONG), written(*LONG[:25], 99))] * 8, False),  # 8 of 208
        ([(likely(1.0, 2.0), likely(1.4, 2.4))], False),
        ([(likely(1.0, 2.0), likely(1.0, 2.6))], True),
        ([(likely(*[1.0] * 16), likely(*[1.0] * 15, 3.0))], False),  # one outlier of 16
        ([(likely(*[1.0] * 16), likely(*[1.0] * 15, 3.1))], True),
    ],
)
def test_rounding_mixes_no_requests_up(pairs: list[tuple[Answer, Answer]], mixed: bool) -> None:
    assert again.are_of_other_requests(pairs) == mixed


def test_a_server_that_breaks_where_it_tells_no_likelihoods_is_asked_without() -> None:
    """As llama-cpp-python ends with HTTP 500 at `logprobs` where it keeps no logits: ten retries take minutes."""
    true = reader({}, "silent")
    with serving(lambda body: (500, {}) if body.get("logprobs") is not None else true(body)) as server:
        backend = OpenAI(MODEL, url=server.url, retries=10, longest=192)
        backend.attend(Attention())
        # Three forms of echo, options of the next token, and new tokens, twice each.
        assert sum(body.get("logprobs") is not None for body in server.asked) == 10
        assert len(list(backend.answers(questions(3)))) == 3
        backend.close()

"""A chat server: messages instead of tokens, thought and answer each with its budget, apart from completions."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Choose, Generate
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Encoded
from lexbench.parts.serving.openai import http
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.store.store import Store
from tests.backends import scripted
from tests.backends.scripted import Body, Reply, listing, serving
from tests.backends.speaking import Speaker

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
KEY = re.compile(r"The pass key is (\d+)\. Remember")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """lexlet's tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(registry.PACKAGE_FOLDER / "lexlet", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return read_model({**registry.read_named_config("model", "lexlet"), "path": str(folder)})


def texts(body: Body) -> str:
    """By hand, what the template makes of the messages."""
    whole = "".join(f"[{message['role']}]{message['content']}" for message in body["messages"])
    if body.get("continue_final_message"):
        return whole.replace("[assistant]", "[assistant]<think></think>")
    thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
    return f"{whole}[assistant]" + ("" if thinks else "<think></think>")


def talking(model: Model, say: Callable[[Body], tuple[Body, str]], spare: int = 0) -> Callable[[Body], Reply]:
    """A server that counts tokens as the model does; `say` gives message and finish reason."""
    tokenizer = load_tokenizer(Path(str(model.path)), model.bos)

    def answer(body: Body) -> Reply:
        message, reason = say(body)
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        usage = {"prompt_tokens": len(tokenizer.encode(texts(body)).ids) + spare}
        return 200, {"object": "chat.completion", "choices": [choice], "usage": usage}

    return answer


def finder(thought: str = "") -> Callable[[Body], tuple[Body, str]]:
    """Says the pass key that it reads, behind a thought."""

    def say(body: Body) -> tuple[Body, str]:
        found = KEY.search(texts(body))
        thinks = body.get("chat_template_kwargs", {}).get("enable_thinking")
        return {"content": (thought if thinks else "") + (found[1] if found else "none")}, "stop"

    return say


@contextlib.contextmanager
def asking(model: Model, answer: Callable[[Body], Reply], **changed: Any) -> Iterator[tuple[OpenAI, scripted.Server]]:
    with serving(answer, listing("one")) as server:
        backend = OpenAI(model, url=server.url, chat=True, **{"retries": 1, "timeout": 5.0, **changed})
        server.asked.clear()
        yield backend, server
        backend.close()


def passkey(backend: OpenAI, **parameters: Any) -> Generate:
    [question] = lexbench.task("passkey", **parameters).questions(backend.tokenizer, 220, 1, 0)
    assert isinstance(question, Generate)
    return question


def test_a_question_becomes_messages(model: Model) -> None:
    with asking(model, talking(model, finder()), system="Be brief.") as (backend, server):
        question = passkey(backend)
        answer = backend.write(question)
        [body] = server.asked
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        system, user = (message["content"] for message in body["messages"])
        assert system == "Be brief." and user.startswith("A pass key is hidden in this text.")
        assert f"The pass key is {question.facts['expected']}." in user
        assert user.endswith("What is the pass key? The pass key is")
        assert (body["temperature"], body["max_tokens"]) == (0, question.max_new_tokens)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert answer.text == question.facts["expected"] and (answer.thought, answer.hit_room) == ("", False)


def test_first_words_of_the_answer_are_prefilled_or_end_the_question(model: Model) -> None:
    for prefill in (True, False):
        with asking(model, talking(model, finder()), prefill=prefill) as (backend, server):
            tokenizer = backend.tokenizer
            frame = tokenizer.frame(chat=True)
            pieces = [frame.before, tokenizer.encode("Which?").ids, frame.after, tokenizer.encode("It is").ids]
            backend.write(Generate(index=0, cluster="a", prompt=np.concatenate(pieces), max_new_tokens=9))
            [body] = server.asked
            if prefill:
                assert [message["content"] for message in body["messages"]] == ["Which?", "It is"]
                assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
            else:
                assert [message["content"] for message in body["messages"]] == ["Which?\nIt is"]
                assert "continue_final_message" not in body


@pytest.mark.parametrize("asks_itself", [True, False])
def test_first_words_of_the_answer_stand_behind_the_template_without_a_blank(model: Model, asks_itself: bool) -> None:
    """A backend that chats frames a question like a task that does: `[assistant] The` would be another text."""
    with asking(model, talking(model, finder())) as (backend, server):
        [question] = lexbench.task("niah_single_1", chat=asks_itself).questions(backend.tokenizer, 400, 1, 0)
        assert isinstance(question, Generate)
        backend.write(question)
        [_, (role, begun)] = [(each["role"], each["content"]) for each in server.asked[0]["messages"]]
        assert role == "assistant" and re.fullmatch(r"The special magic number for [\w-]+ is:", begun)


THOUGHTS: dict[str, tuple[Body, str, tuple[str, str, bool, bool]]] = {
    "marked": ({"content": "<think>\nhm\n</think>\n\n7"}, "stop", ("hm", "7", False, False)),
    "marked at its end only": ({"content": "hm</think>7"}, "stop", ("hm", "7", False, False)),
    "in vLLM's field": ({"content": "7", "reasoning": "hm"}, "stop", ("hm", "7", False, False)),
    "in the older field": ({"content": "7", "reasoning_content": "hm"}, "stop", ("hm", "7", False, False)),
    "unfinished": ({"content": "<think>hm"}, "length", ("hm", "", True, True)),
    "unfinished, opened by the template": ({"content": "so hm"}, "length", ("so hm", "", True, True)),
    "unfinished, in a field": ({"content": None, "reasoning": "hm"}, "length", ("hm", "", True, True)),
    "none": ({"content": "7"}, "stop", ("", "7", False, False)),
    "answer cut": ({"content": "<think>hm</think>7 8"}, "length", ("hm", "7 8", True, False)),
}


@pytest.mark.everyday("marked", "in vLLM's field", "unfinished")
@pytest.mark.parametrize("name", THOUGHTS)
def test_a_thought_is_taken_out_and_kept(model: Model, name: str) -> None:
    message, reason, expected = THOUGHTS[name]
    said = talking(model, lambda _: (message, reason))
    with asking(model, said, thinking="budget", thought=50) as (backend, server):
        question = passkey(backend)
        answer = backend.write(question.__class__(**{**vars(question), "thought": 50}))
        assert (answer.thought, answer.text, answer.hit_room, answer.thought_cut) == expected
        [body] = server.asked
        assert (body["max_tokens"], body["thinking_token_budget"]) == (question.max_new_tokens + 50, 50)
        assert body["chat_template_kwargs"] == {"enable_thinking": True}


def test_what_the_thought_leaves_over_is_not_the_answers(model: Model) -> None:
    with asking(model, talking(model, finder("<think>hm</think>" + "word " * 40)), thinking="free", thought=90) as (
        backend,
        _,
    ):
        answer = backend.write(passkey(backend, room=10))
        assert (len(answer.tokens), answer.hit_room, answer.thought) == (10, True, "hm")


def test_conversations_are_sent_as_they_are(model: Model) -> None:
    talk = (("user", "Write."), ("assistant", "Roses."), ("user", "Again."))
    with asking(model, talking(model, finder())) as (backend, server):
        assert isinstance(backend.tokenizer, FastTokenizer)
        prompt = np.concatenate(backend.tokenizer.talk(talk))
        backend.write(Generate(index=0, cluster="a", prompt=prompt, max_new_tokens=9, messages=talk))
        assert [(each["role"], each["content"]) for each in server.asked[0]["messages"]] == list(talk)


def test_likelihoods_cut_prompts_and_unframed_questions_are_refused(model: Model) -> None:
    with asking(model, talking(model, finder())) as (backend, server):
        tokens = np.array([5, 6, 7])
        with pytest.raises(Refused, match="gives no likelihoods of given tokens: take a task that writes, or backend"):
            next(backend.answers([Choose(index=0, cluster="a", prompt=tokens, options=(tokens, tokens), expected=0)]))
        with pytest.raises(Refused, match="needs a question in the chat template, this task's has none"):
            backend.write(Generate(index=0, cluster="a", prompt=tokens, max_new_tokens=9))
        server.answer = talking(model, finder(), spare=-65)
        with pytest.raises(Refused, match=r"has read .* tokens, the question has .*: it truncates prompts"):
            backend.write(passkey(backend))
        server.answer = talking(model, lambda _: ({"content": "x"}, "content_filter"))
        with pytest.raises(Deferred, match=r"cut an answer short \(content_filter\)"):
            backend.write(passkey(backend))


@pytest.mark.parametrize("status", [400, 500])
def test_servers_that_know_other_fields_are_asked_in_theirs(status: int, model: Model) -> None:
    said = talking(model, finder())

    def strict(body: Body) -> Reply:
        odd = {"max_tokens", "chat_template_kwargs"} & set(body)
        return (status, {"error": {"message": f"unknown {sorted(odd)[0]}"}}) if odd else said(body)

    with asking(model, strict) as (backend, server):
        assert backend.write(passkey(backend)).text.isdigit()
        assert server.asked[0]["max_completion_tokens"] > 1
        assert backend.version == "OpenAI API, which takes no chat_template_kwargs"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"thinking": "much"}, "backend.thinking must be one of none, free, budget, got much"),
        ({"thinking": "free"}, "backend.thought must be tokens above 0 with thinking, and 0 without, got 0"),
        ({"thought": 9}, "backend.thought must be tokens above 0 with thinking, and 0 without, got 9"),
        ({"chat": False, "system": "x"}, "backend.system, thinking, thought, prefill and markers need backend.chat"),
        ({"markers": ["<a>"]}, "backend.markers must be two texts, got"),
    ],
)
def test_wrong_settings_are_one_line(model: Model, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        OpenAI(model, **{"chat": True, **changed})


@pytest.mark.slow
def test_a_run_with_thinking_counts_all_tokens_and_is_never_mixed_with_completions(
    model: Model, tmp_path: Path, unverified: None
) -> None:
    """End to end: the finder answers every pass key behind its thought; the run keeps thought, length and identity."""
    with serving(talking(model, finder("<think>I look for it.</think>")), listing("one")) as server:
        config = {"name": "openai", **registry.read_named_config("backend", "openai"), "url": server.url, "retries": 0}
        thinking = {"chat": True, "thinking": "free", "thought": 64}
        path = {"name": "lexlet", **registry.read_named_config("model", "lexlet"), "path": model.path}
        for more in (thinking, {"chat": True}):
            lexbench.run(path, task="passkey", lengths=[256], n=3, results=tmp_path, backend={**config, **more})
        assert {body["max_tokens"] for body in server.asked if body["max_tokens"] > 65} != set()
    cells = {bool(each.samples[0].facts.get("thought")): each for each in Store(tmp_path).load()}
    assert cells.keys() == {True, False}
    for thinks, finished in cells.items():
        assert [sample.scores["accuracy"] for sample in finished.samples] == [1.0] * 3
        assert {sample.tokens for sample in finished.samples} == {256}
        assert ("thinking free, 64 tokens" in finished.cell.protocol) == thinks
        assert finished.cell.identity["backend"]["chat"] in finished.cell.protocol
    assert cells[True].samples[0].facts["thought"] == "I look for it."
    assert len({each.cell.protocol for each in cells.values()}) == 2


COUNTS = [
    ({"completion_tokens": 3}, "length", r"stopped after 3 of \d+ tokens: raise its limit on new tokens"),
    ({"completion_tokens": 900}, "length", r"wrote 900 tokens of at most \d+: it ignores max_tokens"),
    ({"prompt_tokens": None}, "stop", "has read an unknown number of tokens, the question has"),
    ({"prompt_tokens": 12.0}, "stop", "has read 12.0 tokens, the question has"),
]


@pytest.mark.parametrize(("counts", "reason", "said"), COUNTS)
def test_an_answer_or_prompt_that_was_cut_by_the_servers_counts_is_refused(
    counts: Body, reason: str, said: str, model: Model
) -> None:
    whole = talking(model, lambda _: ({"content": "7"}, reason))

    def answer(body: Body) -> Reply:
        reply = whole(body)
        assert reply is not None
        reply[1]["usage"].update(counts)
        return reply

    with asking(model, whole) as (backend, server):
        server.answer = answer
        with pytest.raises(Refused, match=said):
            backend.write(passkey(backend))


@pytest.mark.parametrize("usage", [None, [1], "x", 1, True])
def test_counts_that_are_no_object_are_none(usage: Any, model: Model) -> None:
    whole = talking(model, finder())

    def answer(body: Body) -> Reply:
        reply = whole(body)
        assert reply is not None
        return reply[0], {**reply[1], "usage": usage}

    with asking(model, whole) as (backend, server):
        server.answer = answer
        with pytest.raises(Refused, match="has read an unknown number of tokens"):
            backend.write(passkey(backend))


@pytest.mark.parametrize(
    ("message", "said"),
    [({}, "an answer without content$"), ({"content": None, "refusal": "I cannot"}, r"without content \(I cannot\)$")],
)
def test_an_answer_without_content_is_no_wrong_answer(message: Body, said: str, model: Model) -> None:
    with asking(model, talking(model, finder())) as (backend, server):
        server.answer = talking(model, lambda _: (message, "stop"))
        with pytest.raises(Refused, match=said):
            backend.write(passkey(backend))
        server.answer = talking(model, lambda _: ({"content": ""}, "stop"))
        assert backend.write(passkey(backend)).text == ""


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TAKEN: dict[str, tuple[Body, str]] = {
    "all of it in the server's field": ({"content": None, "reasoning_content": "7"}, "stop"),
    "all in the newer field, nothing beside it": ({"content": "", "reasoning": "7"}, "stop"),
    "a thought in the field, cut": ({"content": None, "reasoning": "hm"}, "length"),
    "a blank in the field": ({"content": None, "reasoning": "\n"}, "stop"),
    "a thought without end": ({"content": "<think>hm"}, "stop"),
    "a thought, cut": ({"content": "<think>hm"}, "length"),
    "an answer cut behind a thought": ({"content": "<think>hm</think>7 8"}, "length"),
    "an answer cut beside a thought": ({"content": "7 8", "reasoning": "hm"}, "length"),
    "a channel without end": ({"content": f"{ANALYSIS}The pass key is 7"}, "length"),
    "a channel that stopped": ({"content": f"{ANALYSIS}The pass key is 7<|end|>"}, "stop"),
    "a channel without special tokens": ({"content": "analysisThe pass key is 7"}, "stop"),
    "another tag": ({"content": "[THINK]The pass key is 7"}, "stop"),
}
GIVEN: dict[str, tuple[Body, str, tuple[str, str]]] = {
    "an empty thought": ({"content": "<think>\n\n</think>\n\n7"}, "stop", ("", "7")),
    "an empty thought, answer cut": ({"content": "<think></think>7 8"}, "length", ("", "7 8")),
    "a thought and an answer": ({"content": "<think>hm</think>7"}, "stop", ("hm", "7")),
    "both in fields": ({"content": "7", "reasoning_content": "hm"}, "stop", ("hm", "7")),
    "an answer": ({"content": "7 8"}, "length", ("", "7 8")),
    "an empty answer": ({"content": ""}, "stop", ("", "")),
    "channels": ({"content": f"{ANALYSIS}hm<|end|><|start|>assistant{FINAL}7<|return|>"}, "stop", ("hm", "7")),
    "the answer's channel": ({"content": f"{FINAL}7"}, "stop", ("", "7")),
    "channels without special tokens": ({"content": "analysisHm.assistantfinal7"}, "stop", ("Hm.", "7")),
    "a thought repeated beside": ({"content": "<think>hm</think>7", "reasoning": "hm"}, "stop", ("hm", "7")),
}


@pytest.mark.everyday("a thought in the field, cut", "a thought without end")
@pytest.mark.parametrize("name", TAKEN)
def test_a_thought_that_was_not_asked_for_is_never_the_answer(name: str, model: Model) -> None:
    message, reason = TAKEN[name]
    with asking(model, talking(model, finder())) as (backend, server):
        server.answer = talking(model, lambda _: (message, reason))
        with pytest.raises(
            Refused, match="writes a thought in place of an answer, though it is told not to"
        ) as refusal:
            backend.write(passkey(backend))
        assert not isinstance(refusal.value, Deferred)


@pytest.mark.parametrize("name", GIVEN)
def test_an_answer_is_taken_from_beside_a_thought_that_left_its_room(name: str, model: Model) -> None:
    message, reason, expected = GIVEN[name]
    with asking(model, talking(model, finder())) as (backend, server):
        server.answer = talking(model, lambda _: (message, reason))
        answer = backend.write(passkey(backend))
        assert (answer.thought, answer.text, answer.hit_room) == (*expected, reason == "length")


SEARCHED = "I look for it. The pass key is 7, I think, but"
UNANSWERED: dict[str, tuple[Body, str, str]] = {
    "a cut thought, repeated": ({"content": SEARCHED, "reasoning": SEARCHED}, "length", ""),
    "the same with its marker": ({"content": f"<think>{SEARCHED}", "reasoning": SEARCHED}, "length", ""),
    "a part of it": ({"content": SEARCHED[:30], "reasoning_content": SEARCHED}, "length", ""),
    "repeated, and stopped": ({"content": "7", "reasoning": "7"}, "stop", ""),
    "an answer among thoughts": ({"content": None, "reasoning": "7"}, "stop", ""),
    "an answer among thoughts, nothing beside": ({"content": "", "reasoning_content": "7"}, "stop", ""),
    "a channel that stopped": ({"content": f"{ANALYSIS}{SEARCHED}<|end|>"}, "stop", ""),
    "repeated, and an answer": ({"content": f"{SEARCHED}\n\n7", "reasoning": SEARCHED}, "stop", "7"),
    "an answer": ({"content": "7", "reasoning": SEARCHED}, "stop", "7"),
    "an answer like a thought": ({"content": "I look", "reasoning": SEARCHED}, "stop", "I look"),
}


@pytest.mark.parametrize("name", UNANSWERED)
def test_a_thought_is_never_its_own_answer(name: str, model: Model) -> None:
    """What has no answer is marked as such, whether it was cut or stopped."""
    message, reason, text = UNANSWERED[name]
    with asking(model, talking(model, finder()), thinking="free", thought=90) as (backend, server):
        server.answer = talking(model, lambda _: (message, reason))
        answer = backend.write(replace(passkey(backend), thought=90))
        assert (answer.text, answer.thought_cut, len(answer.tokens) > 0) == (text, not text, bool(text))
        assert answer.thought and answer.hit_room == (reason == "length")


OPENING = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}{% if add_generation_prompt %}"
    "[assistant]<think>{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("way", "believed"), [("obeys", True), ("ignores", False), ("rejects", False), ("never", True)]
)
def test_a_server_that_ignores_the_switch_is_not_asked_without_thinking(
    way: str, believed: bool, model: Model, tmp_path: Path
) -> None:
    """It opens a thought of which a cut answer shows nothing; its own count of tokens gives it away."""
    folder = shutil.copytree(Path(str(model.path)), tmp_path / "model")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": OPENING}))
    opening = read_model({**registry.read_named_config("model", "lexlet"), "path": str(folder)})
    tokenizer = load_tokenizer(folder, model.bos)

    def answer(body: Body) -> Reply:
        switch = body.get("chat_template_kwargs")
        if way == "rejects" and switch is not None:
            return 400, {"error": {"message": "unknown chat_template_kwargs"}}
        if way == "never" and switch and switch["enable_thinking"]:
            return 400, {"error": {"message": "this model cannot think"}}
        thinks = way in ("ignores", "rejects") or bool(switch and switch["enable_thinking"])
        text = "".join(f"[{each['role']}]{each['content']}" for each in body["messages"])
        text += "[assistant]<think>" + ("" if thinks else "</think>")
        choice = {"message": {"content": "so, let me see"}, "finish_reason": "length"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": len(tokenizer.encode(text).ids)}}

    said = (
        r"takes no chat_template_kwargs, and the model's template opens a thought without: set backend\.thinking=free"
    )
    expected = contextlib.nullcontext() if believed else pytest.raises(ValueError, match=said)
    with expected, asking(opening, answer) as (backend, _):
        assert backend.write(passkey(backend)).text == "so, let me see"
    with asking(opening, answer, thinking="free", thought=90) as (backend, _):
        written = backend.write(replace(passkey(backend), thought=90))
        assert (written.thought, written.text, written.thought_cut) == ("so, let me see", "", True)


@pytest.mark.parametrize("size", [10 << 20, 900 << 10])
def test_an_answer_of_megabytes_is_cut_before_it_is_encoded(
    size: int, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound of bytes it is refused; within, no more characters are encoded than its room can hold."""
    with asking(model, talking(model, finder())) as (backend, server):
        question = passkey(backend)
        server.answer = talking(model, lambda _: ({"content": "seven " * (size // 6)}, "stop"))
        sizes, encode = list[int](), FastTokenizer.encode

        def watch(self: FastTokenizer, text: str) -> Encoded:
            sizes.append(len(text))
            return encode(self, text)

        monkeypatch.setattr(FastTokenizer, "encode", watch)
        if size > 1 << 20:
            with pytest.raises(Refused, match=r"sends more than 1\.\d+ MiB in one answer"):
                backend.write(question)
        else:
            answer = backend.write(question)
            assert len(answer.tokens) == question.max_new_tokens and answer.hit_room
        assert max(sizes) <= 512 * (question.max_new_tokens + 1)  # no token has 512 characters


@pytest.mark.slow
def test_of_40_chat_servers_those_that_draw_are_noticed(model: Model) -> None:
    tokenizer = load_tokenizer(Path(str(model.path)), model.bos)
    for draws, noise in ((False, 0.05), (True, 0.0)):
        noticed = 0
        for seed in range(40):
            speaker = Speaker(tokenizer=tokenizer, seed=seed, draws=draws, noise=noise)
            with asking(model, speaker.chat) as (backend, _):
                noticed += bool(backend._dialect.able.sampled)
        assert noticed >= 39 if draws else noticed == 0


def test_a_chat_server_that_draws_is_refused(model: Model) -> None:
    tokenizer = load_tokenizer(Path(str(model.path)), model.bos)
    with (
        asking(model, Speaker(tokenizer=tokenizer, seed=3, draws=True).chat) as (backend, _),
        pytest.raises(Refused, match="does not write greedily: 5 of 5 prompts had other answers"),
    ):
        backend.write(passkey(backend))


def test_stop_texts_are_not_sent_where_a_thought_may_hold_them(model: Model) -> None:
    with asking(model, talking(model, finder("<think>a\n</think>")), thinking="free", thought=20) as (backend, server):
        for thought in (0, 20):
            backend.write(replace(passkey(backend), until=("\n",), thought=thought))
        assert [body.get("stop") for body in server.asked] == [["\n"], None]

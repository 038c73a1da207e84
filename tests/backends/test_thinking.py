"""Thoughts of models that take tokens: ended by a marker or by their budget, kept apart from the answer."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench import Generate, GenerateAnswer, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.backends.thinking import LocalForm, answer_place, think_then_answer
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.model import Model
from lexbench.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return thinking_model(tmp_path_factory.mktemp("thinking") / "model")


def thinking_model(folder: Path) -> Model:
    """lexlet with a chat template that can think."""
    shutil.copytree(registry.PACKAGE_FOLDER / "lexlet", folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": TEMPLATE}))
    return read_model({**registry.read_named_config("model", "lexlet"), "path": str(folder)})


@pytest.fixture(scope="module")
def hf(model: Model) -> Hf:
    return Hf(model, dtype="float64", chat=True, thinking="budget", thought=40)


def form(thinking: str = "free", thought: int = 40, end: str = "</think>") -> LocalForm:
    return LocalForm(chat=True, thinking=thinking, thought=thought, markers=("<think>", end))


def question(
    tokenizer: FastTokenizer, text: str = "Which?", begun: str = "", thought: int = 40, room: int = 6
) -> Generate:
    frame = tokenizer.frame(chat=True)
    pieces = [frame.before, tokenizer.encode(text).ids, frame.after, tokenizer.encode(begun).ids]
    return Generate(
        index=0, cluster="a", prompt=np.concatenate(pieces).astype(np.int64), max_new_tokens=room, thought=thought
    )


CASES: dict[str, tuple[str, list[tuple[str, bool]], tuple[str, str, bool, bool]]] = {
    "ended": ("free", [("<think>\nhm</think>", False), ("\n\n7", False)], ("hm", "7", False, False)),
    "written past its end": ("free", [("hm</think>7 8", False), ("\n7", True)], ("hm", "7", True, False)),
    "budget spent": ("free", [("hm, hm", True)], ("hm, hm", "", True, True)),
    "ended at its budget": ("budget", [("hm, hm", True), (" 7", False)], ("hm, hm", "7", False, False)),
    "stopped in thought": ("budget", [("<think>hm", False)], ("hm", "", False, True)),
    "no thought": ("free", [("7", False)], ("", "7", False, False)),
    "no thought, too long": ("free", [("word " * 20, False)], ("", "word word word", True, False)),
}
"""How it thinks; what it writes and whether its room ended, in each stage; thought, answer, hit_room, thought_cut."""


@pytest.mark.parametrize("name", CASES)
def test_a_thought_comes_first_and_the_answer_behind_it(name: str, model: Model) -> None:
    thinking, said, expected = CASES[name]
    chosen = form(thinking)
    tokenizer = chosen.tokenizer(load_tokenizer(Path(str(model.path)), model.bos))
    whole = question(tokenizer, begun="It is", room=len(tokenizer.encode("word word word").ids))
    stages, asked = think_then_answer(whole, tokenizer, chosen), list[Generate]()
    stage = next(stages)
    try:
        for text, hit_room in said:
            asked.append(stage)
            stage = stages.send(GenerateAnswer(tokens=tokenizer.encode(text).ids, text=text, hit_room=hit_room))
    except StopIteration as end:
        answer = end.value
    assert len(asked) == len(said)
    assert (answer.thought, answer.text.rstrip(), answer.hit_room, answer.thought_cut) == expected
    assert tokenizer.decode(asked[0].prompt).endswith("[user]Which?[assistant]")
    assert asked[0].until == ("</think>",) and asked[0].length < whole.length
    if len(said) == 2:
        text = tokenizer.decode(asked[1].prompt)
        kept = said[0][0].partition("</think>")[0]
        assert text.endswith(f"[assistant]{kept}</think>\n\nIt is")
        assert asked[1].length <= whole.length and asked[1].max_new_tokens == whole.max_new_tokens


@pytest.mark.slow
def test_a_thought_that_ends_by_itself_changes_nothing_of_what_the_model_writes(
    hf: Hf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One greedy text, in which the first full stop ends the thought."""
    monkeypatch.setattr(hf, "_form", form(end="."))
    asked = question(hf.tokenizer, "The sky is blue. It is", thought=60)  # type: ignore[arg-type]
    answer = hf.write(asked)
    plain = hf.write(replace(asked, thought=0, max_new_tokens=66))
    tokens = plain.tokens.tolist()
    size = next(size for size in range(1, 60) if "." in hf.tokenizer.decode(tokens[:size]))
    assert answer.tokens.tolist() == tokens[size : size + asked.max_new_tokens] and not answer.thought_cut
    assert answer.thought == plain.text.partition(".")[0].strip()


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
UNASKED: dict[str, tuple[str, bool, tuple[str, str] | None]] = {
    "no thought": ("7 <think>", False, ("", "7 <think>")),
    "an empty one": ("<think>\n\n</think>\n\n7", False, ("", "7")),
    "an empty one, answer cut": ("<think></think>7 8", True, ("", "7 8")),
    "one that leaves room": (" <think>hm</think>7", False, ("hm", "7")),
    "one that takes room": ("<think>hm</think>7 8", True, None),
    "cut": ("<think>hm, hm", True, None),
    "stopped": ("<think>\n", False, None),
    "a channel that leaves room": (f"{ANALYSIS}hm<|end|><|start|>assistant{FINAL}7", False, ("hm", "7")),
    "a channel, answer cut": (f"{ANALYSIS}hm<|end|><|start|>assistant{FINAL}7 8", True, None),
    "a channel without end": (f"{ANALYSIS}hm, hm", True, None),
    "only the channel of an answer": (f"{FINAL}7", False, ("", "7")),
    "a channel without special tokens": ("analysisThe user asks.assistantfinal7", False, ("The user asks.", "7")),
    "the same without end": ("analysisThe user asks", True, None),
    "a word of that name": ("analysis of the text: 7", False, ("", "analysis of the text: 7")),
    "another tag": ("[THINK]hm[/THINK]7", False, ("hm", "7")),
    "a word in brackets": ("[I think] 7", False, ("", "[I think] 7")),
    "another tag without end": ("<|begin_of_thought|>hm", False, None),
}
"""A text of a model that shall not think, whether its room ended; thought and answer, or None: refused."""


@pytest.mark.parametrize("name", UNASKED)
def test_a_thought_that_was_not_asked_for_is_no_answer(name: str, hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    said, hit_room, expected = UNASKED[name]
    ids = hf.tokenizer.encode(said).ids
    plain = GenerateAnswer(tokens=ids, text=said, hit_room=hit_room)
    monkeypatch.setattr(hf, "_form", LocalForm(chat=True))
    monkeypatch.setattr(Hf, "_continue_batch", lambda self, questions: [plain for _ in questions])
    check_unasked(hf, hf.tokenizer, len(ids), expected)


def check_unasked(backend: Any, tokenizer: Any, room: int, expected: tuple[str, str] | None) -> None:
    """A thought that was not asked for is told from the answer, or refused."""
    asked = question(tokenizer, thought=0, room=room)
    if expected is None:
        with pytest.raises(Refused, match=r"writes a thought \(.*\) in place of the answer: set backend\.chat=true"):
            backend.write(asked)
        return
    answer = backend.write(asked)
    assert (answer.thought, answer.text) == expected
    assert tokenizer.decode(answer.tokens).strip() == expected[1]


@pytest.mark.slow
def test_a_template_that_ignores_the_switch_ends_a_run_in_one_line(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lexbench.commands import main

    folder = shutil.copytree(Path(str(model.path)), tmp_path / "model")
    file = folder / "tokenizer_config.json"
    template = "{% for message in messages %}{{ message.content }}{% endfor %}[assistant]<think>"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    words = ["run", f"model={folder}", "model.trained_length=256", "lengths=[300]", "n=1"]
    for more in (["task=passkey", "backend.chat=true"], ["task=niah_single_1", "task.chat=true"]):
        assert main.main([*words, *more, f"results={tmp_path / 'out'}"]) == 2
        [*_, said] = capsys.readouterr().err.splitlines()
        assert "template opens a thought" in said and said.endswith("backend.thinking=free backend.thought=2048")


def test_thoughts_of_other_lengths_are_not_continued_together_where_padding_is_read_as_text(
    hf: Hf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf.reader, "can_join_texts", lambda: False)
    asked = [question(hf.tokenizer, text, thought=24, room=2) for text in ("The sky", "import numpy as")]  # type: ignore[arg-type]
    together: list[set[int]] = []
    continued = Hf._continue_batch

    def watch(self: Hf, questions: Sequence[Generate]) -> list[GenerateAnswer]:
        together.append({len(each.prompt) for each in questions})
        return continued(self, questions)

    monkeypatch.setattr(Hf, "_continue_batch", watch)
    hf._write(asked)
    assert len(asked[0].prompt) != len(asked[1].prompt)
    assert [len(lengths) for lengths in together] == [1] * 4


@pytest.mark.slow
def test_a_run_counts_all_tokens_and_says_how_it_thinks(model: Model, tmp_path: Path, unverified: None) -> None:
    path = {"name": "lexlet", **registry.read_named_config("model", "lexlet"), "path": model.path}
    config = {"name": "hf", **registry.read_named_config("backend", "hf"), "chat": True}
    for more in ({"thinking": "budget", "thought": 24}, {"thinking": "free", "thought": 24}, {}):
        lexbench.run(path, task="passkey", lengths=[190], n=1, results=tmp_path, backend={**config, **more})
    cells = {each.cell.identity["backend"]["chat"]: each for each in Store(tmp_path).load()}
    assert {form.rpartition(", thinking ")[2] for form in cells if "no thinking" not in form} == {
        "budget, 24 tokens",
        "free, 24 tokens",
    }
    for said, finished in cells.items():
        assert said in finished.cell.protocol and said.startswith("chat template")
        assert {sample.tokens for sample in finished.samples} == {190}
        facts = [sample.facts for sample in finished.samples]
        assert all(("thought" in fact) == ("no thinking" not in said) for fact in facts)
        assert all(fact.get("thought_cut", False) == ("free" in said) for fact in facts)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"thinking": "free"}, "backend.thought must be tokens above 0 with thinking"),
        ({"thinking": "free", "thought": 3}, "backend.thought=3 has no room for </think>: raise it"),
        ({"thinking": "free", "thought": 30, "markers": ["<s>", "</s>"]}, "backend.markers: the tokenizer does not"),
        ({"chat": False, "system": "x"}, "backend.system, thinking, thought, prefill and markers need backend.chat"),
    ],
)
def test_a_form_that_cannot_be_is_one_line(model: Model, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hf(model, **{"chat": True, **changed})


def test_a_text_without_template_has_no_place_for_a_thought(model: Model) -> None:
    tokenizer = form().tokenizer(load_tokenizer(Path(str(model.path)), model.bos))
    with pytest.raises(Refused, match=r"^a chat needs a question in the chat template"):
        answer_place(tokenizer.frame(chat=True), tokenizer.encode("no template").ids)


@pytest.mark.slow
def test_tasks_that_do_not_write_are_refused(
    model: Model, tmp_path: Path, unverified: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = {"name": "lexlet", **registry.read_named_config("model", "lexlet"), "path": model.path}
    config = {
        "name": "hf",
        **registry.read_named_config("backend", "hf"),
        "chat": True,
        "thinking": "free",
        "thought": 32,
    }
    lexbench.run(path, task="last_segment", lengths=[128], n=1, results=tmp_path, backend=config)
    [finished] = Store(tmp_path).load()
    assert finished.refused == "a thought needs an answer that is written: set backend.thinking=none"

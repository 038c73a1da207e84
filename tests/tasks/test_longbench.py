"""LongBench as a task: the user's data and prompts, truncation, buckets, and no silent change."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import lexbench
from lexbench import Frame, Generate, Refused, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.commands import main
from lexbench.core import objects, registry
from lexbench.runner.cells import Component
from lexbench.taskkit import longbench
from lexbench.taskkit.longbench import examples
from tests.answerers import perfect, written

ROOT = Path(__file__).parent.parent.parent
ANSWERS = {"passage_retrieval_en": "Paragraph 3", "passage_retrieval_zh": "段落3", "passage_count": "3", "lcc": "x = 1"}
CLASSES = ["Date", "Food"]
QUICK = {"hotpotqa", "trec", "passage_count", "lcc", "passage_retrieval_en", "passage_retrieval_zh"}
"""Data sets of every metric that needs neither rouge nor a dictionary of Chinese words; the others are slow tests."""


def example(dataset: str, number: int, **more: Any) -> dict[str, Any]:
    """An example in the official form, with its own document."""
    classified = longbench.LONGBENCH_DATASETS[dataset].metric == "classification"
    return {
        "input": f"asked {number}?",
        "context": f"text {number} of {dataset} " + "word " * number,
        "answers": ["Date" if classified else ANSWERS.get(dataset, "苹果" if dataset.endswith("zh") else "an apple")],
        "length": 3000 + number,
        "dataset": dataset,
        "language": "en",
        "all_classes": CLASSES if classified else None,
        "_id": f"id{number}",
        **more,
    }


Data = Callable[..., Path]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Write examples by file name into a folder of official data."""

    def write(**files: list[dict[str, Any]]) -> Path:
        place = tmp_path / "data"
        place.mkdir(exist_ok=True)
        for stem, rows in files.items():
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
            (place / f"{stem}.jsonl").write_text("\n".join(lines) + "\n")
        return place

    return write


@pytest.fixture
def ten(data: Data) -> str:
    """Ten examples of qasper."""
    return str(data(qasper=[example("qasper", number) for number in range(10)]))


def questions_of(
    task: lexbench.Task, tokenizer: FastTokenizer, length: int = 2000, n: int = 4, seed: int = 0
) -> list[Generate]:
    return [question for question in task.questions(tokenizer, length, n, seed) if isinstance(question, Generate)]


def scored(task: lexbench.Task, question: Generate, text: str, tokenizer: FastTokenizer) -> Sample:
    return task.score(question, written(text, tokenizer))


class Talking(FastTokenizer):
    """With a chat template: BOS [user] ... [model]."""

    def frame(self, chat: bool) -> Frame:
        plain = super().frame(chat=False)
        if not chat:
            return plain
        return Frame(np.concatenate([plain.before, self.encode("[user]").ids]), self.encode("[model]").ids)


def chatting(tokenizer: FastTokenizer) -> Talking:
    return Talking(tokenizer._tokenizer, tokenizer.bos, True)


def ids(questions: list[Generate]) -> list[str]:
    return [question.facts["id"] for question in questions]


# every data set


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in longbench.LONGBENCH_DATASETS],
)
def test_every_data_set_asks_and_scores(data: Data, tokenizer: FastTokenizer, name: str) -> None:
    facts = longbench.LONGBENCH_DATASETS[name]
    for e in [False, True] if facts.n_e else [False]:
        folder = data(**{f"{name}_e" if e else name: [example(name, number) for number in range(3)]})
        task = lexbench.task("longbench", dataset=name, e=e, data=str(folder))
        questions = questions_of(task, tokenizer)
        assert len(questions) == 3
        for question in questions:
            assert question.prompt[0] == tokenizer.bos
            assert question.length == len(question.prompt) + facts.room <= 2000
            flawless = task.score(question, perfect(question, tokenizer))
            metric, *other = flawless.scores
            assert metric == facts.metric_name()
            assert flawless.scores[metric] == pytest.approx(1, abs=6e-9)
            assert [flawless.scores[each] for each in other] == [1] * ("rouge" in metric)
            assert set(scored(task, question, "", tokenizer).scores.values()) == {0}
            echo = scored(task, question, tokenizer.decode(question.prompt), tokenizer)
            assert echo.scores[metric] < 1
            json.dumps(dict(flawless.facts), allow_nan=False)
        line = task.protocol(tokenizer)
        assert f"{'LongBench-E' if e else 'LongBench'} {name}: our own wording" in line
        assert "BOS" in line and "\n" not in line


def test_code_is_compared_as_asked(data: Data, tokenizer: FastTokenizer) -> None:
    folder = str(data(lcc=[example("lcc", 0, answers=["ab1 2 3 4"])]))
    found: dict[str, float] = {}
    for similarity in longbench.CODE_SIMILARITIES:
        task = lexbench.task("longbench", dataset="lcc", data=folder, similarity=similarity)
        found |= scored(task, questions_of(task, tokenizer)[0], "1234ab", tokenizer).scores
        assert f"official code_sim_{similarity}, " in task.protocol(tokenizer)
    assert found == {"code_sim_difflib": 0.27, "code_sim_levenshtein": 0.53}


def test_suites_are_the_official_ones(data: Data) -> None:
    whole, of_e = (registry.read_named_config("task", name) for name in ("longbench_all", "longbench_e"))
    assert whole["n"] == max(facts.n for facts in longbench.LONGBENCH_DATASETS.values())
    assert of_e["n"] == max(longbench.LONGBENCH_DATASETS[name].n_e or 0 for name in longbench.LONGBENCH_E)
    assert "multiples" not in whole and "multiples" not in of_e  # ceilings, as methods follow them
    assert whole["suite"] == [{"name": "longbench", "dataset": name} for name in longbench.LONGBENCH_DATASETS]
    assert of_e["suite"] == [{"name": "longbench", "dataset": name, "e": True} for name in longbench.LONGBENCH_E]


def test_our_wording_is_fixed_by_the_version(data: Data) -> None:
    """A new wording needs a new version of the task: raise it, and put the new hash here."""
    file = ROOT / "tasks" / "longbench_prompts.yaml"
    prompts = yaml.safe_load(file.read_text())
    assert list(prompts) == list(longbench.LONGBENCH_DATASETS)
    digest = hashlib.sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()[:16]
    assert (type(lexbench.task("longbench")).version, digest) == (2, "d95d59b81248ebf4")


# prompts


def test_the_prompt_is_the_wording_filled_in(data: Data, tokenizer: FastTokenizer) -> None:
    folder = data(qasper=[example("qasper", 0, context="con {text}", input="in{put}")])
    [question] = questions_of(lexbench.task("longbench", data=str(folder)), tokenizer)
    wording = yaml.safe_load((ROOT / "tasks" / "longbench_prompts.yaml").read_text())["qasper"]
    expected = wording.replace("{context}", "con {text}").replace("{input}", "in{put}")
    assert tokenizer.decode(question.prompt) == expected
    assert question.max_new_tokens == 128
    assert question.answer == " an apple"


def test_prompts_of_a_file_are_known_by_their_content(ten: str, tokenizer: FastTokenizer, tmp_path: Path) -> None:
    text = json.dumps({"qasper": "{context}|{input}"})
    tasks = []
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(text)
        tasks.append(lexbench.task("longbench", data=ten, prompts=str(tmp_path / name)))
    [question] = questions_of(tasks[0], tokenizer, n=1)
    number = question.facts["id"].removeprefix("id")
    expected = f"text {number} of qasper " + "word " * int(number) + f"|asked {number}?"
    assert tokenizer.decode(question.prompt) == expected
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert f"qasper: prompts sha256:{digest}, " in tasks[0].protocol(tokenizer)
    first, second = (Component("longbench", task, "").identity for task in tasks)
    assert first == second
    assert first["prompts"] == f"sha256:{digest}"
    assert ids(questions_of(tasks[0], tokenizer)) == ids(questions_of(lexbench.task("longbench", data=ten), tokenizer))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "prompts .* does not exist: give the official dataset2prompt.json"),
        ("{", r"prompts .*p\.json must be JSON .*: give the official"),
        ("[]", r"prompts .*p\.json must have one for qasper: add it"),
        ('{"lcc": "{context}"}', r"prompts .*p\.json must have one for qasper: add it"),
        ('{"qasper": 1}', "must have one for qasper"),
        ('{"qasper": "{input}"}', r"prompt of qasper in .* must have \{context\}, may have \{input\}"),
        ('{"qasper": "{context} {question}"}', r"must have \{context\}"),
        ('{"qasper": "{context} {"}', r"must have \{context\}"),
    ],
)
def test_prompts_that_are_none_are_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "p.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        lexbench.task("longbench", prompts=str(file))


@pytest.mark.slow
def test_the_chat_template_is_used_as_officially(data: Data, tokenizer: FastTokenizer) -> None:
    folder = data(**{name: [example(name, 0)] for name in longbench.LONGBENCH_DATASETS})
    talking = chatting(tokenizer)
    frame = talking.frame(chat=True)
    for name in longbench.LONGBENCH_DATASETS:
        task = lexbench.task("longbench", dataset=name, data=str(folder))
        plain, [question] = questions_of(task, tokenizer)[0].prompt[1:], questions_of(task, talking)
        official = name not in ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
        before, after = (frame.before.tolist(), frame.after.tolist()) if official else ([talking.bos], [])
        assert question.prompt.tolist() == [*before, *plain, *after]
        assert (", chat template, " in task.protocol(talking)) == official
        assert ", no chat template, " in task.protocol(tokenizer)
        assert question.facts["prompt_tokens"] == len(question.prompt)


def test_the_chat_template_can_be_chosen(data: Data, tokenizer: FastTokenizer) -> None:
    folder = str(data(qasper=[example("qasper", 0)], trec=[example("trec", 0)]))
    talking = chatting(tokenizer)
    for name, chat in (("qasper", False), ("trec", True)):
        task = lexbench.task("longbench", dataset=name, data=folder, chat=chat)
        [question] = questions_of(task, talking)
        assert (
            question.prompt[: len(talking.frame(True).before)].tolist() == talking.frame(True).before.tolist()
        ) == chat
    with pytest.raises(ValueError, match="chat template"):
        questions_of(lexbench.task("longbench", data=folder, chat=True), tokenizer)


# lengths


def test_the_least_length_is_that_of_the_wording_and_is_said_without_data(data: Data, tokenizer: FastTokenizer) -> None:
    with pytest.raises(
        Refused, match=r"longbench's qasper needs at least \d+ tokens, asked for 2: raise length"
    ) as refusal:
        questions_of(lexbench.task("longbench"), tokenizer, 2)
    least = int(refusal.value.reason.split()[5])
    task = lexbench.task("longbench", data=str(data(qasper=[example("qasper", 5)])))
    wording = yaml.safe_load((ROOT / "tasks" / "longbench_prompts.yaml").read_text())["qasper"]
    bare = wording.replace("{context}", "").replace("{input}", "")
    assert least == 1 + len(tokenizer.encode(bare).ids) + 128
    assert questions_of(task, tokenizer, least)
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        questions_of(task, tokenizer, least - 1)


@pytest.mark.everyday("1-True")
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("digits", ["1", "12"])  # an odd and an even number of tokens
def test_the_middle_is_cut_out_of_the_tokens(data: Data, tokenizer: FastTokenizer, chat: bool, digits: str) -> None:
    folder = str(data(qasper=[example("qasper", 0, context=" ".join(map(str, range(500))) + digits)]))
    talking = chatting(tokenizer)
    frame = talking.frame(chat)
    before, after = len(frame.before), len(frame.after)
    task = lexbench.task("longbench", data=folder, chat=chat, room=10)
    [whole] = questions_of(task, talking, 10_000)
    inner = whole.prompt[before : len(whole.prompt) - after].tolist()
    needed = len(whole.prompt) + 10
    assert not scored(task, whole, "", talking).truncated
    [fits] = questions_of(task, talking, needed)
    assert fits.length == needed
    assert not scored(task, fits, "", talking).truncated
    for length, half in (
        (10 + before + after + 600, 300),
        (10 + before + after + 601, 300),
        (needed - 1, len(inner) // 2),
    ):
        [question] = questions_of(task, talking, length)
        half = min(half, (length - 10 - before - after) // 2)
        assert question.prompt.tolist() == [*frame.before, *inner[:half], *inner[len(inner) - half :], *frame.after]
        assert length - 1 <= question.length <= length
        sample = scored(task, question, "", talking)
        assert sample.truncated
        assert sample.facts["prompt_tokens"] == len(whole.prompt)
        assert sample.tokens == question.length


def test_two_tokens_of_a_prompt_without_words_are_the_least(
    data: Data, tokenizer: FastTokenizer, tmp_path: Path
) -> None:
    (tmp_path / "p.json").write_text('{"qasper": "{context}"}')
    folder = str(data(qasper=[example("qasper", 0, context="1234")]))
    task = lexbench.task("longbench", data=folder, prompts=str(tmp_path / "p.json"), room=5)
    with pytest.raises(Refused, match="needs at least 8 tokens, asked for 7"):
        questions_of(task, tokenizer, 7)
    [question] = questions_of(task, tokenizer, 8)
    assert tokenizer.decode(question.prompt) == "14"


def long_and_short(data: Data) -> str:
    """Six examples; the odd ones are long."""
    rows = [example("qasper", number, context="word " * (400 if number % 2 else 10)) for number in range(6)]
    return str(data(qasper=rows))


def test_what_is_skipped_is_counted(data: Data, tokenizer: FastTokenizer) -> None:
    task = lexbench.task("longbench", data=long_and_short(data), truncation="skip", room=10)
    questions = questions_of(task, tokenizer, 800, n=6)
    everything = questions_of(task, tokenizer, 8000, n=6)
    short = [question for question in everything if question.facts["id"] in ("id0", "id2", "id4")]
    assert [question.index for question in questions] == [question.index for question in short]
    assert ids(questions) == ids(short)
    assert {question.facts["skipped"] for question in questions} == {3}
    assert {question.facts["skipped"] for question in everything} == {0}
    assert {question.facts["examples"] for question in questions} == {6}
    assert "left out" in task.protocol(tokenizer)
    only = lexbench.task("longbench", data=long_and_short(data), truncation="skip", room=700)
    with pytest.raises(Refused, match="none of 6 prompts fits in 900: raise length"):
        questions_of(only, tokenizer, 900, n=6)


def test_an_over_long_prompt_can_refuse_the_cell(data: Data, tokenizer: FastTokenizer) -> None:
    task = lexbench.task("longbench", data=long_and_short(data), truncation="error", room=10)
    everything = questions_of(task, tokenizer, 8000, n=6)
    first = next(question for question in everything if question.facts["id"] not in ("id0", "id2", "id4"))
    said = (
        f"prompt of example {first.facts['id']} has {len(first.prompt)} tokens, with room for 10 more than 800: raise"
    )
    with pytest.raises(Refused, match=said):
        questions_of(task, tokenizer, 800, n=6)
    assert "refuse the cell" in task.protocol(tokenizer)


LLAMA2_CHAT = "[INST]{prompt}[/INST]"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [64, 65])
def test_a_limit_cuts_as_the_official_code(data: Data, lexlet: FastTokenizer, tmp_path: Path, limit: int) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(Path(lexbench.__file__).parent / "lexlet")
    (tmp_path / "p.json").write_text(json.dumps(dict.fromkeys(("qasper", "lcc"), "{context}\n{input}")))
    long = "def add(self, numbers): return sum(numbers)  # über alles\n" * 9
    rows = [example("qasper", number, context=long[: 30 * number + 1]) for number in range(12)]
    folder = str(data(qasper=rows, lcc=rows))
    for name, wrapper in (("qasper", LLAMA2_CHAT), ("lcc", "{prompt}")):  # code has no template
        task = lexbench.task(
            "longbench", dataset=name, data=folder, prompts=str(tmp_path / "p.json"), limit=limit, wrapper=LLAMA2_CHAT
        )
        said = task.protocol(lexlet)
        assert f"prompts of more than {limit} tokens without template lose their middle" in said
        assert ('wrapper "[INST]{prompt}[/INST]", ' in said) == (name == "qasper")
        for question in questions_of(task, lexlet, 1000, n=12):
            row = rows[int(question.facts["id"].removeprefix("id"))]
            # the official pred.py, line by line
            prompt = f"{row['context']}\n{row['input']}"
            tokenized_prompt = theirs(prompt, truncation=False, return_tensors="pt").input_ids[0]
            if len(tokenized_prompt) > limit:
                half = int(limit / 2)
                prompt = theirs.decode(tokenized_prompt[:half], skip_special_tokens=True) + theirs.decode(
                    tokenized_prompt[-half:], skip_special_tokens=True
                )
            assert question.prompt.tolist() == theirs(wrapper.replace("{prompt}", prompt)).input_ids
            assert scored(task, question, "", lexlet).truncated == (len(tokenized_prompt) > limit)


def test_a_limit_that_leaves_no_room_refuses_the_cell(data: Data, tokenizer: FastTokenizer) -> None:
    task = lexbench.task("longbench", data=long_and_short(data), limit=780, room=10)
    with pytest.raises(Refused, match=r"more than 700: raise length, or lower task\.limit"):
        questions_of(task, tokenizer, 700, n=6)
    assert max(question.length for question in questions_of(task, tokenizer, 791, n=6)) <= 791


@pytest.mark.slow
def test_samples_are_shown_by_stored_and_by_real_length(data: Data, tokenizer: FastTokenizer) -> None:
    lengths = [3999, 4000, 7999, 8000]
    rows = [example("qasper", number, length=length) for number, length in enumerate(lengths)]
    rows.append(example("qasper", 4, context="\U0001f40d" * 2000, length=1))  # four bytes, four tokens
    task = lexbench.task("longbench", data=str(data(qasper=rows)), room=10)
    samples = {q.facts["id"]: scored(task, q, "", tokenizer) for q in questions_of(task, tokenizer, 1000, n=5)}
    words = ["words 0-4k", "words 4-8k", "words 4-8k", "words 8k+"]
    assert [samples[f"id{number}"].parts for number in range(4)] == [(part, "tokens 0-4k") for part in words]
    assert samples["id4"].parts == ("words 0-4k", "tokens 8k+")
    assert samples["id4"].truncated
    chinese = lexbench.task("longbench", dataset="vcsum", data=str(data(vcsum=[example("vcsum", 0, length=9000)])))
    assert scored(chinese, questions_of(chinese, tokenizer)[0], "", tokenizer).parts[0] == "characters 8k+"


# which examples


def test_examples_are_the_first_of_a_permutation_by_seed(ten: str, tokenizer: FastTokenizer) -> None:
    task = lexbench.task("longbench", data=ten)
    everything = ids(questions_of(task, tokenizer, n=10))
    assert sorted(everything) == [f"id{number}" for number in range(10)]
    assert ids(questions_of(task, tokenizer, n=4)) == everything[:4]
    assert ids(questions_of(task, tokenizer, n=99)) == everything
    assert ids(questions_of(task, tokenizer, length=900, n=10)) == everything
    assert len({tuple(ids(questions_of(task, tokenizer, n=10, seed=seed))) for seed in range(5)}) == 5
    changes: list[dict[str, Any]] = [
        {"room": 9},
        {"truncation": "skip"},
        {"chat": False},
        {"similarity": "levenshtein"},
    ]
    for change in changes:
        assert ids(questions_of(lexbench.task("longbench", data=ten, **change), tokenizer, n=10)) == everything


def test_examples_on_one_document_are_one_cluster(data: Data, tokenizer: FastTokenizer) -> None:
    rows = [example("qasper", number, context="one" if number < 2 else "two") for number in range(3)]
    questions = questions_of(lexbench.task("longbench", data=str(data(qasper=rows))), tokenizer)
    clusters = {question.facts["id"]: question.cluster for question in questions}
    assert clusters["id0"] == clusters["id1"] != clusters["id2"]


def test_chance_is_the_official_score_of_any_class_or_paragraph(
    data: Data, tokenizer: FastTokenizer, shared: Path
) -> None:
    text = "".join(f"Paragraph {number}: none. " for number in range(1, 31))
    folder = data(
        passage_retrieval_en=[example("passage_retrieval_en", 0, context=text, answers=["Paragraph 7"])],
        qasper=[example("qasper", 0)],
    )
    task = lexbench.task("longbench", dataset="passage_retrieval_en", data=str(folder), chat=False)
    [question] = questions_of(task, tokenizer, 3000, 1)
    guesses = [scored(task, question, f"Paragraph {number}", tokenizer).scores["retrieval"] for number in range(1, 31)]
    assert question.chance == pytest.approx(np.mean(guesses))
    other = lexbench.task("longbench", dataset="qasper", data=str(folder), chat=False)
    assert questions_of(other, tokenizer, 3000, 1)[0].chance == 0
    for name, classes in (("trec", 50), ("lsht", 24)):
        file = shared / "longbench" / "llama2-7b-chat-4k" / f"{name}.jsonl"
        published = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[:40]]
        known = [{field: row[field] for field in ("answers", "all_classes")} for row in published]
        folder = data(**{name: [example(name, number, **row) for number, row in enumerate(known)]})
        for question in questions_of(lexbench.task("longbench", dataset=name, data=str(folder)), tokenizer, 3000, 40):
            answers, named = question.facts["answers"], question.facts["all_classes"]
            right = [longbench.official_score(name, each, answers, named) for each in named]
            assert question.chance == pytest.approx(np.mean(right)) == pytest.approx(1 / classes)


def test_data_are_known_by_their_content(ten: str, tokenizer: FastTokenizer, tmp_path: Path) -> None:
    moved = shutil.copytree(ten, tmp_path / "moved")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(moved / "qasper.jsonl", "data/qasper.jsonl")
    places = (ten, str(moved), str(tmp_path / "data.zip"))
    tasks = [lexbench.task("longbench", data=place) for place in places]
    identities = [Component("longbench", task, "").identity for task in tasks]
    digest = hashlib.sha256((moved / "qasper.jsonl").read_bytes()).hexdigest()[:8]
    assert tasks[0] == tasks[1]
    assert identities[0] == identities[1] == identities[2]
    assert identities[0]["data"] == f"sha256:{digest}"
    assert {objects.instance_label(task, "longbench", "task") for task in tasks} == {
        f"longbench(dataset='qasper', data=sha256:{digest})"
    }
    prompts = [[question.prompt.tolist() for question in questions_of(task, tokenizer)] for task in tasks]
    assert prompts[0] == prompts[1] == prompts[2]
    assert {question.facts["data"] for question in questions_of(tasks[2], tokenizer)} == {f"sha256:{digest}"}
    with (moved / "qasper.jsonl").open("a") as stream:
        stream.write(json.dumps(example("qasper", 10)) + "\n")
    assert Component("longbench", lexbench.task("longbench", data=str(moved)), "").identity != identities[0]
    first: Any = tasks[0]
    assert dataclasses.replace(first, room=5).data == first.data


# what is amiss


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dataset": "quasper"}, "unknown data set 'quasper': did you mean qasper"),
        (
            {"dataset": "narrativeqa", "e": True},
            "unknown data set 'narrativeqa': .*choose from qasper, multifieldqa_en,",
        ),
        ({"truncation": "left"}, "truncation must be one of error, skip, middle, got 'left'"),
        ({"similarity": "fuzzy"}, "similarity must be one of difflib, levenshtein, got 'fuzzy'"),
        ({"room": 0}, "room must be at least 1, got 0"),
        ({"limit": 1}, "limit must be at least 2, got 1"),
        ({"limit": 9, "truncation": "skip"}, "limit is for truncation=middle, got 'skip'"),
        ({"wrapper": "[INST]"}, r"wrapper must have {prompt} once, got '\[INST\]'"),
        ({"wrapper": "{prompt}", "chat": True}, "wrapper stands for the chat template, got chat too"),
        ({"data": "nowhere"}, r"data nowhere does not exist: give task.data=DIR, a folder with qasper\.jsonl"),
    ],
)
def test_a_wrong_parameter_is_an_error(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lexbench.task("longbench", **parameters)


def test_wrong_data_are_an_error(ten: str, tokenizer: FastTokenizer, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data folder .* has no qasper_e\.jsonl: give a folder with the official files"
    ):
        lexbench.task("longbench", data=ten, e=True)  # nothing of LongBench-E
    lacking = lexbench.task("longbench", data=ten, dataset="lcc")
    with pytest.raises(
        Refused, match=r"longbench's lcc: data folder has no lcc\.jsonl: add it, or leave the data set out"
    ):
        questions_of(lacking, tokenizer)
    assert Component("longbench", lacking, "").identity["data"] == "missing"
    with pytest.raises(ValueError, match=r"data .*qasper\.jsonl must be a folder or a zip archive"):
        lexbench.task("longbench", data=f"{ten}/qasper.jsonl")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("__MACOSX/qasper.jsonl", "")
    with pytest.raises(ValueError, match=r"data archive .*empty\.zip has no qasper\.jsonl"):
        lexbench.task("longbench", data=str(tmp_path / "empty.zip"))


@pytest.mark.parametrize("field", ["input", "context", "answers", "length", "_id", "all_classes"])
def test_an_example_without_a_field_is_named(data: Data, tokenizer: FastTokenizer, field: str) -> None:
    rows = [example("trec", 0), example("trec", 1)]
    del rows[1][field]
    task = lexbench.task("longbench", dataset="trec", data=str(data(trec=rows)))
    with pytest.raises(ValueError, match=rf"trec\.jsonl:2 has no field '{field}'"):
        questions_of(task, tokenizer)


# the hub


CODE = """
import sys
import lexbench
from lexbench import Refused
from tests.tasks.test_longbench import saved_tokenizer
task = lexbench.task("longbench")
try:
    print([question.facts["id"] for question in task.questions(saved_tokenizer(sys.argv[1]), 2000, 2, 0)])
except Refused as refusal:
    print(refusal.reason)
"""


def saved_tokenizer(folder: str) -> FastTokenizer:
    from lexbench.checkpoints.tokenizer import load_tokenizer

    return load_tokenizer(Path(folder), bos=True)


def from_hub(tokenizer: FastTokenizer, folder: Path) -> str:
    """Output of a process without a network."""
    (folder / "tokenizer.json").write_text(tokenizer._tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_without_data_and_network_the_remedy_is_said_in_one_line(tokenizer: FastTokenizer, tmp_path: Path) -> None:
    said = from_hub(tokenizer, tmp_path)
    assert said.startswith("longbench needs the official data (THUDM/LongBench cannot be fetched: ")
    assert said.endswith("): give task.data=DIR or a network\n")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_hubs_archive_is_found_in_the_cache(ten: str, tokenizer: FastTokenizer, tmp_path: Path) -> None:
    place = tmp_path / "hub" / "datasets--THUDM--LongBench"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (place / "snapshots" / commit).mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    with zipfile.ZipFile(place / "snapshots" / commit / "data.zip", "w") as archive:
        archive.write(Path(ten) / "qasper.jsonl", "data/qasper.jsonl")
    expected = ids(questions_of(lexbench.task("longbench", data=ten), tokenizer, n=2))
    assert from_hub(tokenizer, tmp_path) == f"{expected}\n"


def test_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch, tokenizer: FastTokenizer) -> None:
    import huggingface_hub

    calls = []

    def fails(*arguments: str, **options: str) -> str:
        calls.append(arguments)
        raise OSError("No network. Try again later.")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    examples._archive.cache_clear()
    for _ in range(3):
        with pytest.raises(
            Refused, match=r"official data \(THUDM/LongBench cannot be fetched: No network\): give task"
        ):
            questions_of(lexbench.task("longbench"), tokenizer)
    examples._archive.cache_clear()
    assert calls == [("THUDM/LongBench", "data.zip")]


# end to end


def test_a_run_records_the_metric_of_every_bucket(data: Data, tmp_path: Path) -> None:
    rows = [example("gov_report", number, length=3000 * (number + 1)) for number in range(3)]
    task = {"name": "longbench", "file": "longbench.py", "dataset": "gov_report", "e": True, "room": 8}
    folder = data(gov_report_e=rows)
    run = lexbench.run(
        "lexlet",
        task={**task, "data": str(folder)},
        lengths=[16, 1024],
        n=8,
        backend="chance",
        results=tmp_path / "run",
    )
    records = run.records()
    assert list(records[records.length == 16].refused.str.contains("needs at least")) == [True]
    done = records[records.length == 1024]
    assert set(done.metric) == {"rouge_l_official", "rouge_l"}
    counts = done[done.metric == "rouge_l"].set_index(done[done.metric == "rouge_l"].part.fillna("all")).n
    assert counts.to_dict() == {
        "all": 3,
        "words 0-4k": 1,
        "words 4-8k": 1,
        "words 8k+": 1,
        "tokens 0-4k": 3,
        "factor 1": 3,
    }
    assert set(done.task) == {task_label(folder)}


def task_label(folder: Path) -> str:
    digest = hashlib.sha256((folder / "gov_report_e.jsonl").read_bytes()).hexdigest()[:8]
    return f"longbench(dataset='gov_report', e=True, data=sha256:{digest}, room=8)"


@pytest.mark.slow
def test_one_command_runs_what_is_there_and_names_what_is_missing(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {name: [example(name, number, length=4000 * number) for number in range(3)] for name in ("trec", "lcc")}
    folder = data(trec_e=rows["trec"], lcc_e=rows["lcc"], qasper=[example("qasper", 0)])
    out = tmp_path / "run"
    words = ["model=lexlet", "backend=chance", "task=longbench_e", f"task.data={folder}", "task.limit=100"]
    assert main.main(["run", *words, "lengths=[400]", f"results={out}"]) == 0
    shown = capsys.readouterr().out
    assert "Our own wording, beyond 100 tokens without their middle; prompt and answer at most 400" in shown
    assert "LongBench-E: lexlet, none" in shown and "11 of 13 data sets have no score" in shown
    lines = {line.split("|")[1].strip(): line for line in shown.splitlines() if line.startswith("|")}
    assert [name for name in lines if name in longbench.LONGBENCH_E] == list(longbench.LONGBENCH_E)
    assert lines["trec"].count("n 1") == 3 and lines["trec"].count("n 3") == 1  # of each bucket, and all
    assert lines["qasper"].count("refused") == 4 and "data folder has no qasper_e.jsonl" in shown
    assert main.main(["report", str(out)]) == 0
    kept = (out / "report" / "tables" / "longbench.csv").read_text().splitlines()
    assert len(kept) == 1 + 2 * 4 + 11
    assert "## LongBench-E: lexlet, none" in (out / "report" / "report.md").read_text()


def test_numbers_of_a_sample_are_plain(ten: str, tokenizer: FastTokenizer) -> None:
    [question] = questions_of(lexbench.task("longbench", data=ten), tokenizer, n=1)
    assert isinstance(question.index, int) and not isinstance(question.index, np.integer)


@pytest.mark.parametrize("length", [600, 1500, 6000])
def test_sizes_are_told_by_characters(data: Data, lexlet: FastTokenizer, length: int) -> None:
    """Within a tenth: a sentence of the texts has as many tokens everywhere; from 1,000 tokens on middles are cut."""
    texts = ["The quick brown fox jumps over the lazy dog. " * number for number in range(10, 310, 20)]
    rows = [example("qasper", number, context=text) for number, text in enumerate(texts)]
    task = lexbench.task("longbench", dataset="qasper", data=str(data(qasper=rows)))
    told, asked = task.outline(lexlet, length, 12, 0), questions_of(task, lexlet, length, 12)
    assert told.questions == len(asked) == 12 and {question.max_new_tokens for question in asked} == {
        told.max_new_tokens
    }
    assert told.questions * told.length == pytest.approx(sum(question.length for question in asked), rel=0.1)
    assert max(question.length for question in asked) <= length
    with pytest.raises(Refused, match="longbench's qasper needs at least"):
        task.outline(lexlet, 16, 12, 0)

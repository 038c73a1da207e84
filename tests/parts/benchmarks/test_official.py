"""Public benchmarks: tiny copies in the official formats, asked in the official words, right answers right."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import lexbench
from lexbench import Generate, GenerateAnswer, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.parts.benchmarks.helmet_long import INFINITEBENCH_FILE_OF_PART
from lexbench.parts.benchmarks.table import BENCHMARK_OF_NAME
from lexbench.store.store import Store

SMALL = 1500
"""Tokens for all of these examples."""


def parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def mrcr(folder: Path) -> dict[str, Any]:
    talk = [{"role": "user", "content": "Write a poem."}, {"role": "assistant", "content": "Roses."}]
    row = {
        "prompt": json.dumps([*talk, {"role": "user", "content": "Prepend aB3 to the 1st poem."}]),
        "answer": "aB3Roses.",
        "random_string_to_prepend": "aB3",
        "n_needles": 2,
        "n_chars": 20_000,
    }
    parquet(folder / "2needle" / "2needle_0.parquet", [row] * 3)
    return {}


def mrcr_v2(folder: Path) -> dict[str, Any]:
    with (folder / "mrcr_v2p1_2needle_upto_128K_dynamic_fewshot_text_style_fast.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["queries", "answer"])
        writer.writeheader()
        writer.writerow({"queries": "User: a riddle\nModel: Which?", "answer": "0123456789ab Which?"})
    return {"axis": "upto_128K"}


def graphwalks(folder: Path) -> dict[str, Any]:
    row = {"prompt": "a -> b\nOperation: parents of b", "answer_nodes": ["a", "c"], "prompt_chars": 30}
    rows = [{**row, "problem_type": kind} for kind in ("parents", "bfs")]
    parquet(folder / "graphwalks_128k_and_shorter.parquet", rows)
    return {"part": "parents", "room": 60}


def longbench_v2(folder: Path) -> dict[str, Any]:
    row = {"_id": "x1", "domain": "d", "difficulty": "hard", "length": "short", "question": "Who?", "answer": "B"}
    row |= {f"choice_{letter}": f"{letter}-text" for letter in "ABCD"}
    (folder / "data.json").write_text(json.dumps([{**row, "context": "A $Q$ stays. "}]))
    (folder / "0shot.txt").write_text("T $DOC$ Q $Q$ ($C_A$) ($C_B$) ($C_C$) ($C_D$)")
    return {"prompts": str(folder / "0shot.txt")}


def babilong(folder: Path) -> dict[str, Any]:
    (folder / "data" / "qa1").mkdir(parents=True, exist_ok=True)
    row = {"input": " Mary went to the garden. ", "question": "Where is Mary? ", "target": "garden"}
    (folder / "data" / "qa1" / "4k.json").write_text(json.dumps([row, row]))
    (folder / "prompts.py").write_text(
        "TASK_TEMPLATE = '{instruction}|{examples}|{post_prompt}'\n"
        "USER_TEMPLATE = '{context}|{question}'\n"
        "DEFAULT_TEMPLATE = f'{TASK_TEMPLATE}|{USER_TEMPLATE}'\n"
        "DEFAULT_PROMPTS = {'qa1': {'instruction': 'Do ' 'it.', 'examples': 'E' + 'F', 'post_prompt': ''}}\n"
        "raise SystemExit('never run')\n"
    )
    return {"prompts": str(folder / "prompts.py"), "axis": "4k"}


def infinitebench(folder: Path) -> dict[str, Any]:
    row = {"id": 7, "context": "x = 1", "input": "What is func_3(-2)?", "answer": [12], "options": []}
    lines(folder / "code_run.jsonl", [row])
    (folder / "prompt.py").write_text(
        "gpt4_templates = {'code_run': 'Read {context} then {func_call} of {func}'}\n"
        "kimi_templates = {'code_run': '{file:{document}}'}\n"
        "yarn_mistral_templates = {'code_run': '{context} The value of {func_call} is'}\n"
    )
    return {"prompts": str(folder / "prompt.py"), "part": "code_run", "template": "gpt4"}


def nolima(folder: Path) -> dict[str, Any]:
    (folder / "needlesets").mkdir(exist_ok=True)
    entry = {
        "id": "0401",
        "system_prompt": "",
        "task_template": "Read: {haystack}\nQuestion: {question}",
        "needle": "Actually, {CHAR} lives next to {1}.",
        "questions": {"onehop": "Who has been to {2} of {1}?"},
        "character_set": ["Yuki", "Stuart"],
        "tests": {"T1": {"input_args": ["the opera", "Dresden"]}},
    }
    (folder / "needlesets" / "needle_set.json").write_text(json.dumps([entry]))
    (folder / "haystack" / "rand_shuffle").mkdir(parents=True, exist_ok=True)
    book = "".join(f"Line {number} of a quiet book.\n" for number in range(200))
    (folder / "haystack" / "rand_shuffle" / "rand_book_1.txt").write_text(book)
    return {"axis": 250}


def helmet(folder: Path) -> dict[str, Any]:
    passages = [{"title": "T", "text": f"passage {number}"} for number in range(2)]
    row = {"question": "Which?", "answers": ["the Red Hat"], "ctxs": passages}
    lines(folder / "kilt" / "nq-dev-multikilt_1000_k50_dep6.jsonl", [row])
    shots = [{"question": f"Old {number}?", "answers": [f"a{number}"], "ctxs": passages[:1]} for number in range(5)]
    lines(folder / "kilt" / "nq-train-multikilt_1000_k3_dep6.jsonl", shots)
    (folder / "data.py").write_text(
        "def load_qa(dataset):\n"
        "    if 'bad' in dataset:\n        user_template = 'Bad {context}'\n"
        "    else:\n        user_template = 'Use {demos}{context} Q {question}'\n"
        "    system_template = 'Answer:'\n"
        "    prompt_template = user_template + system_template\n"
        "    demo_template = '{documents} Q {question} A {answer}'\n"
        "    passage_template = 'D {title} {text}'\n"
    )
    return {"prompts": str(folder / "data.py"), "part": "nq", "axis": 50}


def lveval(folder: Path) -> dict[str, Any]:
    row = {"input": "Where?", "context": "Long ago", "answers": ["of the sea"], "answer_keywords": "of the sea"}
    for length in ("16k", "32k"):
        lines(folder / "loogle_SD_mixup" / f"loogle_SD_mixup_{length}.jsonl", [row])
    (folder / "config.py").write_text(
        "from metrics import f1\nDATASET_MAXGEN = {'loogle_SD_mixup': 64}\n"
        "DATASET_PROMPT = {'loogle_SD_mixup': 'A {context} Q {input} E'}\n"
    )
    (folder / "metrics.py").write_text("ABANDON_WORDS_EN = ['of', 'and']\n")
    return {"prompts": str(folder / "config.py"), "part": "loogle_SD_mixup"}


def ruler_official(folder: Path) -> dict[str, Any]:
    row = {"index": 17, "input": "Find it. What is it?", "outputs": ["9", "8"], "length": 99, "answer_prefix": " It is"}
    lines(folder / "4096" / "data" / "niah_multivalue" / "validation.jsonl", [row, row])
    return {"part": "niah_multivalue", "axis": 4096}


MADE: Mapping[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "mrcr": (mrcr, "User: Write a poem.\n\nAssistant: Roses.\n\nUser: Prepend aB3 to the 1st poem.\n\nAssistant:"),
    "mrcr_v2": (mrcr_v2, "User: a riddle\nModel: Which?"),
    "graphwalks": (graphwalks, "a -> b\nOperation: parents of b"),
    "longbench_v2": (longbench_v2, "T A $Q$ stays. Q Who? (A-text) (B-text) (C-text) (D-text)"),
    "babilong": (babilong, "Do it.|EF||Mary went to the garden.|Where is Mary?"),
    "infinitebench": (infinitebench, "Read x = 1 then func_3(-2) of func_3"),
    "nolima": (nolima, "System: You are a helpful assistant\n\nUser: Read: "),
    "helmet": (helmet, "Use D T passage 0 Q Old "),
    "lveval": (lveval, "A Long ago Q Where? E"),
    "ruler_official": (ruler_official, "Find it. What is it? It is"),
}
"""What makes a tiny copy and says the task's parameters; and the beginning of the prompt without a chat template."""


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., lexbench.Task]:
    def make(name: str, **more: Any) -> lexbench.Task:
        parameters = {"room": 100, **MADE[name][0](tmp_path)}
        return lexbench.task(name, **{**parameters, "data": str(tmp_path), **more})

    return make


def asked(task: lexbench.Task, tokenizer: FastTokenizer, length: int = SMALL, n: int = 3) -> list[Generate]:
    return [each for each in task.questions(tokenizer, length, n, 0) if isinstance(each, Generate)]


def said(text: str) -> GenerateAnswer:
    return GenerateAnswer(tokens=np.empty(0, np.int64), text=text, hit_room=False)


def test_every_benchmark_has_a_yaml_of_its_name() -> None:
    assert {name: getattr(lexbench.task(name), "benchmark", None) for name in BENCHMARK_OF_NAME} == {
        name: name for name in BENCHMARK_OF_NAME
    }
    assert MADE.keys() == BENCHMARK_OF_NAME.keys()


@pytest.mark.parametrize("name", MADE)
def test_a_copy_is_asked_in_its_own_words_and_a_right_answer_is_right(
    name: str, made: Callable[..., lexbench.Task], lexlet: FastTokenizer
) -> None:
    for scorer in BENCHMARK_OF_NAME[name].scorers:
        task = made(name, scorer=scorer)
        questions = asked(task, lexlet)
        for question in questions:
            assert lexlet.decode(question.prompt).lstrip().startswith(MADE[name][1])
            assert question.length <= SMALL and question.messages == ()
            sample = task.score(question, said(question.answer))
            # the first card of graphwalks never counts the first node: 1 of 2 is right, and 2 are written
            expected = 0.5 if scorer == "first_card" else 1.0
            assert list(sample.scores.values()) == [pytest.approx(expected)], question.facts
            assert sample.parts[-1].startswith("tokens ") and not sample.truncated
        wrong = task.score(questions[0], said(" nothing that is asked for"))
        assert list(wrong.scores.values()) == [0.0]
        assert scorer in task.protocol(lexlet) and "sha256:" in task.protocol(lexlet)


@pytest.mark.parametrize("name", MADE)
def test_prompts_have_a_factor_each_but_for_prompts_that_are_made_for_a_length(
    name: str, made: Callable[..., lexbench.Task], tmp_path: Path
) -> None:
    parameters = {**MADE[name][0](tmp_path), "name": name, "data": str(tmp_path), "room": 20}
    settings: dict[str, Any] = {"lengths": [SMALL, 2 * SMALL], "n": 2, "backend": "chance", "price": False}
    run = lexbench.run("lexlet", "ntk", parameters, results=tmp_path / "run", quiet=True, **settings)
    own = name != "ruler_official"
    assert made(name).factor_of_prompt == own
    for each in Store(tmp_path / "run").load(run.cells):
        trained = each.cell.trained_length
        factors = [next(f for f in (1, 2, 4, 8, 16) if s.tokens <= f * trained) for s in each.samples]
        assert [s.facts.get("factor") for s in each.samples] == (factors if own else [None] * len(factors))
        assert [s.parts[-1] for s in each.samples if own] == [f"factor {f}" for f in factors if own]
        assert each.cell.identity["task"].get("factor") == ("prompt" if own else None)


@pytest.mark.parametrize("name", MADE)
def test_without_data_or_wording_a_benchmark_is_refused_by_name(
    name: str, made: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=rf"^{name} needs .*: no data: give task.data=DIR, your copy"):
        asked(lexbench.task(name), lexlet)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refused, match=rf"^{name} needs .* lack .*: give task.data=DIR, your copy"):
        asked(lexbench.task(name, data=str(tmp_path / "empty")), lexlet)
    if BENCHMARK_OF_NAME[name].prompts:
        with pytest.raises(Refused, match=rf"^{name} needs the official wording: give task.prompts=FILE, "):
            asked(made(name, prompts=None), lexlet)


@pytest.mark.parametrize("name", MADE)
def test_texts_are_told_to_be_at_most_as_long_as_asked_and_missing_data_at_once(
    name: str, made: Callable[..., lexbench.Task], lexlet: FastTokenizer
) -> None:
    task = made(name)
    told, questions = task.outline(lexlet, SMALL, 3, 0), asked(task, lexlet)
    assert len(questions) <= told.questions == 3 and told.length == SMALL
    assert all(
        question.length <= told.length and question.max_new_tokens == told.max_new_tokens for question in questions
    )
    for lacking in (lexbench.task(name), *([made(name, prompts=None)] if BENCHMARK_OF_NAME[name].prompts else [])):
        with pytest.raises(Refused) as foreseen:
            lacking.outline(lexlet, SMALL, 3, 0)
        with pytest.raises(Refused) as refused:
            asked(lacking, lexlet)
        assert foreseen.value.reason == refused.value.reason


def test_a_class_that_the_data_lack_is_said_and_never_replaced_by_others(
    made: Callable[..., lexbench.Task], lexlet: FastTokenizer
) -> None:
    assert {each.chance for each in asked(made("mrcr"), lexlet)} == {0.51}  # a reply of the right kind, in any order
    assert {each.chance for each in asked(made("mrcr_v2"), lexlet)} == {0.51}
    with pytest.raises(Refused, match=r"lack mrcr_v2\*_2needle_upto_64K_\*.csv: give task.data"):
        asked(made("mrcr_v2", axis="upto_64K"), lexlet)
    with pytest.raises(
        Refused, match=r"^longbench_v2: the data have no example of all, class tiny: correct task.part or"
    ):
        asked(made("longbench_v2", axis="tiny"), lexlet)


def test_over_long_examples_are_left_out_or_lose_their_middle(
    made: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    made("graphwalks")
    row = {"answer_nodes": ["a"], "problem_type": "bfs"}
    rows = [{**row, "prompt": "a -> b\n" * times + "Operation"} for times in (5, 500)]
    parquet(tmp_path / "graphwalks_128k_and_shorter.parquet", rows)
    task = lexbench.task("graphwalks", data=str(tmp_path), room=20)
    [question] = asked(task, lexlet, 200)
    assert question.facts["examples"] == 2 and not question.facts["cut"] and question.facts["parts"][0] == "bfs"
    cut = lexbench.task("graphwalks", data=str(tmp_path), room=20, truncation="middle")
    both = {each.facts["cut"]: each for each in asked(cut, lexlet, 200)}
    assert 199 <= both[True].length <= 200
    text = lexlet.decode(both[True].prompt)
    assert text.lstrip().startswith("a -> b\na -> b") and text.endswith("a -> b\nOperation")
    assert cut.score(both[True], said("")).truncated
    with pytest.raises(Refused, match="none of 2 examples fits in 24 tokens: raise length"):
        asked(task, lexlet, 24)


def test_samples_of_one_question_are_one_cluster(
    made: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    """BABILong repeats its questions at each length, as the published predictions do; HELMET at each depth."""
    made("babilong")
    rows = json.loads((tmp_path / "data" / "qa1" / "4k.json").read_text())
    (tmp_path / "data" / "qa1" / "8k.json").write_text(json.dumps([{**row, "input": "A book."} for row in rows]))
    questions = asked(made("babilong", axis=None), lexlet, n=4)
    found = [{each.cluster for each in questions if each.facts["class"] == class_} for class_ in ("4k", "8k")]
    assert len(questions) == 4 and found[0] == found[1] and len(found[0]) == 2
    made("helmet")
    file = tmp_path / "kilt" / "nq-dev-multikilt_1000_k50_dep6.jsonl"
    row = json.loads(file.read_text())
    orders = [{**row, "ctxs": row["ctxs"][::step]} for step in (1, -1)]
    lines(file, [*orders, *({**each, "question": "Who?"} for each in orders)])
    nq = lexbench.task("helmet", data=str(tmp_path), prompts=str(tmp_path / "data.py"), part="nq", axis=50)
    assert sorted(Counter(each.cluster for each in asked(nq, lexlet, n=4)).values()) == [2, 2]


def test_questions_on_one_conversation_are_one_cluster(
    made: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    """Questions as eval_hub's mrcr_utils.py makes them: one transcript, then a final query for each needle."""
    talks = [f"User: Prepend x.\n\nAssistant: x\n\nUser: Write {what}.\n\nAssistant: Roses." for what in ("it", "that")]
    asked_ = [f"\n\nUser: Prepend aB3 to the {nth} poem." for nth in ("first", "second", "third")]
    made("mrcr_v2")
    name = "mrcr_v2p1_2needle_upto_128K_dynamic_fewshot_text_style_fast.csv"
    with (tmp_path / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, ["queries", "answer"])
        writer.writeheader()
        writer.writerows({"queries": talk + ask, "answer": "0123456789ab x"} for talk in talks for ask in asked_)
    task = lexbench.task("mrcr_v2", data=str(tmp_path), room=100)
    assert sorted(Counter(each.cluster for each in asked(task, lexlet, n=6)).values()) == [3, 3]
    rows = [{"role": "user", "content": talks[0]}, {"role": "assistant", "content": "Roses."}]
    row = {"answer": "aB3 x", "random_string_to_prepend": "aB3"}
    said_ = [[*rows, {"role": "user", "content": ask}] for ask in asked_] + [[*rows, *rows, *rows[:1]]]
    parquet(tmp_path / "2needle" / "2needle_0.parquet", [{**row, "prompt": json.dumps(each)} for each in said_])
    task = lexbench.task("mrcr", data=str(tmp_path), room=100)
    assert sorted(Counter(each.cluster for each in asked(task, lexlet, n=4)).values()) == [1, 3]


def test_a_longer_length_keeps_the_examples_of_a_shorter_one(lexlet: FastTokenizer, tmp_path: Path) -> None:
    rows = [{"prompt": "edge " * (4 + 11 * number), "answer_nodes": [], "problem_type": "bfs"} for number in range(12)]
    parquet(tmp_path / "graphwalks_128k.parquet", rows)
    task = lexbench.task("graphwalks", data=str(tmp_path), room=20)
    short, long = ([each.facts["id"] for each in asked(task, lexlet, length, 12)] for length in (150, 600))
    assert 1 < len(short) < len(long) == 12
    assert [each for each in long if each in short] == short
    # Fewer than fit: the first of each length's own, so some of the shorter one's make room.
    few = [each.facts["id"] for each in asked(task, lexlet, 600, 3)]
    assert few == long[:3] and not set(short[:3]) <= set(few)


def test_in_a_chat_messages_are_sent_and_the_longest_loses_its_middle(
    made: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    """A template that writes [role] before each message and [model] at the end."""

    def template(roles: Sequence[str]) -> list[str]:
        return [f"[{roles[0]}]", *(f"[{role}]" for role in roles[1:]), "[model]"]

    talking = FastTokenizer(lexlet._tokenizer, lexlet.bos, bool(lexlet.prefix), template)
    question = asked(made("mrcr"), talking)[0]
    assert question.messages[-1] == ("user", "Prepend aB3 to the 1st poem.") and len(question.messages) == 3
    text = talking.decode(question.prompt)
    assert text == "[user]Write a poem.[assistant]Roses.[user]Prepend aB3 to the 1st poem.[model]"
    (tmp_path / "data.json").unlink(missing_ok=True)
    long = made("longbench_v2", chat=True, room=10)
    whole = asked(long, talking)[0]
    cut = asked(long, talking, whole.length - 5)[0]
    assert (whole.facts["cut"], cut.facts["cut"]) == (False, True)
    [(_, content)] = cut.messages
    assert talking.decode(cut.prompt) == f"[user]{content}[model]" and 0 < len(content) < len(whole.messages[0][1])
    # InfiniteBench's runs of open models generate from the bare text, which ends in the answer's first words.
    completed = asked(made("infinitebench", template="yarn_mistral"), talking)[0]
    assert completed.messages == () and talking.decode(completed.prompt).strip() == "x = 1 The value of func_3(-2) is"
    assert [role for role, _ in asked(made("infinitebench"), talking)[0].messages] == ["user"]
    prefilled = asked(made("helmet", chat=True), talking)[0]
    assert prefilled.messages[-1] == ("assistant", "\nAnswer:")
    assert talking.decode(prefilled.prompt).endswith("[model]Answer:")


def test_nolima_places_a_needle_behind_the_line_nearest_to_its_depth(
    made: Callable[..., lexbench.Task], lexlet: FastTokenizer
) -> None:
    questions = asked(made("nolima"), lexlet, n=26)
    assert sorted(each.facts["depth"] for each in questions) == pytest.approx(np.linspace(0, 1, 26).tolist())
    for question in questions:
        text = lexlet.decode(question.prompt)
        [name] = question.facts["gold_answers"]
        body = text.partition("Read: ")[2].partition("\nQuestion")[0]
        assert f" Actually, {name} lives next to the opera.\n" in body
        assert text.partition("Question: ")[2].startswith("Who has been to Dresden of the opera?")
        line = lexlet.encode("Line 10 of a quiet book.\n").ids
        rest = body.replace(f" Actually, {name} lives next to the opera.", "")
        assert abs(len(lexlet.encode(rest).ids) - 250) <= len(line)
        before = lexlet.encode(body.partition(" Actually")[0]).ids
        assert abs(len(before) - 250 * question.facts["depth"]) <= len(line)


@pytest.mark.parametrize("tokens", [250, 600])
def test_nolimas_distractor_stands_apart_from_the_needle(
    tokens: int, made: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    """520 texts were those of the official BookHaystack; here its depths."""
    made("nolima")
    [entry] = json.loads((tmp_path / "needlesets" / "needle_set.json").read_text())
    entry["distractors"] = dict.fromkeys(entry["questions"], "There was talk of {1}.")
    (tmp_path / "needlesets" / "needle_set_w_Distractor.json").write_text(json.dumps([entry]))
    questions = asked(made("nolima", part="distractor", axis=tokens), lexlet, n=26)
    assert len({each.facts["depth"] for each in questions}) == 26
    for question in questions:
        depth, other = question.facts["depth"], question.facts["distractor_depth"]
        assert (other in (0.5, 0.6, 0.7)) if tokens < 500 else (abs(other - depth) >= 0.2 and 0.2 <= other <= 0.8)
        body = lexlet.decode(question.prompt).partition("Read: ")[2].partition("\nQuestion")[0]
        assert body.count(" There was talk of the opera.\n") == 1 == body.count(" Actually, ")
        assert body.index(" There was talk") / len(body) == pytest.approx(other, abs=0.15)


@pytest.mark.slow
def test_lvevals_chinese_sets_count_chinese_words(lexlet: FastTokenizer, tmp_path: Path) -> None:
    """1600 random answers had the scores of the official metrics.py; here by hand."""
    row = {"input": "在哪里", "context": "很久以前", "answers": ["北京大学", "上海"], "answer_keywords": "北京大学"}
    part = "cmrc_mixup"
    lines(tmp_path / part / f"{part}_16k.jsonl", [row])
    (tmp_path / "config.py").write_text(
        f"DATASET_MAXGEN = {{{part!r}: 64}}\nDATASET_PROMPT = {{{part!r}: '文 {{context}} 问 {{input}} 答'}}\n"
    )
    (tmp_path / "metrics.py").write_text("ABANDON_WORDS_EN = []\nABANDON_WORDS_ZH = ['的']\n")
    scores = {}
    for scorer in ("official", "repaired"):
        prompts = str(tmp_path / "config.py")
        task = lexbench.task("lveval", data=str(tmp_path), prompts=prompts, part=part, scorer=scorer)
        [question] = asked(task, lexlet, n=1)
        assert lexlet.decode(question.prompt).strip() == "文 很久以前 问 在哪里 答"
        for text in ("北京大学。", "是北京大学", "上海"):
            [scores[scorer, text]] = task.score(question, said(text)).scores.values()
    assert scores["official", "北京大学。"] == 1.0
    assert scores["official", "是北京大学"] == pytest.approx(2 / 3)  # 1 of 2 words, 1 of 1
    assert scores["official", "上海"] == scores["repaired", "上海"] == 0.0  # no keyword


def test_helmets_documents_are_ranked(lexlet: FastTokenizer, tmp_path: Path) -> None:
    def row(query: int, size: int = 3) -> dict[str, Any]:
        documents = [{"id": str(query * 10 + i), "text": f"text {i}", "label": i % 3} for i in range(size)]
        return {"qid": str(query), "query": f"Which {query}?", "ctxs": documents}

    lines(tmp_path / "msmarco" / "test_reranking_data_k50_dep3.jsonl", [row(1), row(2)])
    lines(tmp_path / "msmarco" / "test_reranking_data_k10_dep3.jsonl", [row(1), row(3), row(3), row(4), row(5)])
    (tmp_path / "data.py").write_text(
        "def load_msmarco_rerank(path):\n    user_template = 'Rank.\\n\\n{demos}{context}\\n\\nQuery: {question}'\n"
        "    system_template = 'Ranking:'\n"
        "    passage_template = '[ID: {id}] {title}: {text}' if title else '[ID: {id}] {text}'\n"
    )
    task = lexbench.task("helmet", part="msmarco", data=str(tmp_path), prompts=str(tmp_path / "data.py"), axis=50)
    question = next(each for each in asked(task, lexlet) if each.facts["answers"] == ["12 > 11 > 10"])
    text = lexlet.decode(question.prompt).strip()
    shots = re.findall(r"Query: Which (\d)\?\nRanking: (.*)\n\n", text)
    assert len(shots) == 2 == len({query for query, _ in shots}) and not {"1", "2"} & {query for query, _ in shots}
    assert all(order == f"{query}2 > {query}1 > {query}0" for query, order in shots)
    assert text.endswith("[ID: 10] text 0\n\n[ID: 11] text 1\n\n[ID: 12] text 2\n\nQuery: Which 1?\nRanking:")
    best = 2 + 1 / np.log2(3)
    for said_, official, repaired in (
        (" 12 > 11 > 10", 1.0, 1.0),
        (" [ID: 11] > [ID: 12]", (1 + 2 / np.log2(3)) / best, (1 + 2 / np.log2(3)) / best),
        (" 99 > 12", 2 / np.log2(3) / best, 2 / best),
        (" none", 0.0, 0.0),
    ):
        for scorer, expected in (("official", official), ("repaired", repaired)):
            scored = lexbench.task(
                "helmet", part="msmarco", data=str(tmp_path), prompts=str(tmp_path / "data.py"), scorer=scorer
            ).score(question, said(said_))
            assert scored.scores == {f"ndcg_at_10_{scorer}": pytest.approx(expected)}


HELMET_CODE = """
def load_ruler(path):
    user_template = "other {context}"
    system_template = "Answer:"
    if "niah_mv" in path:
        user_template = "Some {type_needle_v}:\\n{context}\\nAll {type_needle_v} for {query}?"
        system_template = "All {type_needle_v} for {query} are"
    elif "niah" in path:
        user_template = "A {type_needle_v}:\\n{context}\\nThe {type_needle_v} for {query}?"
        system_template = "The {type_needle_v} for {query} is"
def load_infbench(dataset):
    if "qa_eng" in dataset:
        user_template = "Story. {demo}{context} Q {question}"
    elif "choice_eng" in dataset:
        user_template = "Choose. {demo}{context} Q {question}\\n{options}"
    def add_demos(example):
        if "qa_eng" in dataset:
            temp = "[story] {question} {answer[0]}"
        elif "choice_eng" in dataset:
            temp = "[story] {question}\\n{options} {answer[0]}"
def load_alce(path):
    user_template = "{demo_text}{instruction} Q {question} {context}"
"""


@pytest.fixture
def helmet_copy(tmp_path: Path) -> Callable[..., lexbench.Task]:
    (tmp_path / "data.py").write_text(HELMET_CODE)
    rows = [{"context": "c", "query": "k", "type_needle_v": "numbers", "outputs": ["12", "34"]}]
    for name in ("multivalue", "multikey_2"):
        lines(tmp_path / "data" / "ruler" / f"niah_{name}" / "validation_8192.jsonl", rows)
    story = {"context": "Once upon a time. " * 80, "options": ["A house", "A walk", "c", "d"]}
    books = [{**story, "id": i, "input": f"Why {i}?", "answer": ["A walk"]} for i in range(4)]
    for name in ("qa", "choice"):
        lines(tmp_path / f"longbook_{name}_eng.jsonl", books)
    documents = [{"title": f"T{i}", "text": f"text {i}"} for i in range(3)]
    asked_ = {"question": "Which?", "docs": documents, "qa_pairs": [{"short_answers": ["x", "y"]}] * 2}
    (tmp_path / "data" / "alce").mkdir()
    (tmp_path / "data" / "alce" / "asqa_eval_gtr_top2000.json").write_text(json.dumps([asked_] * 2))
    stated = {"instruction": "Cite.", "demo_prompt": "{instruction} Q {question} {context} A {answer}"}
    stated |= {"doc_prompt": "[{ID}] {title}: {text}"}
    shots = [{"question": f"Old {i}?", "answer": f"a{i}", "docs": documents[:1]} for i in range(4)]
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "asqa_revised.json").write_text(json.dumps({**stated, "demos": shots}))

    def make(part: str, **more: Any) -> lexbench.Task:
        return lexbench.task("helmet", part=part, data=str(tmp_path), prompts=str(tmp_path / "data.py"), **more)

    return make


@pytest.mark.parametrize(
    ("part", "form"),
    [
        ("ruler_niah_mv", "Some numbers:\nc\nAll numbers for k?\nAll numbers for k are"),
        ("ruler_niah_mk_2", "A numbers:\nc\nThe numbers for k?\nThe numbers for k is"),
        (
            "alce_asqa",
            r"(Cite. Q Old \d\? \[1\] T0: text 0 A a\d\n\n\n){2}Cite. Q Which\? "
            r"\[1\] T0: text 0\n\n\[2\] T1: text 1\n\nAnswer:",
        ),
        (
            "infbench_choice_eng",
            r"Choose. For example:\n\n(\[story\] Why \d\?\nA. A house\nB. A walk\nC. c\nD. d B\n\n){2}Now, read the "
            r"following story:\n\n(Once upon a time. ){9,79}.* \.\.\. \[the rest of the text is omitted\] Q Why \d\?\n"
            r"A. A house\nB. A walk\nC. c\nD. d\n\nAnswer:",
        ),
    ],
)
def test_helmets_recall_books_and_citations_are_asked_in_its_words(
    helmet_copy: Callable[..., lexbench.Task], lexlet: FastTokenizer, part: str, form: str
) -> None:
    task = helmet_copy(part, axis=2 if part == "alce_asqa" else None)
    for question in asked(task, lexlet, 480):
        assert re.fullmatch(form, lexlet.decode(question.prompt).strip(), re.DOTALL) or part.startswith("ruler")
        assert not part.startswith("ruler") or lexlet.decode(question.prompt).strip() == form
        assert list(task.score(question, said(question.answer)).scores.values()) == [1.0]
        assert question.facts["cut"] == (part in INFINITEBENCH_FILE_OF_PART)
        assert question.length <= 480 and (part not in INFINITEBENCH_FILE_OF_PART or question.length > 440)


def test_helmets_books_and_citations_are_chats_without_the_cue(
    helmet_copy: Callable[..., lexbench.Task], lexlet: FastTokenizer, tmp_path: Path
) -> None:
    def template(roles: Sequence[str]) -> list[str]:
        return [*(f"[{role}]" for role in roles), "[model]"]

    talking = FastTokenizer(lexlet._tokenizer, lexlet.bos, bool(lexlet.prefix), template)
    for part in ("infbench_qa_eng", "alce_asqa"):
        question = asked(helmet_copy(part, axis=2 if part == "alce_asqa" else None), talking, 480)[0]
        assert [role for role, _ in question.messages] == ["system", "user"]
        assert not question.messages[-1][1].endswith("Answer:") and question.length <= 480
    assert not asked(helmet_copy("ruler_niah_mv"), talking)[0].messages
    # four questions on one book, cut or whole
    for length in (480, SMALL):
        assert [
            len({each.cluster for each in asked(helmet_copy(book), lexlet, length, 4)})
            for book in INFINITEBENCH_FILE_OF_PART
        ] == [1, 1]
    with pytest.raises(ValueError, match="infbench_qa_eng has no classes of length, got axis=8192: leave it out"):
        helmet_copy("infbench_qa_eng", axis=8192)
    (tmp_path / "prompts" / "asqa_revised.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"asqa_revised.json must be JSON with 2 demos or more: give the official file$"
    ):
        asked(helmet_copy("alce_asqa"), talking)
    with pytest.raises(ValueError, match=r"alce_asqa counts passages, got axis=8k: e.g. axis=700"):
        helmet_copy("alce_asqa", axis="8k")


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("mrcr", {"part": "3needle"}, "mrcr's part must be one of 2needle, 4needle, 8needle, got 3needle"),
        ("mrcr", {"scorer": "first_card"}, "mrcr's scorer must be one of official, repaired, got first_card"),
        ("mrcr", {"axis": "4k"}, "mrcr has no classes of length, got axis=4k: leave it out"),
        ("mrcr", {"template": "gpt4"}, "mrcr has no families of prompts, got template=gpt4: leave it out"),
        ("mrcr", {"data": "/nowhere"}, "data /nowhere does not exist: give task.data=DIR, your copy of MRCR"),
        ("mrcr", {"prompts": "x.py"}, "mrcr needs no prompts, its data hold the wording: leave them out"),
        ("babilong", {"prompts": "x.py"}, "prompts x.py does not exist: give babilong/prompts.py"),
        ("graphwalks", {"axis": "2m", "data": "."}, "graphwalks' axis must be one of 128k, 1m, got 2m"),
    ],
)
def test_wrong_parameters_are_one_line(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        lexbench.task(name, **parameters)


@pytest.mark.parametrize("axis", ["-5", "0", "abc", "1.5"])
def test_an_axis_that_is_no_number_of_tokens_is_one_line(
    axis: str, made: Callable[..., lexbench.Task], lexlet: FastTokenizer
) -> None:
    with pytest.raises(ValueError, match=f"^axis must be a number of tokens of at least 1, got {axis}: e.g. axis=1000"):
        asked(made("nolima", axis=axis), lexlet)


def test_a_template_that_needs_files_is_named(made: Callable[..., lexbench.Task], lexlet: FastTokenizer) -> None:
    with pytest.raises(
        ValueError, match="template kimi of code_run has unknown fields: take one of gpt4, kimi, yarn_mistral"
    ):
        asked(made("infinitebench", template="kimi"), lexlet)
    with pytest.raises(
        ValueError, match="infinitebench's template must be one of the copy's gpt4, kimi, yarn_mistral, got claude2"
    ):
        asked(made("infinitebench", template="claude2"), lexlet)

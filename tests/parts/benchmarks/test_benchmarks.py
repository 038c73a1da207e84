"""Public benchmarks: published scores from published predictions, and every known trap of an official scorer."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lexbench.parts.benchmarks import (
    babilong,
    graphwalks,
    helmet,
    infinitebench,
    longbench2,
    lveval,
    mrcr,
    nolima,
    ruler,
    table,
)

# published predictions


def test_babilong_published_heat_map_and_averages_come_out(shared: Path) -> None:
    folder = shared / "babilong" / "Yarn-Mistral-7b-128k"
    published = json.loads((folder / "published.json").read_text())
    rows = {(row.dataset, row.bucket): row for row in babilong.rescore(folder)}
    cells = 0
    for prompt, tasks in published["published_heatmap_percent"].items():
        for task, percents in tasks.items():
            for length, percent, (right, n) in zip(
                published["lengths"], percents, published["correct_of_n"][prompt][task], strict=True
            ):
                row = rows[f"{task} {prompt}", length]
                assert (row.value, row.n, f"{row.value:.0f}") == (round(100 * right / n, 2), n, str(percent))
                cells += 1
    assert cells == 90
    averages = [rows["average qa1-qa5, best prompt of each", length].value for length in published["lengths"]]
    assert [round(each) for each in averages] == published["published_average_qa1_qa5_best_prompt_per_task"]
    assert len(rows) == 90 + 9


@pytest.mark.parametrize("model", ["yi-34b-200k", "yi-6b-200k"])
def test_infinitebench_published_scores_come_out(shared: Path, model: str) -> None:
    published = json.loads((shared / "infinitebench" / "published.json").read_text())[model]
    found = {row.dataset: row.value for row in infinitebench.rescore(shared / "infinitebench" / model)}
    assert found.keys() == published.keys() and len(found) == 10
    for name, printed in published.items():
        assert found[name] < 5 if printed == "<5" else f"{found[name]:.2f}" == printed


def test_score_prints_json_and_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "preds_passkey.jsonl"
    file.write_text('{"prediction": "12,345", "ground_truth": "12345"}\n{"ground_truth": "7"}\n')
    assert json.loads(table.score_folder("infinitebench", tmp_path, as_json=True)) == {"passkey": 0.0}
    assert table.score_folder("infinitebench", tmp_path, "repaired").splitlines()[1].split() == [
        *("passkey", "score_repaired", "50.00", "2")
    ]
    file.write_text('{"prediction": "1", "ground_truth": "1"}\n{"prediction": 3, "ground_truth": "1"}\n')
    with pytest.raises(ValueError, match=r"passkey.jsonl:2 has a wrong prediction or ground_truth: correct the line"):
        infinitebench.rescore(tmp_path)
    with pytest.raises(ValueError, match=r"has no predictions: give one with TASK_LENGTH_PROMPT.csv"):
        babilong.rescore(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "preds_passkey.jsonl").write_text("")
    file.unlink()
    with pytest.raises(ValueError, match=r"jsonl or the like, such as .*model$"):
        infinitebench.rescore(tmp_path)
    (tmp_path / "qa1_0k_a.csv").write_text(",target,output\n0,garden,garden\n")
    with pytest.raises(ValueError, match=r"qa1_0k_a.csv must have the columns target, output, question .*: correct it"):
        babilong.rescore(tmp_path)


def test_a_mark_of_the_byte_order_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "qa1_0k_a.csv").write_text("target,output,question\ngarden,garden,?\n", encoding="utf-8-sig")
    assert [row.value for row in babilong.rescore(tmp_path)] == [100.0]
    row = json.dumps({"prediction": "7", "ground_truth": ["7"]})
    (tmp_path / "preds_passkey.jsonl").write_text(f"{row}\n{row}\n", encoding="utf-8-sig")
    assert [(row.value, row.n) for row in infinitebench.rescore(tmp_path)] == [(100.0, 2)]


@pytest.mark.parametrize("name", ["id", "_id"])
def test_an_example_that_stands_twice_in_a_file_is_counted_by_nobody(tmp_path: Path, name: str) -> None:
    rows = [{name: number, "prediction": "7", "ground_truth": ["7"]} for number in (0, 1, 0)]
    (tmp_path / "preds_passkey.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ValueError, match=r"preds_passkey.jsonl:3 has the id '0' of line 1: remove one of them"):
        infinitebench.rescore(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("target,output,output,question\na,b,a,?\n", "'output' is there twice"),
        (",target,output,question\n0,a,a,?\n1,b,b,?\n0,a,a,?\n", "qa1_0k_a.csv:4 has the id '0' of line 2"),
        ("target,output,question\na,a,?,more\n", "line 2 has 4 columns, the first 3"),
        ("target,output,question\na,a\n", "line 2 has 2 columns, the first 3"),
    ],
)
def test_columns_and_rows_of_a_csv_file_stand_there_once(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "qa1_0k_a.csv").write_text(content)
    with pytest.raises(ValueError, match=f"must have the columns target, output, question .*{re.escape(said)}"):
        babilong.rescore(tmp_path)


def test_an_average_needs_every_length_of_every_task(tmp_path: Path) -> None:
    for task in babilong.AVERAGED_TASKS:
        target = babilong.ANSWERS_OF_TASK[task][0]
        for length, answer in (("1k", target), ("0k", "nothing")):
            (tmp_path / f"{task}_{length}_p.csv").write_text(f",target,output,question\n0,{target},{answer},Where?\n")
    averages = [row for row in babilong.rescore(tmp_path) if row.dataset.startswith("average")]
    assert [(row.bucket, row.value, row.n) for row in averages] == [("0k", 0.0, 5), ("1k", 100.0, 5)]
    (tmp_path / "qa3_1k_p.csv").unlink()
    assert not [row for row in babilong.rescore(tmp_path) if row.dataset.startswith("average")]


# traps: task, target, answer, question, official, repaired

BABILONG: list[tuple[str, str, str, str, float, float]] = [
    ("qa1", "garden", "Garden. Then the office", "Where is John?", 1, 1),
    ("qa1", "garden", "garden or office", "Where is John?", 0, 0),
    ("qa1", "garden", "According to Mr. Smith, garden", "Where is John?", 0, 1),  # cut at the first dot
    ("qa7", "none", "none", "How many?", 0, 1),  # none contains one
    ("qa7", "one", "one", "How many?", 1, 1),
    ("qa6", "no", "I do not know", "Is John here?", 1, 0),  # no in not and know
    ("qa6", "no", "no", "Is John now in the park?", 0, 1),  # no in now: the label is taken away
    ("qa2", "garden", "garden", "Where was it before the garden?", 0, 0),
    ("qa8", "apple,milk", "milk, apple", "What?", 1, 1),
    ("qa8", "apple,milk", "milk", "What?", 0, 0),
    ("qa19", "s,w", "s,w", "How?", 1, 1),
    ("qa19", "s,w", "s, w", "How?", 0, 1),
    ("qa5", "apple", "Apples <example> milk", "What did he give?", 1, 1),
]


@pytest.mark.parametrize(("task", "target", "answer", "question", "official", "repaired"), BABILONG)
def test_traps_of_babilong(
    task: str, target: str, answer: str, question: str, official: float, repaired: float
) -> None:
    assert babilong.score(task, target, answer, question) == official
    assert babilong.score(task, target, answer, question, "repaired") == repaired


def test_the_sides_of_qa19_are_the_official_ones() -> None:
    official = "e,e e,n e,s n,e n,n n,w s,e s,s s,w w,n w,s w,w"  # babilong/metrics.py
    assert sorted(babilong.ANSWERS_OF_TASK["qa19"]) == official.split()


def test_chance_of_babilong_is_the_best_score_of_a_uniform_guess(shared: Path) -> None:
    """Guess among labels that can be right: in qa4, "What is north of the garden?", no garden, so one of five."""
    for task, expected in (("qa1", 1 / 6), ("qa2", 1 / 6), ("qa3", 1 / 5), ("qa4", 1 / 5), ("qa5", None)):
        name = f"{task}_0k_instruction_no_examples_no_post_prompt_no.csv"
        with (shared / "babilong" / "Yarn-Mistral-7b-128k" / name).open(encoding="utf-8", newline="") as file:
            asked = [(row["target"], row["question"]) for row in csv.DictReader(file)]
        stated, guessed = [], []
        for target, question in asked:
            labels = babilong.ANSWERS_OF_TASK[task]
            usable = [label for label in labels if babilong.score(task, label, label, question)]
            guessed.append(sum(babilong.score(task, target, label, question) for label in usable) / len(usable))
            stated.append(babilong.chance_of_guess(task, target, question))
        assert stated == pytest.approx(guessed)
        assert expected is None or sum(stated) / len(stated) == pytest.approx(expected)


def test_answers_that_pandas_takes_for_missing_are_empty_officially(tmp_path: Path) -> None:
    (tmp_path / "qa7_0k_p.csv").write_text(",target,output,question\n0,none,None,How many?\n1,two,two,How many?\n")
    assert [babilong.rescore(tmp_path, scorer)[0].value for scorer in ("official", "repaired")] == [50.0, 100.0]


@pytest.mark.parametrize("task", babilong.TASK_NAMES)
def test_a_perfect_answer_is_right_but_for_none_in_qa7(task: str) -> None:
    for label in babilong.ANSWERS_OF_TASK[task]:
        expected = 0.0 if (task, label) == ("qa7", "none") else 1.0
        assert (babilong.score(task, label, label, "?"), babilong.score(task, label, label, "?", "repaired")) == (
            expected,
            1.0,
        )


INFINITEBENCH: list[tuple[str, Any, str, float, float]] = [
    ("passkey", "12345", "12,345", 0, 1),
    ("passkey", "12345", "1. 12345", 0, 1),  # the number of a list is taken for the answer
    ("number_string", "0012", "0012.", 1, 1),
    ("kv_retrieval", "ab-1", "{ab-1}", 1, 1),
    ("kv_retrieval", "ab-1", "[ab-1];", 0, 1),  # these marks stay on
    ("longdialogue_qa_eng", ["ACE"], "ace:", 1, 1),
    ("longdialogue_qa_eng", ["MR. PINK"], "Mr. Pink", 0, 1),  # two words
    ("longbook_choice_eng", ["Walking", "B"], "Answer: B", 0, 1),  # the first letter is A
    ("longbook_choice_eng", ["Walking", "B"], "Because it rains", 1, 0),
    ("longbook_choice_eng", ["Walking", "B"], "the answer is B", 1, 1),
    ("longbook_choice_eng", ["Walking", "B"], "Walking", 1, 1),
    ("longbook_choice_eng", ["Walking", "B"], "", 0, 0),
    ("code_debug", ["load", "B"], "B", 0, 1),
    ("code_debug", ["load", "B"], "B. load", 1, 1),
    ("code_debug", ["load", "B"], "The correct answer is: load", 1, 1),
    ("code_run", -3, " -3.", 1, 1),
    ("code_run", 3, "3)", 0, 1),
    ("code_run", 3, "3 is the value", 0, 1),
    ("math_find", [-7], "-7", 0, 1),  # no sign
    ("math_find", [12], "12.5", 0, 0),  # ends the official run
    ("math_find", [1.5], "It is 1.5", 1, 1),
    ("math_calc", [1, -2, 3], "[1, -2, 3]", 1 / 3, 1),  # signs are lost
    ("math_calc", [[1, 3, 0]], "[1, 3, 0]", 1, 1),  # as in the published files
    ("math_calc", [1, 2, 3, 4], "1 2 9 4", 0.5, 0.5),
    ("longbook_qa_eng", ["x", "the red hat"], "Red hat!", 1, 1),
    ("longbook_qa_chn", ["王剑英"], "剑英。", 0.8, 0.8),  # 2 of 2 and 2 of 3
]


@pytest.mark.parametrize(("part", "label", "answer", "official", "repaired"), INFINITEBENCH)
def test_traps_of_infinitebench(part: str, label: Any, answer: str, official: float, repaired: float) -> None:
    assert infinitebench.score(part, label, answer) == pytest.approx(official)
    assert infinitebench.score(part, label, answer, "repaired") == pytest.approx(repaired)


def test_mrcr_needs_the_prefix_first_and_autojunk_hides_repeated_text() -> None:
    facts = {"random_string_to_prepend": "aB3", "answer": "aB3" + "one two three"}
    for text, official, repaired in (
        ("aB3one two three", 1.0, 1.0),
        ("aB3one two", 2 * 7 / (7 + 13), 2 * 7 / (7 + 13)),  # a share f of the answer scores 2f / (1 + f)
        ("Here: aB3one two three", 0.0, 0.0),
        ('\n"aB3one two three', 0.0, 1.0),
        ("```text\naB3one two three", 0.0, 1.0),
    ):
        assert mrcr.score(facts, text, "official") == pytest.approx(official)
        assert mrcr.score(facts, text, "repaired") == pytest.approx(repaired)
    sentence = "the ship sails over the sea at night and nobody sees where it goes. "
    facts = {"random_string_to_prepend": "x", "answer": "x" + sentence * 30}
    text = "x" + sentence * 15 + sentence.replace("ship", "boat") + sentence * 14
    assert mrcr.score(facts, text, "official") < 0.6 < 0.99 < mrcr.score(facts, text, "repaired")


TIDE = ("tide", "diet")
"""The example of difflib's documentation: ratio() is 0.25 in this order and 0.5 in the other."""


def test_mrcr_of_deepmind_reads_behind_the_last_hash() -> None:
    facts = {"answer": " 0123456789ab a riddle "}
    for text, expected in (
        ("0123456789ab a riddle", 1.0),
        ("I think 0123456789ab is it: 0123456789ab a riddle", 1.0),
        ("0123456789a a riddle", 0.0),
    ):
        assert mrcr.score_v2(facts, text, "official") == expected
    # the target comes first, the reply second; in OpenAI's the other way round
    orders = [
        mrcr.score_v2({"answer": f"0123456789ab{a}"}, f"0123456789ab{b}", "official") for a, b in (TIDE, TIDE[::-1])
    ]
    assert orders == [0.25, 0.5]
    own = {"random_string_to_prepend": "x", "answer": f"x{TIDE[1]}"}
    assert mrcr.score(own, f"x{TIDE[0]}", "official") == 0.25


@pytest.mark.parametrize(
    ("nodes", "text", "official", "first_card", "repaired"),
    [
        (["a", "b", "c"], "So:\nFinal Answer: [a, b, c]", 1, 2 / 3, 1),  # the first node is never counted
        (["a"], "Final Answer: [b]", 0, 1, 0),  # no overlap was a free point
        (["a"], "Final Answer: [a]\n", 0, 0, 1),  # the last line is empty
        (["a"], "**Final Answer:** [a]", 1, 0, 1),
        (["a"], "Final Answer: ['a']", 0, 1, 1),
        (["a"], "final answer: [a]", 0, 0, 1),
        (["a"], "Final Answer: [a]\nI hope this helps.", 0, 0, 1),
        ([], "Final Answer: []", 1, 1, 1),
        (
            ["a", "b"],
            "Final Answer: [a, a, c]",
            0.5,
            0.4,
            0.5,
        ),  # sets: 1 of 2 and 1 of 2; first card: 1 of 3 and 1 of 2
        (["a"], "a", 0, 0, 0),
    ],
)
def test_traps_of_graphwalks(nodes: list[str], text: str, official: float, first_card: float, repaired: float) -> None:
    facts = {"answer_nodes": nodes}
    found = {scorer: graphwalks.score(facts, text, scorer) for scorer in ("official", "repaired")}
    assert found == {"official": pytest.approx(official), "repaired": pytest.approx(repaired)}
    assert graphwalks.score(facts, text, "first_card") == pytest.approx(first_card)


@pytest.mark.parametrize(
    ("text", "official", "repaired"),
    [
        ("The correct answer is (B)", 1, 1),
        ("**The correct answer is B**", 1, 1),
        ("the correct answer is (B)", 0, 1),
        ("B", 0, 1),
        ("The correct answer is (A)? No. The correct answer is (B).", 0, 1),
        ("The correct answer is Both", 1, 0),  # the first letter of a word
        ("", 0, 0),
    ],
)
def test_traps_of_longbench_v2(text: str, official: float, repaired: float) -> None:
    facts = {"answer": "B"}
    assert [longbench2.score(facts, text, scorer) for scorer in ("official", "repaired")] == [official, repaired]


def test_traps_of_nolima_ruler_lveval_and_helmet() -> None:
    names = {"gold_answers": ["Yuki"], "character_set": ["Yuki", "Stuart"]}
    for text, official, repaired in (("Yuki", 1, 1), ("yuki", 0, 0), ("Yuki or Stuart", 1, 0), ("Yukiko", 1, 0)):
        assert [nolima.score(names, text, scorer) for scorer in ("official", "repaired")] == [official, repaired]
    outputs = {"outputs": ["12", "34"], "any": False}
    assert ruler.score(outputs, "12, 35, 340", "official") == 1.0  # substrings, and a list of everything is right
    assert ruler.score({**outputs, "any": True}, "34", "official") == 1.0
    keywords = {"answers": ["of the sea"], "answer_keywords": "of the sea and of land or of ice", "stop_words": ["of"]}
    # sea is 1 of 8 words of the keywords (articles go), but 1 of 5 without `of`
    assert lveval.score(keywords, "sea", "official") == 0.0
    assert lveval.score(keywords, "sea", "repaired") == pytest.approx(2 / 3)
    answer = {"answers": ["art"], "cue": "Answer:"}
    for text, official, repaired in ((" party", 1, 0), (" The Art!", 1, 1), (" no\nart", 1, 0)):
        assert [helmet.score(answer, text, scorer) for scorer in ("official", "repaired")] == [official, repaired]


HELMET_LONG: list[tuple[str, Any, str, float, float]] = [
    ("infbench_choice_eng", ["A", "A. A walk"], "", 1, 0),  # without articles the letter A is nothing
    ("infbench_choice_eng", ["B", "B. A walk"], " B", 1, 1),
    ("infbench_choice_eng", ["B", "B. A walk"], " A. A house B. A walk", 1, 0),  # a list of all options
    ("infbench_choice_eng", ["B", "B. A walk"], " a walk", 0, 1),
    ("infbench_qa_eng", ["red hats", "none"], " a red hat\nas said", 2 * 2 / (3 + 2), 2 * 2 / (3 + 2)),  # of stems
    ("infbench_qa_eng", ["is it red"], " red\nit is", 0.5, 0.5),  # behind the cue 1 of 1 and 1 of 3
    ("infbench_qa_eng", ["red as it is"], " red\nas it is", 8 / 9, 0.4),  # whole: 4 of 5 with the cue, and 4 of 4
    ("alce_asqa", [["art", "the sea"], ["1999"]], " A party [1][2]. In 1999 [3].", 1, 0.5),
    ("alce_asqa", [["sea"], ["1999"]], " By the Sea [1999].", 0.5, 0.5),  # a citation is no answer
    ("alce_qampari", [["Red hat"], ["sea", "ocean"]], " the red hat [1], Ocean [2].", 0.5, 1),  # "answer red hat"
    ("alce_qampari", [["red hat"], ["sea"]], "1. red hat [1]\n2. sea", 0, 1),  # lines
    ("alce_qampari", [[str(n)] for n in range(9)], "0, 1, 2, 3, 4, 5", 1, 1),  # of 5 at most
    ("alce_qampari", [["a"], ["sea"]], "the, sea", 0.5, 0.5),  # nothing is no answer
]


@pytest.mark.everyday("infbench_choice_eng-answers0", "infbench_choice_eng-answers3")
@pytest.mark.parametrize(("part", "answers", "text", "official", "repaired"), HELMET_LONG)
def test_traps_of_helmets_books_and_citations(
    part: str, answers: Any, text: str, official: float, repaired: float
) -> None:
    """Prompts and 108 random answers of each part had the same text and scores in the official data.py."""
    facts = {"part": part, "answers": answers, "cue": "Answer:"}
    assert helmet.score(facts, text, "official") == pytest.approx(official)
    assert helmet.score(facts, text, "repaired") == pytest.approx(repaired)
    if part == "alce_qampari" and "1." not in text:  # a chat has no cue
        assert helmet.score({**facts, "cue": ""}, text, "official") == pytest.approx(repaired)

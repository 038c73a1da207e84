"""LongBench's metrics by hand, by the packages that the official code calls, and by published scores."""

import json
import math
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge import Rouge

from lexbench.taskkit import longbench
from lexbench.taskkit.longbench import metrics

MODEL = "llama2-7b-chat-4k"
LONG_SUMMARIES = ("gov_report", "multi_news", "vcsum", "dureader")


def package_rouge(prediction: str, answer: str) -> float:
    """The official code's use of the package."""
    try:
        scores = Rouge().get_scores([prediction], [answer], avg=True)
    except Exception:
        return 0.0
    return float(scores["rouge-l"]["f"])


# metrics, by hand


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("The cat sat on a mat.", "cat on the mat!", 6 / 7),  # cat sat on mat: 3 of 4 and 3 of 3
        ("no no", "No.", 2 / 3),  # a word counts as often as both have it
        ("U.S.", "US", 1.0),  # punctuation goes before articles do, and leaves no blank
        ("a-n", "", 0.0),
        ("the", "the", 0.0),  # articles alone are nothing, and nothing scores nothing
        ("", "x", 0.0),
    ],
)
def test_qa_f1_by_hand(prediction: str, answer: str, expected: float) -> None:
    assert metrics.qa_f1(prediction, answer) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("我们喜欢苹果。", "喜欢，苹果", 0.8),  # 我们 喜欢 苹果: 2 of 3 and 2 of 2
        ("《红楼梦》", "红楼梦", 2 / 3),  # the opening mark stays, a word of its own; the closing one goes
        ("ABC 公司", "abc公司", 1.0),
        ("。，", "。", 0.0),
    ],
)
def test_qa_f1_of_chinese_by_hand(prediction: str, answer: str, expected: float) -> None:
    assert metrics.qa_f1_zh(prediction, answer) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("classes", "prediction", "answer", "expected"),
    [
        (["Date", "Food"], "Date.", "Date", 1.0),
        (["Date", "Food"], "Date or Food", "Date", 1 / 2),
        (["Date", "Food"], "date", "Date", 0.0),
        (["Date", "Food"], "Food", "Date", 0.0),
        (["City", "Other City"], "Other City", "Other City", 1.0),  # City is a part of the right one
        (["City", "Other City"], "Other City", "City", 1 / 2),  # the other way round it counts
        (["A", "AB", "ABC"], "ABC", "ABC", 1 / 2),  # A is removed, so AB is passed over and stays
        (["ABC", "AB", "A"], "ABC", "ABC", 1 / 2),  # AB is removed, so A is passed over
        (["A", "AB", "ABC", "ABCD"], "ABCD", "ABCD", 1 / 2),  # A goes, AB stays, ABC goes
        (["A", "ABC"], "ABC", "ABC", 1.0),
    ],
)
def test_classification_removes_from_the_list_that_it_walks_through(
    classes: list[str], prediction: str, answer: str, expected: float
) -> None:
    assert metrics.classification(prediction, answer, classes) == expected


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [("15", 1.0), ("Paragraph 15 of 30", 1 / 2), ("15 15 3", 2 / 3), ("Paragraph 5", 0.0), ("fifteen", 0.0), ("", 0.0)],
)
def test_retrieval_is_a_share_of_all_numbers(prediction: str, expected: float) -> None:
    assert metrics.retrieval(prediction, "Paragraph 15") == pytest.approx(expected)
    assert metrics.retrieval_zh(prediction, "段落15") == pytest.approx(expected)


def test_retrieval_needs_a_paragraph_in_the_answer() -> None:
    with pytest.raises(ValueError, match="answer '15' must name a paragraph"):
        metrics.retrieval("15", "15")


@pytest.mark.parametrize(
    ("prediction", "expected"), [("8", 1.0), ("8 or 18", 1 / 2), ("08", 0.0), ("3.8", 1 / 2), ("", 0)]
)
def test_count_is_a_share_of_all_numbers(prediction: str, expected: float) -> None:
    assert metrics.count(prediction, "8") == expected


@pytest.mark.parametrize(
    ("prediction", "answer", "by_difflib", "by_levenshtein"),
    [
        ("\n\nx = 1\ny", "x = 1", 1, 1),
        ("# note\n```py\nx = 1", "x = 1", 1, 1),  # lines with a mark are no code
        ("q = a // b", "q = a // b", 0, 0),  # even where they are
        ("\n\n \nx", "x = 1", 0.33, 0.33),  # a blank line is code: 2 * 1 / 6
        ("ab", "a", 0.67, 0.67),  # whole hundredths
        ("a", "a" + 14 * "z", 0.12, 0.12),  # 12.5 is rounded to even
        ("1234ab", "ab1 2 3 4", 0.27, 0.53),  # the longest block is ab: 4 / 15; 1234 lie in order: 8 / 15
        ("x" + 100 * "a", 200 * "a", 0, 0.66),  # difflib ignores what is frequent in 200 characters; 200 / 301
        ("", "x", 0, 0),
        ("", "", 1, 1),
    ],
)
def test_code_similarity_by_hand(prediction: str, answer: str, by_difflib: float, by_levenshtein: float) -> None:
    assert metrics.code_sim_difflib(prediction, answer) == by_difflib
    assert metrics.code_sim_levenshtein(prediction, answer) == by_levenshtein


@pytest.mark.parametrize(
    ("prediction", "answer", "precision", "recall"),
    [
        ("a b c", "a c d", 2 / 3, 2 / 3),
        ("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", 4 / 8, 4 / 5),  # w1 w2 and w1 w3 w5 together
        ("a a a a", "a", 1, 1),  # repeated words are one
        ("about 3.5 m", "about 3.6 m", 3 / 4, 3 / 4),  # 3.5 ends a sentence: about 3, then 5 m
        ("b a", "a b", 1 / 2, 1 / 2),
        ("The", "the", 0, 0),  # case counts
    ],
)
def test_official_rouge_by_hand(prediction: str, answer: str, precision: float, recall: float) -> None:
    total = precision + recall
    expected = 2 * precision * recall / (total + 1e-8) if total else 0
    assert metrics.rouge_l_official(prediction, answer) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("empty", ["", ".", "..."])
def test_official_rouge_takes_nothing_where_a_text_has_no_sentence(empty: str) -> None:
    assert metrics.rouge_l_official(empty, "a") == metrics.rouge_l_official("a", empty) == 0


def test_official_rouge_of_a_flawless_summary_is_a_little_less_than_one() -> None:
    assert metrics.rouge_l_official("a b. c", "a b. c") == 2 / (2 + 1e-8) < 1


def test_rouge_score_by_hand() -> None:
    assert metrics.rouge_l("The cats sat!", "the cat sat") == pytest.approx(2 / 3)  # no stemming; case does not count
    assert metrics.rouge_l("a a a a", "a") == pytest.approx(0.4)  # all words count: 1 of 4 and 1 of 1
    assert metrics.rouge_l_zh("我们喜欢苹果", "我们喜欢香蕉") == pytest.approx(2 / 3)


def test_official_rouge_is_the_packages() -> None:
    """Random texts with blank sentences; the package computes the expected values."""
    rng = np.random.default_rng(0)
    pieces = np.array(["a", "b", "c", "d", "e", ".", " .", ". ", "\n", "  "])
    for _ in range(500):
        texts = [" ".join(rng.choice(pieces, rng.integers(0, 14))) for _ in range(2)]
        assert metrics.rouge_l_official(*texts) == package_rouge(*texts)


def test_official_rouge_of_long_sentences_fails_where_the_recursion_of_the_package_does() -> None:
    """The calls of eval.py around the package, in a process of their own; the first of n words is n steps away."""
    code = """
from rouge import Rouge
def rouge(prediction, answer):
    try:
        scores = Rouge().get_scores([prediction], [answer], avg=True)
    except:
        return 0.0
    return scores["rouge-l"]["f"]
def rouge_zh(prediction, answer):
    score = rouge(prediction, answer)
    return score
def scorer(metric, words):
    return metric("0", " ".join(map(str, range(words))))
found = []
for metric, words in ((rouge, 990), (rouge, 991), (rouge_zh, 989), (rouge_zh, 990)):
    found.append(scorer(metric, words) > 0)
print(*found)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True", "False"]
    expected = 2 / (990 + 1 + 990e-8)
    assert metrics.rouge_l_official("0", " ".join(map(str, range(990)))) == pytest.approx(expected)
    assert metrics.rouge_l_official("0", " ".join(map(str, range(991)))) == 0


def test_chinese_rouge_has_one_call_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_LCS_STEPS", 3)
    assert metrics.rouge_l_official("我们 喜欢 苹果", "我们 喜欢 苹果") > 0.99
    assert metrics.rouge_l_zh_official("喜欢苹果", "喜欢苹果") > 0.99
    assert metrics.rouge_l_zh_official("我们喜欢苹果", "我们喜欢苹果") == 0


# data sets


def test_the_best_answer_counts_and_the_first_line_of_some() -> None:
    assert longbench.official_score("hotpotqa", "Rome", ["Paris", "Rome", "Oslo"], None) == 1
    assert longbench.official_score("hotpotqa", "Rome", [], None) == 0
    classes = ["Date", "Food"]
    assert longbench.official_score("trec", "\n\nDate\nFood", ["Date"], classes) == 1
    assert longbench.official_score("lsht", " \nDate", ["Date"], classes) == 0  # a line of blanks is a line
    assert longbench.official_score("triviaqa", "Rome\nParis", ["Rome"], None) == 1
    assert longbench.official_score("samsum", "a\nb", ["a"], None) > 0.99
    assert longbench.official_score("qasper", "Rome\nParis", ["Rome"], None) == pytest.approx(2 / 3)
    assert longbench.official_score("passage_count", "3\n4", ["3"], None) == 1 / 2


def test_code_similarity_is_as_asked() -> None:
    for name in ("lcc", "repobench-p"):
        assert longbench.official_score(name, "1234ab", ["ab1 2 3 4"], None) == 0.27
        assert longbench.official_score(name, "1234ab", ["ab1 2 3 4"], None, "levenshtein") == 0.53
        assert longbench.LONGBENCH_DATASETS[name].metric_name("levenshtein") == "code_sim_levenshtein"


def test_summaries_have_rouge_score_too() -> None:
    assert longbench.summary_scores("gov_report", "a a a a", ["b", "a"]) == {"rouge_l": pytest.approx(0.4)}
    assert longbench.summary_scores("vcsum", "喜欢", ["喜欢"]) == {"rouge_l_zh": 1.0}
    assert longbench.summary_scores("samsum", "a\nb b b", ["a"]) == {"rouge_l": 1.0}
    assert longbench.summary_scores("qasper", "a", ["a"]) == {}


def test_21_data_sets_and_13_of_longbench_e() -> None:
    assert len(longbench.LONGBENCH_DATASETS) == 21
    assert len(longbench.LONGBENCH_E) == 13
    limits = {128: 4, 64: 6, 32: 7, 512: 4}  # tokens to write: data sets
    assert {room: sum(each.room == room for each in longbench.LONGBENCH_DATASETS.values()) for room in limits} == limits
    assert {name for name, each in longbench.LONGBENCH_DATASETS.items() if each.first_line} == {
        "trec",
        "triviaqa",
        "samsum",
        "lsht",
    }
    continued = {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert {name for name, each in longbench.LONGBENCH_DATASETS.items() if not each.chat} == continued


def test_buckets_begin_at_their_bounds() -> None:
    lengths = [0, 3999, 4000, 7999, 8000, 99999]
    assert [longbench.bucket_of_length(length) for length in lengths] == ["0-4k", "0-4k", "4-8k", "4-8k", "8k+", "8k+"]
    assert [longbench.bucket_of_length(length, (500, 1000)) for length in (499, 500, 1000)] == [
        "0-0.5k",
        "0.5-1k",
        "1k+",
    ]
    for bad in ((), (0, 4000), (8000, 4000), (4000, 4000)):
        with pytest.raises(ValueError, match=r"buckets must be ascending lengths above 0, got .*: e.g. 4000,8000"):
            longbench.bucket_of_length(1, bad)


# published predictions


def linked(source: Path, target: Path, names: Collection[str]) -> Path:
    """A folder with some files of another one."""
    for name in names:
        (target / f"{name}.jsonl").symlink_to((source / f"{name}.jsonl").resolve())
    return target


def test_published_scores_of_longbench_e_come_out_to_the_last_digit(shared: Path) -> None:
    folder = shared / "longbench_e" / MODEL
    published = json.loads((folder / "result.json").read_text())
    assert set(published) == {"qasper", "multifieldqa_en", "hotpotqa"}
    assert longbench.as_data(longbench.rescore_predictions(folder)) == published


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_published_scores_come_out_to_the_last_digit(shared: Path, tmp_path: Path, slow: bool) -> None:
    folder = shared / "longbench" / MODEL
    published = json.loads((folder / "result.json").read_text())
    names = {file.stem for file in folder.glob("*.jsonl") if (file.stem in LONG_SUMMARIES) == slow}
    assert len(names) == (4 if slow else 16)
    scores = longbench.as_data(longbench.rescore_predictions(linked(folder, tmp_path, names)))
    assert scores == {name: published[name] for name in names}


def test_published_scores_with_levenshtein(shared: Path, tmp_path: Path) -> None:
    folder = linked(shared / "longbench" / MODEL, tmp_path, ["lcc", "repobench-p"])
    rescored = longbench.rescore_predictions(folder, similarity="levenshtein")
    assert longbench.as_data(rescored) == {"lcc": 60.87, "repobench-p": 54.45}
    assert {row.metric for row in rescored} == {"code_sim_levenshtein"}


@pytest.mark.slow
def test_published_summaries_score_as_the_package_says(shared: Path) -> None:
    """The first ten of each set."""
    for name in ("gov_report", "qmsum", "multi_news", "dureader", "vcsum"):
        lines = (shared / "longbench" / MODEL / f"{name}.jsonl").read_text().split("\n")[:10]
        for row in map(json.loads, lines):
            texts = [row["pred"], row["answers"][0]]
            if longbench.LONGBENCH_DATASETS[name].chinese:
                assert metrics.rouge_l_zh_official(*texts) == package_rouge(
                    *(" ".join(metrics.chinese_words(text)) for text in texts)
                )
            else:
                assert metrics.rouge_l_official(*texts) == package_rouge(*texts)


# any folder

Folder = Callable[..., Path]


def prediction(pred: str = "8", answer: str = "8", length: int = 100, **more: Any) -> dict[str, Any]:
    return {"pred": pred, "answers": [answer], "all_classes": None, "length": length, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Write predictions by data set into a folder."""

    def write(name: str = "pred/model", **files: list[dict[str, Any]] | str) -> Path:
        place = tmp_path / name
        place.mkdir(parents=True, exist_ok=True)
        for dataset, rows in files.items():
            lines = (
                rows if isinstance(rows, str) else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            )
            (place / f"{dataset}.jsonl").write_text(lines)
        return place

    return write


def test_longbench_e_is_known_by_its_folder_or_by_option(folder: Folder) -> None:
    rows = [prediction(length=3999), prediction("1", length=4000), prediction("8 1", length=7999)]
    for name in ("pred_e/model", "longbench_e"):
        rescored = longbench.rescore_predictions(folder(name, passage_count=rows))
        assert [row.n for row in rescored] == [1, 2, 0]
        scores = longbench.as_data(rescored)["passage_count"]
        assert (scores["0-4k"], scores["4-8k"]) == (100.0, 25.0)
        assert math.isnan(scores["8k+"])
    assert longbench.as_data(longbench.rescore_predictions(folder("pred_e/model"), e=False)) == {"passage_count": 50.0}
    place = folder("pred/model", passage_count=rows)
    assert longbench.as_data(longbench.rescore_predictions(place)) == {"passage_count": 50.0}
    assert longbench.as_data(longbench.rescore_predictions(place, e=True))["passage_count"]["4-8k"] == 25.0
    own = longbench.as_data(longbench.rescore_predictions(place, buckets=(4500,)))
    assert own == {"passage_count": {"0-4.5k": 50.0, "4.5k+": 50.0}}
    none = longbench.as_data(longbench.rescore_predictions(place, e=True, buckets=()))
    assert none == {"passage_count": 50.0}


def test_an_empty_bucket_is_nan_and_null_in_json(folder: Folder) -> None:
    place = folder(passage_count=[prediction()])
    assert [math.isnan(row.value) for row in longbench.rescore_predictions(place, e=True)] == [False, True, True]
    text = longbench.score_folder(place, e=True, as_json=True)
    assert "NaN" not in text and list(json.loads(text)["passage_count"].values())[1:] == [None, None]


def test_a_mark_of_the_byte_order_in_predictions_is_passed_over(folder: Folder) -> None:
    place = folder(passage_count=[prediction()])
    file = place / "passage_count.jsonl"
    before = longbench.rescore_predictions(place)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert longbench.rescore_predictions(place) == before


def test_means_are_rounded_as_the_official_scorers_do(folder: Folder) -> None:
    """107 of 4000 numbers: 2.675, which Python rounds to 2.67 as it is a little less, and numpy to 2.68."""
    row = prediction("8 " * 107 + "1 " * 3893)
    assert [each.value for each in longbench.rescore_predictions(folder(passage_count=[row]))] == [2.67]
    assert longbench.rescore_predictions(folder(passage_count=[row]), e=True)[0].value == 2.68


def test_the_table_shows_metric_and_n_and_doubled_runs(folder: Folder) -> None:
    place = folder(
        lcc=[prediction("x", "x")] * 500, passage_count=[prediction()] * 400, gov_report=[prediction()] * 200
    )
    assert longbench.score_folder(place, similarity="levenshtein").splitlines() == [
        "data set       metric                 score    n",
        "gov_report     rouge_l_official      100.00  200",
        "gov_report     rouge_l               100.00  200",
        "passage_count  count                 100.00  400",
        "lcc            code_sim_levenshtein  100.00  500",
        "passage_count has 400 predictions, its official data 200 or 300",
    ]
    place = folder("pred_e/model", passage_count=[prediction()] * 300)
    assert longbench.score_folder(place).splitlines() == [
        "data set       metric    0-4k    n  4-8k  n  8k+  n",
        "passage_count  count   100.00  300   nan  0  nan  0",
    ]


def test_json_is_the_official_layout(folder: Folder) -> None:
    place = folder("pred_e/model", gov_report=[prediction("a a a a", "a")])
    scores = json.loads(longbench.score_folder(place, as_json=True))
    assert scores["gov_report"].pop("0-4k") == 100.0  # officially: repeated words count once
    assert all(value is None for value in scores["gov_report"].values())
    assert list(scores["gov_report"]) == ["4-8k", "8k+"]
    assert json.loads(longbench.score_folder(place, e=False, as_json=True)) == {"gov_report": 100.0}


def test_odd_line_ends_inside_a_prediction_end_no_line(folder: Folder) -> None:
    place = folder(passage_count=[prediction("8\u2028\u0085 8"), prediction()])
    assert longbench.rescore_predictions(place)[0].n == 2


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {}, r"has no \.jsonl: give one with predictions"),
        (
            {"qaspr": [prediction()]},
            {},
            r"qaspr\.jsonl: unknown data set 'qaspr': did you mean qasper\? choose from narr",
        ),
        ({"qasper": ""}, {}, r"qasper\.jsonl is empty"),
        (
            {"qasper": json.dumps(prediction()) + "\n{oops\n"},
            {},
            r"qasper\.jsonl:2 must be JSON \(.*\): correct or remove",
        ),
        ({"qasper": "[1]\n"}, {}, r"qasper\.jsonl:1 must be a JSON object"),
        ({"qasper": '{"answers": ["a"]}\n'}, {}, r"qasper\.jsonl:1 has no field 'pred': it must be a string"),
        (
            {"qasper": '{"pred": null, "answers": ["a"]}\n'},
            {},
            r"qasper\.jsonl:1 has a wrong pred: it must be a string",
        ),
        (
            {"qasper": '{"pred": "a", "answers": "a"}\n'},
            {},
            r"qasper\.jsonl:1 has a wrong answers: .* a list of strings",
        ),
        ({"qasper": '{"pred": "a", "answers": ["a"]}\n'}, {"e": True}, r"qasper\.jsonl:1 has no field 'length'"),
        ({"trec": '{"pred": "a", "answers": ["a"]}\n'}, {}, r"trec\.jsonl:1 has no field 'all_classes'"),
        (
            {"qasper": [prediction(length=True)]},
            {"e": True},
            r"qasper\.jsonl:1 has a wrong length: it must be a whole num",
        ),
        ({"trec": [prediction()]}, {}, r"trec\.jsonl:1 has a wrong all_classes: it must be a list of strings"),
        (
            {"passage_retrieval_en": [prediction()]},
            {},
            r"passage_retrieval_en\.jsonl:1: answer '8' must name a paragraph",
        ),
        (
            {"lcc": [prediction()]},
            {"similarity": "fuzzy"},
            "similarity must be one of difflib, levenshtein, got 'fuzzy'",
        ),
        ({"lcc": [prediction()]}, {"buckets": (2, 1)}, "buckets must be ascending"),
    ],
)
def test_what_is_amiss_is_said_with_its_place(
    folder: Folder, files: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        longbench.rescore_predictions(folder(**files), **options)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder .*nowhere does not exist: give one with predictions"):
        longbench.rescore_predictions(tmp_path / "nowhere")


def test_a_file_that_is_no_text_is_said(folder: Folder) -> None:
    place = folder()
    (place / "qasper.jsonl").write_bytes(b'{"pred": "\xff"}\n')
    with pytest.raises(ValueError, match=r"qasper\.jsonl:1 must be JSON"):
        longbench.rescore_predictions(place)

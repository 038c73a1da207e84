"""Needles: a plain reader answers the prompts, depths are spread evenly, and scores cannot be fooled."""

import itertools
import json
import math
import re
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from scipy import stats

import lexbench
from lexbench import Choose, ChooseAnswer, Generate, GenerateAnswer, Refused, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core import registry
from lexbench.core.task import Tokens
from lexbench.corpora.synthetic import Synthetic
from lexbench.taskkit import sampling
from tests.tasks.asked import questions_of

RULER = {  # haystack, kind of key, kind of value, keys in the text, values of each, keys asked for
    "niah_single_1": ("noise", "word", "number", 1, 1, 1),
    "niah_single_2": ("text", "word", "number", 1, 1, 1),
    "niah_single_3": ("text", "word", "uuid", 1, 1, 1),
    "niah_multikey_1": ("text", "word", "number", 4, 1, 1),
    "niah_multikey_2": ("needles", "word", "number", 1, 1, 1),
    "niah_multikey_3": ("needles", "uuid", "uuid", 1, 1, 1),
    "niah_multivalue": ("text", "word", "number", 1, 4, 1),
    "niah_multiquery": ("text", "word", "number", 4, 1, 4),
}
"""The table of scripts/synthetic.yaml and data/synthetic/constants.py."""
YAMLS = [*RULER, "needle"]
CORPUS = Synthetic()
COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"haystack": "text", "key_kind": "number", "value_kind": "word", "distractors": 2},
    {"haystack": "needles", "key_kind": "word", "value_kind": "word", "queries": 2},
    {"haystack": "noise", "key_kind": "uuid", "values": 2, "queries": 2, "distractors": 2},
    {"haystack": "text", "needle": False, "distractors": 1},
    {"haystack": "needles", "needle": False},
    {"haystack": "noise", "room": 50},
    {"haystack": "noise", "options": 4},
    {"haystack": "text", "options": 3, "distractors": 3, "value_kind": "word"},
    {"haystack": "needles", "options": 5, "value_kind": "uuid"},
]
FOUND = r"One of the special magic (\w+)s for (\S+) is: (\S+)\."


def niah(name: str = "niah_single_1", **parameters: Any) -> lexbench.Task:
    return lexbench.task(name, corpus=CORPUS, **parameters)


def chosen(task: lexbench.Task, tokenizer: FastTokenizer, length: int, n: int) -> list[Choose]:
    return [question for question in task.questions(tokenizer, length, n, 0) if isinstance(question, Choose)]


def scored(task: lexbench.Task, question: Generate, text: str, hit_room: bool = False) -> Sample:
    return task.score(question, GenerateAnswer(tokens=np.empty(0, np.int64), text=text, hit_room=hit_room))


def both(task: lexbench.Task, question: Generate, text: str) -> tuple[float, float]:
    """(strict, official)"""
    sample = scored(task, question, text)
    # Without likelihoods, which a backend gives, nothing says what is chosen or forced.
    assert set(sample.scores) == {"accuracy", "contains", "in_place", "reached"}
    return sample.scores["accuracy"], sample.scores["contains"]


def parts_of(prompt: str) -> tuple[str, str, str]:
    """Header, text and question."""
    found = re.fullmatch(r"(Remember [^\n]*\n)(.*)(\nWhat (?:is|are) the special magic [^\n]*)", prompt, re.DOTALL)
    assert found
    return found[1], found[2], found[3]


def reader(prompt: str) -> list[str]:
    """Answers from the prompt's text alone: the values of the needles whose keys the question names."""
    _, text, question = parts_of(prompt)
    keys = re.split(r", | and ", re.findall(r" for (.*?)\? ", question)[0])
    return [value for key in keys for _, named, value in re.findall(FOUND, text) if named == key]


def occurrences(tokens: Tokens, part: Tokens) -> list[int]:
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(part))
    return [int(place) for place in np.flatnonzero((windows == part).all(axis=1))]


@pytest.mark.slow
@pytest.mark.parametrize("parameters", COMBINATIONS, ids=str)
@pytest.mark.parametrize("length", [900, 901, 902, 1500])
def test_prompt_and_answer_fill_the_length_exactly(
    tokenizer: FastTokenizer, length: int, parameters: dict[str, Any]
) -> None:
    questions = niah(**parameters).questions(tokenizer, length, 6, 0)
    assert {question.length for question in questions} == {length}
    for question in questions:
        assert isinstance(question, Generate | Choose)
        assert question.prompt[0] == tokenizer.bos
        assert tokenizer.bos not in question.prompt[1:]


@pytest.mark.slow
@pytest.mark.parametrize("length", [128, 129, 150, 4096])
def test_a_small_vocabulary_fits_into_128_tokens(lexlet: FastTokenizer, length: int) -> None:
    for name in ("niah_single_1", "niah_single_2", "needle"):
        assert {question.length for question in questions_of(niah(name), lexlet, length, 20)} == {length}


@pytest.mark.slow
@pytest.mark.parametrize("name", YAMLS)
def test_a_plain_reader_answers_every_question(tokenizer: FastTokenizer, lexlet: FastTokenizer, name: str) -> None:
    """The values of the queried keys in the text are distinct and are the expected ones."""
    task = niah(name)
    for words, length in ((tokenizer, 480), (tokenizer, 1500), (lexlet, 512)):
        for question in questions_of(task, words, length, 12):
            answer = " " + ", ".join(reader(words.decode(question.prompt)))
            assert both(task, question, answer) == (1, 1)
            assert both(task, question, question.answer) == (1, 1)


@pytest.mark.everyday(
    "niah_single_1",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
)
@pytest.mark.parametrize("name", RULER)
def test_rulers_tasks_have_rulers_parameters(tokenizer: FastTokenizer, name: str) -> None:
    """Kinds and counts are read from the prompts."""
    hay, key_kind, value_kind, keys, values, queries = RULER[name]
    assert registry.read_named_config("task", name)["haystack"] == hay
    [question] = questions_of(niah(name), tokenizer, 1500, 1)
    _, text, ask = parts_of(tokenizer.decode(question.prompt))
    needles = re.findall(FOUND, text)
    shape = {"word": r"[a-z]+-[a-z]+", "number": r"[1-9]\d{6}", "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"}
    for kind, key, value in needles:
        assert kind == value_kind
        assert re.fullmatch(shape[key_kind], key) and re.fullmatch(shape[value_kind], value)
    per_key = Counter(key for _, key, _ in needles)
    assert set(per_key.values()) == {values}
    assert len(per_key) == keys if hay != "needles" else len(per_key) >= 5
    assert sum(ask.count(key) == 2 for key in per_key) == queries
    left = re.sub(" " + FOUND, "", text)
    assert ("The grass is green." in left) == (hay != "text")


def test_needle_is_a_grid_of_ten_depths() -> None:
    assert registry.read_named_config("task", "needle") == {"file": "niah.py", "haystack": "text", "strata": 10}


@pytest.mark.everyday("niah_single_1", "niah_multiquery", "needle")
@pytest.mark.parametrize("name", YAMLS)
def test_a_sample_depends_on_seed_and_index_alone(tokenizer: FastTokenizer, name: str) -> None:
    def said(question: Generate) -> tuple[Any, ...]:
        return question.prompt.tolist(), question.answer, question.facts, question.cluster, question.max_new_tokens

    many = [said(question) for question in questions_of(niah(name), tokenizer, 700, 9)]
    questions_of(niah(name, strata=3), tokenizer, 900, 2)
    assert [said(question) for question in questions_of(niah(name), tokenizer, 700, 4)] == many[:4]
    other = [said(question) for question in questions_of(niah(name), tokenizer, 700, 9, seed=1)]
    assert not {json.dumps(each[:2]) for each in many} & {json.dumps(each[:2]) for each in other}


@pytest.mark.everyday("niah_single_1", "niah_multikey_2", "niah_multivalue")
@pytest.mark.parametrize("name", YAMLS)
def test_all_but_the_haystack_is_the_same_at_every_length(tokenizer: FastTokenizer, name: str) -> None:
    """Without needles, a longer text begins with the shorter one."""
    for short, long in zip(
        questions_of(niah(name), tokenizer, 600, 4), questions_of(niah(name), tokenizer, 1700, 4), strict=True
    ):
        assert (short.facts["expected"], short.facts["keys"]) == (long.facts["expected"], long.facts["keys"])
        assert (short.max_new_tokens, short.answer) == (long.max_new_tokens, long.answer)
        (header, text, ask), (_, longer, _) = (parts_of(tokenizer.decode(each.prompt)) for each in (short, long))
        assert parts_of(tokenizer.decode(long.prompt))[::2] == (header, ask)
        if name in ("niah_multikey_2", "niah_multikey_3"):
            theirs, ours = re.findall(FOUND, longer), re.findall(FOUND, text)
            key = short.facts["keys"][0]
            rest = [needle for needle in ours if needle[1] != key]
            assert [needle for needle in theirs if needle[1] != key][: len(rest)] == rest
            assert len(theirs) > len(ours) >= 2
        else:
            bare = [re.sub(" " + FOUND, "", each) for each in (text, longer)]
            assert bare[1].startswith(bare[0].rstrip("\ufffd"))
            assert sorted(re.findall(FOUND, text)) == sorted(re.findall(FOUND, longer))


@pytest.mark.slow
@pytest.mark.parametrize("name", YAMLS)
def test_depths_have_exactly_equal_counts_in_all_strata(tokenizer: FastTokenizer, name: str) -> None:
    task = niah(name)
    strata = registry.read_named_config("task", name).get("strata", 8)
    depths = [question.facts["depth"] for question in questions_of(task, tokenizer, 3000, 8 * strata)]
    parts = [min(int(depth * strata), strata - 1) for depth in depths]
    assert parts == list(range(strata)) * 8
    assert min(depths) >= 0 and max(depths) <= 1


@pytest.mark.slow
def test_depths_within_their_strata_and_of_all_other_needles_are_uniform(tokenizer: FastTokenizer) -> None:
    """Kolmogorov-Smirnov at 4096 tokens, where sentences end every tenth of a stratum."""
    questions = questions_of(niah("niah_multiquery", strata=4), tokenizer, 4096, 120)
    first = np.asarray([question.facts["depths"][0] for question in questions])
    others = np.asarray([question.facts["depths"][1:] for question in questions]).ravel()
    assert stats.kstest(first * 4 % 1, "uniform").pvalue > 0.001
    assert stats.kstest(others, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(first, np.asarray([question.facts["depths"][1] for question in questions]))[0, 1]) < 0.3
    keys = questions_of(niah("niah_multikey_1"), tokenizer, 2048, 80)
    places = [parts_of(tokenizer.decode(question.prompt))[1] for question in keys]
    shares = [
        match.start() / len(text)
        for text, question in zip(places, keys, strict=True)
        for match in re.finditer(FOUND, text)
        if match[2] not in question.facts["keys"]
    ]
    assert len(shares) == 240
    assert stats.kstest(shares, stats.uniform(0, 0.97).cdf).pvalue > 0.001


@pytest.mark.everyday("niah_single_1", "niah_multivalue")
@pytest.mark.parametrize("name", YAMLS)
def test_needles_stand_once_at_their_depth_between_two_sentences(tokenizer: FastTokenizer, name: str) -> None:
    for question in questions_of(niah(name), tokenizer, 1200, 6):
        text = tokenizer.decode(question.prompt)
        needles = [match for match in re.finditer(" " + FOUND, text) if match[2] in question.facts["keys"]]
        assert sorted(match[3] for match in needles) == sorted(question.facts["expected"])
        header, _, ask = parts_of(text)
        before, last = 1 + len(tokenizer.encode(header).ids), len(question.prompt)
        behind = next(place for place in range(last, 0, -1) if tokenizer.decode(question.prompt[place:]) == ask)
        for match in needles:
            ids = tokenizer.encode(match[0]).ids
            [place] = occurrences(question.prompt, ids)
            depth = question.facts["depths"][question.facts["expected"].index(match[3])]
            assert depth == pytest.approx((place - before) / (behind - before - len(ids)))
            assert text[match.start() - 1] in ".!?\n"
            assert tokenizer.decode(question.prompt[:place]).endswith(text[: match.start()][-20:])
        assert question.facts["depth"] == question.facts["depths"][0]


@pytest.mark.everyday("word-parameters0", "uuid-parameters2")
@pytest.mark.parametrize("parameters", [{"distractors": 20}, {"haystack": "needles"}, {"values": 3, "queries": 3}])
@pytest.mark.parametrize("kind", ["word", "number", "uuid"])
def test_keys_and_values_are_all_distinct(tokenizer: FastTokenizer, kind: str, parameters: dict[str, Any]) -> None:
    """Also keys of the same kind as the values, and across samples."""
    seen: Counter[str] = Counter()
    for question in questions_of(niah(key_kind=kind, value_kind=kind, **parameters), tokenizer, 6000, 3):
        needles = re.findall(FOUND, tokenizer.decode(question.prompt))
        strings = [*{key for _, key, _ in needles}, *(value for _, _, value in needles)]
        assert len(set(strings)) == len(strings) > 8
        seen.update(question.facts["expected"])
    assert set(seen.values()) == {1}


@pytest.mark.slow
def test_strings_are_uniform(tokenizer: FastTokenizer) -> None:
    """Chi-square of first digits, hexadecimal digits, and first letters of keys against those of all keys."""
    questions = questions_of(niah("niah_single_1"), tokenizer, 200, 600)
    digits = Counter(question.facts["expected"][0][0] for question in questions)
    assert set(digits) == set("123456789")
    assert stats.chisquare(list(digits.values())).pvalue > 0.001
    keys = [question.facts["keys"][0] for question in questions]
    assert len(set(keys)) > 590
    module = sys.modules[type(niah()).__module__]
    for place, words in enumerate((sampling.ENGLISH_ADJECTIVES, sampling.ENGLISH_NOUNS)):
        begun, letters = Counter(key.split("-")[place][0] < "m" for key in keys), [word[0] < "m" for word in words]
        assert stats.binomtest(begun[True], 600, sum(letters) / len(letters)).pvalue > 0.001
    assert module.STRING_KINDS["word"].count == len(sampling.ENGLISH_ADJECTIVES) * len(sampling.ENGLISH_NOUNS)
    uuids = [question.facts["expected"][0] for question in questions_of(niah(value_kind="uuid"), tokenizer, 300, 100)]
    assert [str(uuid.UUID(each)) for each in uuids] == uuids
    assert stats.chisquare(list(Counter("".join(uuids).replace("-", "")).values())).pvalue > 0.001


def test_all_strings_of_a_kind_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[type(niah()).__module__]
    monkeypatch.setitem(module.STRING_KINDS, "tiny", module.StringKind(3, str, r"\d"))
    stream = module._shuffled_strings("tiny", np.random.default_rng(0))
    assert {next(stream) for _ in range(3)} == {"0", "1", "2"}
    with pytest.raises(Refused, match="niah has 3 different tinys, the text needs more: take another kind or lower"):
        next(stream)


@pytest.mark.everyday("niah_single_1", "niah_multivalue")
@pytest.mark.parametrize("name", YAMLS)
def test_the_control_is_the_same_without_the_needles_asked_for(tokenizer: FastTokenizer, name: str) -> None:
    task = niah(name, needle=False)
    with_needle = questions_of(niah(name), tokenizer, 700, 8)
    for question, other in zip(questions_of(task, tokenizer, 700, 8), with_needle, strict=True):
        text, theirs = (tokenizer.decode(each.prompt) for each in (question, other))
        assert question.length == 700
        assert (question.facts["keys"], question.facts["expected"]) == (other.facts["keys"], other.facts["expected"])
        assert reader(text) == []
        assert not any(value in text for value in question.facts["expected"])
        assert parts_of(text)[2] == parts_of(theirs)[2]
        kept = re.sub(" " + FOUND, "", parts_of(theirs)[1])
        assert name.startswith("niah_multikey_") or parts_of(text)[1].startswith(kept.rstrip("\ufffd"))
        assert question.chance == pytest.approx(1 / possible(name), rel=1e-12)
    assert "control without the needles" in task.protocol(tokenizer)


def possible(name: str) -> int:
    """All possible sets of right values."""
    if name in ("niah_single_3", "niah_multikey_3"):
        return 2**128
    all_numbers = 9_000_000
    if name in ("niah_multivalue", "niah_multiquery"):
        return all_numbers * (all_numbers - 1) * (all_numbers - 2) * (all_numbers - 3) // 24
    return all_numbers


@pytest.mark.parametrize(
    ("name", "parameters", "chance"),
    [
        ("niah_single_1", {}, 1 / 9_000_000),
        ("niah_single_3", {}, 2.0**-128),
        ("niah_single_1", {"value_kind": "word"}, 1 / (275 * 323)),
        ("niah_multikey_1", {}, 1 / 4),
        ("niah_multikey_1", {"distractors": 9}, 1 / 10),
        ("niah_multivalue", {}, 1 / possible("niah_multivalue")),
        ("niah_multivalue", {"distractors": 1}, 1 / 2),  # 1 of 2 keys
        ("niah_multiquery", {"distractors": 2}, 1 / 15),  # 4 of 6 keys
        ("niah_single_1", {"values": 2, "queries": 2, "distractors": 1}, 1 / 3),  # 2 of 3 keys
        ("niah_single_1", {"values": 3, "queries": 2, "distractors": 2}, 1 / 6),  # 2 of 4 keys
    ],
)
def test_chance_is_that_of_the_better_guess(
    tokenizer: FastTokenizer, name: str, parameters: dict[str, Any], chance: float
) -> None:
    for question in questions_of(niah(name, **parameters), tokenizer, 1500, 2):
        assert question.chance == pytest.approx(chance, rel=1e-12)


def test_chance_among_needles_falls_with_their_number(tokenizer: FastTokenizer) -> None:
    for length in (500, 1500):
        for question in questions_of(niah("niah_multikey_2"), tokenizer, length, 3):
            lines = len(re.findall(FOUND, tokenizer.decode(question.prompt)))
            assert question.chance == pytest.approx(1 / lines)
            assert scored(niah("niah_multikey_2"), question, "").chance == question.chance


@pytest.mark.slow
def test_guessing_among_the_values_in_the_text_gives_the_chance(tokenizer: FastTokenizer) -> None:
    """800 guesses of one of four; a binomial test."""
    task, rng = niah("niah_multikey_1"), np.random.default_rng(0)
    hits = 0
    for question in questions_of(task, tokenizer, 400, 80):
        values = [value for _, _, value in re.findall(FOUND, tokenizer.decode(question.prompt))]
        hits += sum(int(scored(task, question, str(rng.choice(values))).scores["accuracy"]) for _ in range(10))
    assert stats.binomtest(hits, 800, 1 / 4).pvalue > 0.001


def test_naming_the_values_of_any_key_gets_the_chance(tokenizer: FastTokenizer) -> None:
    """Guess every key of each text once: exactly one is right."""
    task = niah("niah_single_1", values=2, distractors=2)
    for question in questions_of(task, tokenizer, 700, 6):
        known: dict[str, list[str]] = {}
        for _, key, value in re.findall(FOUND, tokenizer.decode(question.prompt)):
            known.setdefault(key, []).append(value)
        got = [scored(task, question, ", ".join(values)).scores["accuracy"] for values in known.values()]
        assert (len(got), sum(got)) == (3, 1)
        assert question.chance == pytest.approx(1 / 3)


def test_of_several_keys_among_needles_chance_is_by_the_number_of_keys(tokenizer: FastTokenizer) -> None:
    for question in questions_of(niah("niah_multikey_2", queries=2), tokenizer, 900, 3):
        keys = {key for _, key, _ in re.findall(FOUND, tokenizer.decode(question.prompt))}
        assert question.chance == pytest.approx(2 / (len(keys) * (len(keys) - 1)))


def test_only_the_value_written_first_is_right(tokenizer: FastTokenizer) -> None:
    task = niah("niah_single_1")
    [question] = questions_of(task, tokenizer, 300, 1)
    [value] = question.facts["expected"]
    other = str(int(value) + 1)
    expected = {
        f" {value}": (1, 1),
        f"{value}.\nOne of the special magic numbers": (1, 1),
        f" **{value}**": (1, 1),
        f"\n{value} is it": (1, 1),
        "": (0, 0),
        " ": (0, 0),
        "I do not know": (0, 0),
        f" {value}7": (0, 1),
        f" 7{value}": (0, 1),
        f" {value}.5": (0, 1),
        f" 0.{value}": (0, 1),
        f" {value}-{other}": (0, 1),
        f" {value[:3]},{value[3:]}": (0, 0),
        f" {other}": (0, 0),
        f" {other}, {value}": (0, 1),
        f" {value}, {other}": (0, 1),
        f" {value} {value}": (0, 1),
        f" {value}, 12": (0, 1),
        f" It is {value}": (0, 1),
        ", ".join(str(int(value) + step) for step in range(-40, 40)): (0, 1),
        tokenizer.decode(question.prompt): (0, 1),
    }
    assert {text: both(task, question, text) for text in expected} == expected


def test_all_values_in_any_order_and_no_others_are_right(tokenizer: FastTokenizer) -> None:
    task = niah("niah_multivalue")
    [question] = questions_of(task, tokenizer, 700, 1)
    one, two, three, four = question.facts["expected"]
    expected = {
        f" {one}, {two}, {three}, {four}": (1, 1),
        f" {four}, {two}, {one}, and {three}.": (1, 1),
        f"{four} {two} {one} {three}\n1234567 more": (1, 1),
        f"\n- {four}\n- {two}\n- {one}\n- {three}\n": (1, 1),
        f"{four} {two} {one} {three}\n1234567": (0, 1),
        f" {one}, {two}, {three}": (0, 0.75),
        f" {one}, {two}, {three}, {three}": (0, 0.75),
        f" {one}, {two}, {three}, {four}, {four}": (0, 1),
        f" {one}, {two}, {three}, {four}, 1234567": (0, 1),
        f" 1234567, {one}, {two}, {three}, {four}": (0, 1),
        f" {one}": (0, 0.25),
        f" {one}{two}{three}{four}": (0, 1),
        "": (0, 0),
        tokenizer.decode(question.prompt): (0, 1),
    }
    assert {text: both(task, question, text) for text in expected} == expected


@pytest.mark.parametrize("kind", ["word", "uuid"])
def test_words_and_uuids_are_whole_and_of_any_case(tokenizer: FastTokenizer, kind: str) -> None:
    task = niah(value_kind=kind, distractors=1)
    [question] = questions_of(task, tokenizer, 500, 1)
    [value] = question.facts["expected"]
    other = next(v for _, _, v in re.findall(FOUND, tokenizer.decode(question.prompt)) if v != value)
    expected = {
        f" {value}.": (1, 1),
        f" {value.upper()}": (1, 1),
        f" {value}, the one": (1, 1),
        f" {value}-{other}": (0, 1),
        f" {value}s": (0, 1),
        f" x{value}": (0, 1),
        f" {value}, {other}": (0, 1),
        f" {value} and {other}": (0, 1),
        f" {value[:-1]}": (0, 0),
        f" {value.split('-')[0]}": (0, 0),
    }
    assert {text: both(task, question, text) for text in expected} == expected


def test_samples_of_noise_are_their_own_clusters_those_of_text_a_stretch(tokenizer: FastTokenizer) -> None:
    for name in ("niah_single_1", "niah_multikey_2"):
        assert [question.cluster for question in questions_of(niah(name), tokenizer, 600, 3)] == ["0", "1", "2"]
    for question in questions_of(niah("needle"), tokenizer, 600, 9):
        assert re.fullmatch(r"stretch \d+", question.cluster)


def test_a_sample_keeps_what_was_asked_and_written(tokenizer: FastTokenizer) -> None:
    task = niah("niah_multiquery")
    [question] = questions_of(task, tokenizer, 700, 1)
    sample = scored(task, question, " no", hit_room=True)
    assert (sample.tokens, sample.output, sample.hit_room, sample.index) == (700, " no", True, 0)
    assert sample.depth == question.facts["depths"][0]
    assert sample.cluster == question.cluster
    assert set(sample.facts) == {"expected", "keys", "depth", "depths", "keys_in_text", "taught"}
    json.dumps(sample.facts)


def test_the_room_is_the_answers_and_four_tokens_a_value(tokenizer: FastTokenizer) -> None:
    for name, values in (("niah_single_3", 1), ("niah_multivalue", 4)):
        for question in questions_of(niah(name), tokenizer, 600, 3):
            assert question.max_new_tokens == len(tokenizer.encode(question.answer).ids) + 4 * values
    assert questions_of(niah(room=99), tokenizer, 600, 1)[0].max_new_tokens == 99
    with pytest.raises(Refused, match=r"niah needs a room of at least 8 tokens for its answer, got 7: raise room"):
        niah(room=7).questions(tokenizer, 600, 1, 0)
    assert "room 99" in niah(room=99).protocol(tokenizer)


@pytest.mark.parametrize("name", YAMLS)
def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer, name: str) -> None:
    with pytest.raises(Refused, match=r"niah needs at least \d+ tokens, asked for 10: raise length") as refusal:
        niah(name).questions(tokenizer, 10, 4, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    for question in questions_of(niah(name), tokenizer, least, 4):
        assert question.length == least
        assert sorted(reader(tokenizer.decode(question.prompt))) == sorted(question.facts["expected"])
        assert len(re.findall(FOUND, tokenizer.decode(question.prompt))) >= 2 or not name.startswith("niah_multi")
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        niah(name).questions(tokenizer, least - 1, 4, 0)


@pytest.mark.slow
def test_other_needles_fill_the_text_to_the_last_that_fits(tokenizer: FastTokenizer) -> None:
    """From length to length the noise behind them grows by a token, until one more needle fits."""
    left = []
    for length in range(500, 560):
        [question] = questions_of(niah("niah_multikey_2"), tokenizer, length, 1)
        left.append(len(tokenizer.encode(re.sub(" " + FOUND, "", parts_of(tokenizer.decode(question.prompt))[1])).ids))
    falls = [later for earlier, later in itertools.pairwise(left) if later <= earlier]
    assert falls and set(falls) == {0}


def test_a_corpus_that_is_too_small_is_refused(tokenizer: FastTokenizer) -> None:
    small = lexbench.task("needle", corpus=Synthetic(count=1, words=50))
    with pytest.raises(Refused, match=r"a haystack needs \d+ tokens, the corpus has \d+: take a larger corpus"):
        small.questions(tokenizer, 2000, 1, 0)


def test_too_few_keys_are_refused(tokenizer: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[type(niah()).__module__]
    few = module.StringKind(6, module.STRING_KINDS["word"].spell, module.STRING_KINDS["word"].item)
    monkeypatch.setitem(module.STRING_KINDS, "word", few)
    assert questions_of(niah(distractors=5), tokenizer, 900, 1)
    with pytest.raises(Refused, match="niah has 6 different words, the text needs more"):
        niah(distractors=6).questions(tokenizer, 900, 1, 0)
    with pytest.raises(Refused, match="niah has 6 different words, the text needs more"):
        niah("niah_multikey_2").questions(tokenizer, 900, 1, 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"haystack": "hay"}, "haystack must be one of noise, text, needles, got hay"),
        ({"key_kind": "name"}, "key_kind must be one of number, uuid, word, got name"),
        ({"value_kind": "name"}, "value_kind must be one of number, uuid, word, got name"),
        ({"values": 0}, "values must be at least 1, got 0"),
        ({"queries": 0}, "queries must be at least 1, got 0"),
        ({"distractors": -1}, "distractors must be at least 0, got -1"),
        ({"strata": 0}, "strata must be at least 1, got 0"),
        ({"room": 0}, "room must be at least 1, got 0"),
        ({"options": 1}, "options must be at least 2, got 1"),
        ({"options": 3, "values": 2}, "options need values=1 and queries=1, got values=2 and queries=1"),
        ({"options": 3, "queries": 2}, "options need values=1 and queries=1, got values=1 and queries=2"),
        ({"options": 3, "room": 9}, "writes nothing with options, got room=9: leave it out"),
        (
            {"haystack": "needles", "distractors": 3},
            "as many needles as fit, got distractors=3: set haystack=noise or text",
        ),
        ({"haystack": "needles", "values": 2}, "gives every other key one value, got values=2: the key with several"),
    ],
)
def test_wrong_parameters_are_errors(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        niah(**parameters)


@pytest.mark.parametrize("name", ["values", "queries", "distractors", "options"])
def test_more_needles_than_tokens_are_refused_at_once(tokenizer: FastTokenizer, name: str) -> None:
    with pytest.raises(Refused, match=r"niah has 1,000,000,00[01] (needles|options), asked for 512 tokens: lower"):
        niah("needle", **{name: 10**9}).questions(tokenizer, 512, 2, 0)


def test_a_corpus_is_used_for_running_text_only() -> None:
    assert getattr(niah("niah_single_1"), "corpus") is None  # noqa: B009
    assert getattr(niah("niah_single_2"), "corpus") == CORPUS  # noqa: B009
    with pytest.raises(ValueError, match="haystack=text needs a corpus, got none"):
        type(niah())(haystack="text")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "parameters", "line"),
    [
        (
            "niah_multikey_2",
            {},
            "needles in other needles: keys asked 1 (word), values a key 1 (number), other keys as many as fit, "
            "more at greater length; strict: the answer begins with exactly the values, in any order, greedy, "
            "room of the answer and 4 tokens a value, chosen among 32; BOS",
        ),
        (
            "niah_single_3",
            {"distractors": 2, "options": 4, "chat": True},
            "needles in running text: keys asked 1 (word), values a key 1 (uuid), other keys 2; the likeliest of 4 "
            "values of equally many tokens; chat template, BOS",
        ),
    ],
)
def test_the_protocol_says_what_is_hidden_and_asked(
    tokenizer: FastTokenizer, name: str, parameters: dict[str, Any], line: str
) -> None:
    assert niah(name, **parameters).protocol(tokenizer) == line


TEMPLATE = "{{ bos_token }}{% for m in messages %}<|user|>\n{{ m['content'] }}</s>\n{% endfor %}<|assistant|>{{ '\n' }}"


@pytest.fixture
def chatty(tmp_path: Path, tokenizer: FastTokenizer) -> FastTokenizer:
    """The tokenizer with a chat template."""
    saved = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    saved.add_special_tokens(["</s>", "<|user|>", "<|assistant|>"])
    saved.save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(tmp_path, bos=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["niah_single_1", "niah_multiquery"])
def test_a_chat_asks_the_same_in_the_models_template(chatty: FastTokenizer, tmp_path: Path, name: str) -> None:
    """The user message in transformers' rendering, followed by the first words of the answer."""
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>")
    task = niah(name, chat=True)
    for question, plain in zip(
        questions_of(task, chatty, 700, 4), questions_of(niah(name), chatty, 700, 4), strict=True
    ):
        assert question.length == 700
        assert question.facts["keys"] == plain.facts["keys"]
        text = chatty._tokenizer.decode(question.prompt.tolist(), skip_special_tokens=False)
        begun, end, prefix = text.rpartition("</s>\n<|assistant|>\n")
        message = begun.removeprefix("<s><|user|>\n")
        header, _, ask = parts_of(chatty.decode(plain.prompt))
        assert message.startswith(header) and message.endswith("?")
        assert ask == f"{message[message.rindex(chr(10)) :]} {prefix}"
        rendered = theirs.apply_chat_template(
            [{"role": "user", "content": message}], chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True
        )
        assert text == rendered + prefix and end
        shell = theirs.apply_chat_template(
            [{"role": "user", "content": ""}], chat_template=TEMPLATE, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        tail = chatty.encode(prefix).ids.tolist()
        assert question.prompt[:3].tolist() == shell[:3]
        assert question.prompt[-len(tail) - len(shell) + 3 :].tolist() == [*shell[3:], *tail]
        assert both(task, question, question.answer) == (1, 1)


def test_a_chat_needs_a_template(tokenizer: FastTokenizer) -> None:
    with pytest.raises(ValueError, match="needs a model with a chat template"):
        niah(chat=True).questions(tokenizer, 500, 1, 0)


CHOICES: list[dict[str, Any]] = [
    {"options": 4},
    {"options": 2, "value_kind": "uuid", "haystack": "needles"},
    {"options": 7, "value_kind": "word", "distractors": 3},
    {"options": 3, "value_kind": "word", "haystack": "needles"},
]


@pytest.mark.everyday("{'options': 4}")
@pytest.mark.parametrize("parameters", CHOICES, ids=str)
def test_options_are_distinct_and_of_equally_many_tokens(
    tokenizer: FastTokenizer, lexlet: FastTokenizer, parameters: dict[str, Any]
) -> None:
    for words in (tokenizer, lexlet):
        for question in chosen(niah(**parameters), words, 700, 10):
            options = [words.decode(option) for option in question.options]
            assert len(options) == len(set(options)) == parameters["options"]
            assert len({len(option) for option in question.options}) == 1
            assert question.length == 700
            text = words.decode(question.prompt)
            assert reader(text) == [options[question.expected].strip()] == question.facts["expected"]
            values = {value for _, _, value in re.findall(FOUND, text)}
            inside = sum(option.strip() in values for option in options)
            assert inside == min(len(options), len(values))


@pytest.mark.everyday("{'options': 4}")
@pytest.mark.parametrize("parameters", CHOICES, ids=str)
def test_in_the_control_no_option_is_in_the_text(tokenizer: FastTokenizer, parameters: dict[str, Any]) -> None:
    """So preferring values of the text is at chance; the right value and its place are as with the needle."""
    pairs = zip(
        chosen(niah(**parameters, needle=False), tokenizer, 700, 10),
        chosen(niah(**parameters), tokenizer, 700, 10),
        strict=True,
    )
    for control, usual in pairs:
        text = tokenizer.decode(control.prompt)
        options = [tokenizer.decode(option).strip() for option in control.options]
        assert [option in text for option in options] == [False] * parameters["options"]
        assert len(set(options)) == len(options) and len({len(option) for option in control.options}) == 1
        assert control.expected == usual.expected
        assert options[control.expected] == tokenizer.decode(usual.options[usual.expected]).strip()


@pytest.mark.parametrize("parameters", CHOICES, ids=str)
def test_the_likeliest_option_is_right_and_equal_ones_give_the_chance(
    tokenizer: FastTokenizer, parameters: dict[str, Any]
) -> None:
    task, count = niah(**parameters), parameters["options"]
    for question in chosen(task, tokenizer, 700, 5):
        knowing = np.full(count, 5.0)
        knowing[question.expected] = 1.0
        tokens = np.asarray([len(option) for option in question.options])
        uniform = task.score(question, ChooseAnswer(nll=tokens * math.log(tokenizer.vocabulary)))
        perfect = task.score(question, ChooseAnswer(nll=knowing))
        wrong = task.score(question, ChooseAnswer(nll=-knowing))
        assert [sample.scores["accuracy"] for sample in (perfect, wrong)] == [1, 0]
        assert uniform.scores["accuracy"] == uniform.chance == pytest.approx(1 / count)
        assert perfect.depth == question.facts["depth"] is not None


@pytest.mark.slow
def test_the_right_option_stands_anywhere(tokenizer: FastTokenizer) -> None:
    places = Counter(question.expected for question in chosen(niah(options=4), tokenizer, 300, 200))
    assert stats.chisquare([places[place] for place in range(4)]).pvalue > 0.001


@pytest.mark.slow
def test_wrong_options_are_of_any_other_needles(tokenizer: FastTokenizer) -> None:
    """The share of other lines above them is uniform, as far as about nine lines allow."""
    shares = []
    for question in chosen(niah(options=2, haystack="needles"), tokenizer, 600, 150):
        text = tokenizer.decode(question.prompt)
        values = [v for _, _, v in re.findall(FOUND, text) if v not in question.facts["expected"]]
        wrong = tokenizer.decode(question.options[1 - question.expected]).strip()
        shares.append((values.index(wrong) + 0.5) / len(values))
    assert stats.chisquare(np.histogram(shares, bins=2, range=(0, 1))[0]).pvalue > 0.001
    assert min(shares) < 0.15 and max(shares) > 0.85


def test_options_without_equals_are_refused(lexlet: FastTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words differ in their number of tokens, so not every drawn word has the usual number."""
    monkeypatch.setattr(sampling, "MAX_UNUSABLE_VALUES", 1)
    with pytest.raises(Refused, match=r"niah finds no further word of \d+ tokens in 1: lower options"):
        niah(value_kind="word", options=9).questions(lexlet, 700, 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("length", [112, 128, 192])
def test_all_strata_have_equally_many_needles_near_the_least_length(lexlet: FastTokenizer, length: int) -> None:
    """Where few sentences end; it was 16 of 64 in the first tenth at 128."""
    task = lexbench.task("needle", corpus=lexbench.corpus("stdlib"))
    depths = [question.facts["depth"] for question in task.questions(lexlet, length, 40, 0)]
    strata = np.minimum((np.array(depths) * 10).astype(int), 9)
    assert np.bincount(strata, minlength=10).tolist() == [4] * 10

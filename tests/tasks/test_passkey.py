"""Passkey: exact lengths, depths spread evenly, and a scorer that cannot be fooled."""

import re

import numpy as np
import pytest

import lexbench
from lexbench import Generate, GenerateAnswer, Refused, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer
from tests.tasks.asked import questions_of


def scored(tokenizer: FastTokenizer, text: str, question: Generate) -> Sample:
    answer = GenerateAnswer(tokens=tokenizer.encode(text).ids, text=text, hit_room=False)
    return lexbench.task("passkey").score(question, answer)


def accuracy(tokenizer: FastTokenizer, text: str, question: Generate) -> tuple[float, float]:
    """(strict, lenient)"""
    sample = scored(tokenizer, text, question)
    return sample.scores["accuracy"], sample.scores["contains"]


@pytest.mark.parametrize("length", [160, 161, 500, 4096])
def test_prompt_and_room_fill_the_length_exactly(tokenizer: FastTokenizer, length: int) -> None:
    for question in questions_of(lexbench.task("passkey"), tokenizer, length, 16):
        assert len(question.prompt) + question.max_new_tokens == question.length == length
        assert question.prompt[0] == tokenizer.bos


def test_the_prompt_reads_as_in_the_docstring(tokenizer: FastTokenizer) -> None:
    for question in questions_of(lexbench.task("passkey"), tokenizer, 400, 16):
        text, key = tokenizer.decode(question.prompt), question.facts["expected"]
        assert text.startswith("A pass key is hidden in this text. Remember it.\n")
        assert text.endswith("\nWhat is the pass key? The pass key is")
        assert text.count(f" The pass key is {key}. Remember it. {key} is the pass key.") == 1
        assert re.findall(r"\d+", text) == [key, key]
        assert question.max_new_tokens == len(tokenizer.encode(f" {key}").ids) + 4


def test_the_needle_stands_at_its_depth_between_two_sentences(tokenizer: FastTokenizer) -> None:
    for question in questions_of(lexbench.task("passkey"), tokenizer, 1000, 16):
        before, key, after = tokenizer.decode(question.prompt).partition(" The pass key is ")
        before = before.removeprefix("A pass key is hidden in this text. Remember it.\n")
        assert before == "" or before.endswith(".")
        after = after.partition("is the pass key.")[2].removesuffix("\nWhat is the pass key? The pass key is")
        assert key and question.facts["depth"] == pytest.approx(len(before) / len(before + after), abs=0.02)


def test_depths_are_spread_evenly_over_the_strata(tokenizer: FastTokenizer) -> None:
    """160 samples in 8 parts: 20 in each, except a few that a sentence's end moves over a border."""
    depths = [question.facts["depth"] for question in questions_of(lexbench.task("passkey"), tokenizer, 4096, 160)]
    counts = np.bincount([min(int(depth * 8), 7) for depth in depths], minlength=8)
    assert abs(counts - 20).max() <= 2
    assert abs(np.bincount([min(int(depth * 8), 7) for depth in depths[:80]], minlength=8) - 10).max() <= 2


@pytest.mark.slow
def test_keys_are_uniform_and_never_begin_with_zero(tokenizer: FastTokenizer) -> None:
    """Chi-square of 400 first digits over 1..9, 8 degrees of freedom: below 26.1 with probability 0.999."""
    keys = [question.facts["expected"] for question in questions_of(lexbench.task("passkey"), tokenizer, 160, 400)]
    assert {len(key) for key in keys} == {5}
    counts = np.bincount([int(key[0]) for key in keys], minlength=10)
    assert counts[0] == 0
    assert ((counts[1:] - 400 / 9) ** 2 / (400 / 9)).sum() < 26.1
    assert len(set(keys)) > 390


def test_the_control_holds_no_key(tokenizer: FastTokenizer) -> None:
    for question in questions_of(lexbench.task("passkey", needle=False), tokenizer, 300, 16):
        assert question.length == 300
        assert not re.search(r"\d", tokenizer.decode(question.prompt))


def test_the_least_length_is_said_and_is_the_least(tokenizer: FastTokenizer) -> None:
    task = lexbench.task("passkey")
    with pytest.raises(Refused, match=r"needs at least \d+ tokens, asked for 10: raise length") as refusal:
        task.questions(tokenizer, 10, 4, 0)
    least = int(re.findall(r"\d+", refusal.value.reason)[0])
    assert {question.length for question in questions_of(task, tokenizer, least, 4)} == {least}
    with pytest.raises(Refused, match=f"needs at least {least} tokens, asked for {least - 1}"):
        task.questions(tokenizer, least - 1, 4, 0)


@pytest.mark.parametrize("name", ["digits", "strata", "room"])
def test_a_parameter_below_one_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        lexbench.task("passkey", "stdlib", **{name: 0})


def test_only_the_key_written_first_is_right(tokenizer: FastTokenizer) -> None:
    [question] = questions_of(lexbench.task("passkey"), tokenizer, 300, 1)
    key = question.facts["expected"]
    other = str(int(key) - 1)
    listed = " ".join(str(number) for number in range(int(key) - 50, int(key) + 50))
    prompt = tokenizer.decode(question.prompt)
    expected = {
        f" {key}": (1, 1),
        f"{key}.\nThe grass": (1, 1),
        "": (0, 0),
        " ": (0, 0),
        "I do not know": (0, 0),
        f" {key}7": (0, 1),
        f" 7{key}": (0, 1),
        f" {other} {key}": (0, 1),
        f" {other}": (0, 0),
        listed: (0, 1),
        prompt: (0, 1),
    }
    assert {text: accuracy(tokenizer, text, question) for text in expected} == expected


def test_a_sample_keeps_what_was_asked_and_written(tokenizer: FastTokenizer) -> None:
    [question] = questions_of(lexbench.task("passkey"), tokenizer, 300, 1)
    sample = scored(tokenizer, " no", question)
    assert (sample.tokens, sample.output, sample.hit_room) == (300, " no", False)
    assert sample.depth == question.facts["depth"]
    assert sample.facts["expected"] == question.facts["expected"]

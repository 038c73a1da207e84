"""Lessons: what rows hold, at any trained length."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import lexbench
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.record import Refused
from lexbench.core.task import AnyQuestion, Choose, Tokenizer
from lexbench.corpora import Corpus
from lexbench.corpora.synthetic import Synthetic
from lexbench.parts.lab.native.lessons import (
    GENERATOR_OF_LESSON,
    Lesson,
    SuiteLesson,
    TaskLesson,
    TextLesson,
    block_pieces,
    draw_row,
    gather_lessons,
    repeated_pieces,
    token_pieces,
)
from lexbench.parts.lab.tasks.parity import Parity

TEXTS: list[Corpus] = [Synthetic(count=8, words=1000)]


@pytest.mark.everyday("64-repeated_blocks", "64-passkey", "64-running_sums", "128-text_pieces")
@pytest.mark.parametrize("kind", [*GENERATOR_OF_LESSON, "passkey", "text", "text_pieces"])
@pytest.mark.parametrize("length", [64, 128, 256])
def test_rows_are_full_and_begin_with_bos(kind: str, length: int, tokenizer: FastTokenizer) -> None:
    if kind == "passkey" and length == 64:
        length = 100  # the tests' tokenizer of 320 tokens spells most words out
    lessons = gather_lessons([kind], TEXTS, tokenizer, length)
    for seed in range(5):
        drawn, tokens = draw_row(lessons, {kind: 1.0}, np.random.default_rng(seed), tokenizer, length)
        assert drawn == kind
        assert len(tokens) == length
        assert tokens[0] == tokenizer.bos
        assert tokens.max() < tokenizer.vocabulary


def test_a_task_that_does_not_fit_is_refused_before_training(tokenizer: FastTokenizer) -> None:
    with pytest.raises(ValueError, match=r"lesson passkey does not fit rows of 40 tokens \(.*\): raise recipe.trained"):
        gather_lessons(["passkey"], TEXTS, tokenizer, 40)
    with pytest.raises(ValueError, match=r"lesson last_segment reads a corpus: use text"):
        gather_lessons(["last_segment"], TEXTS, tokenizer, 256)
    with pytest.raises(ValueError, match=r"unknown lesson 'sums': choose from text, text_pieces, repeated_blocks"):
        gather_lessons(["sums"], TEXTS, tokenizer, 256)


@dataclass(frozen=True)
class Long:
    """A task that refuses less than 60 tokens."""

    asked: list[int]

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        self.asked.append(length)
        if length < 60:
            raise Refused("too short")
        return lexbench.task("copy").questions(tokenizer, length, n, seed)


def test_a_task_that_refuses_a_piece_is_asked_for_a_whole_row(tokenizer: FastTokenizer) -> None:
    asked: list[int] = []
    tokens = TaskLesson(Long(asked), row=64)(np.random.default_rng(0), tokenizer, 32)  # type: ignore[arg-type]
    assert asked[0] < 33 and asked[1:] == [32, 64]
    assert len(tokens) == 32


def test_answers_alone_are_told_apart(tokenizer: FastTokenizer) -> None:
    """The marked places of a sorted string are its second half, behind the sign, in order."""
    lessons = gather_lessons(["sort", "passkey"], TEXTS, tokenizer, 200, answers=True)
    tokens = lessons["sort"](np.random.default_rng(0), tokenizer, 30)
    asked, result = tokenizer.decode(~tokens[tokens < 0]), tokenizer.decode(tokens[tokens >= 0])
    assert asked.endswith(">") and result == "".join(sorted(asked.strip("\n>"))) and len(result) > 6
    assert (np.diff(np.flatnonzero(tokens >= 0)) == 1).all()
    written = lessons["passkey"](np.random.default_rng(0), tokenizer, 200)
    key = tokenizer.decode(written[written >= 0])
    assert re.fullmatch(r" \d{5}\.\n", key) and key[1:6] in tokenizer.decode(~written[written < 0])


def test_a_right_padded_row_begins_as_a_question_is_asked(tokenizer: FastTokenizer) -> None:
    lessons, sizes = gather_lessons(["parity"], [], tokenizer, 12, answers=True, single=True), set()
    for seed in range(200):
        tokens = draw_row(lessons, {"parity": 1.0}, np.random.default_rng(seed), tokenizer, 12, "right_padded")[1]
        assert len(tokens) == 12
        place = np.flatnonzero(tokens[len(tokenizer.prefix) :] >= 0).item() + len(tokenizer.prefix)
        [asked] = Parity().questions(tokenizer, place + 1, 1, 0)
        assert isinstance(asked, Choose) and len(asked.prompt) == place
        bits = tokenizer.decode(np.maximum(tokens[:place], ~tokens[:place])[len(tokenizer.prefix) :])
        assert re.fullmatch("[01]+=", bits) and tokenizer.decode(tokens[place : place + 1]) == str(bits.count("1") % 2)
        assert set(tokenizer.decode(~tokens[place + 1 :])) <= {"\n"}
        sizes.add(place + 1)
    assert sizes == set(range(4, 13))


def test_a_row_of_one_lesson_holds_one_whole_sum_of_any_size(tokenizer: FastTokenizer) -> None:
    lessons, sizes = gather_lessons(["addition"], [], tokenizer, 20, answers=True, single=True), set()
    for seed in range(60):
        tokens = draw_row(lessons, {"addition": 1.0}, np.random.default_rng(seed), tokenizer, 20, "single")[1]
        assert len(tokens) == 20
        tokens = tokens[len(tokenizer.prefix) :]
        found = re.fullmatch(r"\n*(\d+)\+(\d+)=(\d+)", tokenizer.decode(np.where(tokens < 0, ~tokens, tokens)))
        assert found
        first, second, result = found.groups()
        # Units first, without the last carry.
        assert result == str(int(first[::-1]) + int(second[::-1])).zfill(20)[::-1][: len(first)]
        assert result == tokenizer.decode(tokens[tokens >= 0])
        assert len(first) == len(second)
        sizes.add(len(first))
    assert sizes == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_a_suite_is_a_lesson_of_each_of_its_tasks(tokenizer: FastTokenizer) -> None:
    """The answer of each is counted, and nothing else."""
    suite = gather_lessons(["today_small"], [], tokenizer, 1000, answers=True)["today_small"]
    rng, answers = np.random.default_rng(0), []
    for _ in range(60):
        tokens = suite(rng, tokenizer, 1000)
        assert (tokens < 0).any() and 0 < (tokens >= 0).sum() < 40
        answers.append(tokenizer.decode(tokens[tokens >= 0]))
    assert isinstance(suite, SuiteLesson)
    assert [part.name for part in suite.parts if isinstance(part, TaskLesson)] == [
        "mqar",
        "many_labels",
        "spread_arithmetic",
        "associative",
        "conflicting_needles",
        "nth_needle",
        "counting",
        "graph_walk_bfs",
    ]
    for form in (r" [A-Z]", r" \d", r" [A-Z][a-z]+", r" [a-z]+"):
        assert any(re.fullmatch(form, answer) for answer in answers), form


@pytest.mark.slow
def test_rows_follow_the_shares(tokenizer: FastTokenizer) -> None:
    lessons = gather_lessons(["text", "key_values"], TEXTS, tokenizer, 16)
    rng = np.random.default_rng(0)
    drawn = [draw_row(lessons, {"text": 1.0, "key_values": 3.0}, rng, tokenizer, 16)[0] for _ in range(400)]
    # binomial: 300 expected, standard deviation 8.7
    assert 265 < drawn.count("key_values") < 335


def test_blocks_repeat(tokenizer: FastTokenizer) -> None:
    for kind, shortest, longest in (("repeated_blocks", 8, 199), ("small_blocks", 4, 49), ("tiny_blocks", 2, 8)):
        tokens = GENERATOR_OF_LESSON[kind](np.random.default_rng(0), tokenizer, 400)
        periods = [p for p in range(1, 200) if (tokens[p:] == tokens[:-p]).all()]
        assert periods
        assert shortest <= periods[0] <= longest


def test_running_sums_are_right(tokenizer: FastTokenizer) -> None:
    text = tokenizer.decode(GENERATOR_OF_LESSON["running_sums"](np.random.default_rng(0), tokenizer, 10_000))
    first, *terms = text.split()
    result = int(first)
    for change, stated in zip(terms[::2], terms[1::2], strict=True):
        result += int(change)
        assert stated == f"={result}"
        assert 0 <= result <= 9


def test_text_lessons_stay_inside_a_document(tokenizer: FastTokenizer) -> None:
    lesson = TextLesson(TEXTS, tokenizer)
    texts = [document.text for corpus in TEXTS for document in corpus.documents()]
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = tokenizer.decode(lesson(rng, tokenizer, 60))
        assert any(drawn in text for text in texts)


@pytest.mark.parametrize("name", ["copy", "parity", "passkey"])
def test_a_tasks_lesson_is_its_question_with_the_right_answer(tokenizer: FastTokenizer, name: str) -> None:
    for seed in range(4):
        tokens = TaskLesson(lexbench.task(name))(np.random.default_rng(seed), tokenizer, 240)
        text = tokenizer.decode(tokens)
        assert 100 <= len(tokens) <= 240
        assert tokens[0] != tokenizer.bos
        if name == "copy":
            first, *others = text.split()
            assert all(first.startswith(other) for other in others)
        elif name == "parity":
            bits, answer = text.strip().split("=")
            assert int(answer) == bits.count("1") % 2
        else:
            key = text.rstrip(".\n").split()[-1]
            assert text.count(f" {key}") == 3


@pytest.mark.parametrize("lesson", [block_pieces, token_pieces])
def test_no_fixed_distance_copies_the_pieces_of_a_block(tokenizer: FastTokenizer, lesson: Lesson) -> None:
    """The token before tells the next one, within a piece; no distance tells a third of them."""
    told, near, places = 0, np.zeros(64), 0
    for seed in range(40):
        tokens = lesson(np.random.default_rng(seed), tokenizer, 128)
        size = len(set(tokens.tolist()))
        block = tokens[:size].tolist()
        after = {one: block[(place + 1) % size] for place, one in enumerate(block)}
        told += sum(after[one] == two for one, two in itertools.pairwise(tokens[64:].tolist()))
        near += [(tokens[65:] == tokens[65 - far : len(tokens) - far]).sum() for far in range(1, 65)]
        places += 63
    assert told / places > 0.75
    assert near.max() / places < 1 / 3


def test_pieces_of_tokens_show_the_whole_vocabulary(tokenizer: FastTokenizer) -> None:
    """Blocks of 11 tokens on average, 300 rows: a token of V is left out with probability (1 - 11 / V)^300."""
    rng, seen = np.random.default_rng(0), np.zeros(tokenizer.vocabulary, bool)
    for _ in range(300):
        seen[token_pieces(rng, tokenizer, 64)] = True
    assert not seen[:3].any() and seen[3:].mean() > 0.98


def test_pieces_are_runs_of_the_stretch() -> None:
    """A stretch of different tokens: behind it every token is followed by its neighbour, or a new piece begins."""
    stretch = np.arange(10, 20)
    found = repeated_pieces(np.random.default_rng(0), stretch, 200)
    assert len(found) == 200 and list(found[:10]) == list(stretch)
    steps = np.diff(found[9:])
    begins = np.append(np.flatnonzero(steps != 1), len(steps))
    assert set(found) <= set(stretch)
    runs = np.diff(begins)
    assert runs.min() > 0 and runs.max() < 11
    assert len(set(found[10:][steps[: len(found) - 10] != 1])) > 5  # pieces begin anywhere

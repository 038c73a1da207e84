"""Planted summary: notes at their depths, and a score that lists, copies and mixtures cannot fool."""

import itertools
import re

import numpy as np
import pytest

import lexbench
from lexbench import Generate, Refused, Sample
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.corpora.synthetic import Synthetic
from tests.answerers import written

CORPUS = Synthetic(count=16)
HEADER = "Remember the notes in this text.\n"
NOTE = re.compile(r" Note: ((\w+) (\w+) the (\w+) in the (\w+))\.")


def questions_of(tokenizer: FastTokenizer, length: int, n: int, **parameters: object) -> list[Generate]:
    task = lexbench.task("planted_summary", corpus=CORPUS, **parameters)
    return [question for question in task.questions(tokenizer, length, n, 0) if isinstance(question, Generate)]


def scored(tokenizer: FastTokenizer, text: str, question: Generate) -> Sample:
    return lexbench.task("planted_summary", corpus=CORPUS).score(question, written(text, tokenizer))


@pytest.mark.everyday("257")
@pytest.mark.parametrize("length", [256, 257, 700])
def test_prompt_and_room_fill_the_length_exactly(tokenizer: FastTokenizer, length: int) -> None:
    for question in questions_of(tokenizer, length, 16):
        assert len(question.prompt) + question.max_new_tokens == question.length == length
        assert question.prompt[0] == tokenizer.bos
        answer = len(tokenizer.encode(question.answer).ids)
        assert question.max_new_tokens == pytest.approx(1.25 * answer, abs=1)
    assert {question.max_new_tokens for question in questions_of(tokenizer, 700, 4, room=180)} == {180}


def test_the_prompt_reads_as_in_the_docstring(tokenizer: FastTokenizer) -> None:
    for question in questions_of(tokenizer, 600, 16, notes=4):
        text = tokenizer.decode(question.prompt)
        assert text.startswith("Remember the notes in this text.\n")
        assert text.endswith("\nThe notes in this text, one a line:\n-")
        notes = [match[0] for match in NOTE.findall(text)]
        assert notes == question.facts["expected"]
        assert question.answer == "\n-".join(f" {note}." for note in notes)
        assert len({word for match in NOTE.findall(text) for word in match[1:]}) == 16  # no word twice


def test_one_note_lies_in_each_part_of_the_text(tokenizer: FastTokenizer) -> None:
    for question in questions_of(tokenizer, 4096, 16, notes=5):
        text = NOTE.sub("|", tokenizer.decode(question.prompt))
        text = text.removeprefix("Remember the notes in this text.\n").rpartition("\nThe notes in")[0]
        before = [len(piece) for piece in text.split("|")]
        depths = np.cumsum(before)[:-1] / sum(before)
        np.testing.assert_allclose(depths, question.facts["depths"], atol=0.02)
        assert [int(5 * depth) for depth in question.facts["depths"]] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_the_notes_are_as_many_at_every_length_and_no_word_is_in_two_slots(tokenizer: FastTokenizer) -> None:
    for length in (256, 1000):
        assert {len(NOTE.findall(tokenizer.decode(q.prompt))) for q in questions_of(tokenizer, length, 8)} == {3}
    slots = [set[str]() for _ in range(4)]
    for question in questions_of(tokenizer, 300, 300):
        for note in NOTE.findall(tokenizer.decode(question.prompt)):
            for slot, word in zip(slots, note[1:], strict=True):
                slot.add(word.lower())
    assert [len(slot) for slot in slots] == [20, 14, 20, 16]  # 900 draws find all of them
    assert all(not first & second for first, second in itertools.combinations(slots, 2))
    assert questions_of(tokenizer, 300, 1)[0].chance == pytest.approx(3 / (20 * 14 * 20 * 16))


def test_each_kind_of_answer_gets_what_it_is_worth(tokenizer: FastTokenizer) -> None:
    """(accuracy, recall, precision) by hand: with three notes."""
    [question] = questions_of(tokenizer, 400, 1)
    one, two, three = question.facts["expected"]
    who, did, what, where = ([fact.split()[place] for fact in (one, two, three)] for place in (0, 1, 3, 6))
    mixed = f"{who[0]} {did[1]} the {what[2]} in the {where[0]}"
    everything = " ".join([*who, *did, *what, *where])
    prompt = tokenizer.decode(question.prompt)
    sentences = [piece for piece in re.split(r"\n|(?<=\.) ", prompt) if piece.strip("- ")]
    copied = "".join(f"- {sentence}\n" for sentence in sentences)
    expected = {
        question.answer: (1, 1, 1),
        f" {three}.\n- {one}.\n- {two}.": (1, 1, 1),
        f" {one}\n* {two}\n3. {three}": (1, 1, 1),
        f"\n\n- {one}\n\n- {two}\n\n- {three}\n\nThe end of {who[0]}.": (1, 1, 1),
        f" In the {where[0]}, the {what[0]} was {did[0]} by {who[0].upper()}!\n- {two}\n- {three}": (1, 1, 1),
        f" {one}.\n- {two}.": (4 / 5, 2 / 3, 1),
        f" {one}.\n- {mixed}.\n- {two}.": (2 / 3, 2 / 3, 2 / 3),
        f" {one}.\n- {one}.\n- {one}.": (1 / 3, 1 / 3, 1 / 3),
        f" {one}. {two}. {three}.": (0, 0, 0),
        f" {one} {mixed}": (0, 0, 0),
        f" {who[1]} {did[0]} the {what[0]} in the {where[0]}.": (0, 0, 0),
        f" somebody {did[0]} the {what[0]} in the {where[0]}.": (0, 0, 0),
        f" {everything}": (0, 0, 0),
        "\n".join(f"- {a} {b} the {c} in the {d}" for a in who for b in did for c in what for d in where): (
            6 / 84,
            1,
            3 / 81,
        ),
        f" {one}\n– {two}\n— {three}": (1, 1, 1),
        f" {one}\n— {who[0]}\n- {two}": (2 / 3, 2 / 3, 2 / 3),
        f" {one}\n– {who[0]}\n- {two}": (2 / 3, 2 / 3, 2 / 3),
        f"{one}.\n{two}.\n{three}.": (1, 1, 1),
        f"\n{one}\n\n{two}\n{three}\nThat is all of {who[0]}.": (1, 1, 1),
        f" {one}\nand {two}\n- {three}": (1, 1, 1),
        f" {one}\n{mixed}\n{two}": (2 / 3, 2 / 3, 2 / 3),
        f" {one}\n{everything}\n{two}": (2 / 3, 2 / 3, 2 / 3),
        f" {one}\nSo much for {two[:8]}\n{two}": (1 / 2, 1 / 3, 1),
        f" Here they are:\n{one}\n{two}\n{three}": (0, 0, 0),
        f"{HEADER}{one}\n{two}\n{three}": (0, 0, 0),
        f" {who[0]} {did[0]} the {what[0]}": (0, 0, 0),
        f" the {what[0]}s of {where[0]}": (0, 0, 0),
        prompt: (0, 0, 0),
        copied: (6 / (3 + len(sentences)), 1, 3 / len(sentences)),
        "": (0, 0, 0),
        " \n ": (0, 0, 0),
        "I do not know": (0, 0, 0),
    }
    found = {text: tuple(list(scored(tokenizer, text, question).scores.values())[:3]) for text in expected}
    assert found == {text: pytest.approx(value) for text, value in expected.items()}


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence(tokenizer: FastTokenizer) -> None:
    """21 words in the reference; a list of the first two notes has 14 of them, in order."""
    [question] = questions_of(tokenizer, 400, 1)
    one, two, _ = question.facts["expected"]
    values = {
        question.answer: 1.0,
        "": 0.0,
        f"{one}.\n- {two}.": 2 * 14 / (21 + 14),
        f"{one}. So it is.": 2 * 7 / (21 + 10),
        "nothing at all": 0.0,
    }
    for text, value in values.items():
        assert scored(tokenizer, text, question).scores["rouge_l"] == pytest.approx(value)


def test_a_sample_says_where_each_note_stood_and_whether_it_was_found(tokenizer: FastTokenizer) -> None:
    [question] = questions_of(tokenizer, 400, 1)
    sample = scored(tokenizer, f" {question.facts['expected'][1]}.", question)
    assert sample.statistics["found"].tolist() == [0, 1, 0]
    assert sample.statistics["depth"].tolist() == pytest.approx(question.facts["depths"])
    assert (sample.output, sample.tokens, sample.hit_room) == (f" {question.facts['expected'][1]}.", 400, False)


class Chatting(FastTokenizer):
    """With a chat template."""

    def frame(self, chat: bool) -> lexbench.Frame:
        plain = super().frame(False)
        if not chat:
            return plain
        before = np.concatenate([plain.before, self.encode("<user>").ids])
        return lexbench.Frame(before, self.encode("<model>").ids)


@pytest.mark.slow
def test_in_a_chat_the_first_bullet_is_the_models_own(tokenizer: FastTokenizer) -> None:
    chatting = Chatting(tokenizer._tokenizer, bos=0, begins_with_bos=True)
    [question] = questions_of(chatting, 400, 1, chat=True)
    text = chatting.decode(question.prompt)
    assert question.length == 400
    assert text.startswith("<user>Remember the notes")
    assert text.endswith("\nThe notes in this text, one a line:\n<model>-")
    task = lexbench.task("planted_summary", corpus=CORPUS, chat=True)
    assert "chat template" in task.protocol(chatting)


@pytest.mark.slow
def test_every_way_of_asking_asks_for_the_same_notes(tokenizer: FastTokenizer) -> None:
    chatting = Chatting(tokenizer._tokenizer, bos=0, begins_with_bos=True)
    for one, *others in zip(
        questions_of(chatting, 500, 6),
        questions_of(chatting, 500, 6, chat=True),
        questions_of(chatting, 500, 6, room=200),
        strict=True,
    ):
        for other in others:
            assert one.answer == other.answer
            assert one.facts["depths"] == pytest.approx(other.facts["depths"], abs=0.3)
            texts = [NOTE.sub("", chatting.decode(question.prompt)).partition(HEADER)[2] for question in (one, other)]
            assert texts[0][:40] == texts[1][:40]


def test_a_room_too_small_for_the_answer_is_refused(tokenizer: FastTokenizer) -> None:
    [question] = questions_of(tokenizer, 700, 1)
    written_tokens = len(tokenizer.encode(question.answer).ids)
    assert questions_of(tokenizer, 700, 1, room=written_tokens)[0].max_new_tokens == written_tokens
    room = written_tokens - 1
    with pytest.raises(
        Refused, match=f"room of at least {written_tokens} tokens for its answer, got {room}: raise room"
    ):
        questions_of(tokenizer, 700, 1, room=room)


def test_wrong_parameters_and_short_lengths_are_said(tokenizer: FastTokenizer) -> None:
    for notes in (0, 15):
        with pytest.raises(ValueError, match=f"notes must be 1 to 14, got {notes}"):
            lexbench.task("planted_summary", corpus=CORPUS, notes=notes)
    with pytest.raises(ValueError, match="room must be at least 1, got 0"):
        lexbench.task("planted_summary", corpus=CORPUS, room=0)
    with pytest.raises(Refused, match=r"of 3 notes needs at least \d+ tokens, asked for 50") as refusal:
        questions_of(tokenizer, 50, 1)
    least = int(re.findall(r"\d+", refusal.value.reason)[1])
    assert abs(least - 200) < 60

"""The list of words, its room, and how nearly it is written again."""

import re

import numpy as np
import pytest

import lexbench
from lexbench import Generate, Refused
from lexbench.checkpoints.tokenizer import FastTokenizer
from tests.answerers import written
from tests.tasks.asked import questions_of


def words_of(question: Generate, tokenizer: FastTokenizer) -> list[str]:
    [listed] = re.findall(r"same order: (.*?)\.\nThe same", tokenizer.decode(question.prompt))
    return str(listed).split()


@pytest.mark.parametrize("length", [128, 333])
def test_a_list_has_one_odd_word_and_twice_its_room(lexlet: FastTokenizer, length: int) -> None:
    questions, places = questions_of(lexbench.task("repeated_words"), lexlet, length, 64), []
    for question in questions:
        listed = words_of(question, lexlet)
        common, odd = question.facts["common"], question.facts["odd"]
        assert len(question.prompt) + question.max_new_tokens == length
        assert question.answer == f" {' '.join(listed)}." and len(listed) == question.facts["words"]
        assert listed.count(odd) == 1 and listed.count(common) == len(listed) - 1
        assert listed.index(odd) == question.facts["place"] and question.chance == 1 / len(listed)
        tokens = len(lexlet.encode(question.answer).ids)
        assert 2 * (tokens - 1) <= question.max_new_tokens < 2 * tokens + 3 * tokens // (len(listed) - 1)
        places.append(question.facts["place"] / len(listed))
    counts = np.histogram(places, bins=8, range=(0, 1))[0]
    assert counts.min() >= 4, "8 of each part are asked for; few words leave a part fewer places"


def test_the_answer_grows_with_the_length(lexlet: FastTokenizer) -> None:
    task = lexbench.task("repeated_words")
    sizes = [questions_of(task, lexlet, length, 1)[0].facts["words"] for length in (128, 256, 512, 1024)]
    assert sizes == sorted(sizes) and sizes[-1] > 6 * sizes[0]
    with pytest.raises(Refused, match=r"repeated_words needs at least \d+ tokens, asked for 60: raise length"):
        task.questions(lexlet, 60, 1, 0)


def test_scores_are_those_of_a_hand_count(lexlet: FastTokenizer) -> None:
    task = lexbench.task("repeated_words")
    question = next(q for q in questions_of(task, lexlet, 256, 8) if q.facts["place"] > 2)
    common, odd, count, place = (question.facts[name] for name in ("common", "odd", "words", "place"))
    right = [odd if each == place else common for each in range(count)]

    def scores(words: list[str], end: str = ".") -> dict[str, float]:
        return dict(task.score(question, written(f" {' '.join(words)}{end}", lexlet)).scores)

    assert set(scores(right, ". And so on").values()) == {1.0}, "what follows the full stop does not count"
    assert scores([common] * count) == {
        "accuracy": 0,
        "similarity": 1 - 1 / count,
        "odd_word": 0,
        "odd_place": 0,
        "word_count": 1,
    }
    shifted = scores(right[1:])
    assert (shifted["odd_word"], shifted["odd_place"], shifted["accuracy"]) == (1, 0, 0)
    assert shifted["similarity"] == pytest.approx(1 - 1 / count) == shifted["word_count"]
    doubled = scores(right * 2)
    assert doubled["similarity"] == doubled["word_count"] == 0.5 and doubled["odd_place"] == 1


def test_the_distance_is_levenshteins(lexlet: FastTokenizer) -> None:
    """Against the table filled cell by cell."""
    task, rng = lexbench.task("repeated_words"), np.random.default_rng(0)
    [question] = questions_of(task, lexlet, 200, 1)
    facts = question.facts
    expected = [facts["odd"] if each == facts["place"] else facts["common"] for each in range(facts["words"])]
    for _ in range(8):
        given = [str(word) for word in rng.choice([facts["odd"], facts["common"], "other"], rng.integers(1, 30))]
        table = [list(range(len(given) + 1))]
        for row, word in enumerate(expected, 1):
            table.append([row])
            for column, other in enumerate(given, 1):
                kept = table[row - 1][column - 1] + (word != other)
                table[row].append(min(kept, table[row - 1][column] + 1, table[row][column - 1] + 1))
        similarity = task.score(question, written(f" {' '.join(given)}.", lexlet)).scores["similarity"]
        assert similarity == pytest.approx(1 - table[-1][-1] / max(len(expected), len(given)))

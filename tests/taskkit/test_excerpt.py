"""Long prompts are shortened to the parts that a reader needs."""

import numpy as np
import pytest

from lexbench.core.task import Choose, Generate, Loglikelihood, ProbeAttention
from lexbench.taskkit.excerpt import (
    CHARACTERS_AROUND_ANSWER,
    END_CHARACTERS,
    MAX_ANSWER_OCCURRENCES,
    MAX_WHOLE_CHARACTERS,
    START_CHARACTERS,
    nested_texts,
    question_excerpt,
    shorten_text,
)


class Letters:
    """Token i is the letter with that code."""

    prefix = ()
    bos = None

    def decode(self, ids: object) -> str:
        return "".join(chr(each) for each in np.asarray(ids))


def test_each_kind_of_question_shows_its_text() -> None:
    tokens = np.array([ord(letter) for letter in "abcd"])
    questions = [
        Generate(index=0, cluster="c", prompt=tokens, max_new_tokens=3),
        Choose(index=0, cluster="c", prompt=tokens, options=(tokens[:1], tokens[1:]), expected=0),
        Loglikelihood(index=0, cluster="c", tokens=tokens, first_target=2, bytes=2, words=1),
        ProbeAttention(index=0, cluster="c", tokens=tokens),
    ]
    assert [question_excerpt(question, Letters()) for question in questions] == ["abcd"] * 4  # type: ignore[arg-type]


def test_a_long_text_keeps_its_ends_and_what_surrounds_the_expected_answer() -> None:
    before, after = "a" * 3000, "b" * 3000
    text = shorten_text(f"{before}40213{after}", ["40213"])
    around = f"{'a' * CHARACTERS_AROUND_ANSWER}40213{'b' * CHARACTERS_AROUND_ANSWER}"
    gaps = (3000 - START_CHARACTERS - CHARACTERS_AROUND_ANSWER, 3000 - CHARACTERS_AROUND_ANSWER - END_CHARACTERS)
    assert text == (
        f"{'a' * START_CHARACTERS}\n[... {gaps[0]} characters ...]\n{around}\n[... {gaps[1]} characters "
        f"...]\n{'b' * END_CHARACTERS}"
    )


def test_parts_that_meet_are_joined_and_a_short_text_is_whole() -> None:
    assert shorten_text("x" * MAX_WHOLE_CHARACTERS, ["x"]) == "x" * MAX_WHOLE_CHARACTERS
    text = "k" + "x" * (MAX_WHOLE_CHARACTERS + 10)
    assert (
        shorten_text(text, ["k"])
        == text[:START_CHARACTERS]
        + f"\n[... {len(text) - START_CHARACTERS - END_CHARACTERS} characters ...]\n"
        + text[-END_CHARACTERS:]
    )


def test_a_mark_that_stands_everywhere_does_not_keep_everything() -> None:
    text = "".join(f"{'.' * 996}mark" for _ in range(100))
    kept = shorten_text(text, ["mark", ""])
    assert (
        len(kept)
        <= START_CHARACTERS
        + END_CHARACTERS
        + MAX_ANSWER_OCCURRENCES * (2 * CHARACTERS_AROUND_ANSWER + 4)
        + (MAX_ANSWER_OCCURRENCES + 1) * 40
    )
    assert kept.count("mark") >= MAX_ANSWER_OCCURRENCES


def test_a_common_mark_does_not_hide_a_rare_one() -> None:
    text = "".join(f"{'.' * 496}blue" for _ in range(20)) + "." * 5000 + "KEY7" + "." * 5000
    assert "KEY7" in shorten_text(text, ["blue", "KEY7"])


@pytest.mark.parametrize(
    ("value", "texts"), [("a", ["a"]), (["a", ["b"]], ["a", "b"]), (None, []), (7, []), ({"a": 1}, [])]
)
def test_expected_answers_are_texts_or_lists_of_them(value: object, texts: list[str]) -> None:
    assert list(nested_texts(value)) == texts

"""Long prompts are shortened to the parts that a reader needs."""

import numpy as np
import pytest

from lexbench.core.task import Choose, Probe, Score, Write
from lexbench.taskkit.excerpt import AROUND, BEGIN, END, MOST, PLACES, excerpt, expected, shortened


class Letters:
    """Token i is the letter with that code."""

    prefix = ()
    bos = None

    def decode(self, ids: object) -> str:
        return "".join(chr(each) for each in np.asarray(ids))


def test_each_kind_of_question_shows_its_text() -> None:
    tokens = np.array([ord(letter) for letter in "abcd"])
    questions = [
        Write(index=0, cluster="c", prompt=tokens, room=3),
        Choose(index=0, cluster="c", prompt=tokens, options=(tokens[:1], tokens[1:]), expected=0),
        Score(index=0, cluster="c", tokens=tokens, start=2, bytes=2, words=1),
        Probe(index=0, cluster="c", tokens=tokens),
    ]
    assert [excerpt(question, Letters()) for question in questions] == ["abcd"] * 4  # type: ignore[arg-type]


def test_a_long_text_keeps_its_ends_and_what_surrounds_the_expected_answer() -> None:
    before, after = "a" * 3000, "b" * 3000
    text = shortened(f"{before}40213{after}", ["40213"])
    around = f"{'a' * AROUND}40213{'b' * AROUND}"
    gaps = (3000 - BEGIN - AROUND, 3000 - AROUND - END)
    assert text == (
        f"{'a' * BEGIN}\n[... {gaps[0]} characters ...]\n{around}\n[... {gaps[1]} characters ...]\n{'b' * END}"
    )


def test_parts_that_meet_are_joined_and_a_short_text_is_whole() -> None:
    assert shortened("x" * MOST, ["x"]) == "x" * MOST
    text = "k" + "x" * (MOST + 10)
    assert shortened(text, ["k"]) == text[:BEGIN] + f"\n[... {len(text) - BEGIN - END} characters ...]\n" + text[-END:]


def test_a_mark_that_stands_everywhere_does_not_keep_everything() -> None:
    text = "".join(f"{'.' * 996}mark" for _ in range(100))
    kept = shortened(text, ["mark", ""])
    assert len(kept) <= BEGIN + END + PLACES * (2 * AROUND + 4) + (PLACES + 1) * 40
    assert kept.count("mark") >= PLACES


def test_a_common_mark_does_not_hide_a_rare_one() -> None:
    text = "".join(f"{'.' * 496}blue" for _ in range(20)) + "." * 5000 + "KEY7" + "." * 5000
    assert "KEY7" in shortened(text, ["blue", "KEY7"])


@pytest.mark.parametrize(
    ("value", "texts"), [("a", ["a"]), (["a", ["b"]], ["a", "b"]), (None, []), (7, []), ({"a": 1}, [])]
)
def test_expected_answers_are_texts_or_lists_of_them(value: object, texts: list[str]) -> None:
    assert list(expected(value)) == texts

"""A question as text for readers of samples; a long text is shortened to the parts that matter."""

import itertools
from collections.abc import Iterator
from typing import Any

from lexbench.core.task import AnyQuestion, Choose, Generate, Tokenizer

MAX_WHOLE_CHARACTERS = 4000
"""Longest text that is kept whole, in characters."""
START_CHARACTERS, CHARACTERS_AROUND_ANSWER, END_CHARACTERS = 600, 200, 1000
"""Characters kept of a longer text: at its start, on both sides of an expected answer, at its end."""
MAX_ANSWER_OCCURRENCES = 8
"""At most so many occurrences of expected answers are kept."""


def question_excerpt(question: AnyQuestion, tokenizer: Tokenizer) -> str:
    """The text of the prompt or of the scored tokens; brackets replace what is left out of a long text."""
    tokens = question.prompt if isinstance(question, Generate | Choose) else question.tokens
    text = tokenizer.decode(tokens)
    return shorten_text(text, list(nested_texts(question.facts.get("expected"))))


def nested_texts(value: Any) -> Iterator[str]:
    """The texts in an expected answer: one, or a (nested) list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from nested_texts(each)


def shorten_text(text: str, marks: list[str]) -> str:
    """A text of more than 4000 characters, shortened to its start, its end and the first occurrences of the marks."""
    if len(text) <= MAX_WHOLE_CHARACTERS:
        return text
    spans = [(0, START_CHARACTERS), *_around(text, marks), (len(text) - END_CHARACTERS, len(text))]
    kept: list[tuple[int, int]] = []
    # Spans that touch become one, so that no text appears twice and no bracket stands between neighbours.
    for low, high in sorted(spans):
        if kept and low <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], high))
        else:
            kept.append((low, high))
    pieces = [text[low:high] for low, high in kept]
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(kept)]
    notes = [f"\n[... {gap} characters ...]\n" for gap in gaps]
    return "".join(part for pair in zip(pieces, [*notes, ""], strict=True) for part in pair)


def _around(text: str, marks: list[str]) -> list[tuple[int, int]]:
    """Spans around the first occurrence of every mark, then around the second of every mark, and so on."""
    found: list[tuple[int, int]] = []
    after = {mark: 0 for mark in marks if mark}
    while after and len(found) < MAX_ANSWER_OCCURRENCES:
        # In turns, so that one frequent answer does not use up all places.
        for mark, begin in list(after.items()):
            place = text.find(mark, begin)
            if place < 0:
                del after[mark]
            elif len(found) < MAX_ANSWER_OCCURRENCES:
                after[mark] = place + len(mark)
                found.append(
                    (max(0, place - CHARACTERS_AROUND_ANSWER), min(len(text), after[mark] + CHARACTERS_AROUND_ANSWER))
                )
    return found

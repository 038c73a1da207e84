"""What was asked, as a reader of samples sees it: the whole text, or of a long one the parts that matter."""

import itertools
from collections.abc import Iterator
from typing import Any

from lexbench.core.task import AnyQuestion, Choose, Tokenizer, Write

MOST = 4000
"""Characters of a text that is kept whole."""
BEGIN, AROUND, END = 600, 200, 1000
"""Characters kept of a longer one: at its begin, on both sides of what is expected, at its end."""
PLACES = 8
"""Places kept around what is expected, at most."""


def excerpt(question: AnyQuestion, tokenizer: Tokenizer) -> str:
    """The question's text: prompt, or tokens that are scored; what is left out of a long one is said in brackets."""
    tokens = question.prompt if isinstance(question, Write | Choose) else question.tokens
    text = tokenizer.decode(tokens)
    return shortened(text, list(expected(question.facts.get("expected"))))


def expected(value: Any) -> Iterator[str]:
    """The texts in an expected answer: one, or a list of them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from expected(each)


def shortened(text: str, marks: list[str]) -> str:
    """A text of more than 4000 characters by its begin, its end and the first places of the marks."""
    if len(text) <= MOST:
        return text
    spans = [(0, BEGIN), *_around(text, marks), (len(text) - END, len(text))]
    kept: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if kept and low <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(kept[-1][1], high))
        else:
            kept.append((low, high))
    pieces = [text[low:high] for low, high in kept]
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(kept)]
    said = [f"\n[... {gap} characters ...]\n" for gap in gaps]
    return "".join(part for pair in zip(pieces, [*said, ""], strict=True) for part in pair)


def _around(text: str, marks: list[str]) -> list[tuple[int, int]]:
    """The first places of the marks, each in its turn, with what stands around them."""
    found: list[tuple[int, int]] = []
    after = {mark: 0 for mark in marks if mark}
    while after and len(found) < PLACES:
        for mark, begin in list(after.items()):
            place = text.find(mark, begin)
            if place < 0:
                del after[mark]
            elif len(found) < PLACES:
                after[mark] = place + len(mark)
                found.append((max(0, place - AROUND), min(len(text), after[mark] + AROUND)))
    return found

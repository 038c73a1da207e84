"""Texts by which a server is tried."""

import random

import numpy as np

from lexbench.core.task import Tokenizer, Tokens

UNRELATED_WORDS = (
    *("The old grey", " clock above", " seven wooden", " lamps hummed", " because Norwegian", " bread cannot"),
    *(" swim across", " purple arithmetic", " unless Tuesday", " brings fourteen", " quiet engines", " beneath our"),
    *(" frozen library", " whose doctor", " paints only", " bitter windows", " toward salt"),
)
"""Words that hardly ever follow one another: neighbours of a written token have other likelihoods than the token."""
OPEN_ENDED_BEGINNINGS = (
    "Once upon a time, in a town by the sea, there lived a",
    "Dear diary, today something happened that I had not",
    "The five strangest things in my drawer are a",
    "She opened the letter slowly. It began:",
    "My favourite recipe starts with some",
)
"""Beginnings that go on in many ways, so that two draws hardly ever agree."""
FILLING_WORDS = (
    *("river", "green", "seven", "walks", "under", "bright", "stone", "market", "slowly", "winter", "garden", "paper"),
    *("seldom", "carries", "north", "bridge", "quiet", "morning", "copper", "letters", "beside", "harbour", "round"),
    *("answers", "small", "kitchen", "thunder", "without", "travels", "yellow", "evening", "station", "counts"),
)
"""Words of a text without meaning, which fills a length."""
N_REPEATED_WORDS = 4
"""Words of a passage that is repeated at the end of a text."""
FIRST_WORD = "Zebras"
"""Beginning of such a text, which is not among its words."""


def text_tokens(tokenizer: Tokenizer, length: int | None, end: str) -> Tokens:
    """Ids of BOS, `FIRST_WORD`, `FILLING_WORDS` and an end, at most `length` together and hardly fewer.

    Args:
        tokenizer: of the model.
        length: tokens; None, or where the end alone has more: the end stands alone, behind BOS.
        end: last words of the text.
    """
    alone = _tokens(tokenizer, end)
    if length is None or length <= len(alone) + 1:
        return alone
    filled = tokenizer.encode(" ".join([FIRST_WORD, *random.Random(0).choices(FILLING_WORDS, k=length)]))
    begin, found = filled.text[: filled.starts[length - len(alone)]], alone
    while begin := begin.rpartition(" ")[0]:
        found = _tokens(tokenizer, f"{begin} {end.strip()}")
        if len(found) <= length:
            return found
    return alone


def repeating_texts(tokenizer: Tokenizer, length: int, count: int) -> list[Tokens]:
    """Texts as `text_tokens`, each of which ends in another passage of `N_REPEATED_WORDS` words from its beginning."""
    words = random.Random(0).choices(FILLING_WORDS, k=count * N_REPEATED_WORDS)
    begins = range(0, len(words), N_REPEATED_WORDS)
    return [text_tokens(tokenizer, length, " ".join(words[at : at + N_REPEATED_WORDS])) for at in begins]


def _tokens(tokenizer: Tokenizer, text: str) -> Tokens:
    return np.array([*tokenizer.prefix, *tokenizer.encode(text).ids], dtype=np.int64)

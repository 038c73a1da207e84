"""Texts with ascending tokens, so that a window's tokens show their place."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import lexbench
from lexbench import Corpus, Document, Encoded, Frame, Tokenizer
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core.task import Tokens
from lexbench.corpora import hash_documents


@pytest.fixture(scope="session")
def lexlet() -> FastTokenizer:
    """The embedded model's: 2048 tokens, words of one to several."""
    return load_tokenizer(Path(lexbench.__file__).parent / "lexlet")


class Counting:
    """Each word is a number and its own token; BOS is 0 and begins every context, or there is none."""

    def __init__(self, has_bos: bool) -> None:
        self.bos = 0 if has_bos else None
        self.prefix = (0,) if has_bos else ()
        self.vocabulary = 1_000_000

    def encode(self, text: str) -> Encoded:
        words = list(re.finditer(r"\S+", text))
        ids = np.asarray([int(word[0]) for word in words], dtype=np.int64)
        return Encoded(ids=ids, starts=np.asarray([word.start() for word in words], dtype=np.int64), text=text)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        return " ".join(str(number) for number in ids if number)

    def frame(self, chat: bool) -> Frame:
        return Frame(np.asarray(self.prefix, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Numbers:
    """Document d counts from 10000 (d + 1) upwards, to the given number of words."""

    words: tuple[int, ...]

    def documents(self) -> Iterator[Document]:
        for place, words in enumerate(self.words):
            first = 10_000 * (place + 1)
            yield Document(f"n{place}", " ".join(str(first + word) for word in range(words)))

    def fingerprint(self) -> str:
        return hash_documents(self.documents())


@pytest.fixture(params=[True, False], ids=["bos", "no_bos"])
def counting(request: pytest.FixtureRequest) -> Tokenizer:
    return Counting(has_bos=request.param)


@pytest.fixture
def counting_with_bos() -> Tokenizer:
    return Counting(has_bos=True)


@pytest.fixture
def counting_without_bos() -> Tokenizer:
    return Counting(has_bos=False)


@pytest.fixture
def numbers() -> Callable[..., Corpus]:
    """A corpus of documents with these numbers of words."""
    return lambda *words: Numbers(words)

"""What the perplexity tasks share: a corpus as a tokenizer sees it, and questions over windows of its documents."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused, Sample
from lexbench.core.task import Answer, AnyQuestion, Encoded, Score, Scored, Task, Tokenizer, Tokens
from lexbench.corpora import Corpus
from lexbench.taskkit.scoring import score_likelihood

AVERAGING = "NLL in nats, mean over all targets, exponentiated once"


class EncodedCorpus:
    """A corpus as one tokenizer sees it; a document is encoded when it is first asked for, and once."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        self.prefix = np.asarray(tokenizer.prefix, dtype=np.int64)
        self.bos = np.asarray([] if tokenizer.bos is None else [tokenizer.bos], dtype=np.int64)
        self._documents = list(corpus.documents())
        self._encode = functools.cache(lambda place: tokenizer.encode(self._documents[place].text))
        self.breaks = functools.cache(lambda place: _breaks(self[place]))
        """[breaks] of a document: its tokens, but the first, with which a sentence or a line begins."""

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, document: int) -> Encoded:
        return self._encode(document)

    def name(self, document: int) -> str:
        """Name of a document."""
        return self._documents[document].name

    def longest(self) -> int:
        """Tokens of the longest document."""
        return max(len(self[document].ids) for document in range(len(self)))

    @functools.cached_property
    def stream(self) -> Tokens:
        """[tokens] all documents joined in their order, each after BOS where the tokenizer has one."""
        return np.concatenate([part for place in range(len(self)) for part in (self.bos, self[place].ids)])

    @functools.cached_property
    def stream_starts(self) -> NDArray[np.int64]:
        """[documents] where each document's first token, after its BOS, stands in `stream`."""
        lengths = [len(self.bos) + len(self[place].ids) for place in range(len(self))]
        return np.cumsum([0, *lengths])[:-1] + len(self.bos)


GAP = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+|(?<!\s)\s*\n\s*"
    r"|(?:(?<=[。！？])|(?<=[。！？][”’」』）]))(?![。！？”’」』）])\s*"
)
"""What stands between two sentences or lines; between Chinese or Japanese ones it may be nothing."""


def _breaks(encoded: Encoded) -> NDArray[np.int64]:
    """Of every gap the first token that begins in it or right behind it; white space that ends a text begins none."""
    gaps = [gap.span() for gap in GAP.finditer(encoded.text) if gap.end() < len(encoded.text)]
    begins, ends = np.asarray(gaps, dtype=np.int64).reshape(-1, 2).T
    found = np.searchsorted(encoded.starts, begins)
    found, ends = found[found < len(encoded.starts)], ends[found < len(encoded.starts)]
    begun = encoded.starts[found]
    # of tokens that begin at one character, all but the last are further pieces of the character before it
    found = np.searchsorted(encoded.starts, begun, side="right") - 1
    return np.unique(found[(begun <= ends) & (found > 0)])


@functools.lru_cache(maxsize=2)
def encoded_corpus(corpus: Corpus, tokenizer: Tokenizer) -> EncodedCorpus:
    """A corpus under a tokenizer; a process reads a corpus once, and keeps the last two."""
    return EncodedCorpus(corpus, tokenizer)


@dataclass(frozen=True)
class DocumentTask(Task):
    """Base of the protocols that score whole documents, each cut to the same number of tokens.

    The documents depend on the seed and on `document_tokens`, on nothing else: all these protocols score the same
    ones, at every length and stride.

    Args:
        corpus: where the documents come from.
        document_tokens: read of each document, BOS counted; documents with fewer are left out. None: the longest
            length of the run.
    """

    corpus: Corpus
    document_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.document_tokens is not None and self.document_tokens < 1:
            raise ValueError(f"{self._noun}'s document_tokens must be at least 1, got {self.document_tokens}")

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Documents long enough for the longest length."""
        return self if self.document_tokens else replace(self, document_tokens=max(lengths))

    def windows(self, document_tokens: int, length: int, has_bos: bool) -> list[tuple[int, int, int]]:
        """(begin, first target, end) of each window over a document's `document_tokens` tokens, BOS not counted."""
        raise NotImplementedError

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Every window of n documents; Refused where the corpus has fewer that are long enough."""
        noun, prefix = self._noun, len(tokenizer.prefix)
        tokens = self.for_lengths([length]).document_tokens or length
        if length < prefix + 2:  # one target that has text before it
            raise Refused(f"{noun} needs at least {prefix + 2} tokens, asked for {length}: raise length")
        if length > tokens:
            raise Refused(f"{noun} reads {tokens} tokens a document, asked for {length}: raise document_tokens")
        texts = encoded_corpus(self.corpus, tokenizer)
        windows = self.windows(tokens - prefix, length, prefix > 0)
        places = [(place, *window) for place in self._long_documents(texts, tokens, n, seed) for window in windows]
        return [_question(texts, index, *place) for index, place in enumerate(places)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The NLL of a window's targets."""
        assert isinstance(question, Score) and isinstance(answer, Scored)
        return score_likelihood(question, answer)

    def _long_documents(self, texts: EncodedCorpus, tokens: int, n: int, seed: int) -> list[int]:
        """The first n documents that are long enough, in the seed's order."""
        rng = DocumentTask(self.corpus, tokens).rng("documents", seed)  # parameters of the protocol have no say
        found: list[int] = []
        for document in rng.permutation(len(texts)).tolist():
            if len(found) < n and len(texts[document].ids) + len(texts.prefix) >= tokens:
                found.append(document)
        if len(found) < n:
            raise Refused(
                f"{self._noun} needs {n} documents of {tokens} tokens, the corpus has {len(found)} "
                f"(its longest has {texts.longest() + len(texts.prefix)}): lower n or the longest length"
            )
        return found

    @property
    def _noun(self) -> str:
        """The task's name in messages: NonOverlapping is non_overlapping."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


def _question(texts: EncodedCorpus, index: int, document: int, begin: int, first: int, end: int) -> Score:
    encoded = texts[document]
    units = encoded.units(first, end)
    return Score(
        index=index,
        cluster=texts.name(document),
        tokens=np.concatenate([texts.prefix, encoded.ids[begin:end]]),
        start=len(texts.prefix) + first - begin,
        bytes=units[0],
        words=units[1],
        facts=place_of(texts, document, first, end),
    )


def place_of(texts: EncodedCorpus, document: int, first: int, end: int) -> Mapping[str, Any]:
    """Facts of a question: its document, and which of the document's tokens are targets."""
    return {"document": texts.name(document), "first_target": first, "end": end}


def bos_policy(tokenizer: Tokenizer) -> str:
    """How contexts begin, for a protocol's line."""
    return (
        "BOS begins every window, never a target" if tokenizer.prefix else "no BOS, a document's first token no target"
    )

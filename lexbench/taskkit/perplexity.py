"""Shared by the perplexity tasks: a tokenized corpus, and questions over windows of its documents."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Refused, Sample
from lexbench.core.task import Answer, AnyQuestion, Encoded, Loglikelihood, Outline, Task, Tokenizer, Tokens
from lexbench.corpora import Corpus
from lexbench.taskkit.floors import Floors
from lexbench.taskkit.prompt import check_at_least, check_length, task_name_of
from lexbench.taskkit.scoring import score_likelihood

LONGER_CORPUS_REMEDY = "a corpus of longer documents (corpus=packages, with corpus.size=CHARACTERS)"
"""Remedy where the documents of a corpus are too short."""
STREAM_REMEDY = "task.stream=true (with tune 'nll={name:last_segment,stream:true}')"
"""Remedy where documents are long enough together."""
AVERAGING_NOTE = "NLL in nats, mean over all targets, exponentiated once"


def fewer_samples_remedy(found: int) -> str:
    """The end of a remedy: as many samples as there are, where they are several; else nothing."""
    return f", or n={found}" if found > 1 else ""


class EncodedCorpus:
    """A corpus under one tokenizer; each document is encoded once, on first use."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        self.prefix = np.asarray(tokenizer.prefix, dtype=np.int64)
        self.vocabulary = tokenizer.vocabulary
        self.bos = np.asarray([] if tokenizer.bos is None else [tokenizer.bos], dtype=np.int64)
        self._documents = list(corpus.documents())
        self._encode = functools.cache(lambda place: tokenizer.encode(self._documents[place].text))
        self.breaks = functools.cache(lambda place: _tokens_after_gaps(self[place]))
        """[breaks] of a document: the tokens at which a sentence or a line begins, without the first token."""

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
    def floors(self) -> Floors:
        """Floors of likelihoods, from n-grams of the documents."""
        return Floors(self, self.vocabulary)

    def with_floors(
        self, question: Loglikelihood, document: int, places: NDArray[np.int64] | None = None
    ) -> Loglikelihood:
        """A question with the floors of its targets; of those at `places`, counted from the first, if given."""
        wanted = question.first_target + (
            np.arange(question.length - question.first_target) if places is None else places
        )
        return replace(question, floors=self.floors.of(document, question.tokens[wanted], question.tokens[wanted - 1]))

    @functools.cached_property
    def stream(self) -> Tokens:
        """[tokens] all documents joined in order, each after BOS if the tokenizer has one."""
        return np.concatenate([part for place in range(len(self)) for part in (self.bos, self[place].ids)])

    @functools.cached_property
    def stream_starts(self) -> NDArray[np.int64]:
        """[documents] place of each document's first token, after its BOS, in `stream`."""
        lengths = [len(self.bos) + len(self[place].ids) for place in range(len(self))]
        return np.cumsum([0, *lengths])[:-1] + len(self.bos)


SENTENCE_GAP_PATTERN = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+|(?<!\s)\s*\n\s*"
    r"|(?:(?<=[。！？])|(?<=[。！？][”’」』）]))(?![。！？”’」』）])\s*"
)
"""The gap between two sentences or lines; it may be empty between Chinese or Japanese sentences."""


def _tokens_after_gaps(encoded: Encoded) -> NDArray[np.int64]:
    """First token that begins in each gap or directly behind it; the end of the text is no gap."""
    gaps = [gap.span() for gap in SENTENCE_GAP_PATTERN.finditer(encoded.text) if gap.end() < len(encoded.text)]
    begins, ends = np.asarray(gaps, dtype=np.int64).reshape(-1, 2).T
    found = np.searchsorted(encoded.starts, begins)
    found, ends = found[found < len(encoded.starts)], ends[found < len(encoded.starts)]
    begun = encoded.starts[found]
    # If several tokens begin at one character, all but the last are pieces of the character before it.
    found = np.searchsorted(encoded.starts, begun, side="right") - 1
    return np.unique(found[(begun <= ends) & (found > 0)])


# Tasks of a suite ask for the same corpus again and again, and encoding it takes longer than a small model's answers.
@functools.lru_cache(maxsize=2)
def encoded_corpus(corpus: Corpus, tokenizer: Tokenizer) -> EncodedCorpus:
    """A corpus under a tokenizer. The last two are cached."""
    return EncodedCorpus(corpus, tokenizer)


Place = TypeVar("Place")


def interleave_places(
    documents: Iterable[int], places: Callable[[int], Iterable[Place]]
) -> Iterator[tuple[int, Place]]:
    """(document, place): the first place of every document, then the second of every document, and so on."""

    def lazily(document: int) -> Iterator[Place]:
        yield from places(document)  # calls `places` only when the first place is needed

    left = {document: lazily(document) for document in documents}
    while left:
        for document in list(left):
            try:
                place = next(left[document])
            except StopIteration:
                del left[document]
                continue
            yield document, place


@dataclass(frozen=True)
class DocumentTask(Task):
    """Base of the protocols that score whole documents, each cut to the same number of tokens.

    The choice of documents depends on the seed and on `document_tokens` only, so all these protocols score the same
    documents at every length and stride.

    Args:
        corpus: of the documents.
        document_tokens: tokens read of each document, with BOS; documents with fewer tokens are left out. None: the
            longest length of the run for which the corpus has n documents.
    """

    _noun = property(task_name_of)
    corpus: Corpus
    document_tokens: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self._noun, self, document_tokens=1)

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose documents that are long enough for the longest length."""
        return self if self.document_tokens else replace(self, document_tokens=max(lengths))

    def windows(self, document_tokens: int, length: int, prefix: int) -> list[tuple[int, int, int]]:
        """(begin, first target, end) of each window over a document's `document_tokens` tokens.

        They do not count the `prefix` tokens that begin each window: BOS, or none.
        """
        raise NotImplementedError

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Every window of n documents."""
        windows = self.windows(self._read(tokenizer, length) - len(tokenizer.prefix), length, len(tokenizer.prefix))
        read = sum(end - begin for begin, _, end in windows) / len(windows)
        return Outline(n * len(windows), len(tokenizer.prefix) + read)

    def _read(self, tokenizer: Tokenizer, length: int) -> int:
        """Tokens read of each document; Refused where the length is too short, or longer than these."""
        tokens = self.for_lengths([length]).document_tokens or length
        check_length(self._noun, len(tokenizer.prefix) + 2, length)  # one target with a token of text before it
        if length > tokens:
            raise Refused(f"{self._noun} reads {tokens} tokens a document, asked for {length}: raise document_tokens")
        return tokens

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Every window of n documents; Refused if the corpus has fewer long documents."""
        tokens, prefix = self._read(tokenizer, length), len(tokenizer.prefix)
        texts = encoded_corpus(self.corpus, tokenizer)
        chosen = self._long_documents(texts, tokens, n, seed)
        windows = self.windows(tokens - prefix, length, prefix)  # of so many tokens as there are
        parts = [(document, texts[document].ids, *window) for document in chosen for window in windows]
        return [
            score_question(texts, index, document, np.concatenate([texts.prefix, ids[begin:end]]), first, end)
            for index, (document, ids, begin, first, end) in enumerate(parts)
        ]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The NLL of a window's targets."""
        return score_likelihood(question, answer)

    def _long_documents(self, texts: EncodedCorpus, tokens: int, n: int, seed: int) -> list[int]:
        """The first n documents that are long enough, in the seed's order."""
        rng = DocumentTask(self.corpus, tokens).rng("documents", seed)  # the same for all protocols and parameters
        found: list[int] = []
        for document in rng.permutation(len(texts)).tolist():
            if len(found) < n and len(texts[document].ids) + len(texts.prefix) >= tokens:
                found.append(document)
        if len(found) < n:
            raise Refused(
                f"{self._noun} needs {n} documents of {tokens} tokens, the corpus has {len(found)} "
                f"(its longest has {texts.longest() + len(texts.prefix)}): give "
                f"{LONGER_CORPUS_REMEDY}{fewer_samples_remedy(len(found))}"
            )
        return found


def score_question(
    texts: EncodedCorpus, index: int, document: int, tokens: Tokens, first: int, end: int
) -> Loglikelihood:
    """The question for the tokens of a document from `first` to `end` (excluded), the last ones of `tokens`."""
    units = texts[document].units(first, end)
    question = Loglikelihood(
        index=index,
        cluster=texts.name(document),
        tokens=tokens,
        first_target=len(tokens) - (end - first),
        bytes=units[0],
        words=units[1],
        facts=target_facts(texts, document, first, end),
    )
    return texts.with_floors(question, document)


def target_facts(texts: EncodedCorpus, document: int, first: int, end: int) -> Mapping[str, Any]:
    """Facts of a question: its document, and the range of the target tokens in it."""
    return {"document": texts.name(document), "first_target": first, "end": end}


def bos_policy(tokenizer: Tokenizer) -> str:
    """Beginning of the windows, for the protocol."""
    return (
        "BOS begins every window, never a target" if tokenizer.prefix else "no BOS, a document's first token no target"
    )

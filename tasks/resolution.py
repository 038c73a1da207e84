"""How attention depends on the distance, over running text: attention resolution and what stands behind it."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Corpus,
    EncodedCorpus,
    Probe,
    Probed,
    Refused,
    Sample,
    Task,
    Tokenizer,
    encoded_corpus,
)

SCORES = {
    "resolution": "resolution",
    "attention_distance": "distance",
    "entropy": "entropy",
    "first_mass": "first_mass",
}
"""Scores, and the statistics of every head of which they are the means."""


@dataclass(frozen=True)
class Resolution(Task):
    """Attention logits and weights by distance (LEX, Sun et al. 2022, arXiv 2212.10554, equations 3, 4 and 13).

        s[n] = mean attention logit n tokens back       R(s) = sum_n p[n] (p[n] - p[n + 1]),  p = softmax of s

    A text is read in one forward pass, all its positions at once, and nothing is asked of the model: there is no right
    answer. Attention that tells distances apart, the near ones first, has a high resolution R; where positions beyond
    the trained length make logits swing, it falls. The scale of R is its formula's, below 1; published values are
    larger by an unknown power of ten.

    Held constant over lengths: each sample's text ends at the same token of the same document; a longer one only
    begins earlier. A document's texts do not overlap at the longest length. Intervals cluster by document. R shrinks
    with the length itself, as its weights are shared among more distances: compare methods at one length.

    Scores, means over all heads of all layers: `resolution`, of each head's own s[n]; `attention_distance`, tokens
    from query to key under the weights, mean over queries; `entropy` of the weights, nats; `first_mass`, the share of
    the weights on the first tokens. Only of the first is more better. Sample statistics are those of `Probed`.

    Args:
        corpus: where documents come from.
        first: tokens at the start whose share is told apart: attention sinks.
        longest: tokens of text that each sample has, whatever the length; None: the run's longest length.
    """

    corpus: Corpus
    first: int = 4
    longest: int | None = None

    def __post_init__(self) -> None:
        for name in ("first", "longest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"resolution's {name} must be at least 1, got {value}: leave it out for the default")

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Texts that are long enough for the longest length."""
        return self if self.longest else replace(self, longest=max(lengths))

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is read, and what is averaged."""
        begins = "BOS begins every text" if tokenizer.prefix else "no BOS"
        return (
            f"attention over running text that ends at the same token at every length (texts of {self.longest} "
            f"tokens); means over texts, layers and heads; first mass is that of {self.first} tokens; {begins}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One text a sample: one of each document that is long enough, in the seed's order, then a second of each."""
        longest = self.longest or length
        if length <= self.first + len(tokenizer.prefix):
            least = self.first + len(tokenizer.prefix) + 1
            raise Refused(f"resolution needs at least {least} tokens, asked for {length}: raise length or lower first")
        if length > longest:
            raise Refused(f"resolution's texts have {longest} tokens, asked for {length}: raise longest")
        texts = encoded_corpus(self.corpus, tokenizer)
        ends = list(itertools.islice(self._ends(texts, longest, seed), n))
        if len(ends) < n:
            raise Refused(
                f"resolution needs {n} texts of {longest} tokens, the corpus has {len(ends)} (its longest document "
                f"has {texts.longest() + len(texts.prefix)}): lower n or the longest length, or take longer documents"
            )
        return [self._question(texts, length, index, *place) for index, place in enumerate(ends)]

    def _ends(self, texts: EncodedCorpus, longest: int, seed: int) -> Iterator[tuple[int, int]]:
        """(document, token behind the text's last): every document's first text before any one's second."""
        order = replace(self, first=4).rng("documents", seed).permutation(len(texts)).tolist()
        ends: dict[int, list[int]] = {}
        for turn in itertools.count():
            for document in order:
                if turn == 0:
                    ends[document] = self._in_document(texts, document, longest - len(texts.prefix), seed)
                if turn < len(ends[document]):
                    yield document, ends[document][turn]
            if turn >= max(map(len, ends.values()), default=0):
                return

    def _in_document(self, texts: EncodedCorpus, document: int, tokens: int, seed: int) -> list[int]:
        """Ends of as many texts as a document holds side by side, in random order, from a random place on."""
        rng = replace(self, first=4).rng("places", seed, texts.name(document))
        count, left = divmod(len(texts[document].ids), tokens)
        offset = int(rng.integers(left + 1))
        return [offset + tokens * (int(place) + 1) for place in rng.permutation(count)]

    def _question(self, texts: EncodedCorpus, length: int, index: int, document: int, end: int) -> Probe:
        ids = texts[document].ids[end - length + len(texts.prefix) : end]
        return Probe(
            index=index,
            cluster=texts.name(document),
            tokens=np.concatenate([texts.prefix, ids]),
            first=self.first,
            facts={"document": texts.name(document), "end": end},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Means over all heads, and all statistics in float32."""
        assert isinstance(question, Probe) and isinstance(answer, Probed)
        scores = {score: float(np.mean(answer.statistics[name])) for score, name in SCORES.items()}
        lost = [score for score, value in scores.items() if not np.isfinite(value)]
        return Sample(
            index=question.index,
            cluster=question.cluster,
            tokens=question.length,
            scores={} if lost else scores,
            failed=f"{', '.join(lost)} of attention cannot be told: logits are not finite" if lost else None,
            statistics={name: values.astype(np.float32) for name, values in answer.statistics.items()},
            facts=question.facts,
        )

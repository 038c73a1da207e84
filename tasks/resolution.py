"""Attention resolution: how attention logits and weights depend on the distance, over running text."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    Corpus,
    Outline,
    ProbeAttention,
    ProbeAttentionAnswer,
    Refused,
    Sample,
    Task,
    Tokenizer,
)
from lexbench.taskkit.perplexity import (
    LONGER_CORPUS_REMEDY,
    EncodedCorpus,
    encoded_corpus,
    fewer_samples_remedy,
    interleave_places,
)
from lexbench.taskkit.prompt import check_at_least, check_length
from lexbench.taskkit.scoring import sample_of

STATISTIC_OF_SCORE = {
    "resolution": "resolution_shared",
    "resolution_7_8": "resolution",
    "resolution_all": "resolution_all",
    "attention_distance": "distance",
    "entropy": "entropy",
    "first_mass": "first_mass",
}
"""Each score is the mean over all heads of a statistic."""


@dataclass(frozen=True)
class Resolution(Task):
    """Measure attention logits and weights by distance (LEX, Sun et al. 2022, arXiv 2212.10554, equations 3, 4, 13).

        s[n] = mean attention logit at distance n       R(s) = sum_n p[n] (p[n] - p[n + 1]),  p = softmax of s

    Each text is read in one forward pass; there is no right answer. R is half of the sum of p[0]^2 and all squared
    steps of p. Weights that fall steeply from the nearest distance give a high R, which LEX reads as telling near from
    far. But noise and oscillation of s, and weight on a few distances anywhere, raise R as well: read it beside the
    curve. By its formula R is below 1; published values are larger by an unknown power of ten.

    R depends on the distances in its sum, so three sums are given:

    - `resolution`: distances below 7/8 of the run's shortest length, the same ones at every length. Compare lengths by
      this one.
    - `resolution_7_8`: distances below 7/8 of the own length. Each s[n] is a mean over at least an eighth of the
      queries, if none is masked.
    - `resolution_all`: all distances, LEX's own sum. The farthest s[n] are means of one or a few pairs whose key is the
      start of the text; they alone may change R by a factor near 2.

    The last two fall with the length even if s[n] does not change, as more distances share the weights: compare
    methods by them at one length only. R is computed per text and head, then averaged. LEX averages s over texts first;
    where both were measured, R differed by at most 3 %.

    Constant over lengths: the token at which each sample's text ends; a longer text begins earlier. Weights are
    averaged over the same last queries at every length. The texts of a document do not overlap at the longest length.
    Intervals cluster by document.

    Scores, means over all heads of all layers: the three resolutions, of each head's own s, over all queries; over the
    last queries `attention_distance` (mean tokens from query to key under the weights), `entropy` of the weights
    (nats), and `first_mass` (share of the weights on the first tokens). For these three neither high nor low is better.
    Sample statistics are those of `ProbeAttentionAnswer`. (Version 1 had one `resolution`, today's `resolution_7_8`.)

    Args:
        corpus: of the documents.
        first: tokens at the start (attention sinks) whose share of the weights is measured.
        queries: tokens at the end whose weights are averaged; None: half of the run's shortest length.
        longest: tokens of text that every sample has, at any length; None: the run's longest length for which the
            corpus has n texts.
        shortest: `resolution` covers the distances below 7/8 of this length; None: the run's shortest length.
    """

    form: ClassVar[tuple[str, ...]] = ("first", "queries", "shortest")
    version: ClassVar[int] = 2
    corpus: Corpus
    first: int = 4
    queries: int | None = None
    longest: int | None = None
    shortest: int | None = None

    def __post_init__(self) -> None:
        check_at_least("resolution", self, first=1, queries=1, longest=1, shortest=1)

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Take distances and queries of the shortest length, and texts that fit the longest length."""
        return replace(
            self,
            queries=self.queries or max(1, min(lengths) // 2),
            longest=self.longest or max(lengths),
            shortest=self.shortest or min(lengths),
        )

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: texts, distances, averaging."""
        begins = "BOS begins every text" if tokenizer.prefix else "no BOS"
        return (
            f"attention over running text that ends at the same token at every length (texts of {self.longest} "
            f"tokens); resolution of each text and head by mean logits over all queries at distances below 7/8 of "
            f"{self.shortest} at every length (resolution_7_8: of the length itself; resolution_all: all distances, as "
            f"LEX sums); weights over the same {self.queries} last queries at every length; means over texts, layers "
            f"and heads; first mass is that of {self.first} tokens; {begins}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts of `length` tokens; attention is measured on each."""
        self.for_lengths([length])._check(tokenizer, length)
        return Outline(n, length, probes=True)

    def _check(self, tokenizer: Tokenizer, length: int) -> None:
        """Refused where a text of the length is too short for what is measured, or longer than the texts."""
        assert self.queries is not None and self.longest is not None and self.shortest is not None
        least, queries, shortest = self.first + len(tokenizer.prefix) + 1, self.queries, self.shortest
        check_length("resolution", least, length, "raise length or lower first")
        check_length(f"resolution of {queries} queries", queries, length, "raise length or lower queries")
        check_length(f"resolution below 7/8 of {shortest}", shortest, length, "raise length or lower shortest")
        if length > self.longest:
            raise Refused(f"resolution's texts have {self.longest} tokens, asked for {length}: raise longest")

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One text per sample: one of each document that is long enough, in the seed's order, then a second of each."""
        task = self.for_lengths([length])
        task._check(tokenizer, length)
        texts, longest = encoded_corpus(self.corpus, tokenizer), task.longest or 0
        order, tokens = task.rng("documents", seed).permutation(len(texts)).tolist(), longest - len(texts.prefix)
        found = interleave_places(order, lambda document: task._ends(texts, document, tokens, seed))
        ends = list(itertools.islice(found, n))
        if len(ends) < n:
            raise Refused(
                f"resolution needs {n} texts of {longest} tokens, the corpus has {len(ends)} (its longest document "
                f"has {texts.longest() + len(texts.prefix)}): give "
                f"{LONGER_CORPUS_REMEDY}{fewer_samples_remedy(len(ends))}"
            )
        return [task._question(texts, length, index, *place) for index, place in enumerate(ends)]

    def _ends(self, texts: EncodedCorpus, document: int, tokens: int, seed: int) -> list[int]:
        """Ends of as many disjoint texts as fit in a document, in random order: a grid with a random offset."""
        rng = self.rng("places", seed, texts.name(document))
        count, left = divmod(len(texts[document].ids), tokens)
        offset = int(rng.integers(left + 1))
        return [offset + tokens * (int(place) + 1) for place in rng.permutation(count)]

    def _question(self, texts: EncodedCorpus, length: int, index: int, document: int, end: int) -> ProbeAttention:
        ids = texts[document].ids[end - length + len(texts.prefix) : end]
        return ProbeAttention(
            index=index,
            cluster=texts.name(document),
            tokens=np.concatenate([texts.prefix, ids]),
            first=self.first,
            last=self.queries,
            shortest=self.shortest,
            facts={"document": texts.name(document), "end": end},
        )

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Means over all heads, and all statistics in float32."""
        assert isinstance(question, ProbeAttention) and isinstance(answer, ProbeAttentionAnswer)
        scores = {score: float(np.mean(answer.statistics[name])) for score, name in STATISTIC_OF_SCORE.items()}
        lost = [score for score, value in scores.items() if not np.isfinite(value)]
        return sample_of(
            question,
            scores={} if lost else scores,
            failed=f"{', '.join(lost)} of attention cannot be told: logits are not finite" if lost else None,
            statistics={name: values.astype(np.float32) for name, values in answer.statistics.items()},
        )

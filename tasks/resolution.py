"""How attention depends on the distance, over running text: attention resolution and what stands behind it."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from lexbench import Answer, AnyQuestion, Corpus, Probe, Probed, Refused, Sample, Task, Tokenizer
from lexbench.taskkit.perplexity import EncodedCorpus, encoded_corpus

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
    answer. R is half of p[0]^2 and all squared steps of p: weights that fall steeply from the nearest distance on
    have a high one, which LEX takes for telling near from far; but noise and oscillation of s raise it too, and so does
    weight on a few distances anywhere. Read it beside the curve. Its scale is its formula's, below 1; published values
    are larger by an unknown power of ten.

    R is taken over the distances below seven eighths of the length, so that each s[n] is the mean over an eighth of
    the queries or more (where none is masked): one or a few pairs at the far end, whose key is always the text's
    beginning, would else be much of R, or most. And it is taken of each text and head, then averaged; LEX averages s
    over texts first, which changed R by 3 % at most where both were measured.

    Held constant over lengths: each sample's text ends at the same token of the same document; a longer one only
    begins earlier. Weights are averaged over the same last queries of it at every length. A document's texts do not
    overlap at the longest length. Intervals cluster by document. R shrinks with the length itself, as its weights are
    shared among more distances: compare methods at one length.

    Scores, means over all heads of all layers: `resolution`, of each head's own s[n], over all queries;
    `attention_distance`, tokens from query to key under the weights, mean over the last queries; of these too `entropy`
    of the weights, nats, and `first_mass`, the share of the weights on the first tokens. The last three have no better
    side. Sample statistics are those of `Probed`.

    Args:
        corpus: where documents come from.
        first: tokens at the start whose share is told apart: attention sinks.
        queries: tokens at the end whose weights are averaged; None: half of the run's shortest length.
        longest: tokens of text that each sample has, whatever the length; None: the run's longest length.
    """

    form: ClassVar[tuple[str, ...]] = ("first", "queries")
    corpus: Corpus
    first: int = 4
    queries: int | None = None
    longest: int | None = None

    def __post_init__(self) -> None:
        for name in ("first", "queries", "longest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"resolution's {name} must be at least 1, got {value}: leave it out for the default")

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Queries that the shortest length has twice, texts that are long enough for the longest."""
        return replace(self, queries=self.queries or max(1, min(lengths) // 2), longest=self.longest or max(lengths))

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is read, over what it is averaged, and where resolution is cut."""
        begins = "BOS begins every text" if tokenizer.prefix else "no BOS"
        return (
            f"attention over running text that ends at the same token at every length (texts of {self.longest} "
            f"tokens); resolution of each text and head by mean logits over all queries at distances below 7/8 of the "
            f"length; weights over the same {self.queries} last queries at every length; means over texts, layers and "
            f"heads; first mass is that of {self.first} tokens; {begins}"
        )

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """One text a sample: one of each document that is long enough, in the seed's order, then a second of each."""
        task = self.for_lengths([length])
        assert task.queries is not None and task.longest is not None
        longest = task.longest
        if length <= self.first + len(tokenizer.prefix):
            least = self.first + len(tokenizer.prefix) + 1
            raise Refused(f"resolution needs at least {least} tokens, asked for {length}: raise length or lower first")
        if length < task.queries:
            need = f"resolution of {task.queries} queries needs at least {task.queries} tokens"
            raise Refused(f"{need}, asked for {length}: raise length or lower queries")
        if length > longest:
            raise Refused(f"resolution's texts have {longest} tokens, asked for {length}: raise longest")
        texts = encoded_corpus(self.corpus, tokenizer)
        ends = list(itertools.islice(task._ends(texts, longest, seed), n))
        if len(ends) < n:
            raise Refused(
                f"resolution needs {n} texts of {longest} tokens, the corpus has {len(ends)} (its longest document "
                f"has {texts.longest() + len(texts.prefix)}): lower n or the longest length, or take longer documents"
            )
        return [task._question(texts, length, index, *place) for index, place in enumerate(ends)]

    def _ends(self, texts: EncodedCorpus, longest: int, seed: int) -> Iterator[tuple[int, int]]:
        """(document, token behind the text's last): every document's first text before any one's second."""
        order = self.rng("documents", seed).permutation(len(texts)).tolist()
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
        rng = self.rng("places", seed, texts.name(document))
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
            last=self.queries,
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

"""Last-segment perplexity, the headline: the same targets at every length, under growing context."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from lexbench import (
    Answer,
    AnyQuestion,
    ConfigError,
    Corpus,
    MeasureDivergence,
    Outline,
    Refused,
    Sample,
    Task,
    Tokenizer,
)
from lexbench.taskkit.perplexity import (
    AVERAGING_NOTE,
    LONGER_CORPUS_REMEDY,
    STREAM_REMEDY,
    EncodedCorpus,
    bos_policy,
    encoded_corpus,
    fewer_samples_remedy,
    interleave_places,
    score_question,
)
from lexbench.taskkit.prompt import check_at_least, check_length
from lexbench.taskkit.scoring import score_divergence, score_likelihood


@dataclass(frozen=True)
class LastSegment(Task):
    """Predict the last tokens of a text; only the text before them gets longer.

        a place in a document      a b c d e f g h i j k l m n          targets: the last 4, at every length
        length 6 with BOS                            BOS j k l m n      one token of context, and BOS
        length 12 with BOS               BOS d e f g h i j k l m n

    This is the protocol of Jianlin Su's ReRoPE (kexue.fm/archives/9708, repository bojone/rerope). The targets stay the
    same at every length, so a difference between two lengths is the effect of the added context. Every other protocol
    mixes that with a change of targets. The protocol line names the tokens of a place: all lengths up to it share their
    targets, and a longer one is refused.

    Places: one in each document that is long enough, in the seed's order, then a second one in each, and so on, up to
    n. Targets of two places are disjoint. The places depend on seed, `targets` and `longest`, not on length or n.
    Intervals cluster by document.

    Args:
        corpus: of the documents.
        targets: tokens to score; None: half of the run's shortest length.
        longest: tokens of text that every place has, at any length; None: the run's longest length for which the corpus
            has n places.
        stream: join all documents, each after BOS, and let the context cross their borders; for corpora of short
            texts. The targets of a place are still in one document, and BOS is never a target. A window begins
            anywhere, without a BOS of its own. The cluster is the targets' document; neighbours may share context.
        against: None: the NLL of the targets. Else the divergence of the next-token distributions at the same targets
            (task=divergence): from those of the same method with an uncompressed cache (`uncompressed`), or from those
            of a method by its name. Scores: `kld`, KL(other || this); `same_top`, the share of targets at which both
            find one token likeliest; `nll_rise`. Both read each text in turn.
        shuffled: the order variance of LEX (Sun et al. 2022, arXiv 2212.10554, section 2), task=order_variance: the
            same targets after a context whose tokens stand in random order, `far` (all but the `near` tokens before
            the targets) or `near` (those alone). Its NLL minus that of last_segment is how much a model uses the order;
            a model that is equivariant under permutations has 0.
        near: tokens before the targets, for `shuffled`.
    """

    form: ClassVar[tuple[str, ...]] = ("against", "shuffled", "near")
    corpus: Corpus
    targets: int | None = None
    longest: int | None = None
    stream: bool = False
    against: str | None = field(default=None, metadata={"new": True})
    shuffled: str | None = field(default=None, metadata={"new": True})
    near: int = field(default=16, metadata={"new": True})

    def __post_init__(self) -> None:
        check_at_least("last_segment", self, targets=1, longest=1, near=1)
        if self.shuffled not in (None, "far", "near"):
            raise ConfigError(
                f"last_segment's shuffled must be far or near, got {self.shuffled}: leave it out for none"
            )

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose targets that fit the shortest length, and places that fit the longest."""
        return replace(self, targets=self.targets or max(1, min(lengths) // 2), longest=self.longest or max(lengths))

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: targets, context, averaging, BOS."""
        joined = f"joined documents, each after BOS{'' if tokenizer.bos is not None else ' (there is none)'}"
        begin = f"{joined}, BOS never a target" if self.stream else f"{bos_policy(tokenizer)}; documents not joined"
        other = f"; KL(p || q), p under {self.against}" if self.against else ""
        if self.shuffled:
            all_but = "all but " if self.shuffled == "far" else ""
            other += f"; in random order: {all_but}the {self.near} tokens before the targets"
        return (
            f"last segment: the same {self.targets} target tokens at every length, only their context grows "
            f"(places of {self.longest} tokens); one window, no stride; {AVERAGING_NOTE}; {begin}{other}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n windows of `length` tokens, one for each place of a document."""
        self.for_lengths([length])._check(tokenizer, length)
        return Outline(n, length)

    def _check(self, tokenizer: Tokenizer, length: int) -> None:
        """Refused where a window of the length does not hold the targets, or is longer than the places."""
        assert self.targets is not None and self.longest is not None
        # The first target needs a token before it: BOS, or one of the text.
        least = self.targets + (1 if self.stream else max(1, len(tokenizer.prefix)))
        check_length(f"last_segment with {self.targets} targets", least, length, "raise length or lower targets")
        if length > self.longest:
            raise Refused(f"last_segment's places have {self.longest} tokens, asked for {length}: raise longest")

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Questions, one for each place of a document."""
        task = self.for_lengths([length])
        task._check(tokenizer, length)
        texts = encoded_corpus(self.corpus, tokenizer)
        order = task.rng("documents", seed).permutation(len(texts)).tolist()
        found = interleave_places(order, lambda document: task._ends(texts, document, seed))
        places = list(itertools.islice(found, n))
        if len(places) < n:
            raise Refused(task._too_few(texts, n, len(places)))
        return [task._question(texts, length, seed, index, *place) for index, place in enumerate(places)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The NLL of the targets, or the divergence at them."""
        return score_likelihood(question, answer) if self.against is None else score_divergence(question, answer)

    def _ends(self, texts: EncodedCorpus, document: int, seed: int) -> list[int]:
        """Ends of disjoint target segments in a document, in random order: a grid with a random offset."""
        rng = self.rng("places", seed, texts.name(document))
        targets, longest = self.targets or 0, self.longest or 0
        if self.stream:
            # In a stream BOS stands before the document's first token, which may then be a target.
            before = targets if len(texts.bos) else targets + 1
            first = max(before, longest - int(texts.stream_starts[document]))
        else:
            first = longest - len(texts.prefix)
        space = len(texts[document].ids) - first
        if space < 0:
            return []
        # The grid of disjoint segments is shifted at random by what is left over, so that no place is preferred.
        offset = first + int(rng.integers(space % targets + 1))
        return [offset + targets * int(place) for place in rng.permutation(space // targets + 1)]

    def _question(
        self, texts: EncodedCorpus, length: int, seed: int, index: int, document: int, end: int
    ) -> AnyQuestion:
        if self.stream:
            # `end` counts in the document, the stream also has all documents before it.
            stop = int(texts.stream_starts[document]) + end
            tokens = texts.stream[stop - length : stop]
        else:
            tokens = np.concatenate([texts.prefix, texts[document].ids[end - length + len(texts.prefix) : end]])
        if self.shuffled:
            stop = length - (self.targets or 0)
            begin, middle = 0 if self.stream else len(texts.prefix), max(0, stop - self.near)
            part = slice(begin, middle) if self.shuffled == "far" else slice(max(begin, middle), stop)
            rng = self.rng("order", seed, texts.name(document), end)
            tokens = tokens.copy()
            tokens[part] = rng.permutation(tokens[part])
        scored = score_question(texts, index, document, tokens, end - (self.targets or 0), end)
        if self.against is None:
            return scored
        other = "" if self.against == "uncompressed" else self.against
        return MeasureDivergence(
            index=index,
            cluster=scored.cluster,
            facts=scored.facts,
            tokens=tokens,
            first_target=scored.first_target,
            against=other,
        )

    def _too_few(self, texts: EncodedCorpus, n: int, found: int) -> str:
        if self.stream:
            return (
                f"last_segment needs {n} places in a stream of {len(texts.stream)} tokens, it has {found} with "
                f"{self.longest} tokens and {self.targets} targets in one document: give a larger corpus"
                f"{fewer_samples_remedy(found)}, or a lower task.targets"
            )
        longest = texts.longest() + len(texts.prefix)
        # Joining helps where the documents hold the length together; tune has no settings of a task.
        joined = len(texts) > 1 and len(texts.stream) >= (self.longest or 0)
        stream = f"{STREAM_REMEDY}, " if joined else ""
        return (
            f"last_segment needs {n} places in documents of {self.longest} tokens, the corpus has {found} "
            f"(its longest document has {longest}): give {stream}{LONGER_CORPUS_REMEDY}{fewer_samples_remedy(found)}"
        )

"""LongPPL: perplexity of the key tokens, which only a long context makes predictable."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lexbench import Answer, AnyQuestion, Corpus, Loglikelihood, Outline, Refused, Sample, Task, Tokenizer
from lexbench.parts.search import key_tokens
from lexbench.taskkit.perplexity import AVERAGING_NOTE, EncodedCorpus, bos_policy, encoded_corpus
from lexbench.taskkit.prompt import check_at_least, check_length
from lexbench.taskkit.scoring import score_likelihood


@dataclass(frozen=True)
class LongPpl(Task):
    """Score a corpus's key tokens (LongPPL, Fang et al. 2024, arXiv 2410.23771), the same ones at every length.

        document, length 8, stride 4; [key tokens]      a b c d e [f] g h  i [j] k [l] m n o [p]
        first window, of the full length                a b c d e [f] g h
        second window, ends at l                                e  f  g h  i [j] k [l]
        third window, ends at p                                            i  j  k  l  m n o [p]

    An evaluator model chooses the key tokens once, by how much the long context helps it, and `lexbench keys` writes
    them to a file (see `lexbench.parts.search.key_tokens`). The file holds characters, so models with any tokenizer are
    measured on the same key tokens.

    Windows have `length` tokens. A document's first window scores all key tokens in it. Every further window ends at a
    key token, and its key tokens spread over at most `stride` tokens, so each has at least length - stride tokens
    before it, or all of its document. Tokens between key tokens are read but not scored.

    Constant over lengths: documents and key tokens. The n documents are the first in the seed's order that have key
    tokens; intervals cluster by document. At the evaluator's own `longest` this is the paper's LongPPL (whose code uses
    BOS for the evaluator but not for the measured model); a shorter length shows what the model loses without the rest.

    Args:
        corpus: the one from which the key tokens were made.
        keys: file written by `lexbench keys`.
        document_tokens: leave out documents of which the evaluator read fewer tokens, with BOS, so that no length
            exceeds what the evaluator has read. None: the longest length of the run.
        stride: tokens over which the key tokens of a window may spread; None: a quarter of the length. Reduced if
            needed, so that no key token has less than the short context with which it was found.
    """

    corpus: Corpus
    keys: str | None = None
    document_tokens: int | None = None
    stride: int | None = None
    keys_hash: str | None = field(default=None, init=False)
    """Hash of the file; unlike its name, part of the identity."""

    def __post_init__(self) -> None:
        check_at_least("long_ppl", self, document_tokens=1, stride=1)
        if self.keys is not None:
            object.__setattr__(self, "keys_hash", key_tokens.read_key_tokens(self.keys).hash)

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose documents that are long enough for the longest length."""
        return self if self.document_tokens else replace(self, document_tokens=max(lengths))

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: key tokens, context, averaging, BOS."""
        return (
            f"LongPPL: the same key tokens at every length ({self._keys()}), in documents read to "
            f"{self.document_tokens} tokens or more; context: at least the length less "
            f"{self.stride or 'a quarter of it'}, or all of the document; {AVERAGING_NOTE}; {bos_policy(tokenizer)}; "
            "documents not joined"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Windows as if every stretch of n documents of the least size had key tokens: about so many."""
        found = self._key_tokens(tokenizer, length)
        beyond = (self.for_lengths([length]).document_tokens or length) - length
        return Outline(n * (1 + -(-beyond // self._spread(tokenizer, found, length))), length)

    def _key_tokens(self, tokenizer: Tokenizer, length: int) -> key_tokens.KeyTokens:
        """The file of key tokens; Refused where there is none, or the length does not fit it."""
        found = key_tokens.read_key_tokens(self.keys) if self.keys else None
        least = len(tokenizer.prefix) + 1 + (found.rule.short if found else 1)
        check_length("long_ppl", least, length)
        if found is None:
            raise Refused(
                f"long_ppl needs a file of key tokens, got none: {key_tokens.MAKE_FILE_REMEDY}, then give "
                "task.keys=FILE"
            )
        tokens = self.for_lengths([length]).document_tokens or 0
        if length > tokens:
            raise Refused(f"long_ppl reads documents of {tokens} tokens, asked for {length}: raise document_tokens")
        return found

    def _spread(self, tokenizer: Tokenizer, found: key_tokens.KeyTokens, length: int) -> int:
        """Tokens over which the key tokens of a window may spread: no key token loses the context that it needs."""
        return max(1, min(self.stride or length // 4, length - len(tokenizer.prefix) - found.rule.short))

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Every window with key tokens, of n documents."""
        found = self._key_tokens(tokenizer, length)
        if found.corpus != self.corpus.fingerprint():
            raise Refused(
                f"{self.keys} must hold key tokens of this corpus, got another one's: {key_tokens.MAKE_FILE_REMEDY}"
            )
        task, width = self.for_lengths([length]), length - len(tokenizer.prefix)
        texts = encoded_corpus(self.corpus, tokenizer)
        stride = self._spread(tokenizer, found, length)
        windows = [
            (document, end, own)
            for document, targets in task._documents(texts, found, n, seed)
            for end, own in _windows(targets, width, stride)
        ]
        return [_question(texts, index, width, *window) for index, window in enumerate(windows)]

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The NLL of the key tokens, without a number of words: key tokens are no running text."""
        sample, targets = score_likelihood(question, answer), np.asarray(question.facts["targets"])
        assert sample.nll is not None
        return replace(sample, nll=sample.nll[targets - targets[0]], words=None)

    def _keys(self) -> str:
        """The key tokens, for the protocol."""
        if self.keys is None:
            return "none given"
        found = key_tokens.read_key_tokens(self.keys)
        rule = found.rule
        return (
            f"keys {found.hash} by {found.evaluator}: gain > {rule.gain:g} nats over a context of {rule.short} of "
            f"{rule.longest} tokens, loss < {rule.loss:g}"
        )

    def _documents(
        self, texts: EncodedCorpus, found: key_tokens.KeyTokens, n: int, seed: int
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """The first n documents of which the evaluator read enough, each with its key tokens, in the seed's order."""
        need = (self.document_tokens or 0) - len(texts.prefix)
        chosen: list[tuple[int, NDArray[np.int64]]] = []
        most = 0
        # The order of a task without parameters: the same documents for every file, stride and length.
        for document in LongPpl(self.corpus).rng("documents", seed).permutation(len(texts)).tolist():
            name = texts.name(document)
            if len(chosen) == n or not len(found.spans.get(name, ())):
                continue
            read = int(np.searchsorted(texts[document].starts, found.ends[name]))
            most = max(most, read + len(texts.prefix))
            targets = key_tokens.tokens_within(texts[document], found.spans[name])
            targets = targets[targets > 0]  # without BOS, the first token has no context
            if read >= need and len(targets):
                chosen.append((document, targets))
        if len(chosen) < n:
            raise Refused(
                f"long_ppl needs {n} documents with key tokens of which the evaluator read {self.document_tokens} "
                f"tokens, {self.keys} has {len(chosen)} (of the longest it read {most}): lower n, or "
                "task.document_tokens and with it the longest length"
            )
        return chosen


def _windows(targets: NDArray[np.int64], width: int, stride: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(end, key tokens) of each window of `width` tokens plus BOS."""
    while len(targets):
        # The first window scores every key token in it, further ones those within a stride of their first.
        own = targets[targets < max(int(targets[0]) + stride, width)]
        yield max(int(own[-1]) + 1, width), own
        targets = targets[len(own) :]


def _question(
    texts: EncodedCorpus, index: int, width: int, document: int, end: int, targets: NDArray[np.int64]
) -> Loglikelihood:
    encoded = texts[document]
    question = Loglikelihood(
        index=index,
        cluster=texts.name(document),
        tokens=np.concatenate([texts.prefix, encoded.ids[end - width : end]]),
        first_target=len(texts.prefix) + int(targets[0]) - (end - width),
        bytes=sum(encoded.units(place, place + 1)[0] for place in targets.tolist()),
        words=0,
        facts={"document": texts.name(document), "targets": targets.tolist()},
    )
    return texts.with_floors(question, document, targets - targets[0])

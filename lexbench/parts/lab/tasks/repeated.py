"""Token accuracy over running text, a passage again and again or one long text (Su, kexue.fm/archives/9603)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from lexbench import Answer, AnyQuestion, ClassifyTokens, Outline, Sample, Tokenizer
from lexbench.taskkit.perplexity import DocumentTask, bos_policy, encoded_corpus
from lexbench.taskkit.prompt import check_at_least, check_length
from lexbench.taskkit.scoring import score_marks


@dataclass(frozen=True)
class Repeated(DocumentTask):
    """Name the next token of a passage that is repeated until the text is full, or of one long text.

        length 10 with BOS, passage 4        BOS a b c a b c a b c          repeat=true
                                             BOS a b c d e f g h i          repeat=false

    Jianlin Su's tables compare these two with the accuracy at the trained length (archives 9603 to 9859; there the
    passage is as long as the trained texts, and they are read at 8 times that). A model that reads all its context
    copies, so repeated text is easier than the passage alone; one that breaks beyond its length does worse on both.

    Both read the same documents at every length: those that are long enough for the longest one. Chance is 1 / tokens
    of the vocabulary. Without copying, the accuracy at the passage's own length is the one to beat. `seen` in a
    sample's facts is the share of places whose token stood one passage before.

    Scores: `accuracy`, the share of places where the right token is the likeliest of all, given the right tokens before
    it; `exact`, 1 if every place is right. An answer holds places times vocabulary numbers: hence `targets`.

    Args:
        corpus: of the documents.
        document_tokens: see `DocumentTask`.
        repeat: whether the passage is repeated.
        passage: its tokens, with BOS; None: the run's shortest length.
        targets: the last tokens that are asked; None: all but the first.
    """

    repeat: bool = True
    passage: int | None = None
    targets: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self._noun, self, passage=2, targets=1)

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose documents for the longest length, and a passage of the shortest."""
        return replace(super().for_lengths(lengths), passage=self.passage or min(lengths))

    def protocol(self, tokenizer: Tokenizer) -> str:
        """The protocol in words: what is read, which tokens count, how they are scored."""
        read = f"the first {self.passage} tokens again and again" if self.repeat else "its beginning"
        asked = "every token" if self.targets is None else f"the last {self.targets} tokens"
        return (
            f"token accuracy of documents of {self.document_tokens} tokens, {read} up to the length: {asked}, the "
            f"likeliest of the whole vocabulary; {bos_policy(tokenizer)}"
        )

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n texts of `length` tokens, one for each document."""
        self.for_lengths([length])._check(tokenizer, length)
        return Outline(n, length)

    def _check(self, tokenizer: Tokenizer, length: int) -> None:
        """Refused where a text of the length does not hold all targets."""
        least = max(1, len(tokenizer.prefix)) + (self.targets or 2)
        check_length("repeated", least, length, "raise length or lower targets")

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Questions, one for each document."""
        task = self.for_lengths([length])
        assert task.document_tokens is not None and task.passage is not None
        needed = max(task.document_tokens, task.passage) if self.repeat else max(task.document_tokens, length)
        self._check(tokenizer, length)
        texts, options = encoded_corpus(self.corpus, tokenizer), np.arange(tokenizer.vocabulary)
        found, prefix = [], texts.prefix
        for index, document in enumerate(self._long_documents(texts, needed, n, seed)):
            passage = texts[document].ids[: task.passage - len(prefix)] if self.repeat else texts[document].ids
            # np.resize repeats the passage up to the length, or cuts a longer text.
            tokens = np.concatenate([prefix, np.resize(passage, length - len(prefix))])
            first = max(1, len(prefix), length - (self.targets or length))
            # Targets behind the first copy can be looked up; the others must be known.
            seen = max(0, length - max(first, len(prefix) + len(passage)))
            question = ClassifyTokens(
                index=index,
                cluster=texts.name(document),
                tokens=tokens,
                places=np.arange(first, length),
                options=options,
                facts={"document": texts.name(document), "seen": seen / (length - first)},
            )
            found.append(question)
        return found

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Accuracy over the places."""
        return score_marks(question, answer)

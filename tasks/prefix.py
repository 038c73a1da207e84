"""Prefix perplexity: one pass over the first tokens of a document."""

from dataclasses import dataclass

from lexbench import Tokenizer
from lexbench.taskkit.perplexity import AVERAGING, DocumentTask, bos_policy


@dataclass(frozen=True)
class Prefix(DocumentTask):
    """The first `length` tokens of a document in one pass, every one a target with all tokens before it.

    The number is a mean over everything from nothing to length - 1 tokens before a target, and its targets grow with
    the length: a collapse beyond the trained length is diluted by what was scored inside it (compare `last_segment`).
    This is what one gets by cutting documents to a maximal length, as evaluations of YaRN (arXiv 2309.00071) do when
    their window is the whole of the text.

        length 6 with BOS      BOS a b c d e
        targets                    a b c d e

    Args:
        corpus: where the documents come from.
        document_tokens: see `DocumentTask`; here it only keeps the documents the same at every length.
    """

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: what is read, targets, averaging, BOS."""
        return (
            "prefix: one window, a document's first tokens, all targets: they grow with length; "
            f"documents have at least {self.document_tokens} tokens; {AVERAGING}; {bos_policy(tokenizer)}; not joined"
        )

    def windows(self, document_tokens: int, length: int, has_bos: bool) -> list[tuple[int, int, int]]:
        """One."""
        return [(0, 0 if has_bos else 1, length - has_bos)]

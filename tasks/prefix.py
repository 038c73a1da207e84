"""Prefix perplexity: score the first tokens of a document in one pass."""

from dataclasses import dataclass

from lexbench import Tokenizer
from lexbench.taskkit.perplexity import AVERAGING_NOTE, DocumentTask, bos_policy


@dataclass(frozen=True)
class Prefix(DocumentTask):
    """Score the first `length` tokens of a document in one pass, each given all tokens before it.

        length 6 with BOS      BOS a b c d e
        targets                    a b c d e

    The number is a mean over contexts of 0 to length - 1 tokens, and the set of targets grows with the length: targets
    inside the trained length dilute a collapse beyond it (compare `last_segment`). Cutting documents to a maximal
    length gives this number, e.g. evaluations of YaRN (arXiv 2309.00071) whose window is the whole text.

    Args:
        corpus: of the documents.
        document_tokens: see `DocumentTask`; here it only keeps the documents the same at every length.
    """

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Window, targets, averaging, BOS."""
        return (
            "prefix: one window, a document's first tokens, all targets: they grow with length; "
            f"documents have at least {self.document_tokens} tokens; {AVERAGING_NOTE}; {bos_policy(tokenizer)}; not "
            "joined"
        )

    def windows(self, document_tokens: int, length: int, prefix: int) -> list[tuple[int, int, int]]:
        """One window from the beginning of the document to the length."""
        return [(0, 0 if prefix else 1, length - prefix)]

"""Non-overlapping perplexity: cut a document into disjoint windows."""

from dataclasses import dataclass

from lexbench import Tokenizer
from lexbench.taskkit.perplexity import AVERAGING_NOTE, DocumentTask, bos_policy


@dataclass(frozen=True)
class NonOverlapping(DocumentTask):
    """Score disjoint windows of `length` tokens separately (Press, Smith and Lewis, Shortformer, arXiv 2012.15832).

        length 4 with BOS, eight tokens          BOS a b c  |  BOS d e f  |  BOS g h
        length 4 without BOS                         a b c d  |  d e f g  |  g h          (the first of each: no target)

    The cheapest protocol, with the shortest contexts: half a window on average. A longer window lowers this number even
    if the model predicts no better at any position (the early token curse, same paper). A document's last window has
    the tokens that are left.

    Args:
        corpus: of the documents.
        document_tokens: see `DocumentTask`.
    """

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Windows, targets, averaging, BOS."""
        return (
            f"non-overlapping: window = length, disjoint, targets: each token once of the first {self.document_tokens} "
            f"of a document; {AVERAGING_NOTE}; {bos_policy(tokenizer)}; documents not joined"
        )

    def windows(self, document_tokens: int, length: int, prefix: int) -> list[tuple[int, int, int]]:
        """Disjoint targets; each window begins with BOS, or with the token before its targets."""
        given, width = 0 if prefix else 1, length - max(1, prefix)
        firsts = range(given, document_tokens, width)
        return [(first - given, first, min(first + width, document_tokens)) for first in firsts]

"""Non-overlapping perplexity: a document cut into disjoint windows."""

from dataclasses import dataclass

from lexbench import Tokenizer
from lexbench.taskkit.perplexity import AVERAGING, DocumentTask, bos_policy


@dataclass(frozen=True)
class NonOverlapping(DocumentTask):
    """Disjoint windows of `length` tokens, each alone (Press, Smith and Lewis, Shortformer, arXiv 2012.15832).

    The cheapest protocol, and the one with the least before its targets: half a window on average. A longer window
    lowers this number also where the model does no better at any one position (the early token curse, same paper).

        length 4 with BOS, eight tokens          BOS a b c  |  BOS d e f  |  BOS g h
        length 4 without BOS                         a b c d  |  d e f g  |  g h          (the first of each: no target)

    A document's last window is as short as what is left.

    Args:
        corpus: where the documents come from.
        document_tokens: see `DocumentTask`.
    """

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: windows, targets, averaging, BOS."""
        return (
            f"non-overlapping: window = length, disjoint, targets: each token once of the first {self.document_tokens} "
            f"of a document; {AVERAGING}; {bos_policy(tokenizer)}; documents not joined"
        )

    def windows(self, document_tokens: int, length: int, has_bos: bool) -> list[tuple[int, int, int]]:
        """Each begins with BOS, or with the token before its targets."""
        given = 0 if has_bos else 1
        firsts = range(given, document_tokens, length - 1)
        return [(first - given, first, min(first + length - 1, document_tokens)) for first in firsts]

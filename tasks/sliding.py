"""Sliding-window perplexity: score every token of a document once, in overlapping windows."""

from dataclasses import dataclass

from lexbench import Refused, Tokenizer
from lexbench.taskkit.perplexity import AVERAGING_NOTE, DocumentTask, bos_policy
from lexbench.taskkit.prompt import check_at_least


@dataclass(frozen=True)
class Sliding(DocumentTask):
    """Move a window of `length` tokens by `stride`; each window scores the tokens that no earlier window scored.

        length 6 with BOS, stride 2, nine tokens       BOS a b c d e  |  BOS c d e f g  |  BOS e f g h i
        targets                                            a b c d e               f g               h i

    This is the evaluation of Press, Smith and Lewis (Shortformer, arXiv 2012.15832; ALiBi, arXiv 2108.12409, appendix
    B) with any stride; position interpolation (arXiv 2306.15595) uses 256. A target has length - stride to length - 1
    tokens before it, with BOS; in a document's first window it has all tokens before it. The last window ends with the
    document and is as long as the others.

    Args:
        corpus: of the documents.
        document_tokens: see `DocumentTask`.
        stride: tokens between the starts of two windows; None: a quarter of the length, rounded down.
    """

    stride: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sliding", self, stride=1)

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Windows, stride, targets, averaging, BOS."""
        stride = self.stride or "a quarter of it"
        return (
            f"sliding: window = length, stride {stride}, targets: each token once of the first {self.document_tokens} "
            f"of a document; {AVERAGING_NOTE}; {bos_policy(tokenizer)}; documents not joined"
        )

    def windows(self, document_tokens: int, length: int, prefix: int) -> list[tuple[int, int, int]]:
        """Windows of one width; the first scores all its tokens that have a token before them."""
        stride = self.stride or max(1, length // 4)
        least = stride + max(1, prefix)
        if length < least:
            raise Refused(f"sliding by {stride} needs at least {least} tokens, asked for {length}: lower stride")
        width = length - prefix
        # The last window ends with the document, so it may score fewer than `stride` tokens.
        ends = [*range(width, document_tokens, stride), document_tokens]
        firsts = [0 if prefix else 1, *ends[:-1]]
        return [(end - width, first, end) for first, end in zip(firsts, ends, strict=True)]

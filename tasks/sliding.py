"""Sliding-window perplexity: every token of a document once, in overlapping windows."""

from dataclasses import dataclass

from lexbench import Refused, Tokenizer
from lexbench.taskkit.perplexity import AVERAGING, DocumentTask, bos_policy


@dataclass(frozen=True)
class Sliding(DocumentTask):
    """Windows of `length` tokens that move by `stride`; each scores the tokens that no window before it has scored.

    The evaluation of Press, Smith and Lewis (Shortformer, arXiv 2012.15832; ALiBi, arXiv 2108.12409, appendix B) with
    a stride that need not be 1; position interpolation (arXiv 2306.15595) takes 256. A target has
    between length - stride and length - 1 tokens before it, BOS counted, but for those of a document's first window,
    which have what there is. The last window ends where the document ends, and is as long as the others:

        length 6 with BOS, stride 2, nine tokens       BOS a b c d e  |  BOS c d e f g  |  BOS e f g h i
        targets                                            a b c d e               f g               h i

    Args:
        corpus: where the documents come from.
        document_tokens: see `DocumentTask`.
        stride: tokens by which windows move; None: a quarter of the length, rounded down.
    """

    stride: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"sliding's stride must be at least 1, got {self.stride}")

    def protocol(self, tokenizer: Tokenizer) -> str:
        """One line: windows, stride, targets, averaging, BOS."""
        stride = self.stride or "a quarter of it"
        return (
            f"sliding: window = length, stride {stride}, targets: each token once of the first {self.document_tokens} "
            f"of a document; {AVERAGING}; {bos_policy(tokenizer)}; documents not joined"
        )

    def windows(self, document_tokens: int, length: int, has_bos: bool) -> list[tuple[int, int, int]]:
        """All of one width; the first scores all that it can."""
        stride = self.stride or max(1, length // 4)
        if stride >= length:
            raise Refused(f"sliding by {stride} needs at least {stride + 1} tokens, asked for {length}: lower stride")
        width = length - has_bos
        ends = [*range(width, document_tokens, stride), document_tokens]
        firsts = [0 if has_bos else 1, *ends[:-1]]
        return [(end - width, first, end) for first, end in zip(firsts, ends, strict=True)]

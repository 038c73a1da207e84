"""Offset: the same short text at positions up to a million, to see what angles and their precision do there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from lexbench import AnyQuestion, Attention, Outline, Refused, Shift, Tokenizer
from lexbench.taskkit.perplexity import AVERAGING_NOTE, DocumentTask, bos_policy
from lexbench.taskkit.prompt import check_length


@dataclass(frozen=True)
class Offset(DocumentTask):
    """Score one passage whose last token stands at position length - 1, however long the passage is.

        length 2,048        positions         0 ...     2,047: an ordinary text
        length 131,072      positions   129,024 ...   131,071: the same tokens
        length 1,048,576    positions 1,046,528 ... 1,048,575: the same tokens

    The idea is that of unsloth's PR 7028, one passage at several positions. RoPE knows distances only, so in exact
    arithmetic the NLL is the same at every offset, and a wrong base does not show. A difference is one of precision
    (angles or tables in half precision). It costs the passage's tokens alone, and says nothing of attention over a long
    text: no key is far away. A method of the length (yarn, ...) is set for it, so the task also shows what the method
    costs on short text. A model whose own angles follow the length is refused on hf.

    `length` counts positions; the passage has the tokens of the run's shortest length, which thus has offset 0 and is
    the control. The second half of the passage is scored, given the first. The offset is the slot `remap` of the
    Attention, `Shift`. hf rotates queries and keys by the model's own module at their positions plus the offset, in its
    precision: lexlet's float32 angles move single tokens by up to 0.02 nats at a million positions and 0.4 at ten
    million. native rotates by angles of float64, the exact number beside it. Masks and scales of queries count tokens
    of the text as before. vllm and servers count positions from 0 and refuse; a method with a remap of its own cannot
    be combined.

    Args:
        corpus: of the documents.
        document_tokens: tokens of the passage, the first ones of a document, with BOS; None: the run's shortest length.
    """

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Choose passages of the shortest length."""
        return self if self.document_tokens else replace(self, document_tokens=min(lengths))

    def attention(self, length: int) -> Attention:
        """Positions that end at length - 1."""
        offset = length - (self.document_tokens or length)
        return Attention(remap=Shift(offset)) if offset > 0 else Attention()

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Protocol in words: passage, positions, targets, averaging, BOS."""
        return (
            f"offset: the same {self.document_tokens} tokens, their positions end at the length; targets: the second "
            f"half of them at every length; {AVERAGING_NOTE}; {bos_policy(tokenizer)}"
        )

    def windows(self, document_tokens: int, length: int, prefix: int) -> list[tuple[int, int, int]]:
        """The whole passage, its second half the targets."""
        return [(0, max(1 - prefix, document_tokens // 2), document_tokens)]

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of n passages, one for each document."""
        return super().outline(tokenizer, self._passage(length), n, seed)

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Questions on passages that are the same at every length."""
        return super().questions(tokenizer, self._passage(length), n, seed)

    def _passage(self, length: int) -> int:
        """Tokens of the passage; Refused where it is longer than the length."""
        tokens = self.document_tokens or length
        check_length("offset", tokens, length, "raise length or lower document_tokens")
        if length > MAX_POSITIONS:
            raise Refused(
                f"offset has positions up to {MAX_POSITIONS:,}, where float32 counts them: asked for {length:,}"
            )
        return tokens


MAX_POSITIONS = 1 << 24
"""Integers beyond are not exact in float32, in which rotary modules take positions."""

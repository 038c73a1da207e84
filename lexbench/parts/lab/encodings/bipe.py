"""BiPE: bilevel positional encoding (He et al. 2024, arXiv 2401.16421)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokenizer
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper, replace_texts_by_ids

SEPARATORS_REMEDY = "give encoding.separators token ids, or texts such as ['.', '\\n']"


class Bipe(EncodingWrapper):
    """Two positions: a learned vector for the place in the segment, another encoding for the number of the segment.

        segment(n) = separators before n,   place(n) = n - first token of its segment
        x_n = embedding(n) + table[min(place(n), size - 1)]
        position of n in the inner encoding = spread * segment(n)

    A separator ends its segment. In the authors' code separators are the tokens of a full stop and of a line end in
    Llama's vocabulary, so that a model depends on its tokenizer. Here they may also be texts: every token that contains
    one of them is a separator. Over ALiBi the authors multiply the slopes by 96, which is the same as 96 times the
    distance. Within a segment, the inner encoding sees distance 0. Their `log_scale` is the method `log_n`.

    Positions depend on the text, so methods cannot remap the distance between tokens; they may change frequencies.

    Args:
        over: rope or alibi.
        width: of the network.
        separators: token ids, or texts, which become the ids of the tokenizer's tokens that contain them.
        size: rows of the table; tokens further into a segment share the last row. 1024 in the authors' code.
        spread: factor on segment numbers; None: 96 where the inner encoding adds a bias, else 1.
        deviation: of the initial token embeddings, and so of the table; a training states its own.
    """

    excludes = frozenset({"decay", "embed", "layer_input", "gates", "positions", "rescore"})

    remaps = False
    marks: Tensor

    def __init__(
        self,
        over: Encoding,
        width: int,
        separators: Sequence[int | str] | None = None,
        size: int = 1024,
        spread: float | None = None,
        deviation: float = WEIGHT_DEVIATION,
    ) -> None:
        super().__init__(over)
        if not separators or any(isinstance(mark, str) for mark in separators):
            given = list(separators) if separators else "none"
            raise ConfigError(f"bipe needs separators as token ids, got {given}: {SEPARATORS_REMEDY} and a tokenizer")
        if size < 1:
            raise ConfigError(f"bipe's size must be at least 1, got {size}: the authors take 1024")
        first = torch.zeros(1, dtype=torch.float64)
        biased = over.bias(first, first) is not None
        self.spread = (96.0 if biased else 1.0) if spread is None else float(spread)
        if not self.spread > 0:
            raise ConfigError(f"bipe's spread must be above 0, got {spread}: leave it out for 96 over alibi, else 1")
        self.register_buffer("marks", torch.tensor([int(mark) for mark in separators]), persistent=False)
        self.table, self.deviation = nn.Parameter(torch.zeros(size, width)), deviation

    @classmethod
    def resolve_texts(cls, parameters: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
        """Replace texts among the separators by the ids of all tokens that contain one of them."""
        lack = f"bipe finds no token that contains one of {{}}: {SEPARATORS_REMEDY}"
        return replace_texts_by_ids(parameters, "separators", tokenizer, lambda said, text: text in said, lack)

    def initialise(self, generator: Generator) -> None:
        """Draw the table like token embeddings: normal, of their deviation."""
        super().initialise(generator)
        self.table.data = torch.randn(self.table.shape, generator=generator).to(self.table) * self.deviation

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """[B, T] positions: segment numbers times the spread."""
        return self._segment_numbers(tokens).to(torch.float64) * self.spread

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] token embeddings plus the vectors of their places in segments."""
        embedded = self.over.embed(embedded, tokens, positions)
        place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        begins = torch.ones_like(tokens, dtype=torch.bool)
        begins[:, 1:] = torch.isin(tokens[:, :-1], self.marks)
        # A token's segment begins at the last beginning up to the token, the largest so far.
        inside = place - torch.where(begins, place, 0).cummax(1).values
        return embedded + self.table[inside.clamp_max(len(self.table) - 1)].to(embedded.dtype)

    def _segment_numbers(self, tokens: Tensor) -> Tensor:
        # A sum without the token itself: a separator belongs to the segment that it ends.
        ends = torch.isin(tokens, self.marks).long()
        return ends.cumsum(1) - ends

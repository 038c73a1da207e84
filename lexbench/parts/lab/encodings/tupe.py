"""TUPE: positions untied from words (Ke, He and Liu 2021, arXiv 2006.15595)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, table_rows
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class Tupe(EncodingWrapper):
    """Learned absolute positions have queries and keys of their own, and meet one another alone, not the words.

        logit(i, j) = q_i . k_j / sqrt(2 d) + (p_i U_Q) . (p_j U_K) / sqrt(2 d) + b(i - j)

    The second term is the same in all layers. Without the last it is TUPE-A (eq. 10), over t5 TUPE-R (eq. 11). Its rule
    for pairs with the token [CLS] is left out: a decoder has none. Longer texts than the table are refused.

    Args:
        over: an encoding that adds a bias or nothing: nope or t5.
        head_dim: d, dimensions of a head.
        heads: H, query heads; each has its own U_Q and U_K.
        width: of p.
        trained_length: tokens.
        size: rows of the table, tokens; None: trained_length.
    """

    excludes = frozenset({"decay", "embed", "mix", "positions", "products", "rescore", "rotate"})
    counts = True

    def __init__(
        self, over: Encoding, head_dim: int, heads: int, width: int, trained_length: int, size: int | None = None
    ) -> None:
        super().__init__(over)
        size = trained_length if size is None else size
        if size < trained_length:
            raise ConfigError(
                f"tupe needs a row for each of {trained_length} trained tokens, got size {size}: raise it"
            )
        self.table, self.head_dim = nn.Parameter(torch.zeros(size, width)), head_dim
        self.to_queries = nn.Parameter(torch.zeros(heads, width, head_dim))
        self.to_keys = nn.Parameter(torch.zeros(heads, width, head_dim))

    @property
    def longest(self) -> int:
        """Rows of the table."""
        return len(self.table)

    def initialise(self, generator: Generator) -> None:
        """Draw projections like the decoder's weights, positions with deviation 1, the size of a normed input."""
        self.over.initialise(generator)
        nn.init.normal_(self.table, generator=generator)
        for weight in (self.to_queries, self.to_keys):
            nn.init.normal_(weight, std=WEIGHT_DEVIATION, generator=generator)

    def scaling(self, head_dim: int) -> float:
        """Factor 1 / sqrt(2 d) on the logits, as two products are added."""
        return self.over.scaling(head_dim) / float(2**0.5)

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[H, Q, K], or [B, H, Q, K] where positions have a batch axis; ConfigError beyond the table's end."""
        rows = table_rows(key_positions, self.name)
        if rows.numel() and (last := int(rows.max())) >= self.longest:
            raise ConfigError(f"tupe has positions for {self.longest} tokens, asked for {last + 1}: raise size")
        asking = self.table[table_rows(query_positions, self.name)][..., None, :, :] @ self.to_queries
        known = self.table[rows][..., None, :, :] @ self.to_keys
        own = asking @ known.mT * self.scaling(self.head_dim)
        inner = self.over.bias(query_positions, key_positions)
        return own if inner is None else own + inner.to(own.dtype)

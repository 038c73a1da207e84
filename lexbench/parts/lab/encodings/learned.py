"""Learned absolute positions, as in GPT-2 (Radford et al. 2019) and BERT (Devlin et al. 2018, arXiv 1810.04805)."""

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, table_rows


class Learned(Encoding):
    """Add row n of a learned table to the token embedding at position n, once, before the first layer.

        stream(n) = embedding(n) + E[n],  E[n] ~ Normal(0, deviation^2) at first

    Texts longer than the table are refused, never clamped to its last row. Rows that training does not reach stay
    random: choose a larger size only inside `shape` or `randomized`, which reach them. Training on T tokens uses T - 1
    positions, so only probes use the last row.

    Args:
        width: of the embedding.
        trained_length: tokens.
        size: rows of the table, tokens; None: trained_length.
        deviation: of the initial token embeddings, and so of the table, as in GPT-2; a training states its own.
    """

    counts = True

    def __init__(
        self, width: int, trained_length: int, size: int | None = None, deviation: float = WEIGHT_DEVIATION
    ) -> None:
        super().__init__()
        size = trained_length if size is None else size
        if size < trained_length:
            raise ConfigError(
                f"learned needs a row for each of {trained_length} trained tokens, got size {size}: raise it"
            )
        self.table, self.deviation = nn.Parameter(torch.zeros(size, width)), deviation

    @property
    def longest(self) -> int:
        """Rows of the table."""
        return len(self.table)

    def initialise(self, generator: Generator) -> None:
        """Draw the table with the deviation of token embeddings."""
        nn.init.normal_(self.table, std=self.deviation, generator=generator)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width]; ConfigError beyond the table's end."""
        index = table_rows(positions, self.name)
        if index.numel() and (last := int(index.max())) >= self.longest:
            raise ConfigError(f"learned has positions for {self.longest} tokens, asked for {last + 1}: raise size")
        return embedded + self.table[index].to(embedded.dtype)

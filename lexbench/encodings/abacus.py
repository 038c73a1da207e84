"""Abacus embeddings: the place of a digit in its number (McLeish et al. 2024, arXiv 2405.17399)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from lexbench.core.task import Tokenizer
from lexbench.encodings.base import DEVIATION, Encoding
from lexbench.encodings.wrappers import Over

REMEDY = "give encoding.digits token ids, or texts such as ['0', '1']"


class Abacus(Over):
    """A learned vector for each digit's place in its number is added to the token embedding.

        x_n = embedding(n) + table[place(n) + delta],   place 0 for the first digit of a number, 1 for the next, ..
        delta ~ U{0 .. offsets - 1} in training, one for each batch; 0 at use;  nothing is added to other tokens

    A number is a run of digit tokens. Places count from its beginning, the only direction that a causal model knows; in
    the paper numbers are written with the last digit first, so that a place is a power of ten. Offsets train rows of
    the table that longer numbers need.

    Args:
        over: the encoding of everything else; the paper takes none, rope or fire.
        width: of the network.
        digits: token ids, or texts, which become the ids of the tokens that are one of them, white space aside.
        size: rows of the table.
        offsets: number of values of delta; 100 in the paper.
        deviation: of the initial token embeddings, and so of the table; a training states its own.
    """

    def __init__(
        self,
        over: Encoding,
        width: int,
        digits: Sequence[int | str] | None = None,
        size: int = 1024,
        offsets: int = 100,
        deviation: float = DEVIATION,
    ) -> None:
        super().__init__(over)
        if not digits or any(isinstance(digit, str) for digit in digits):
            given = list(digits) if digits else "none"
            raise ValueError(f"abacus needs digits as token ids, got {given}: {REMEDY} and a tokenizer")
        if not 1 <= offsets <= size:
            raise ValueError(f"abacus offsets must be from 1 to its size {size}, got {offsets}: the paper takes 100")
        self.register_buffer("digits", torch.tensor([int(digit) for digit in digits]), persistent=False)
        self.table, self.deviation = nn.Parameter(torch.zeros(size, width)), deviation
        self.offsets, self._offset = offsets, torch.zeros((), dtype=torch.long)

    @classmethod
    def settled(cls, parameters: Mapping[str, Any], tokenizer: Tokenizer) -> Mapping[str, Any]:
        """Replace texts among the digits by the ids of all tokens that are one of them."""
        given = parameters.get("digits") or ()
        texts = {digit for digit in given if isinstance(digit, str)}
        if not texts:
            return parameters
        found = {token for token in range(tokenizer.vocabulary) if tokenizer.decode([token]).strip() in texts}
        if not found:
            raise ValueError(f"abacus finds no token that is one of {sorted(texts)}: {REMEDY}")
        return {**parameters, "digits": sorted(found | {int(digit) for digit in given if digit not in texts})}

    def initialise(self, generator: Generator) -> None:
        """Draw the table like token embeddings."""
        self.over.initialise(generator)
        nn.init.normal_(self.table, std=self.deviation, generator=generator)

    def positions(self, tokens: Tensor, length: int, generator: Generator | None = None) -> Tensor:
        """Those of the inner encoding; draws delta until the next call."""
        self._offset = torch.zeros((), dtype=torch.long)
        if generator is not None:
            self._offset = torch.randint(
                self.offsets, self._sharing(tokens), generator=generator, device=generator.device
            )
        return self.over.positions(tokens, length, generator)

    def _sharing(self, tokens: Tensor) -> tuple[int, ...]:
        """Shape of delta."""
        return ()

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] token embeddings plus the vectors of places; ValueError for a number beyond the table."""
        place, marked = self._places(tokens)
        place = place + self._offset.to(place.device)
        if bool((longest := (place * marked).max()) >= len(self.table)):
            raise ValueError(f"{self.name} has {len(self.table)} places, a number needs {int(longest) + 1}: raise size")
        added = self.table[place.clamp(0, len(self.table) - 1)] * marked[..., None]
        return self.over.embed(embedded, tokens, positions) + added.to(embedded.dtype)

    def _places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] places in numbers, and which tokens have one."""
        digits = torch.isin(tokens, self.get_buffer("digits"))
        index = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        # The last other token before a digit is the largest so far.
        return index - torch.where(digits, -1, index).cummax(1).values - 1, digits

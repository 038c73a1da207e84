"""PoSE: positional skip-wise training of a RoPE model (Zhu et al. 2024, arXiv 2309.10400)."""

import torch
from torch import Generator, Tensor

from lexbench.encodings.base import Encoding, Rotary
from lexbench.encodings.wrappers import Drawn


class Pose(Drawn):
    """In training, each text of T tokens is two chunks, the second of which stands further on; plain at use.

        n' = n where n < c, else n + u;  c ~ U{1 .. floor((T + 1) / 2)},  u ~ U{0 .. reach - T}, for each text

    So distances up to `reach` are trained with texts of trained_length, usually fine-tuning a trained model together
    with frequencies that are stretched to `reach` (method pi, ntk or yarn). Lengths and shifts are those of the
    released code, whose present version leaves the first chunk at 0, where the paper shifts both; it also takes the
    second chunk's words from a random later place of the document, which is left out: tokens here are those that
    every encoding is trained on.

    Args:
        over: an encoding that turns queries and keys: rope and its kin.
        trained_length: tokens.
        reach: tokens; None: 8 times trained_length.
    """

    reach: int

    def __init__(self, over: Encoding, trained_length: int, reach: int | None = None) -> None:
        super().__init__(over)
        if not (isinstance(over, Rotary) or over.remaps):
            raise ValueError(f"pose needs an encoding that rotates, {over.name} does not: over=rope")
        self.reach = 8 * trained_length if reach is None else reach
        if self.reach < trained_length:
            raise ValueError(f"pose needs reach of {trained_length} trained tokens at least, got {reach}: raise it")

    def drawn(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T]."""
        texts, count = tokens.shape
        if count > self.reach:
            raise ValueError(f"pose reaches {self.reach} tokens, a text has {count}: raise reach")
        cut = torch.randint(1, (count + 1) // 2 + 1, (texts, 1), generator=generator, device=generator.device)
        skip = torch.randint(self.reach - count + 1, (texts, 1), generator=generator, device=generator.device)
        later = torch.arange(count, device=plain.device) >= cut.to(plain.device)
        return plain + later * skip.to(plain)

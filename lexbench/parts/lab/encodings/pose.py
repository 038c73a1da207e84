"""PoSE: positional skip-wise training of a RoPE model (Zhu et al. 2024, arXiv 2309.10400)."""

import torch
from torch import Generator, Tensor

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, RotaryEncoding
from lexbench.parts.lab.encodings.wrappers import RandomPositions


class Pose(RandomPositions):
    """In training, each text of T tokens is cut in two, and the second part skips ahead; plain at use.

        n' = n where n < c, else n + u;  c ~ U{1 .. floor((T + 1) / 2)},  u ~ U{0 .. reach - T}, for each text

    So texts of trained_length train distances up to `reach`. Usually it fine-tunes a trained model whose frequencies
    are stretched to `reach` (method pi, ntk or yarn). These are eq. 4 with two parts and u_0 = 0, and the cuts of the
    released code. By eq. 5 the text of the second part begins v_1 ~ U{0 .. document - T} tokens later than its own
    place; here v_1 = 0, genuinely continuous text, so that every encoding is trained on the same tokens. The paper
    compares both, and v_1 = u_1, and finds little difference (appendix A, table 4).

    Args:
        over: an encoding that rotates queries and keys: rope and its variants.
        trained_length: tokens.
        reach: tokens; None: 8 times trained_length.
    """

    reach: int

    def __init__(self, over: Encoding, trained_length: int, reach: int | None = None) -> None:
        super().__init__(over)
        if not (isinstance(over, RotaryEncoding) or over.remaps):
            raise ConfigError(f"pose needs an encoding that rotates, {over.name} does not: over=rope")
        self.reach = 8 * trained_length if reach is None else reach
        if self.reach < trained_length:
            raise ConfigError(f"pose needs a reach of at least {trained_length} trained tokens, got {reach}: raise it")

    def draw_positions(self, plain: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
        """[B, T] plain positions, plus the skip from the cut on."""
        texts, count = tokens.shape
        if count > self.reach:
            raise ConfigError(f"pose reaches {self.reach} tokens, a text has {count}: raise reach")
        # As the released code: at least half of the tokens skip.
        cut = torch.randint(1, (count + 1) // 2 + 1, (texts, 1), generator=generator, device=generator.device)
        # The last token then stands at reach - 1 at most.
        skip = torch.randint(self.reach - count + 1, (texts, 1), generator=generator, device=generator.device)
        later = torch.arange(count, device=plain.device) >= cut.to(plain.device)
        return plain + later * skip.to(plain)

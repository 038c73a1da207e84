"""Update a decoder with AdamW on rows of tokens, in pieces; in bfloat16 on a GPU."""

import os
import shutil
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention
from lexbench.encodings.base import Encoding
from lexbench.native import attend
from lexbench.native.decoder import Decoder
from lexbench.native.recipe import Recipe

COMPILERS = ("c++", "g++", "clang++")


class Learner:
    """A decoder on its device, and its optimizer.

    Weight decay acts on matrices, not on vectors and the encoding's weights: slopes and biases need not be near 0.

    Args:
        decoder: with its initial weights.
        recipe: with sizes and trained length.
        method: frequencies for fine-tuning; None: the encoding's.

    Raises:
        ValueError: recipe.compile is set, and there is no compiler.
    """

    def __init__(self, decoder: Decoder, recipe: Recipe, method: Attention | None = None) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.half = self.device.type == "cuda"
        self.decoder, self.recipe, self.method = decoder.to(self.device).train(), recipe, method
        weights = [(name, weight) for name, weight in decoder.named_parameters() if weight.requires_grad]
        decays = [weight.dim() == 2 and not name.startswith("encoding.") for name, weight in weights]
        groups = [
            {
                "params": [weight for (_, weight), decay in zip(weights, decays, strict=True) if decay is wanted],
                "weight_decay": recipe.decay if wanted else 0.0,
            }
            for wanted in (True, False)
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
        self._forward: Callable[..., Tensor] = compiled(decoder) if recipe.compile else decoder

    def step(self, rows: Tensor, step: int) -> list[float]:
        """Update the weights on [B, T] rows; the mean loss of each row before the update, in nats.

        Positions are drawn for all rows together, from (seed, step), so pieces and resumed trainings get the same ones.
        """
        rows = rows.to(self.device)
        losses = self.gradient(rows, step)
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return [float(loss) for loss in losses.mean(1).tolist()]

    def gradient(self, rows: Tensor, step: int) -> Tensor:
        """[B, T - 1] losses of [B, T] rows; adds the gradient of their mean to the weights."""
        found, first = [], 0
        for piece in rows.tensor_split(self.recipe.accumulate):
            positions = self._positions(rows[:, :-1], step)  # for each piece: an encoding may keep results of them
            mine = positions if positions.dim() == 1 else positions[first : first + len(piece)]
            losses = self.losses(piece, mine)
            # Pieces may differ by a row: with these weights, the gradients add up to that of the whole batch.
            (losses.mean() * (len(piece) / len(rows))).backward()  # type: ignore[no-untyped-call]
            found.append(losses.detach())
            first += len(piece)
        return torch.cat(found)

    def _positions(self, tokens: Tensor, step: int) -> Tensor:
        """[T] or [B, T] positions, drawn on the CPU, so that every device has the same."""
        seed = int(
            np.random.SeedSequence([self.recipe.seed, step]).generate_state(1)[0]
        )  # torch uses 32 bits of a seed
        generator = torch.Generator().manual_seed(seed)
        return self.decoder.encoding.positions(tokens, tokens.shape[1], generator).to(self.device)

    def losses(self, rows: Tensor, positions: Tensor | None = None) -> Tensor:
        """[B, T - 1] losses of [B, T] rows in nats; positions None: those at use. bfloat16 would be slower on a CPU."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            logits = self._forward(rows[:, :-1], self._attend, positions=positions)
        return F.cross_entropy(logits.float().transpose(1, 2), rows[:, 1:], reduction="none")

    def _attend(self, layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        rotate = None if self.method is None else encoding.rotating(self.method)
        settled = attend.Layer(encoding, encoding.attention, q, k, positions, rotate)
        with torch.autocast(q.device.type, enabled=False):  # scores outside the fused kernel stay in float32
            return settled.attended(v)

    @torch.no_grad()
    def held_out(self, rows: Tensor) -> float:
        """Mean loss of held-out rows, in nats."""
        self.decoder.eval()
        pieces = [self.losses(piece).flatten() for piece in rows.to(self.device).tensor_split(self.recipe.accumulate)]
        self.decoder.train()
        return float(torch.cat(pieces).mean())


def compiled(decoder: Decoder) -> Callable[..., Tensor]:
    """The decoder under torch.compile, which runs at the first call; ValueError on a CPU without a C++ compiler."""
    if not torch.cuda.is_available() and not os.environ.get("CXX") and not any(map(shutil.which, COMPILERS)):
        raise ValueError(
            f"recipe.compile needs a C++ compiler ({', '.join(COMPILERS)}), none is installed: set it to false"
        )
    return torch.compile(decoder)

"""Update a decoder with AdamW, or with Muon and AdamW, on rows of tokens, in pieces."""

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.kernels.halves import half_matmul_is_slow
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.native import attend
from lexbench.parts.lab.native.decoder import Decoder
from lexbench.parts.lab.native.lessons import COPYING_LESSONS
from lexbench.parts.lab.native.muon import Muon
from lexbench.parts.lab.native.recipe import Recipe

CPP_COMPILERS = ("c++", "g++", "clang++")


class Optimizers:
    """Several optimizers as one, for a checkpoint and for the learning rate.

    Args:
        optimizers: with their peak learning rates.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        # The optimizers' own rates are overwritten at each step.
        self._peaks = [group["lr"] for group in self.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of all."""
        return [group for each in self._optimizers for group in each.param_groups]

    def step(self, share: float) -> None:
        """Update with this share of the peak learning rates, and drop the gradients."""
        for group, peak in zip(self.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share
        for each in self._optimizers:
            each.step()
            each.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """State of each."""
        return [each.state_dict() for each in self._optimizers]

    def load_state_dict(self, states: Sequence[dict[str, Any]] | dict[str, Any]) -> None:
        """Restore the state of each; a single state is that of the only optimizer."""
        listed = [states] if isinstance(states, dict) else states
        for each, state in zip(self._optimizers, listed, strict=True):
            each.load_state_dict(state)


def build_optimizers(decoder: Decoder, recipe: Recipe, half: bool) -> Optimizers:
    """Optimizers of a recipe: AdamW for all weights; under `muon`, Muon for the matrices of the layers.

    Weight decay acts on matrices, not on vectors and the encoding's weights: slopes and biases need not be near 0.
    """
    weights = {name: weight for name, weight in decoder.named_parameters() if weight.requires_grad}
    matrices = {
        name: weight for name, weight in weights.items() if weight.dim() == 2 and not name.startswith("encoding.")
    }
    found: list[torch.optim.Optimizer] = []
    if recipe.optimizer == "muon":
        layers = {name: weight for name, weight in matrices.items() if name.startswith("layers.")}
        dtype = torch.bfloat16 if half else torch.float32
        found.append(Muon(layers.values(), recipe.matrix_rate, weight_decay=recipe.decay, dtype=dtype))
        # In the order of the decoder: a checkpoint tells weights by their place.
        weights, matrices = {name: weight for name, weight in weights.items() if name not in layers}, {}
    # Their own rate: see `Recipe.gain_rate`.
    gains = [name for name in weights if "norm" in name and not name.startswith("encoding.") and recipe.gain_rate]
    others = [weights[name] for name in sorted(weights.keys() - matrices.keys() - {*gains})]
    groups: list[dict[str, Any]] = [
        {"params": list(matrices.values()), "weight_decay": recipe.decay},
        {"params": others, "weight_decay": 0.0},
        {"params": [weights[name] for name in gains], "weight_decay": 0.0, "lr": recipe.gain_rate},
    ]
    found.append(
        torch.optim.AdamW([each for each in groups if each["params"]], lr=recipe.rate, betas=(0.9, 0.95), fused=True)
    )
    return Optimizers(found)


class Learner:
    """A decoder on its device, and its optimizers.

    Args:
        decoder: with its initial weights.
        recipe: with sizes and trained length.
        method: frequencies for fine-tuning; None: the encoding's.

    Raises:
        ConfigError: recipe.compile is set, and there is no compiler.
    """

    def __init__(self, decoder: Decoder, recipe: Recipe, method: Attention | None = None) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        wanted = recipe.precision or ("bfloat16" if self.device.type == "cuda" else "float32")
        # Where a processor has no such products, a plain loop of torch's takes ten times as long as float32.
        self.half = wanted == "bfloat16" and not (self.device.type == "cpu" and half_matmul_is_slow(torch.bfloat16))
        self.decoder, self.recipe, self.method = decoder.to(self.device).train(), recipe, method
        self.optimizer = build_optimizers(decoder, recipe, self.half)
        self._fast = compile_function(self._losses) if recipe.compile else self._losses

    def step(self, rows: Tensor, step: int, kinds: Sequence[str] = ()) -> list[float]:
        """Update the weights on [B, T] rows; the mean loss of each row before the update, in nats.

        Kinds of the rows say where `recipe.counted` acts; a token that is not counted comes as its complement ~t.

        Positions are drawn for all rows together, from (seed, step), so pieces and resumed trainings get the same ones.
        """
        rows = rows.to(self.device)
        losses = self.add_gradient(rows, step, kinds)
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.recipe.clip)
        self.optimizer.step(self.recipe.learning_rate_share(step))
        # The fused AdamW does not count its updates, which `weight_versions` goes by.
        torch.autograd.graph.increment_version(self.decoder.parameters())
        return [float(loss) for loss in losses.mean(1).tolist()]

    def add_gradient(self, rows: Tensor, step: int, kinds: Sequence[str] = ()) -> Tensor:
        """[B, T - 1] losses of [B, T] rows; adds the gradient of their mean to the weights."""
        weights = None if self.recipe.counted == "all" else self._loss_weights(rows, kinds)
        # Of a token and its complement one is below 0: the larger one is the token.
        rows = torch.maximum(rows, ~rows)
        for module in self.decoder.modules():
            if isinstance(module, Encoding):  # an encoding may hold another one
                module.constrain()
        found, first = [], 0
        for piece in rows.tensor_split(self.recipe.accumulate):
            positions = self._draw_positions(rows[:, :-1], step)  # for each piece: an encoding may keep results of them
            mine = positions if positions.dim() == 1 else positions[first : first + len(piece)]
            losses = self._call_under_autocast(self._fast, piece, mine)
            losses = losses if weights is None else losses * weights[first : first + len(piece)]
            # Pieces may differ by a row: with these weights, the gradients add up to that of the whole batch.
            (losses.mean() * (len(piece) / len(rows))).backward()  # type: ignore[no-untyped-call]
            found.append(losses.detach())
            first += len(piece)
        return torch.cat(found)

    def _loss_weights(self, rows: Tensor, kinds: Sequence[str]) -> Tensor:
        """[B, T - 1] weights of the losses: equal where a row counts them, 0 elsewhere, with mean 1 in each row."""
        copies = torch.tensor([kind in COPYING_LESSONS for kind in kinds], device=rows.device)
        # Complements ~t, below 0, stand where a task asks for nothing.
        counted = torch.where(
            (rows < 0).any(1, keepdim=True), rows[:, 1:] >= 0, copied_targets(rows) | ~copies[:, None]
        )
        # Mean 1, so that a row of few counted targets weighs as much as any other; one of none has weight 0, not NaN.
        return counted / counted.float().mean(1, keepdim=True).clamp(min=1 / rows.shape[1])

    def _draw_positions(self, tokens: Tensor, step: int) -> Tensor:
        """[T] or [B, T] positions, drawn on the CPU, so that every device has the same."""
        seed = int(
            np.random.SeedSequence([self.recipe.seed, step]).generate_state(1)[0]
        )  # torch uses 32 bits of a seed
        generator = torch.Generator().manual_seed(seed)
        return self.decoder.encoding.positions(tokens, tokens.shape[1], generator).to(self.device)

    def losses(self, rows: Tensor, positions: Tensor | None = None) -> Tensor:
        """[B, T - 1] losses of [B, T] rows in nats; positions None: those at use."""
        return self._call_under_autocast(self._losses, rows, positions)

    def _call_under_autocast(self, losses: Callable[..., Tensor], rows: Tensor, positions: Tensor | None) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            return losses(rows, positions)

    def _losses(self, rows: Tensor, positions: Tensor | None) -> Tensor:
        logits = self.decoder(rows[:, :-1], self._attention_output, positions=positions).float()
        found = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")  # transposing is slower
        return found.view(len(rows), -1)

    def _attention_output(
        self, layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor
    ) -> Tensor:
        rotate = None if self.method is None else encoding.rotation(self.method)
        settled = attend.EncodingAttention(encoding, encoding.attention, q, k, positions, rotate)
        with torch.autocast(q.device.type, enabled=False):  # scores outside the fused kernel stay in float32
            return settled.attention_output(v)

    @torch.no_grad()
    def held_out_loss(self, rows: Tensor) -> float:
        """Mean loss of held-out rows, in nats."""
        self.decoder.eval()
        count = min(self.recipe.accumulate, len(rows))  # an empty piece has no shape
        pieces = [self.losses(piece).flatten() for piece in rows.to(self.device).tensor_split(count)]
        self.decoder.train()
        return float(torch.cat(pieces).mean())


def copied_targets(rows: Tensor) -> Tensor:
    """[B, T - 1] of [B, T] rows: whether the target and the token before it stood side by side earlier in the row."""
    pairs = torch.stack([rows[:, :-1], rows[:, 1:]], dim=-1)
    # [B, i, j] whether pair i is pair j; below the diagonal, j came before i.
    same = (pairs[:, :, None] == pairs[:, None]).all(-1)
    return same.tril(-1).any(-1)


def compile_function(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function under torch.compile, which runs at the first call; ConfigError on a CPU without a C++ compiler."""
    if not torch.cuda.is_available() and not os.environ.get("CXX") and not any(map(shutil.which, CPP_COMPILERS)):
        raise ConfigError(
            f"recipe.compile needs a C++ compiler ({', '.join(CPP_COMPILERS)}), none is installed: set it to false"
        )
    torch._dynamo.config.recompile_limit = 64  # one graph for each length of rows and size of a piece
    return torch.compile(function, dynamic=False)  # stages differ in the length of rows

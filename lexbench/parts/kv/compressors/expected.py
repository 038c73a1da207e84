"""Keep the tokens to which queries behind the prompt are expected to attend."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lexbench.core.record import Refused
from lexbench.parts.kv.compressor import Compressor

if TYPE_CHECKING:
    from torch import Tensor

    from lexbench.kernels.heads import Rotate

LATER_POSITIONS, FIRST_TOKENS = 512, 4
"""Positions behind the prompt for which attention is expected, and first tokens that are always kept."""
ROTATED_TOGETHER_POSITIONS = 32
"""Positions to which all unit vectors are rotated at once: head size x query heads x 32 x head size numbers."""


@dataclass(frozen=True)
class Expected(Compressor):
    """Keep the tokens of most Expected Attention (Devoto, Jeblick and Jegou 2025, arXiv 2510.00636).

    As kvpress 0.5.5 has it with its defaults: queries behind the prompt are normal, with the mean m and the covariance
    C of the prompt's own before rotation, both under the mean rotation of the next 512 positions. For a key k of a
    query head the expected power of its logit, scaled by s, is

        z = exp(s m k + s^2 k C k / 2)

    Its share of all keys, as the mean over the query heads of a key head, times the norm of the value is the score.
    The first 4 tokens are always kept, and count neither as queries nor in the shares.
    """

    needs_rotation: ClassVar[bool] = True

    def score(self, keys: "Tensor", values: "Tensor", queries: "Tensor", rotate: "Rotate", scaling: float) -> "Tensor":
        """[B, KV, P] shares times norms; those of the first 4 tokens are larger than all others."""
        import torch
        from torch.nn import functional as F

        from lexbench.kernels.heads import multiply_per_group
        from lexbench.kernels.spans import position_tensor

        total, first = keys.shape[2], FIRST_TOKENS
        if total <= first:
            raise Refused(f"kv by expected needs a prompt of more than {first} tokens, it has {total}: use by=norm")
        precise = torch.promote_types(queries.dtype, torch.float32)
        asking = queries[:, :, first:].to(precise)
        mean = asking.mean(2, keepdim=True)
        apart = asking - mean
        later = mean_rotation(rotate, mean, total)
        spread = later.mT @ (apart.mT @ apart / asking.shape[2]) @ later
        known = rotate(keys, position_tensor(0, total, keys.device))[:, :, first:].to(precise)
        logits = multiply_per_group(mean @ later * scaling, known.mT)[:, :, 0]
        batch, groups, count, width = known.shape
        grouped = spread.reshape(batch, groups, -1, width, width)
        logits += ((known[:, :, None] @ grouped) * known[:, :, None]).sum(-1).flatten(1, 2) * scaling**2 / 2
        shares = logits.softmax(-1).reshape(batch, groups, -1, count).mean(2)
        scores = shares * values[:, :, first:].to(precise).norm(dim=-1)
        return F.pad(scores, (first, 0), value=float(scores.max()) + 1)


def mean_rotation(rotate: "Rotate", like: "Tensor", start: int) -> "Tensor":
    """[H, D, D] for each query head the matrix M of which x M is the mean of x rotated to the next 512 positions.

    Args:
        rotate: rotates vectors to positions.
        like: [B, H, T, D] of the number of heads, dtype and device.
        start: first position.
    """
    import torch

    from lexbench.kernels.spans import position_tensor

    heads, width = like.shape[1], like.shape[3]
    units = torch.eye(width, dtype=like.dtype, device=like.device)[:, None, None]
    added = torch.zeros(width, heads, width, dtype=like.dtype, device=like.device)
    for begin in range(start, start + LATER_POSITIONS, ROTATED_TOGETHER_POSITIONS):
        places = position_tensor(begin, begin + ROTATED_TOGETHER_POSITIONS, like.device)
        added += rotate(units.expand(-1, heads, len(places), -1), places).sum(2)
    return added.transpose(0, 1) / LATER_POSITIONS

"""Keep the tokens that the prompt's last queries attend to most."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lexbench.core.record import Refused
from lexbench.parts.kv.compressor import Compressor

if TYPE_CHECKING:
    from torch import Tensor

    from lexbench.kernels.heads import Rotate

WINDOW_QUERIES, POOLED_KEYS = 64, 5
"""Last queries of a prompt, and keys over which their weights are pooled."""


@dataclass(frozen=True)
class SnapKv(Compressor):
    """Keep the tokens of most weight under the prompt's last 64 queries, pooled over 5 keys (SnapKV, arXiv 2404.14469).

    As kvpress 0.5.5 has it: the mean over these queries of weights on the keys before them, pooled, then the mean over
    the query heads of a key head; the 64 tokens themselves are always kept.
    """

    choosing_queries: ClassVar[int | None] = WINDOW_QUERIES

    def score(self, keys: "Tensor", values: "Tensor", queries: "Tensor", rotate: "Rotate", scaling: float) -> "Tensor":
        """[B, KV, P] pooled weights; those of the last 64 tokens are larger than all others."""
        import torch
        from torch.nn import functional as F

        from lexbench.kernels.heads import multiply_per_group
        from lexbench.kernels.spans import position_tensor

        total, count = keys.shape[2], WINDOW_QUERIES
        if total <= WINDOW_QUERIES:
            raise Refused(
                f"kv by snapkv looks back from the last {WINDOW_QUERIES} tokens of a prompt, it has {total}: use "
                "by=norm"
            )
        asking = rotate(queries[:, :, -count:], position_tensor(total - count, total, queries.device))
        keys = rotate(keys, position_tensor(0, total, keys.device))
        precise = torch.promote_types(asking.dtype, torch.float32)
        scores = multiply_per_group(asking.to(precise) * scaling, keys.to(precise).mT)
        later = (
            torch.arange(total, device=keys.device) > torch.arange(total - count, total, device=keys.device)[:, None]
        )
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)[..., : total - count].mean(2)
        pooled = F.avg_pool1d(weights, kernel_size=POOLED_KEYS, padding=POOLED_KEYS // 2, stride=1)
        mean = pooled.reshape(len(pooled), keys.shape[1], -1, pooled.shape[2]).mean(2)
        return F.pad(mean, (0, count), value=float(mean.max()) + 1)

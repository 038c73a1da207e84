"""Keep the keys of least norm."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lexbench.parts.kv.compressor import Compressor

if TYPE_CHECKING:
    from torch import Tensor

    from lexbench.kernels.heads import Rotate


@dataclass(frozen=True)
class Norm(Compressor):
    """Keep the keys of least norm: small keys draw attention (Devoto et al. 2024, arXiv 2406.11430)."""

    choosing_queries: ClassVar[int | None] = 0

    def score(self, keys: "Tensor", values: "Tensor", queries: "Tensor", rotate: "Rotate", scaling: float) -> "Tensor":
        """[B, KV, P] the norms of keys [B, KV, P, D], with a minus."""
        import torch

        precise = keys.to(torch.promote_types(keys.dtype, torch.float32))
        return -precise.square().sum(-1).sqrt()

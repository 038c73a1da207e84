"""Key normalization (Su 2023, kexue.fm/archives/9859)."""

from torch import Tensor
from torch.nn import functional as F

from lexbench.encodings.wrappers import Over


class KeyNorm(Over):
    """Keys of length 1, queries as they are, and no 1 / sqrt(d).

        logit(i, j) = q_i . k_j / |k_j|

    A rotation keeps lengths, so the order of the two does not matter. The article finds that it helps RoPE beyond the
    trained length, and does not help without RoPE.

    Args:
        over: the inner encoding.
    """

    excludes = frozenset({"rescore"})

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise keys to length 1."""
        queries, keys = self.over.prepare(queries, keys)
        return queries, F.normalize(keys, dim=-1).to(keys.dtype)

    def scaling(self, head_dim: int) -> float:
        """1."""
        return 1.0

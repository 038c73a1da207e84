"""CosA: cosine attention (Su 2023, kexue.fm/archives/9859)."""

import math

from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, LogScale
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper

SCALE_BY_POSITION = "position"


class Cosine(EncodingWrapper):
    """Logits are cosines times a fixed number, and no 1 / sqrt(d).

        logit(i, j) = 4 ln(n) q_i . k_j / (|q_i| |k_j|)

    with n half the trained length, the mean number of keys that a query sees in training, or n = i + 1, the number
    that this query sees ("log n" in the article's tables, two of which give different values for the same run).

    These are the article's formulas: lambda is fixed, not learned. Logits begin with deviation 4 ln(n) / sqrt(d), that
    of the cosine of two random vectors: 2.9 with d = 32 and n = 64, far above the 0.05 of plain attention, so that
    heads of few dimensions begin sharp.

    Args:
        over: the inner encoding.
        trained_length: tokens.
        keys: n, above 1; `position`: i + 1; None: half the trained length.
    """

    excludes = frozenset({"rescore"})

    def __init__(self, over: Encoding, trained_length: int, keys: float | str | None = None) -> None:
        super().__init__(over)
        seen = trained_length / 2 if keys is None else keys
        self.by_position = seen == SCALE_BY_POSITION
        if not self.by_position and (isinstance(seen, str) or not 1 < seen < math.inf):
            raise ConfigError(
                f"cosine's keys must be a finite number above 1 or {SCALE_BY_POSITION}, got {seen!r}: the article "
                "takes half "
                "the trained length"
            )
        # By position, query_scale is ln(i + 1) / ln(n) and turns the factor ln(n) into ln(i + 1), for any n.
        self.seen = math.e if isinstance(seen, str) else float(seen)

    @property
    def attention(self) -> Attention:
        """Slots of the inner encoding; `by_position` adds a factor ln(i + 1) of query i: no method may add one, too."""
        own = Attention(query_scale=LogScale(self.seen, clip=False)) if self.by_position else Attention()
        return self.over.attention.merge_with(own)

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise both to length 1."""
        queries, keys = self.over.prepare(queries, keys)
        return F.normalize(queries, dim=-1).to(queries.dtype), F.normalize(keys, dim=-1).to(keys.dtype)

    def scaling(self, head_dim: int) -> float:
        """Factor 4 ln(n) on the logits."""
        return 4 * math.log(self.seen)

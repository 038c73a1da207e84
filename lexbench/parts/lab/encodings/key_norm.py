"""Key normalization (Su 2023, kexue.fm/archives/9859)."""

from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, LogScale
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper


class KeyNorm(EncodingWrapper):
    """Keys of length 1, queries as they are, and no 1 / sqrt(d).

        logit(i, j) = q_i . k_j / |k_j|,   with log_n times ln(i + 1) / ln(L)

    These are the article's formulas: no learned scale, the norm on each key head alone. A rotation keeps lengths, so
    the order of the two does not matter. Logits begin with the rms of one dimension of a query, and can grow to |q|.
    The article finds that it helps RoPE beyond the trained length, and does not help without RoPE; it trains 24 layers
    on rows of 512 tokens to a token accuracy of 50 %, far beyond what a table of bigrams reaches.

    Args:
        over: the inner encoding.
        trained_length: L in tokens.
        log_n: whether queries are multiplied by ln(i + 1) / ln(L) in training and at use ("KNA-log n").
    """

    excludes = frozenset({"rescore"})

    def __init__(self, over: Encoding, trained_length: int, log_n: bool = False) -> None:
        super().__init__(over)
        self.scale = LogScale(trained_length, clip=False) if log_n else None

    @property
    def attention(self) -> Attention:
        """Scale of the queries, with log_n; a method that scales them, too, is refused."""
        return self.over.attention.merge_with(Attention(query_scale=self.scale))

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise keys to length 1."""
        queries, keys = self.over.prepare(queries, keys)
        return queries, F.normalize(keys, dim=-1).to(keys.dtype)

    def scaling(self, head_dim: int) -> float:
        """Factor 1 on the logits."""
        return 1.0

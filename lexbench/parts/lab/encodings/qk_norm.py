"""QK norm: queries and keys of one length (Henry et al. 2020, arXiv 2010.04245), and its RMS form of today."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper

NORM_NAMES = ("l2", "rms")
MEAN_SQUARE_EPSILON = 1e-6
"""Added to the mean square, as in Qwen3."""


class QkNorm(EncodingWrapper):
    """Logits are cosines times learned factors, so that no token wins by the length of its vectors.

        l2    logit(i, j) = g q_i . k_j / (|q_i| |k_j|),             g one number, begins at log2(L^2 - L)
        rms   logit(i, j) = (a * rms(q_i)) . (b * rms(k_j)) / sqrt(d),    a, b [d] begin at 1
              rms(x) = x / sqrt(mean(x^2) + 1e-6)

    before rotation; a rotation keeps lengths. l2 is the paper's, with L the trained length (there: that of 97.5 % of
    the training texts). rms is Qwen3's: one gain for each dimension of a head, the same in all heads; OLMo 2 takes the
    mean over all heads instead. Every layer has weights of its own.

    Args:
        over: the inner encoding.
        head_dim: d, dimensions of a head.
        trained_length: L in tokens.
        form: l2 or rms.
    """

    excludes = frozenset({"rescore"})

    shared = False

    def __init__(self, over: Encoding, head_dim: int, trained_length: int, form: str = "rms") -> None:
        super().__init__(over)
        if form not in NORM_NAMES:
            raise ConfigError(f"qk_norm's form must be l2 or rms, got {form!r}: Qwen3 has rms")
        self.form = form
        if form == "l2":
            if trained_length < 2:
                raise ConfigError(f"qk_norm's l2 needs a trained length of at least 2, got {trained_length}: take rms")
            self.gain = nn.Parameter(torch.tensor(math.log2(trained_length**2 - trained_length)))
        else:
            self.query_gain = nn.Parameter(torch.ones(head_dim))
            self.key_gain = nn.Parameter(torch.ones(head_dim))

    def prepare(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise both, and multiply them by the learned factors."""
        queries, keys = self.over.prepare(queries, keys)
        if self.form == "l2":
            return _to_unit_length(queries) * self.gain.to(queries.dtype), _to_unit_length(keys)
        return _to_unit_mean_square(queries) * self.query_gain.to(queries.dtype), _to_unit_mean_square(
            keys
        ) * self.key_gain.to(keys.dtype)

    def scaling(self, head_dim: int) -> float:
        """Factor on the logits: 1 for l2, else that of the inner encoding."""
        return 1.0 if self.form == "l2" else self.over.scaling(head_dim)


def _to_unit_length(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=-1).to(vectors.dtype)


def _to_unit_mean_square(vectors: Tensor) -> Tensor:
    """Vectors of mean square 1, computed in float32 or better."""
    precise = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return F.rms_norm(precise, precise.shape[-1:], eps=MEAN_SQUARE_EPSILON).to(vectors.dtype)

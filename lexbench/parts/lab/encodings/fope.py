"""FoPE: Fourier position embedding (Hua et al. 2024, arXiv 2412.17739)."""

import math
from types import MappingProxyType

import torch
from torch import Generator, Tensor, nn

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, insert_head_axis, rope_frequencies, rotation_angles


class Fope(Encoding):
    """RoPE whose cos and sin are mixes, drawn once, of the cos and sin of all frequencies with a full turn in training.

        x'_p = C_p(n) x_p - S_p(n) x_(p + d/2),    x'_(p + d/2) = C_p(n) x_(p + d/2) + S_p(n) x_p
        C_p(n) = sum_f cos(n theta_f) c[h, f, p],   S_p(n) = sum_f sin(n theta_f) s[h, f, p]
        theta_f = b^(-2f/d) >= 2 pi / L;  all other pairs do not rotate        (eq. 11 to 13)

    c and s are the identity plus normal noise of deviation gain sqrt(2 / (F^2 + H F)) with F frequencies and H heads:
    Xavier's rule as PyTorch applies it to all heads at once, in the paper's listing and in its authors' code (read, not
    run). In both they are not trained (appendix B); learned=true trains them. There is a pair of them for each key
    head; the query heads that share the key head share them, so that under plain multi-head attention every head has
    its own. All layers have the same.

    This has the pairs of the paper's equations and of vLLM's `use_fope`. The listing and the authors' code differ:
    their mixes rotate at most half of the pairs, and their sine of pairs that do not rotate is 1, which adds the second
    dimension of a pair to the first. The listing alone also divides the coefficients by their sum over f.

    C and S are not the cos and sin of one angle, so a logit is not a function of i - j alone: methods can neither
    remap distances nor change angles.

    Args:
        head_dim: d, dimensions of a head.
        kv_heads: key heads.
        trained_length: L in tokens.
        base: b of the angles.
        gain: of the noise, at least 0; 0 is RoPE without its slow pairs; the paper has 0.3, 0.4 and 0.6 in models of
            60 million, 180 million and 1.2 billion weights.
        learned: whether c and s are trained.
    """

    before = MappingProxyType({"learned": True})
    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        kv_heads: int,
        trained_length: int,
        base: float = 10000.0,
        gain: float = 0.3,
        learned: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= gain < math.inf:
            raise ConfigError(f"fope's gain must be finite and at least 0, got {gain}: the paper takes 0.3")
        if head_dim % 2:
            raise ConfigError(
                f"fope needs heads of an even size, got {head_dim}: change width or heads of recipe.shape"
            )
        plain = rope_frequencies(head_dim, base)
        # Pairs without a full turn in training have seen a part of a wave only; the paper gives them frequency 0.
        kept = plain[plain >= 2 * math.pi / trained_length]
        if not len(kept):
            raise ConfigError(
                f"fope keeps pairs that turn once within trained_length, none does in {trained_length}: raise it to 7"
            )
        self.register_buffer("inv_freq", kept, persistent=False)
        self.gain, self.pairs = gain, len(plain)
        same = torch.eye(len(kept)).repeat(kv_heads, 1, 1)
        # Parameters also where they are not trained: so they are stored with the model.
        self.cos_mix = nn.Parameter(same, requires_grad=learned)
        self.sin_mix = nn.Parameter(same.clone(), requires_grad=learned)

    def initialise(self, generator: Generator) -> None:
        """Draw the mixes: the identity plus noise of deviation gain sqrt(2 / (F^2 + H F))."""
        heads, kept, _ = self.cos_mix.shape
        # Xavier's fan_in and fan_out of a tensor [H, F, F] in PyTorch: F F and H F.
        deviation = self.gain * (2 / (kept**2 + heads * kept)) ** 0.5
        for mix in (self.cos_mix, self.sin_mix):
            noise = torch.randn(mix.shape, generator=generator, dtype=torch.float64) * deviation
            mix.data = (torch.eye(kept).repeat(heads, 1, 1) + noise).to(mix)

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Rotate [B, H, T, D] query heads or key heads; cos and sin are computed and mixed in float64."""
        turn = insert_head_axis(rotation_angles(self.inv_freq, positions))
        each = vectors.shape[1] // len(self.cos_mix)
        cos, sin = (
            (wave @ mix.to(torch.float64)).repeat_interleave(each, dim=-3).to(vectors.dtype)
            for wave, mix in ((turn.cos(), self.cos_mix), (turn.sin(), self.sin_mix))
        )
        moving, still = cos.shape[-1], self.pairs - cos.shape[-1]
        one, one_still, two, two_still = torch.split(vectors, [moving, still, moving, still], dim=-1)
        return torch.cat([one * cos - two * sin, one_still, two * cos + one * sin, two_still], dim=-1)

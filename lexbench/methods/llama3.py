"""The scaling of Llama 3.1."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.methods.rotary import (
    blend_by_rotations,
    check_factor,
    check_trained_length,
    resolve_factor,
    transformers_rope_parameters,
    with_trained_length,
)


@dataclass(frozen=True)
class Llama3:
    """Slow long wavelengths, keep short ones, mix between (Llama 3.1, arXiv 2407.21783; its released code).

        wavelength_p = 2 pi / theta_p
        theta'_p = theta_p                            wavelength_p < L / high_freq_factor
        theta'_p = theta_p / s                        wavelength_p > L / low_freq_factor
        theta'_p = (1 - g) theta_p / s + g theta_p    between, g = (L / wavelength_p - low) / (high - low)

    As L / wavelength is the number of rotations within the trained length L, this is NTK-by-parts with alpha = 1 and
    beta = 4. Llama 3.1 was trained this way, with s = 8 and L = 8192; the method applies it to other models.

    Args:
        factor: s, at least 1; None: length / trained_length.
        low_freq_factor: rotations up to which a pair is slowed by s.
        high_freq_factor: rotations from which a pair does not change.
        trained_length: L in tokens; None: the model's.
    """

    family: ClassVar[str] = "interpolation"

    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_factor("llama3", self.factor)
        check_trained_length("llama3", self.trained_length)
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"llama3 needs 0 < low_freq_factor < high_freq_factor, got {self.low_freq_factor} and "
                f"{self.high_freq_factor}: Llama 3.1 takes 1 and 4"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """Blended frequencies; Refused unless the model has plain RoPE."""
        model = with_trained_length(model, self.trained_length)
        factor = resolve_factor(self.factor, model, length)
        # r = L theta / 2 pi = L / wavelength: Llama's smooth factor is the share of `blend_by_rotations`.
        slow, fast = self.low_freq_factor, self.high_freq_factor
        return Attention(inv_freq=blend_by_rotations(model, factor, slow=slow, fast=fast))

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `llama3`."""
        model = with_trained_length(model, self.trained_length)
        return transformers_rope_parameters(
            model,
            "llama3",
            factor=resolve_factor(self.factor, model, length),
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
            original_max_position_embeddings=model.trained_length,
        )

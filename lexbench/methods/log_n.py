"""Logarithmic scaling of queries."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from lexbench.core.attention import Attention, LogScale
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused


@dataclass(frozen=True)
class LogN:
    """Sharpen attention as the number of keys grows (Su 2021, kexue.fm/archives/8823; as a plug-in, archives/9706).

        q_i <- q_i max(1, ln(i + 1) / ln L)^power

    It keeps the entropy of attention about constant in the number of keys, i + 1 for the query at position i. Only
    queries change, so it works with any kernel, any encoding and cached keys.

    Args:
        clip: never below 1, so that nothing changes within the trained length; False is for models trained with it.
        trained_length: L in tokens, above 1; None: the model's.
        power: exponent of the factor: 1 is Su's, 0 changes nothing.
    """

    family: ClassVar[str] = "logits and heads"

    clip: bool = True
    trained_length: int | None = None
    power: float = field(default=1.0, metadata={"new": True})

    def __post_init__(self) -> None:
        if self.trained_length is not None and self.trained_length < 2:
            raise ConfigError(
                f"log_n's trained_length must be at least 2, got {self.trained_length}: leave it out for the model's"
            )
        if not 0 <= self.power < math.inf:
            raise ConfigError(f"log_n's power must be finite and at least 0, got {self.power}: Su's is 1")

    def attention(self, model: Model, length: int) -> Attention:
        """Multiplier of each query; Refused where the trained length is one token, whose logarithm is 0."""
        trained_length = self.trained_length or model.trained_length
        if trained_length < 2:
            raise Refused(f"log_n needs a trained length of at least 2, {model.name} has 1: give trained_length")
        return Attention(query_scale=LogScale(trained_length=trained_length, clip=self.clip, power=self.power))

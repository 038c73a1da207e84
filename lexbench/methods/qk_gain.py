"""A constant gain on queries."""

import math
from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, ConstantScale
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.methods.rotary import resolve_factor, yarn_scale


@dataclass(frozen=True)
class QkGain:
    """Sharpen attention by one constant (`qk_mult` of Marin, github.com/marin-community/marin/issues/6044).

        q_i <- q_i g where i >= L, or for all i;  by default g = 0.1 ln s + 1, s = length / L

    Marin trains with queries times 1.3, and extends with 1.3 (0.1 ln s + 1): 1.57 at s = 8 and 1.75 at s = 32, for
    queries at all positions; it also compares 1.57 kept at the longer length. A gain here multiplies what the network
    has already: for one trained with 1.3, these two are gains of 1.208 and 1.347, and everywhere=true is its form.
    YaRN's scale m = 0.1 ln s + 1 multiplies queries and keys, so that logits grow by m^2; here they grow by g. Only
    queries change, so it works with any kernel, any encoding and cached keys.

    Args:
        gain: g, above 0, without unit; 1 changes nothing; None: 0.1 ln(length / L) + 1, and 1 within L.
        everywhere: multiply all queries (true), or those from position L, the trained length, on (false).
    """

    family: ClassVar[str] = "logits and heads"

    gain: float | None = None
    everywhere: bool = False

    def __post_init__(self) -> None:
        if self.gain is not None and not 0 < self.gain < math.inf:
            raise ConfigError(
                f"qk_gain's gain must be finite and above 0, got {self.gain}: "
                "leave it out for 0.1 ln(length / trained_length) + 1"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """Multiplier of queries: of all, or of the ones from the trained length on."""
        gain = yarn_scale(resolve_factor(None, model, length)) if self.gain is None else float(self.gain)
        return Attention(query_scale=ConstantScale(gain, begin=0 if self.everywhere else model.trained_length))

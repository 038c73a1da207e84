"""No method: the model as it was trained."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.methods.rotary import transformers_rope_parameters


@dataclass(frozen=True)
class NoMethod:
    """Direct extrapolation: positions beyond the trained length are used unchanged. The baseline of every table."""

    family: ClassVar[str] = "none"

    def attention(self, model: Model, length: int) -> Attention:
        """Nothing changes, whatever encoding the model has."""
        return Attention()

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        """Rope parameters of transformers' config, of type `default`; Refused unless the model has plain RoPE."""
        return transformers_rope_parameters(model, "default")

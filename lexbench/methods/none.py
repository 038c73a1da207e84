"""No method: the model as it was trained."""

from dataclasses import dataclass

from lexbench.attention import Attention
from lexbench.model import Model


@dataclass(frozen=True)
class NoMethod:
    """Direct extrapolation: positions beyond the trained length enter as they are. The baseline of every table."""

    def attention(self, model: Model, length: int) -> Attention:
        """Nothing changes, whatever encoding the model has."""
        return Attention()

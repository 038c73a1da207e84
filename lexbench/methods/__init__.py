"""Plug-in methods for a trained model: one file, one yaml, one test and one name each."""

from typing import Protocol

from lexbench.attention import Attention
from lexbench.model import Model


class Method(Protocol):
    """A frozen dataclass whose fields are its parameters.

    A modifier also has `over(attention, model, length) -> Attention`: what the methods before it ask for, changed.
    Composition calls it in place of `attention`.
    """

    def attention(self, model: Model, length: int) -> Attention:
        """How positions enter attention at `length` tokens; pure, and Refused where the model does not allow it."""

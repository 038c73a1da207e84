"""Sliding window attention."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, Window
from lexbench.core.model import Model
from lexbench.methods.distances import check_count


@dataclass(frozen=True)
class SlidingWindow:
    """Each query sees the last W keys, its own included, under any encoding (Longformer, arXiv 2004.05150).

        masked unless i - j < W

    A model that was trained with full attention loses the first tokens, which get much of its attention
    (`lambda_mask`, `streaming_llm` keep them), and with them its quality.

    Args:
        window: W in tokens, at least 1; None: the trained length.
    """

    family: ClassVar[str] = "keys seen"

    window: int | None = None

    def __post_init__(self) -> None:
        check_count("sliding_window's window", self.window, "leave it out for the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """The window, the same at every length, for any model."""
        return Attention(mask=Window(size=self.window or model.trained_length))

"""StreamingLLM: attention sinks and a rolling cache."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap, Window
from lexbench.core.model import Model
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class StreamingLlm:
    """Keep the first g keys and the last W; positions count inside the cache (Xiao et al. 2023, arXiv 2309.17453, 3.2).

        masked unless i - j < W or j < g
        distance = i - j where i - j < W, else min(i, g + W - 1) - j

    Until the cache holds g + W keys nothing changes. Then a query is always at g + W - 1, the first keys at
    0 .. g - 1. Tokens that left the cache are invisible, so needles outside the window are lost by design.

    Args:
        sinks: g in tokens, at least 0.
        window: W in tokens, at least 1; None: the trained length less the sinks.
    """

    family: ClassVar[str] = "keys seen"

    sinks: int = 4
    window: int | None = None

    def __post_init__(self) -> None:
        check_count("streaming_llm's sinks", self.sinks, "its authors take 4", least=0)
        check_count("streaming_llm's window", self.window, "leave it out to fill the trained length")

    def attention(self, model: Model, length: int) -> Attention:
        """Mask and remap, the same at every length; Refused where the model has no rotary positions."""
        check_rotary(model)
        window = self.window or max(1, model.trained_length - self.sinks)
        # Positions in the cache: until it is full a query is at i, then always in the last of its g + W places.
        inside = PositionMap(cap=self.sinks + window - 1)
        remap = Remap(window=window, query=inside, key=PositionMap())
        return Attention(remap=remap, mask=Window(size=window, sinks=self.sinks))

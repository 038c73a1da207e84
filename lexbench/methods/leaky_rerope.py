"""Leaky ReRoPE: beyond a window, distances grow slowly."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary


@dataclass(frozen=True)
class LeakyRerope:
    """Beyond the window, distances grow by 1/k a token (Su 2023, kexue.fm/archives/9708).

        distance = i - j where i - j < w, else w + (i - j - w) / k
        far queries at (i + w (k - 1)) / k, far keys at j / k

    k = 1 is the model itself, k = inf is ReRoPE. The article's code fixes w = 512 and k = 16 for a trained length L of
    4096; here both follow the model and the length. With k below 1, distances grow faster: InvLeaky ReRoPE trains with
    this form, and is used without it (kexue.fm/archives/9728).

    Args:
        window: w in tokens, at least 1; None: half the trained length.
        slowdown: k, above 0; None: the smallest of at least 1 that keeps all distances below L,
            max(1, (length - 1 - w) / (L - 1 - w)).
    """

    family: ClassVar[str] = "grouped distances"

    window: int | None = None
    slowdown: float | None = None

    def __post_init__(self) -> None:
        check_count("leaky_rerope's window", self.window, "take 1/4 to 1/2 trained length")
        if self.slowdown is not None and not self.slowdown > 0:
            raise ConfigError(
                f"leaky_rerope's slowdown must be above 0, got {self.slowdown}: leave it out to fit the length"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The leaky remap; Refused without rotary positions, or where no slowdown fits the length."""
        check_rotary(model)
        window = self.window or max(1, model.trained_length // 2)
        slowdown = self._fitting_growth(window, model, length) if self.slowdown is None else self.slowdown
        # (i / k + w - w / k) - j / k = w + (i - j - w) / k: the line (i + w (k - 1)) / k of the docstring.
        query = PositionMap(divisor=slowdown, offset=window - window / slowdown)
        return Attention(remap=Remap(window=window, query=query, key=PositionMap(divisor=slowdown)))

    @staticmethod
    def _fitting_growth(window: int, model: Model, length: int) -> float:
        largest = model.trained_length - 1
        if length - 1 <= max(window, largest):
            return 1.0
        if window >= largest:
            raise Refused(
                f"leaky_rerope's window must leave distances below {largest}, the largest that {model.name} knows, "
                f"got {window}: lower window or give slowdown"
            )
        # k from w + (length - 1 - w) / k = L - 1: the last query and key 0 at the largest trained distance.
        return (length - 1 - window) / (largest - window)

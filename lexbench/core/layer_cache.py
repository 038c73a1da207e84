"""What a layer of a network keeps of a text for later queries."""

from dataclasses import dataclass

from lexbench.core.errors import ConfigError
from lexbench.core.values import is_whole

MAX_LAYERS = 1 << 16
"""Most layers that are listed: a larger number in a config is a mistake, and a list of it would fill the memory."""


@dataclass(frozen=True)
class LayerCache:
    """Sizes of the keys and values that one layer stores of each token."""

    heads: int
    """Key heads; 1 for multi-head latent attention."""
    key_dim: int
    """Numbers of a head's key; of multi-head latent attention those of the latent."""
    value_dim: int
    """Numbers of a head's value; of multi-head latent attention those of the rotary key that all heads share."""
    window: int | None = None
    """Tokens that a query sees, its own among them: no others are kept. None: all."""
    latent: bool = False
    """Whether keys and values are stored as one latent for all heads (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    def __post_init__(self) -> None:
        for name in ("heads", "key_dim", "value_dim", "window"):
            value = getattr(self, name)
            if not is_whole(value, 1) and not (name == "window" and value is None):
                raise ConfigError(f"{name} of a layer's cache must be a whole number of at least 1, got {value!r}")

    @property
    def numbers(self) -> int:
        """Numbers stored of a token."""
        return self.heads * (self.key_dim + self.value_dim)

    def tokens(self, length: int) -> int:
        """Tokens of a text that are stored behind it: the next query fills the window."""
        return length if self.window is None else min(length, self.window - 1)

"""Facts about a network that a method may use."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from lexbench.core.errors import ConfigError
from lexbench.core.layer_cache import MAX_LAYERS, LayerCache
from lexbench.core.layer_types import has_attention, is_windowed
from lexbench.core.record import Refused
from lexbench.core.values import MAX_EXACT_INTEGER, has_type, is_whole

COUNT_FACTS = (
    *("trained_length", "max_position_embeddings", "head_dim", "global_head_dim", "rotary_dim", "layers", "width"),
    *("heads", "kv_heads", "global_kv_heads", "vocabulary"),
)
TYPE_CHECKED_FACTS = {
    "name": "a text",
    "rope_scaling": "names and values",
    "rope_extra": "names and values",
    "decoupled": "true or false",
    "architecture": "a text",
    "config_section": "a text",
    "frequencies": "a list of numbers",
    "layer_types": "a list of texts",
    "layer_caches": "a list of LayerCache or null",
    "parameters": "a whole number of at least 0",
    "revision": "a text",
}
"""Facts of which only the type is checked."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network as methods see it. Name, trained_length, head_dim and rope_base suffice; the rest is optional."""

    name: str
    trained_length: int
    """Length in training, in tokens."""
    head_dim: int
    rope_base: float | None = None
    """Base b of the rotary angles b^(-2p/d); None: no rotary positions."""
    rotary_dim: int | None = None
    """Rotated dimensions of a head; None: all."""
    rotary_layout: str = "half"
    """half (dimension p pairs with p + d/2) or interleaved (2p with 2p + 1)."""
    rope_scaling: Mapping[str, Any] | None = None
    """The checkpoint's own change of the angles (rope parameters of config.json); None: plain RoPE.

    If kinds of layers rotate differently, it maps each kind to its parameters, and `rope_base` is None.
    """
    rope_extra: Mapping[str, Any] | None = None
    """Entries of config.json's rope parameters that are read for something else than angles, such as the sections of
    mRoPE or a scale of the queries; and an original_max_position_embeddings that others read, too."""
    decoupled: bool = False
    """Whether the rotated dimensions are a part of the head that config.json counts apart (multi-head latent)."""
    architecture: str | None = None
    """model_type of the text model in config.json, where exports need it."""
    config_section: str | None = None
    """Section of config.json that holds the text model's settings; None: the top level."""
    max_position_embeddings: int | None = None
    """Number of positions in tokens that config.json states; a scaling of the angles may be computed from it."""
    frequencies: tuple[float, ...] | None = None
    """[rotated / 2] radians per token where they are not b^(-2p/d), as methods see a scaled RoPE (`core.scaled`)."""
    layer_types: tuple[str, ...] | None = None
    """Kind of attention of each layer (full_attention, sliding_attention, ...), where the config states it."""
    global_head_dim: int | None = None
    """head_dim of the layers that see all keys, where it is another one."""
    global_kv_heads: int | None = None
    """kv_heads of these layers, where they have others."""
    layer_caches: tuple[LayerCache | None, ...] | None = field(default=None, metadata={"new": True})
    """What each layer keeps of a text, where it is not `kv_heads` heads of `head_dim` numbers in all; None for a layer
    with a state in place of keys, and for one that uses the keys of an earlier layer."""
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocabulary: int | None = None
    parameters: int | None = None
    bos: bool | None = None
    """Whether BOS begins every context; None: as in the tokenizer."""
    path: str | None = None
    """Folder or name on the hub."""
    revision: str | None = None

    def __post_init__(self) -> None:
        for name, said in TYPE_CHECKED_FACTS.items():
            value = as_fact(getattr(self, name))
            object.__setattr__(self, name, value)
            if not has_type(value, FACT_TYPES[name]):
                raise ConfigError(f"model.{name} must be {said}, got {value!r}")
        for name in COUNT_FACTS:
            value = getattr(self, name)
            unknown = value is None and name not in ("trained_length", "head_dim")
            if not unknown and not is_whole(value, 1):
                raise ConfigError(f"model.{name} must be a whole number of at least 1, got {value!r}")
            if value is not None and value >= MAX_EXACT_INTEGER:
                raise ConfigError(
                    f"model.{name} must be below 2^53, got {value!r}: mend config.json, or state model.{name}"
                )
        if not isinstance(self.bos, bool | None):
            raise ConfigError(f"model.bos must be true, false or null (the tokenizer's own policy), got {self.bos!r}")
        base = self.rope_base
        if base is not None and not (isinstance(base, Real) and 1 < base < math.inf):
            raise ConfigError(f"model.rope_base must be finite and above 1, got {base!r}")
        if base is not None and (self.rotated > self.head_dim or self.rotated % 2):
            raise ConfigError(
                f"model.rotary_dim must be even and at most head_dim {self.head_dim}, got {self.rotated}: "
                "dimensions rotate in pairs"
            )
        if self.frequencies is not None and len(self.frequencies) != self.rotated // 2:
            raise ConfigError(
                f"model.frequencies must be one for each of {self.rotated // 2} pairs, got {len(self.frequencies)}"
            )
        if self.rotary_layout not in ("half", "interleaved"):
            raise ConfigError(f"model.rotary_layout must be half or interleaved, got {self.rotary_layout}")

    @property
    def rotated(self) -> int:
        """Rotated dimensions of a head."""
        return self.rotary_dim or self.head_dim

    def kept_by_layer(self) -> tuple[LayerCache | None, ...] | None:
        """What each layer keeps of a text, as `layer_caches`; without them by the sizes of a head. None: not known."""
        if self.layer_caches is not None:
            return self.layer_caches
        layers = self.layers or 0
        kinds = self.layer_types or ("full_attention",) * (layers if layers <= MAX_LAYERS else 0)
        heads = self.global_kv_heads or self.kv_heads or self.heads or (self.width or 0) // self.head_dim
        if not kinds or not heads or self.decoupled or any(map(is_windowed, kinds)):
            return None
        size = self.global_head_dim or self.head_dim
        return tuple(LayerCache(heads, size, size) if has_attention(kind) else None for kind in kinds)

    def kept_numbers(self, length: int) -> int:
        """Numbers that all layers keep of a text; 0 where it is not known."""
        return sum(each.numbers * each.tokens(length) for each in self.kept_by_layer() or () if each)

    def stated_facts(self) -> dict[str, Any]:
        """The facts by name, as a job states them: without new ones, so that its name stays (`core.new_fields`)."""
        return {name: value for name, value in asdict(self).items() if name != "layer_caches"}

    def rotary_base(self) -> float:
        """Base b if the angles are plain, b^(-2p/d), as formulas need them; otherwise Refused."""
        if self.rope_scaling is not None:
            kind = self.rope_scaling.get("rope_type", "layers of several kinds")
            raise Refused(f"{self.name} already scales its angles ({kind}), the formula starts from plain RoPE")
        if self.rope_base is None:
            raise Refused(f"{self.name} has no rotary positions to change: use method=none")
        return self.rope_base

    def inv_freq(self, base: float | None = None) -> NDArray[np.float64]:
        """[rotated / 2] radians per token of each pair: b^(-2p/d) (RoFormer, arXiv 2104.09864, eq. 15).

        Of other frequencies theta_p, a new base b' makes theta_p (b'/b)^(-2p/d).
        """
        plain = self.rotary_base()
        pairs = np.arange(0, self.rotated, 2, dtype=np.float64)
        if self.frequencies is None:
            return np.asarray((plain if base is None else base) ** (-pairs / self.rotated))
        own = np.array(self.frequencies)
        return own if base is None else np.asarray(own * (base / plain) ** (-pairs / self.rotated))


def as_fact(value: Any) -> Any:
    """A value as a `Model` holds it: a list, as yamls and JSON have it, is a tuple."""
    return tuple(value) if isinstance(value, list) else value


FACT_TYPES = get_type_hints(Model)

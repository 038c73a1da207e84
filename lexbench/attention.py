"""How positions enter attention at one length, as data: the narrow waist between methods and backends.

Every slot changes one term of one formula. For query position i and key position j, rel = i - j:

    near (no remap, or rel < window):  logit = scale^2 query_scale(i) R(i) q . R(j) k / sqrt(head_dim) + bias(i, j)
    far (rel >= window):               the same with R(f_q(i)) q . R(f_k(j)) k
    masked where mask.allowed(i, j) is false; R(t) rotates pair p by t inv_freq[p]

Positions are 0-based, attention is causal, and every slot left at None is the model's own.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LogScale:
    """Queries times ln(i + 1) / ln(trained_length) (Su, entropy invariance, kexue.fm/archives/8823)."""

    trained_length: float
    clip: bool = True
    """Never below 1, so that nothing changes inside the trained length."""

    def __post_init__(self) -> None:
        if not self.trained_length > 1:
            raise ValueError(f"query_scale needs a trained length above 1, got {self.trained_length}")

    def __call__(self, positions: Positions) -> Floats:
        """[n] multiplier of each query."""
        scale = np.log(positions + 1.0) / math.log(self.trained_length)
        return np.asarray(np.maximum(scale, 1.0) if self.clip else scale)


@dataclass(frozen=True)
class Line:
    """A map of positions: t / divisor + offset, the quotient floored if `floor`. divisor inf: a constant."""

    divisor: float = 1.0
    offset: float = 0.0
    floor: bool = False

    def __post_init__(self) -> None:
        if not (self.divisor > 0 and math.isfinite(self.offset)):
            raise ValueError(f"line needs a divisor above 0 and a finite offset, got {self.divisor} and {self.offset}")

    def __call__(self, positions: Positions) -> Floats:
        """[n] positions at which to rotate."""
        quotient = positions / self.divisor
        return (np.floor(quotient) if self.floor else quotient) + self.offset


@dataclass(frozen=True)
class Remap:
    """Beyond the near window, queries are rotated at query(i) and keys at key(j)."""

    window: int
    """Near where i - j < window."""
    query: Line
    key: Line

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"remap window must be at least 1, got {self.window}")


@dataclass(frozen=True)
class Window:
    """Each query sees its last `size` keys (itself counted) and the first `sinks` keys."""

    size: int
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.sinks < 0:
            raise ValueError(f"mask needs a size of at least 1 and no negative sinks, got {self.size} and {self.sinks}")

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key may be seen; causality is understood."""
        return np.asarray((queries[:, None] - keys[None, :] < self.size) | (keys[None, :] < self.sinks))


@dataclass(frozen=True)
class Slopes:
    """Bias -slope_h (i - j) on the logits of head h (ALiBi, arXiv 2108.12409)."""

    slopes: tuple[float, ...]

    def __call__(self, queries: Positions, keys: Positions) -> Floats:
        """[heads, queries, keys]"""
        rel = (queries[:, None] - keys[None, :]).astype(np.float64)
        return -np.asarray(self.slopes)[:, None, None] * rel


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """What a method asks of a backend at one length. An empty one is the model unchanged."""

    inv_freq: Floats | None = None
    """[rotated / 2] radians per token of each rotary pair."""
    scale: float | None = None
    """Multiplies cos and sin, of queries and keys alike: logits times scale^2."""
    query_scale: LogScale | None = None
    remap: Remap | None = None
    mask: Window | None = None
    bias: Slopes | None = None
    layers: tuple[int, ...] | None = None
    """Layers that it holds for, the others are the model's own; None: all."""

    def __post_init__(self) -> None:
        if self.inv_freq is not None:
            values = np.array(self.inv_freq, dtype=np.float64)
            if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"inv_freq must be finite, at least 0 and of one dimension, got {values}")
            values.setflags(write=False)
            object.__setattr__(self, "inv_freq", values)
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be finite and above 0, got {self.scale}")

    def slots(self) -> tuple[str, ...]:
        """Names of the slots in use."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)

    def as_data(self) -> dict[str, Any]:
        """Plain JSON values of the slots in use, each dataclass with its class name under `kind`."""
        return {name: _plain(getattr(self, name)) for name in self.slots()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {"kind": type(value).__name__, **_plain(asdict(value))}
    return value

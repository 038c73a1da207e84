"""Attention as data, the way positions enter it at one length: methods produce it, backends apply it.

Each slot changes one term of this formula. For query position i and key position j <= i:

    logit(i, j) = scale^2 query_scale(i) R(f_q(i)) q . R(f_k(j)) k / sqrt(head_dim) + bias(i, j)
    f_q, f_k: from the remap's region that contains (i, j); without a remap f_q(i) = i and f_k(j) = j
    masked if mask.allowed(i, j) is false; R(t) rotates pair p by t inv_freq[p], t of its band where there are `Bands`

Positions are 0-based, attention is causal, and a slot that is None keeps the model's own.
"""

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

import numpy as np
from numpy.typing import NDArray

from lexbench.core.errors import ConfigError
from lexbench.core.new_fields import stated_fields
from lexbench.core.plug_in import user_code_hash
from lexbench.core.values import has_type

if TYPE_CHECKING:
    from torch import Tensor

Positions = NDArray[np.int64]
Floats = NDArray[np.float64]


class SlotError(ConfigError):
    """A value that no model can take in a slot."""


def _check_field_types(data: Any, *without: str) -> None:
    """SlotError unless the fields of a dataclass have their annotated types; those named in `without` are not checked.

    Numbers and arrays of numpy become Python's, and lists become tuples.
    """
    if _is_being_compiled():
        return
    kind: type = type(data)
    for name, hint in _hints(kind).items():
        if name in without:
            continue
        value = _to_python(getattr(data, name))
        if not has_type(value, hint):
            # The annotation without modules: `tuple[int of at least 0, ...]`.
            wanted = re.sub(r"\w+\.(?=\w)", "", inspect.formatannotation(hint))
            wanted = re.sub(r"\bint\b", "int of at least 0", wanted)
            raise SlotError(f"{kind.__name__}.{name} must be {wanted}, got {value!r}")
        object.__setattr__(data, name, value)


def _is_being_compiled() -> bool:
    """Whether torch.compile reads this code, which cannot follow annotations; the same code has run before."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _to_python(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(map(_to_python, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class LogScale:
    """Multiply queries by (ln(i + 1) / ln(trained_length))^power (Su, entropy invariance, kexue.fm/archives/8823)."""

    trained_length: float
    clip: bool = True
    """Keep the factor at least 1, so that nothing changes inside the trained length."""
    power: float = field(default=1.0, metadata={"new": True})

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not 1 < self.trained_length < math.inf:
            raise SlotError(f"query_scale needs a finite trained length above 1, got {self.trained_length}")
        if not 0 <= self.power < math.inf:
            raise SlotError(f"query_scale needs a finite power of at least 0, got {self.power}")

    def __call__(self, positions: Positions) -> Floats:
        """[n] multiplier of each query."""
        scale = np.log(positions + 1.0) / math.log(self.trained_length)
        return np.asarray(np.maximum(scale, 1.0) if self.clip else scale) ** self.power


@dataclass(frozen=True)
class StepScale:
    """Multiply queries by 1 + strength ln(floor((i + 1) / tokens) + 1), Llama 4's temperature."""

    stored_kind = "Steps"
    """Class name that stored identities hold."""

    tokens: int
    strength: float

    def __post_init__(self) -> None:
        _check_field_types(self)
        if self.tokens < 1 or not 0 <= self.strength < math.inf:
            raise SlotError(f"query_scale needs steps of at least 1 token, got {self.tokens} and {self.strength}")

    def __call__(self, positions: Positions) -> Floats:
        """[n] multiplier of each query."""
        return np.asarray(1 + self.strength * np.log1p((positions + 1) // self.tokens))


@dataclass(frozen=True)
class ConstantScale:
    """Multiply queries from position `begin` on by a constant, `factor`."""

    factor: float
    begin: int = 0

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not 0 < self.factor < math.inf:
            raise SlotError(f"query_scale needs a finite gain above 0, got {self.factor}")

    def __call__(self, positions: Positions) -> Floats:
        """[n] multiplier of each query."""
        return np.where(positions < self.begin, 1.0, self.factor)


@dataclass(frozen=True)
class PositionMap:
    """Map position t to min(t / divisor + offset, cap); `floor` rounds the quotient down. divisor=inf: a constant."""

    stored_kind = "Line"
    """Class name that stored identities hold."""

    divisor: float = 1.0
    offset: float = 0.0
    floor: bool = False
    cap: float = math.inf

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not (self.divisor > 0 and math.isfinite(self.offset)) or math.isnan(self.cap):
            given = f"{self.divisor}, {self.offset} and {self.cap}"
            raise SlotError(f"line needs a divisor above 0, a finite offset and a cap, got {given}")

    def __call__(self, positions: Positions) -> Floats:
        """[n] rotary positions."""
        quotient = positions / self.divisor
        return np.minimum((np.floor(quotient) if self.floor else quotient) + self.offset, self.cap)


@dataclass(frozen=True)
class Bands:
    """Map positions by a line for each band of rotary pairs: as many pairs in each band, in the order of the pairs."""

    lines: tuple[PositionMap, ...]

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not self.lines:
            raise SlotError("bands need at least 1 line, got none")

    def __call__(self, positions: Positions) -> Floats:
        """[n, bands] rotary positions."""
        return np.stack([line(positions) for line in self.lines], axis=-1)


def of_pairs(positions: Floats | Positions, pairs: int) -> Floats:
    """[n, pairs] rotary positions of each pair, from [n] of all pairs or [n, bands]."""
    columns = positions.reshape(len(positions), -1)
    return np.repeat(columns, pairs // columns.shape[1], axis=1).astype(np.float64)


@dataclass(frozen=True)
class Region:
    """Pairs of query and key that share their maps of positions."""

    query: Callable[[Positions], Floats]
    """[n] query positions to [n] rotary positions, or to [n, bands] of them."""
    key: Callable[[Positions], Floats]
    holds: Callable[[Positions, Positions], NDArray[np.bool_]]
    """(queries [n, 1], keys [1, m]) to [n, m] whether the region contains the pair; only causal pairs matter."""


class Remapping(Protocol):
    """Value of the slot `remap`: plain data that divides all causal pairs into regions."""

    def regions(self) -> Sequence[Region]:
        """Each pair with key <= query is in exactly one region."""


@dataclass(frozen=True)
class Remap:
    """Beyond the near window, rotate queries at query(i) and keys at key(j)."""

    window: int
    """A pair is near if i - j < window."""
    query: PositionMap | Bands
    key: PositionMap | Bands

    def __post_init__(self) -> None:
        _check_field_types(self)
        if self.window < 1:
            raise SlotError(f"remap window must be at least 1, got {self.window}")
        if len({len(each.lines) for each in (self.query, self.key) if isinstance(each, Bands)}) > 1:
            raise SlotError("remap needs as many bands of queries as of keys: give each band a line of both")

    def regions(self) -> Sequence[Region]:
        """The near and the far region."""
        return (
            Region(PositionMap(), PositionMap(), lambda i, j: i - j < self.window),
            Region(self.query, self.key, lambda i, j: i - j >= self.window),
        )


@dataclass(frozen=True)
class Chunks:
    """Restart positions every `size` tokens; for older chunks a query has a larger position.

    Keys have position j mod size. A query has position i mod size for its own chunk, min(i mod size + size, limit) for
    the chunk before, and limit for all older chunks (dual chunk attention, arXiv 2402.17463).
    """

    size: int
    limit: int

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not 1 <= self.size <= self.limit:
            raise SlotError(f"chunks need 1 <= size <= limit, got {self.size} and {self.limit}")

    def regions(self) -> Sequence[Region]:
        """The own chunk, the chunk before, all older chunks."""
        size, limit = self.size, float(self.limit)
        return (
            Region(self.positions_in_chunk, self.positions_in_chunk, lambda i, j: i // size == j // size),
            Region(
                lambda i: np.minimum(self.positions_in_chunk(i) + size, limit),
                self.positions_in_chunk,
                lambda i, j: i // size == j // size + 1,
            ),
            Region(lambda i: np.full(i.shape, limit), self.positions_in_chunk, lambda i, j: i // size > j // size + 1),
        )

    def positions_in_chunk(self, positions: Positions) -> Floats:
        """[n] positions inside the chunk."""
        return (positions % self.size).astype(np.float64)


@dataclass(frozen=True)
class Stairs:
    """Let distances grow in steps: each entry (count, repeat) of `steps` is `count` steps of `repeat` tokens.

    The last entry repeats without end. A stepped distance has not the form f_q(i) - f_k(j). But for queries with the
    same i mod m, where m is the repeat, it has: floor((i - j) / m) = floor(i / m) + floor((i mod m - j) / m).
    """

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not self.steps or any(min(step) < 1 for step in self.steps):
            raise SlotError(f"stairs need counts and repeats of at least 1, got {self.steps}")

    def regions(self) -> Sequence[Region]:
        """Regions, one for each entry of `steps` and each remainder of the query's position."""
        found: list[Region] = []
        begin = level = 0
        for number, (count, repeat) in enumerate(self.steps):
            end = math.inf if number == len(self.steps) - 1 else begin + count * repeat
            found += [_stair(begin, end, level, repeat, rest) for rest in range(repeat)]
            begin, level = begin + count * repeat, level + count
        return found


@dataclass(frozen=True)
class Shift:
    """Let positions begin at `offset` in place of 0: angles of queries and keys grow, distances stay."""

    offset: int

    def __post_init__(self) -> None:
        _check_field_types(self)

    def regions(self) -> Sequence[Region]:
        """One region, which holds all pairs of a query and a key."""
        line = PositionMap(offset=float(self.offset))
        return (Region(line, line, lambda i, j: np.ones((len(i), j.shape[1]), dtype=bool)),)


def _stair(begin: int, end: float, level: int, repeat: int, rest: int) -> Region:
    return Region(
        # level + floor((i - begin - j) / m), with i = m floor(i / m) + rest.
        PositionMap(divisor=repeat, offset=level, floor=True),
        lambda j: -np.floor((rest - begin - j) / repeat),
        lambda i, j: (i - j >= begin) & (i - j < end) & (i % repeat == rest),
    )


def regions_of(remap: Remapping | None) -> Sequence[Region]:
    """The remap's regions; without a remap one region with the true positions."""
    everywhere = Region(PositionMap(), PositionMap(), lambda i, j: np.ones((len(i), j.shape[1]), dtype=bool))
    return (everywhere,) if remap is None else remap.regions()


def count_bands(remap: Remapping | None) -> int:
    """Number of bands of pairs that see distances of their own; 1: all pairs see the same."""
    first = np.zeros(1, dtype=np.int64)
    return max(np.size(place(first)) for region in regions_of(remap) for place in (region.query, region.key))


def seen_distances(remap: Remapping | None, queries: Positions, keys: Positions) -> Floats:
    """[queries, keys] remapped distances, in place of i - j; NaN if the key comes after the query.

    [queries, keys, bands] where bands of pairs see distances of their own.
    """
    rows, columns, bands = queries[:, None], keys[None, :], count_bands(remap)
    seen = np.full((len(queries), len(keys), bands), np.nan)
    for region in regions_of(remap):
        here, there = of_pairs(region.query(queries), bands), of_pairs(region.key(keys), bands)
        held = region.holds(rows, columns) & (columns <= rows)
        seen = np.where(held[:, :, None], here[:, None] - there[None, :], seen)
    return seen if bands > 1 else seen[:, :, 0]


@dataclass(frozen=True)
class Window:
    """Each query sees the last `size` keys (including its own) and the first `sinks` keys."""

    size: int
    sinks: int = 0

    def __post_init__(self) -> None:
        _check_field_types(self)
        if self.size < 1:
            raise SlotError(f"mask needs a size of at least 1, got {self.size}")

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key may be seen; causality is understood."""
        return np.asarray((queries[:, None] - keys[None, :] < self.size) | (keys[None, :] < self.sinks))


@dataclass(frozen=True)
class TopKMask:
    """Each query of each head sees its last `size` keys, the first `sinks`, and the `count` of largest logit between.

    The logits that count are those of the Attention, bias included. Of equal logits all are seen.
    """

    stored_kind = "Middle"
    """Class name that stored identities hold."""

    size: int
    sinks: int
    count: int

    def __post_init__(self) -> None:
        _check_field_types(self)
        if self.size < 1 or self.count < 1:
            raise SlotError(f"mask needs a size and a count of at least 1, got {self.size} and {self.count}")

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key may be seen: any may; causality is understood."""
        return np.ones((len(queries), len(keys)), dtype=bool)

    def always_allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key is seen whatever its logit."""
        return Window(self.size, self.sinks).allowed(queries, keys)


@dataclass(frozen=True)
class Blocks:
    """Each query sees its own block of `size` keys and the whole block before (arXiv 2212.10554, section 2.3)."""

    size: int

    def __post_init__(self) -> None:
        _check_field_types(self)
        if self.size < 1:
            raise SlotError(f"mask needs blocks of at least 1 token, got {self.size}")

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key may be seen; causality is understood."""
        return np.asarray(queries[:, None] // self.size - keys[None, :] // self.size <= 1)


@dataclass(frozen=True)
class Segments:
    """Each query sees its own segment of `size` keys alone (Llama 4's chunks)."""

    size: int

    def __post_init__(self) -> None:
        _check_field_types(self)
        if self.size < 1:
            raise SlotError(f"mask needs segments of at least 1 token, got {self.size}")

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        """[queries, keys] whether the key may be seen; causality is understood."""
        return np.asarray(queries[:, None] // self.size == keys[None, :] // self.size)


@dataclass(frozen=True)
class Slopes:
    """Bias -slope_h (i - j) on the logits of head h (ALiBi, arXiv 2108.12409)."""

    slopes: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not all(map(math.isfinite, self.slopes)):
            raise SlotError(f"bias needs finite slopes, got {self.slopes}")

    def __call__(self, queries: Positions, keys: Positions) -> Floats:
        """[heads, queries, keys]"""
        rel = (queries[:, None] - keys[None, :]).astype(np.float64)
        return -np.asarray(self.slopes)[:, None, None] * rel


@dataclass(frozen=True)
class HeadRatios:
    """Divide the positions of each key head, and of the query heads that share it, by a ratio (Ms-PoE, 2403.04797).

    In every layer the heads are ranked, and the highest rank gets the smallest ratio. A head's rank is its number of
    keys with more than `threshold` times the mean weight, from the last query of the prompt and before any division.
    Equal numbers rank in the order of the heads.
    """

    ratios: tuple[float, ...]
    """Ratios of the ranks, one for each key head, ascending."""
    threshold: float = 3.0

    def __post_init__(self) -> None:
        _check_field_types(self)
        finite = all(map(math.isfinite, (*self.ratios, self.threshold)))
        if not self.ratios or not finite or min(self.ratios) <= 0 or list(self.ratios) != sorted(self.ratios):
            given = f"{self.ratios} and threshold {self.threshold}"
            raise SlotError(f"head_ratios must be finite, above 0 and ascend, got {given}")


@dataclass(frozen=True)
class Dynamic:
    """Let frequencies follow the longest input so far; cached keys keep the frequencies of their time.

    This is the dynamic rope of transformers, including its dependence on history: at n > trained_length tokens the base
    is b (factor n / trained_length - (factor - 1))^(d/(d-2)).
    """

    factor: float
    trained_length: int

    def __post_init__(self) -> None:
        _check_field_types(self)
        if not 0 < self.factor < math.inf or self.trained_length < 1:
            raise SlotError(f"dynamic needs a factor above 0 and a trained length, got {self}")


@dataclass(frozen=True)
class Growing:
    """Let frequencies follow each query: the query and all keys that it meets rotate as in a text that ends with it.

    At n = i + 1 tokens the base is that of `Dynamic`, b (factor n / trained_length - (factor - 1))^(d/(d-2)), from
    n = trained_length on. A logit then depends on i - j and i; keys are cached before rotation.
    """

    factor: float
    trained_length: int
    base: float
    """b."""
    pairs: int
    """d / 2."""

    def __post_init__(self) -> None:
        _check_field_types(self)
        finite = 1 <= self.factor < math.inf and 1 < self.base < math.inf
        if not finite or self.trained_length < 1 or self.pairs < 2:
            raise SlotError(f"growing needs a factor, a trained length, a base and at least 2 pairs, got {self}")

    def inv_freq(self, positions: Positions) -> Floats:
        """[n, pairs] radians per token, for queries at these positions."""
        # (b s^(d/(d-2)))^(-2p/d) = b^(-2p/d) s^(-2p/(d-2)), where s is the stretch.
        stretch = np.maximum(1.0, self.factor * (positions + 1) / self.trained_length - (self.factor - 1))
        pairs, d = np.arange(self.pairs), 2 * self.pairs
        return np.asarray(self.base ** (-2 * pairs / d) * stretch[:, None] ** (-2 * pairs / (d - 2)))


class Keeping(Protocol):
    """Value of the slot `cache`: plain data that says how keys and values are kept for later queries.

    A query sees the first keys as the cache gives them back, and its nearest ones as they were computed; both with
    their values. Keys are kept as the backend holds them: after rotation, or before it where a method rotates them at
    several positions. Backends hand keys and values over, and compute attention over what they get back.
    """

    @property
    def in_prompt(self) -> bool:
        """Whether the prompt's own queries see keys as they are kept, too; else only the tokens behind the prompt."""

    @property
    def drops_tokens(self) -> bool:
        """Whether heads hold a part of the prompt only; else `held_tokens` is not called."""

    @property
    def choosing_queries(self) -> int | None:
        """Number of the prompt's last queries that `held_tokens` needs; None: it needs all."""

    @property
    def needs_rotation(self) -> bool:
        """Whether `held_tokens` asks for queries before their rotation, and rotates them to later positions."""

    def kept_before(self, queries: Positions) -> Positions:
        """[n] number of first keys that each query sees as they are kept; at most those up to its own, and ascending.

        At a later query a key is kept in the same form.
        """

    def kept_keys_and_values(self, keys: "Tensor", values: "Tensor", layer: int) -> "tuple[Tensor, Tensor]":
        """Keys and values [B, KV, K, D] of a text's first K tokens in one layer, as the cache gives them back."""

    def by_definition(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Check for `kept_keys_and_values`: the same of keys and values [KV, K, D], in float64, group by group."""

    def words(self) -> str:
        """The meaning of the cache for readers, in one line."""

    def held_tokens(
        self,
        queries: "Tensor",
        keys: "Tensor",
        values: "Tensor",
        rotate: "Callable[[Tensor, Tensor], Tensor]",
        scaling: float,
    ) -> "Tensor":
        """[B, KV, P] whether the cache holds each token of the prompt; by logits as with true distances.

        Args:
            queries: [B, H, Q, D] of the prompt's last Q <= P tokens, `choosing_queries` at least, before `rotate`.
            keys: [B, KV, P, D], before `rotate`.
            values: [B, KV, P, D].
            rotate: (vectors [B, H, T, D], positions [T]) -> vectors there; where `needs_rotation` is false queries and
                keys may be rotated already, and it leaves them.
            scaling: factor on the logits.
        """


def sees_prompt_end(keeping: Keeping) -> bool:
    """Whether numbers of a text depend on where its prompt ends."""
    return not keeping.in_prompt or keeping.drops_tokens


SLOT_METHOD_NAMES = {"query_scale": "__call__", "remap": "regions", "mask": "allowed", "cache": "kept_keys_and_values"}
"""Slots that a user's class can fill, and the method of that class that is called."""


def _as_real_array(given: Any) -> Floats | None:
    """An array of real numbers; None for anything else."""
    try:
        values = np.array(given)
    except ValueError:  # rows of several lengths
        return None
    return values.astype(np.float64) if values.dtype.kind in "fiu" else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """The changes that a method makes to attention at one length. `Attention()` changes nothing."""

    inv_freq: Floats | None = None
    """[rotated / 2] radians per token of each rotary pair."""
    scale: float | None = None
    """Multiplies cos and sin of queries and keys, so the logits by scale^2."""
    keep_first: int | None = None
    """Number of first tokens that keep the model's own frequencies and scale."""
    head_ratios: HeadRatios | None = None
    dynamic: Dynamic | None = None
    growing: Growing | None = None
    query_scale: LogScale | StepScale | ConstantScale | None = None
    remap: Remapping | None = None
    mask: Window | TopKMask | Blocks | Segments | None = None
    bias: Slopes | None = None
    cache: Keeping | None = None
    layers: tuple[int, ...] | None = None
    """Layers to change; None: all."""
    otherwise: "Attention | None" = None
    """Attention of the other layers; None: the model's own."""
    mixture: tuple["Attention", ...] | None = None
    """Several forward passes; excludes all other slots. The next-token logits are the weighted sum of the passes'
    logits; the weights are a softmax over the passes of each pass's largest logit (Attention Buckets, 2312.04455)."""

    def __post_init__(self) -> None:
        _check_field_types(self, "inv_freq", *SLOT_METHOD_NAMES)
        for name, does in SLOT_METHOD_NAMES.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, type) or not hasattr(value, does)):
                raise SlotError(f"{name} must be an object with {does}(...), got {value!r}")
        if self.inv_freq is not None:
            values = _as_real_array(self.inv_freq)
            if values is None or values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
                raise SlotError(
                    f"inv_freq must be finite numbers of at least 0 in one dimension, got {self.inv_freq!r}"
                )
            # Attentions are shared and cached: nobody may change the numbers of one.
            values.setflags(write=False)
            object.__setattr__(self, "inv_freq", values)
        if self.scale is not None and not (self.scale > 0 and 0 < self.scale * self.scale < math.inf):
            raise SlotError(f"scale must be above 0, and finite when squared, got {self.scale}")
        self._check_together()

    def _check_together(self) -> None:
        """ConfigError for slots that cannot be combined."""
        used = set(self.slots())
        if self.mixture is not None and (used != {"mixture"} or len(self.mixture) < 2):
            slots = f"{len(self.mixture)} with slots {', '.join(sorted(used))}"
            raise SlotError(f"mixture needs at least 2 attentions and no other slot, got {slots}")
        if self.otherwise is not None and self.otherwise.mixture is not None:
            raise SlotError("mixture must be for all layers, got one in otherwise")
        for part in self.mixture or ():
            if remembers := {"mixture", "dynamic", "head_ratios"} & set(part.slots()):
                raise SlotError(f"mixture cannot hold {', '.join(sorted(remembers))}")
        if self.otherwise is not None and self.layers is None:
            raise SlotError("otherwise is for the other layers, got no layers: name layers")
        for alone, others in (
            ("keep_first", {"remap", "head_ratios", "dynamic"}),
            ("dynamic", used - {"dynamic", "query_scale", "mask", "bias"}),
            ("growing", used - {"growing", "query_scale", "mask", "bias"}),
            ("cache", {"head_ratios", "dynamic", "growing"}),
        ):
            if alone in used and (clash := used & others):
                raise SlotError(f"{alone} cannot be combined with {', '.join(sorted(clash))}")

    def slots(self) -> tuple[str, ...]:
        """Names of the slots in use."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not None)

    def at(self, layer: int) -> "Attention":
        """The attention of one layer, without the slot `layers`."""
        if self.layers is None:
            return self
        if layer in self.layers:
            return replace(self, layers=None, otherwise=None)
        return Attention() if self.otherwise is None else self.otherwise.at(layer)

    def parts(self) -> tuple["Attention", ...]:
        """The attentions of all groups of layers, without the slot `layers`; `Attention()` is the model's own."""
        if self.layers is None:
            return (self,)
        others = Attention() if self.otherwise is None else self.otherwise
        return (replace(self, layers=None, otherwise=None), *others.parts())

    def merge_with(self, other: "Attention") -> "Attention":
        """Combine two attentions in every layer and every pass of a mixture; ConfigError if both set the same slot."""
        for one, two in ((self, other), (other, self)):
            if one.mixture is not None:
                return Attention(mixture=tuple(part.merge_with(two) for part in one.mixture))
        for one, two in ((self, other), (other, self)):
            if one.layers is not None and two.layers is None:
                # What holds for all layers joins both groups.
                others = (one.otherwise or Attention()).merge_with(two)
                held = replace(one, layers=None, otherwise=None).merge_with(two)
                return replace(held, layers=one.layers, otherwise=others)
        if both := set(self.slots()) & set(other.slots()):
            raise ConfigError(f"both set {', '.join(sorted(both))}")
        return replace(self, **{name: getattr(other, name) for name in other.slots()})

    def without_cache(self) -> "Attention":
        """Copy without the slot `cache` in any layer and pass: keys and values are kept as they are computed."""
        if self.mixture is not None:
            return Attention(mixture=tuple(part.without_cache() for part in self.mixture))
        others = None if self.otherwise is None else self.otherwise.without_cache()
        left = replace(self, cache=None, otherwise=others)
        return Attention() if left.slots() == ("layers",) else left

    @property
    def keepings(self) -> tuple["Keeping", ...]:
        """Rule by which the layers that change the cache keep keys and values, in all passes."""
        parts = [each for one in self.mixture or (self,) for each in one.parts()]
        return tuple(part.cache for part in parts if part.cache is not None)

    def check_fits(
        self, name: str, *, pairs: int | None, heads: int | None, kv_heads: int | None, layers: int | None
    ) -> None:
        """SlotError if the size of a slot does not fit the network `name`; None: not known, or no rotary positions."""
        if self.inv_freq is not None and pairs is not None and len(self.inv_freq) != pairs:
            raise SlotError(f"inv_freq needs {pairs} pairs on {name}, got {len(self.inv_freq)}: check model.rotary_dim")
        if self.growing is not None and pairs is not None and self.growing.pairs != pairs:
            raise SlotError(f"growing needs {pairs} pairs on {name}, got {self.growing.pairs}: check model.rotary_dim")
        if pairs is not None and pairs % (bands := count_bands(self.remap)):
            raise SlotError(
                f"remap has {bands} bands, which do not divide the {pairs} pairs of {name}: take as many as divide them"
            )
        if self.bias is not None and heads is not None and len(self.bias.slopes) != heads:
            raise SlotError(f"bias needs one slope for each of {heads} heads on {name}, got {len(self.bias.slopes)}")
        if self.head_ratios is not None and kv_heads is not None and len(self.head_ratios.ratios) != kv_heads:
            ratios = len(self.head_ratios.ratios)
            raise SlotError(f"head_ratios needs one ratio for each of {kv_heads} key heads on {name}, got {ratios}")
        if self.layers is not None and layers is not None and not set(self.layers) <= set(range(layers)):
            raise SlotError(f"layers must be 0 to {layers - 1} on {name}, got {self.layers}")
        for part in (*(self.mixture or ()), *((self.otherwise,) if self.otherwise else ())):
            part.check_fits(name, pairs=pairs, heads=heads, kv_heads=kv_heads, layers=layers)

    def as_data(self) -> dict[str, Any]:
        """JSON values of the slots in use; each dataclass has its class name under `kind`, a user's also `file`."""
        return {name: _to_json(getattr(self, name)) for name in self.slots()}


def _to_json(value: Any, inside: bool = False) -> Any:
    """A slot's value as JSON; `inside` one of our dataclasses, another has no `kind`."""
    if isinstance(value, Attention):
        return value.as_data()
    if isinstance(value, np.ndarray):
        # 12 digits: the last ones depend on the processor, whose wide powers and logarithms round in their own way.
        return np.char.mod("%.12g", value).astype(value.dtype).tolist()
    if isinstance(value, tuple | list):
        return [_to_json(item, inside) for item in value]
    # JSON has no infinity.
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Mapping):
        return {key: _to_json(item, inside) for key, item in value.items()}
    if is_dataclass(value):
        file = user_code_hash(type(value))
        about = {} if inside and file is None else {"kind": vars(type(value)).get("stored_kind", type(value).__name__)}
        held = {each.name: _to_json(getattr(value, each.name), inside=file is None) for each in stated_fields(value)}
        return about | held | ({} if file is None else {"file": file})
    return value

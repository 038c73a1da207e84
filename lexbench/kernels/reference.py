"""Attention weights by the formula of `lexbench.core.attention`, in float64 numpy: the reference for all backends."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lexbench.core.attention import (
    Attention,
    Floats,
    Keeping,
    Positions,
    TopKMask,
    of_pairs,
    regions_of,
    seen_distances,
)
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.scaled import ropes_of_model


@dataclass(frozen=True)
class Angles:
    """Rotation of vectors by the network itself, without an Attention."""

    inv_freq: Floats
    """[pairs] radians per token."""
    scale: float = 1.0
    """Factor on cos and sin."""
    layout: str = "half"
    """half or interleaved, as in `Model`."""
    offset: int = 0
    """First rotated dimension of a head."""

    def angles_and_scale(
        self, attention: Attention, places: Positions, positions: Floats | Positions
    ) -> tuple[Floats, Floats]:
        """[n, pairs] angles in radians and [n, 1] scale of cos and sin, for tokens number `places` at `positions`.

        These are [n], or [n, bands] where bands of pairs have positions of their own.

        The first `attention.keep_first` tokens rotate as in the network itself.
        """
        inv_freq = self.inv_freq if attention.inv_freq is None else attention.inv_freq
        angles = of_pairs(positions, len(inv_freq)) * inv_freq
        scale = np.full((len(places), 1), self.scale if attention.scale is None else attention.scale)
        if attention.keep_first is not None:
            first = places < attention.keep_first
            angles[first], scale[first] = positions[first, None] * self.inv_freq, self.scale
        return angles, scale


def attention_weights(
    attention: Attention,
    own: Angles,
    query: Floats,
    keys: Floats,
    place: int,
    scaling: float,
    head: int = 0,
    ratio: float = 1.0,
) -> Floats:
    """[n] attention weights of one query of one head over the keys 0 .. n - 1.

    Args:
        attention: of one layer, without `layers`, `mixture` and `dynamic`.
        own: angles of the network.
        query: [D], before rotation, at position `place`.
        keys: [n, D], before rotation.
        place: position of the query; later keys get weight 0.
        scaling: factor on the logits, usually 1 / sqrt(D).
        head: of the query, for its bias.
        ratio: divisor of the positions of this head (`head_ratios`).
    """
    here, there = np.array([place]), np.arange(len(keys))
    logits = np.full(len(keys), np.nan)
    for region in regions_of(attention.remap):
        held = region.holds(here[:, None], there[None, :])[0]
        turned = rotate_to(query[None], here, region.query(here) / ratio, attention, own)
        others = rotate_to(keys, there, region.key(there) / ratio, attention, own)
        logits = np.where(held, others @ turned[0], logits)
    logits *= scaling
    if attention.query_scale is not None:
        logits *= attention.query_scale(here)[0]
    if attention.bias is not None:
        logits += attention.bias(here, there)[head, 0]
    unseen = there > place
    if attention.mask is not None:
        unseen |= ~attention.mask.allowed(here, there)[0]
    if isinstance(attention.mask, TopKMask):
        # The threshold is the count-th largest logit of the middle. With no middle at all it is inf, and nothing is
        # hidden.
        middle = ~attention.mask.always_allowed(here, there)[0] & ~unseen
        unseen |= middle & (logits < np.sort(logits[middle])[-attention.mask.count :].min(initial=np.inf))
    # The largest seen logit is taken off, so that no power overflows.
    powers = np.where(unseen, 0.0, np.exp(logits - logits[~unseen].max()))
    return np.asarray(powers / powers.sum())


def rotate_to(vectors: Floats, places: Positions, positions: Floats, attention: Attention, own: Angles) -> Floats:
    """[n, D] vectors of tokens number `places`, rotated to `positions`; dimensions beyond the pairs stay."""
    angles, scale = own.angles_and_scale(attention, places, positions)
    pairs = angles.shape[1]
    end = own.offset + 2 * pairs
    rotated, half = vectors[:, own.offset : end], own.layout == "half"
    one, two = (rotated[:, :pairs], rotated[:, pairs:]) if half else (rotated[:, ::2], rotated[:, 1::2])
    # A rotation of a pair is a product of complex numbers.
    spun = (one + 1j * two) * np.exp(1j * angles) * scale
    found = np.array(vectors, dtype=np.float64)
    both = [spun.real, spun.imag]
    found[:, own.offset : end] = np.concatenate(both, 1) if half else np.stack(both, 2).reshape(rotated.shape)
    return found


def first_change(attention: Attention, model: Model, length: int) -> int | None:
    """Length from which an Attention differs from the model's own in a prompt; None: it does not, up to `length`.

    Where distances or masks change, only powers of two and `length` itself are tried: the change lies above half of
    the result.
    """
    if attention.mixture is not None:
        return _smallest_length(first_change(part, model, length) for part in attention.mixture)
    return _smallest_length(_first_change(part, model, length) for part in attention.parts())


def _smallest_length(places: Iterable[int | None]) -> int | None:
    return min((place for place in places if place is not None), default=None)


def _first_change(attention: Attention, model: Model, length: int) -> int | None:
    if attention.growing is not None:
        # Its factor exceeds 1 first at i + 1 = L + 1 tokens.
        begin = attention.growing.trained_length + 1
        return begin if length >= begin else None
    if attention.dynamic is not None:
        # A prompt beyond the trained length is read whole under the new frequencies, its first token, too.
        return 1 if length > attention.dynamic.trained_length else None
    turned = not _turns_as(attention, model, length)
    if attention.bias is not None or (attention.head_ratios and set(attention.head_ratios.ratios) != {1.0}):
        return 1
    sizes = [*(1 << power for power in range(length.bit_length()) if 1 << power < length), length]
    first = (attention.keep_first or 0) + 1
    return _smallest_length(
        [
            _first_kept(attention.cache, length),
            first if turned and first <= length else None,
            next((size for size in sizes if _changes_last_query(attention, size)), None),
        ]
    )


def _first_kept(keeping: Keeping | None, length: int) -> int | None:
    """Length from which a query of the prompt sees a key as its cache keeps it."""
    if keeping is None or not keeping.in_prompt:
        return None
    places = np.flatnonzero(keeping.kept_before(np.arange(length)) > 0)
    return int(places[0]) + 1 if len(places) else None


def _turns_as(attention: Attention, model: Model, length: int) -> bool:
    """Whether frequencies and scale are those of the model itself, in any kind of layers."""
    scale_is_own = attention.scale is None or (attention.scale == 1 and model.rope_scaling is None)
    if attention.inv_freq is None and scale_is_own:
        return True
    try:
        own = [rope.own(length) for rope in ropes_of_model(model)]
    except Refused:
        return False
    return any(
        (attention.inv_freq is None or _frequencies_equal(attention.inv_freq, inv_freq))
        and attention.scale in (None, scale)
        for inv_freq, scale in own
    )


def _frequencies_equal(one: Floats, other: Floats) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-9, atol=0))


def _changes_last_query(attention: Attention, size: int) -> bool:
    """Whether the last query of `size` tokens sees other keys, distances or scales than in the model itself."""
    here, there = np.array([size - 1]), np.arange(size)
    if attention.query_scale is not None and attention.query_scale(here)[0] != 1.0:
        return True
    if attention.mask is not None and not attention.mask.allowed(here, there).all():
        return True
    seen = seen_distances(attention.remap, here, there)[0].reshape(size, -1)
    return bool((seen != size - 1.0 - there[:, None]).any())

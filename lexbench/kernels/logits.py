"""Logits of one layer by their definition, a few queries at a time, for attention statistics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, Positions
from lexbench.core.errors import ConfigError
from lexbench.kernels import dense, rotations
from lexbench.kernels.heads import Rotate

Bias = Callable[[Tensor, Tensor], Tensor | None]
"""(positions of queries [Q], of keys [K]) -> [H, Q, K] added to the logits, or None."""


@dataclass(frozen=True, kw_only=True)
class Logits:
    """Logits of a layer from its queries and keys.

        logit(i, j) = scaling query_scale(i) sum_p e^(decay_p (i - j)) (R q)_p . (R k)_p + biases(i, j)

    over pairs p of dimensions; R and everything else as in `lexbench.core.attention`.

    Raises:
        ConfigError: there are a decay and a remap; the decay of a remapped distance is not defined.
    """

    rotate: Rotate
    scaling: float
    """Usually 1 / sqrt(D)."""
    attention: Attention = field(default_factory=Attention)
    """query_scale, remap, mask and bias of this layer."""
    ratios: tuple[float, ...] | None = None
    """Divisors of the positions of each key head (`head_ratios`)."""
    decay: Tensor | None = None
    """[D / 2] change per token of distance in the logarithm of the product of pair (p, p + D/2) (xPos)."""
    bias: Bias | None = None
    """Bias of the encoding, added to that of the attention."""
    made: Callable[[int, int], Tensor] | None = None
    """(start, stop) -> [H, stop - start, stop] logits of all heads, -inf where not seen. It replaces the formula, for
    encodings that mix heads or keys, or whose positions depend on the content."""

    def __post_init__(self) -> None:
        if self.decay is not None and self.attention.remap is not None:
            raise ConfigError(
                "the decay of an encoding is not defined for remapped distances: use a method without remap"
            )

    def biases(self, heads: slice, queries: Positions, keys: Positions, device: torch.device) -> Tensor | None:
        """[G, Q, K] float64 sum of the biases of some heads; None where there are none."""
        found = []
        if self.attention.bias is not None:
            found.append(torch.from_numpy(self.attention.bias(queries, keys)).to(device))
        if self.bias is not None:
            here, there = (torch.from_numpy(places).to(device, torch.float64) for places in (queries, keys))
            found += [added for added in (self.bias(here, there),) if added is not None]
        return torch.stack([added[heads].to(torch.float64) for added in found]).sum(0) if found else None


@dataclass(frozen=True, eq=False)
class Group:
    """Queries and keys of one key head and of the G query heads that share it."""

    heads: slice
    queries: Tensor
    """[1, G, T, D] before rotation, times scaling and query_scale."""
    keys: Tensor
    """[1, 1, T, D] before rotation."""
    rotate: Rotate

    @property
    def length(self) -> int:
        """Tokens."""
        return self.keys.shape[2]


def split_by_key_head(queries: Tensor, keys: Tensor, logits: Logits, dtype: torch.dtype) -> Iterator[Group]:
    """Split queries [1, H, T, D] and keys [1, KV, T, D] of a whole text by key head, in the given dtype."""
    (batch, heads, total, _), count = queries.shape, keys.shape[1]
    assert batch == 1 and total == keys.shape[2], "one text at a time, and all of it"
    assert heads % count == 0, f"{heads} heads cannot share {count} key heads"
    for place in range(count):
        mine = slice(place * heads // count, (place + 1) * heads // count)
        asking = dense.scale_queries(queries[:, mine].to(dtype) * logits.scaling, logits.attention, total)
        ratio = None if logits.ratios is None else logits.ratios[place : place + 1]
        rotate = logits.rotate if ratio is None else rotations.rotate_per_head(ratio, logits.rotate)
        yield Group(mine, asking, keys[:, place : place + 1].to(dtype), rotate)


def logit_rows(group: Group, logits: Logits, chunk: int | None = None, begin: int = 0) -> Iterator[Tensor]:
    """[G, Q, K] logits chunk by chunk: of Q queries, over the K keys up to the last of these queries.

    -inf where a key is not seen. At most `chunk` queries at once; None: as many as make `dense.MAX_SCORES_IN_MEMORY`
    scores. The first query is `begin`.
    """
    total, device = group.length, group.keys.device
    chunk = chunk or max(1, dense.MAX_SCORES_IN_MEMORY // (group.queries.shape[1] * total))
    if logits.made is not None:
        for start in range(begin, total, chunk):
            yield logits.made(start, min(start + chunk, total))[group.heads]
        return
    shape = replace(logits.attention, bias=None)
    for start in range(begin, total, chunk):
        stop = min(start + chunk, total)
        asking, known = group.queries[:, :, start:stop], group.keys[:, :, :stop]
        if logits.decay is not None:
            # e^(decay (i - start)) e^(-decay (j - start)): relative to the chunk, no factor is far above 1.
            places = torch.arange(stop, device=device) - start
            asking = asking * _growth_factors(logits.decay, places[start:]).to(asking.dtype)
            known = known * _growth_factors(-logits.decay, places).to(known.dtype)
        scores = dense.masked_scores(asking, known, shape, group.rotate)[0]
        biases = logits.biases(group.heads, np.arange(start, stop), np.arange(stop), device)
        yield scores if biases is None else scores + biases.to(scores.dtype)


def _growth_factors(decay: Tensor, places: Tensor) -> Tensor:
    """[T, D] factors e^(decay place), for both dimensions of each pair."""
    return (places[:, None] * torch.cat([decay, decay]).to(places.device, torch.float64)).exp()


def sum_by_distance(values: Tensor) -> Tensor:
    """[H, K] float64 sums of values [H, Q, K] over all pairs of each distance i - j; queries are the last Q of K.

    Padding and reshaping shift each row by one more place than the row before, so that diagonals become columns.
    """
    heads, n_queries, total = values.shape
    width = total + n_queries - 1
    flat = F.pad(values.flip(-1), (0, n_queries)).flatten(1)[:, : n_queries * width]
    return flat.reshape(heads, n_queries, width).sum(1, dtype=torch.float64)[:, n_queries - 1 :]

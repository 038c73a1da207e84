"""Logits of one layer by their definition, a few queries at a time, for those who look at them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, Positions
from lexbench.kernels import dense, rotations
from lexbench.kernels.dense import Rotate

Bias = Callable[[Tensor, Tensor], Tensor | None]
"""(positions of queries [Q], of keys [K]) -> [H, Q, K] added to the logits, or None."""


@dataclass(frozen=True, kw_only=True)
class Logits:
    """How a layer makes logits of its queries and keys.

        logit(i, j) = scaling query_scale(i) sum_p e^(decay_p (i - j)) (R q)_p . (R k)_p + biases(i, j)

    over pairs p of dimensions; R and everything else as in `lexbench.core.attention`.

    Raises:
        ValueError: there are a decay and a remap: nobody has said at which distance a remapped pair decays.
    """

    rotate: Rotate
    scaling: float
    """Usually 1 / sqrt(D)."""
    attention: Attention = field(default_factory=Attention)
    """Of this layer: its query_scale, remap, mask and bias."""
    ratios: tuple[float, ...] | None = None
    """By which the positions of each key head are divided (`head_ratios`)."""
    decay: Tensor | None = None
    """[D / 2] by how much the logarithm of a pair's product changes per token of distance (xPos); pairs (p, p + D/2)"""
    bias: Bias | None = None
    """An encoding's, beside the attention's."""
    made: Callable[[int, int], Tensor] | None = None
    """(start, stop) -> [H, stop - start, stop] of all heads, -inf where not seen, by whoever knows another rule: where
    heads or keys mix, or positions follow the content. Everything else is left out then."""

    def __post_init__(self) -> None:
        if self.decay is not None and self.attention.remap is not None:
            raise ValueError("a decay with the distance has no meaning under a remap: use a method without one")

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
    """One key head and the G query heads that share it."""

    heads: slice
    queries: Tensor
    """[1, G, T, D] not rotated, times scaling and query_scale."""
    keys: Tensor
    """[1, 1, T, D] not rotated."""
    rotate: Rotate

    @property
    def length(self) -> int:
        """Tokens."""
        return self.keys.shape[2]


def groups(queries: Tensor, keys: Tensor, logits: Logits, dtype: torch.dtype) -> Iterator[Group]:
    """Queries [1, H, T, D] and keys [1, KV, T, D] of a whole text, a key head at a time, in this dtype."""
    (batch, heads, total, _), count = queries.shape, keys.shape[1]
    assert batch == 1 and total == keys.shape[2], "one text at a time, and all of it"
    assert heads % count == 0, f"{heads} heads cannot share {count} key heads"
    for place in range(count):
        mine = slice(place * heads // count, (place + 1) * heads // count)
        asking = dense.scaled(queries[:, mine].to(dtype) * logits.scaling, logits.attention, total)
        ratio = None if logits.ratios is None else logits.ratios[place : place + 1]
        rotate = logits.rotate if ratio is None else rotations.per_head(ratio, logits.rotate)
        yield Group(mine, asking, keys[:, place : place + 1].to(dtype), rotate)


def rows(group: Group, logits: Logits, chunk: int | None = None, begin: int = 0) -> Iterator[Tensor]:
    """[G, Q, K] logits of the first few queries over the keys up to the last of them, of the next ones, and so on.

    -inf where a key is not seen. At most `chunk` queries at once; None: as many as make `dense.SCORES` scores. Queries
    before `begin` are left out.
    """
    total, device = group.length, group.keys.device
    chunk = chunk or max(1, dense.SCORES // (group.queries.shape[1] * total))
    if logits.made is not None:
        for start in range(begin, total, chunk):
            yield logits.made(start, min(start + chunk, total))[group.heads]
        return
    shape = replace(logits.attention, bias=None)
    for start in range(begin, total, chunk):
        stop = min(start + chunk, total)
        asking, known = group.queries[:, :, start:stop], group.keys[:, :, :stop]
        if logits.decay is not None:  # e^(decay (i - start)) e^(-decay (j - start)): no factor far above 1
            places = torch.arange(stop, device=device) - start
            asking = asking * _grown(logits.decay, places[start:]).to(asking.dtype)
            known = known * _grown(-logits.decay, places).to(known.dtype)
        scores = dense.masked_scores(asking, known, shape, group.rotate)[0]
        biases = logits.biases(group.heads, np.arange(start, stop), np.arange(stop), device)
        yield scores if biases is None else scores + biases.to(scores.dtype)


def _grown(decay: Tensor, places: Tensor) -> Tensor:
    """[T, D] factors of both dimensions of each pair."""
    return (places[:, None] * torch.cat([decay, decay]).to(places.device, torch.float64)).exp()


def by_distance(values: Tensor) -> Tensor:
    """[H, K] float64 sums over all pairs of each distance i - j; values [H, Q, K], queries the last Q of K positions.

    Each row is put one place further than the row before it, so that diagonals become columns.
    """
    heads, asked, total = values.shape
    width = total + asked - 1
    flat = F.pad(values.flip(-1), (0, asked)).flatten(1)[:, : asked * width]
    return flat.reshape(heads, asked, width).sum(1, dtype=torch.float64)[:, asked - 1 :]

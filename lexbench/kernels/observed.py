"""Attention statistics, collected layer by layer while a model reads a text, in memory for a few rows of weights."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexbench.core.attention import Floats, Positions
from lexbench.kernels.logits import Logits, logit_rows, split_by_key_head, sum_by_distance
from lexbench.kernels.resolution import curve_resolution, mean_logits, well_seen_distances


def distance_bin_edges(length: int) -> Positions:
    """[bins + 1] 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and `length`: bin b holds distances edges[b] to edges[b + 1] - 1.

    Two bins per octave. A longer text has all bins of a shorter one but its last, and more.
    """
    # 2^k and 3 2^(k-1): steps of 3/2 and 4/3 in turn.
    known = {0, *(times << power for power in range(length.bit_length()) for times in (1, 3))}
    return np.array([*sorted(edge for edge in known if edge < length), length], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Observed:
    """Attention weights of one layer, averaged over the last queries of a text."""

    mass: Tensor
    """[H, T] share of the weight at each distance."""
    entropy: Tensor
    """[H] nats."""
    first: Tensor
    """[H] share of the weight on the first tokens."""


def average_weights(queries: Tensor, keys: Tensor, logits: Logits, first: int, last: int | None = None) -> Observed:
    """Average the attention weights of queries [1, H, T, D] and keys [1, KV, T, D], before rotation.

    The mean is over the `last` queries (None: all); others are not computed: O(last T) time. The weight on the `first`
    tokens is counted apart. Weights are float32, or float64 for float64 inputs; sums are float64.
    """
    (heads, total), precise = queries.shape[1:3], torch.promote_types(queries.dtype, torch.float32)
    n_queries = total if last is None else last
    mass = torch.zeros(heads, total, dtype=torch.float64, device=queries.device)
    entropy, begun = torch.zeros(2, heads, dtype=torch.float64, device=queries.device)
    for group in split_by_key_head(queries, keys, logits, precise):
        for scores in logit_rows(group, logits, begin=total - n_queries):
            weights = scores.softmax(-1)
            # Row by row summed in float64: thousands of small weights would lose digits in float32.
            mass[group.heads, : scores.shape[2]] += sum_by_distance(weights)
            entropy[group.heads] += torch.special.entr(weights).sum((1, 2), dtype=torch.float64)
            begun[group.heads] += weights[:, :, :first].sum((1, 2), dtype=torch.float64)
    return Observed(mass / n_queries, entropy / n_queries, begun / n_queries)


class Observer:
    """Collects the statistics of `ProbeAttentionAnswer`: a backend calls it with the queries and keys of each layer.

    Args:
        length: tokens of the text.
        first: tokens at its start whose weight is counted apart.
        last: queries at its end over which weights are averaged; None: all.
        shortest: R is also computed over the distances below 7/8 of this length; None: of `length`.
    """

    def __init__(self, length: int, first: int, last: int | None = None, shortest: int | None = None) -> None:
        self._length, self._first, self._last = length, first, last
        self._edges, self._reach = distance_bin_edges(length), well_seen_distances(length)
        self._shared = self._reach if shortest is None else well_seen_distances(shortest)
        self._found: dict[int, dict[str, Floats]] = {}

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, logits: Logits) -> None:
        """Add one layer: queries [1, H, T, D] and keys [1, KV, T, D] of the whole text, before rotation."""
        # NaN where no key is seen at a distance; such distances count in no mean.
        curves = mean_logits(queries, keys, logits)
        seen = average_weights(queries, keys, logits, self._first, self._last)
        distances = torch.arange(self._length, dtype=torch.float64, device=seen.mass.device)
        known = ~curves.isnan()
        sums = curves.nan_to_num(0.0)
        found = {
            "resolution": curve_resolution(curves[:, : self._reach]),
            "resolution_shared": curve_resolution(curves[:, : self._shared]),
            "resolution_all": curve_resolution(curves),
            "preference": self._sum_by_bin(sums) / self._sum_by_bin(known.double()),
            "distance": seen.mass @ distances,
            "entropy": seen.entropy,
            "first_mass": seen.first,
            "mass": self._sum_by_bin(seen.mass),
            "sums": sums.sum(0),
            "known": known.double().sum(0),
        }
        self._found[layer] = {name: value.cpu().numpy() for name, value in found.items()}

    def statistics(self) -> dict[str, NDArray[np.float64]]:
        """Statistics of all layers, in order."""
        layers = [self._found[layer] for layer in sorted(self._found)]
        every = {name: np.stack([found[name] for found in layers]) for name in layers[0]}
        sums, known = every.pop("sums").sum(0), every.pop("known").sum(0)
        with np.errstate(invalid="ignore"):  # 0 / 0 at distances that no head sees
            curve = sums / known
        return {
            **every,
            "curve": curve,
            "reach": np.array([float(self._reach)]),
            "shared": np.array([float(self._shared)]),
            "edges": self._edges.astype(np.float64),
        }

    def _sum_by_bin(self, values: Tensor) -> Tensor:
        """[H, bins] sums of values [H, T]."""
        sizes = np.diff(self._edges).tolist()
        return torch.stack([part.sum(1) for part in torch.split(values, sizes, dim=1)], dim=1)

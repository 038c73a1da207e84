"""Attention under an encoding and a method at once, by definition: for training, answers and statistics."""

import itertools
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, Growing, Positions, TopKMask, regions_of
from lexbench.core.errors import ConfigError
from lexbench.kernels import dense, rotations
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.kernels.logits import Logits
from lexbench.parts.lab.encodings.base import Encoding, weight_versions

MAX_FUSED_TOKENS = 2048
"""Longest text for which masks and decaying scores go to PyTorch's fused kernel, in tokens."""
MAX_KEPT_TABLE_BYTES = 2**26
"""Largest table of biases and masks, in bytes, that a layer keeps for the next text of the same length."""

HOOKS_BEYOND_ROTATION = frozenset({"decay", "gates", "positions", "products", "qk"})
"""Hooks under which queries and keys are more than rotated, each to its place in the text."""
MAX_KEPT_REGIONS = 3
"""Most regions of a remap whose rotated keys are kept: each takes as much memory as all keys."""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Term that the fused kernel adds to the scores of one layer, and the inputs that it was computed from."""

    positions: Tensor
    made_of: tuple[object, ...]
    values: Tensor


_tables: "WeakKeyDictionary[Encoding, ScoreTable]" = WeakKeyDictionary()


class EncodingAttention:
    """Queries and keys of one layer, and how logits and outputs follow from them.

    Args:
        encoding: of this layer.
        attention: slots of method and encoding together; `inv_freq` and `scale` act through `rotate`.
        queries: [B, H, Q, D] of the last Q of K tokens, as projected.
        keys: [B, KV, K, D] as projected; H / KV query heads share a key head.
        positions: [K] or [B, K].
        rotate: the encoding's, or as a method changes it; None: the encoding's.
        rotated: keeps rotated keys for the next queries of the text; used where later tokens do not change them.

    Raises:
        ConfigError: the attention has a remap, and the encoding cannot remap its distances.
    """

    def __init__(
        self,
        encoding: Encoding,
        attention: Attention,
        queries: Tensor,
        keys: Tensor,
        positions: Tensor,
        rotate: Rotate | None = None,
        rotated: dense.Rotated | None = None,
    ) -> None:
        if attention.remap is not None and not encoding.remaps:
            raise ConfigError(f"{encoding.name} cannot remap its distances: use a method without remap")
        self.encoding, self.attention, self.positions = encoding, attention, positions
        rotate = rotate or encoding.rotate
        self.rotate = rotate if attention.remap is None else rotations.per_band(rotate)
        once = encoding.remaps and encoding.hooks.isdisjoint(HOOKS_BEYOND_ROTATION) and attention.growing is None
        self._rotated = rotated if once and len(regions_of(attention.remap)) <= MAX_KEPT_REGIONS else None
        self.queries, self.keys = encoding.prepare(queries, keys)
        self.scaling = encoding.scaling(queries.shape[-1])
        self.n_queries, self.total = queries.shape[2], keys.shape[2]

    @property
    def _query_positions(self) -> Tensor:
        return self.positions[..., self.total - self.n_queries :]

    def attention_output(self, values: Tensor, chunk: int | None = None) -> Tensor:
        """[B, H, Q, D] of values [B, KV, K, D], in the dtype of the queries.

        PyTorch's fused kernel computes it where queries, keys, a bias and a mask suffice. Else, or where a chunk is
        given, `chunk` queries are computed at once (None: as many as make `dense.MAX_SCORES_IN_MEMORY` scores), in
        float32 or better.
        """
        if "recur" in self.encoding.hooks:
            return self.encoding.recur(self.queries, self.keys, values)
        if chunk is None and self._fits_fused():
            return self._fused_output(values)
        batch, heads = self.queries.shape[:2]
        chunk = chunk or max(1, dense.MAX_SCORES_IN_MEMORY // (batch * heads * self.total * self.encoding.held))
        parts = [
            self._mix_values(start, min(start + chunk, self.n_queries), values)
            for start in range(0, self.n_queries, chunk)
        ]
        return torch.cat(parts, dim=2).to(self.queries.dtype)

    def _mix_values(self, start: int, stop: int, values: Tensor) -> Tensor:
        logits, first = self.logits(start, stop), self.total - self.n_queries + start
        last = logits.shape[-1]
        here, there = self.positions[..., first:last], self.positions[..., :last]
        return self.encoding.mix(logits, values[:, :, :last].to(logits.dtype), here, there)

    def _fits_fused(self) -> bool:
        # Outside the fused kernel: distances that are remapped, scores that the encoding computes or changes itself,
        # keys chosen by their logits.
        own = self.encoding.rescores or not self.encoding.hooks.isdisjoint(("products", "mix"))
        shaped = self.attention.remap is not None or own or isinstance(self.attention.mask, TopKMask)
        shaped = shaped or self.attention.growing is not None
        short = self.total <= MAX_FUSED_TOKENS
        faded = self.encoding.decay is not None and not short  # the factors of `qk` leave the range of half precision
        tabled = self.attention.mask is not None or self.attention.bias is not None or "bias" in self.encoding.hooks
        # A long table of biases and masks would take too much memory; the kernel is causal for one query or for all.
        return not shaped and not faded and (short or not tabled) and self.n_queries in (1, self.total)

    def _fused_output(self, values: Tensor) -> Tensor:
        queries, keys = self._queries_and_keys(self.queries, self.keys, self._query_positions, self.positions)
        queries = dense.scale_queries(queries, self.attention, self.total)
        mask = self._cached_table(queries.dtype)
        causal = mask is None and self.n_queries > 1
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=causal, scale=self.scaling, enable_gqa=True
        )

    def _queries_and_keys(self, queries: Tensor, keys: Tensor, here: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        if self._rotated is None:
            return self.encoding.qk(queries, keys, here, there, self.rotate)
        turned = self._rotated(0, keys.shape[2], lambda first: self.rotate(keys[:, :, first:], there[first:]))
        return self.rotate(queries, here), turned

    def _cached_table(self, dtype: torch.dtype) -> Tensor | None:
        """The table, kept for the next text of this length where no gradient is needed and no weight has changed."""
        if torch.is_grad_enabled() or self.positions.dim() > 1 or "bias" not in self.encoding.hooks:
            return self._score_table(dtype)
        # By versions, which torch counts at every change in place.
        weights, slots = weight_versions(self.encoding), (self.attention.mask, self.attention.bias)
        made_of = (dtype, self.n_queries, self.encoding.training, *slots, weights)
        kept = _tables.get(self.encoding)
        if kept is None or kept.made_of != made_of or not torch.equal(kept.positions, self.positions):
            values = self._score_table(dtype)
            if values is None or values.nbytes > MAX_KEPT_TABLE_BYTES or self.n_queries == 1:
                return values
            _tables[self.encoding] = kept = ScoreTable(self.positions, made_of, values)
        return kept.values

    def _score_table(self, dtype: torch.dtype) -> Tensor | None:
        """Term that the fused kernel adds to all scores, or the keys that it sees; None: plain causal attention."""
        here, there = np.arange(self.total - self.n_queries, self.total), np.arange(self.total)
        bias = self._total_bias(here, there)
        if bias is None:
            return None if self.attention.mask is None else self._seen_keys(here, there)
        masked = bias.to(dtype).masked_fill(~self._seen_keys(here, there), -torch.inf)
        return masked if masked.dim() == 4 else masked[None]

    def logits(self, start: int, stop: int) -> Tensor:
        """[B, H, stop - start, K'] of some queries, over the keys up to the last of them; -inf where not seen."""
        first, last = self.total - self.n_queries + start, self.total - self.n_queries + stop
        # Masks and the method's bias go by the index of a token, the encoding by its position, which may be random.
        here, there = np.arange(first, last), np.arange(last)
        precise = torch.promote_types(self.queries.dtype, torch.float32)
        queries = self.queries[:, :, start:stop].to(precise)
        keys, seen = self.keys[:, :, :last].to(precise), self._seen_keys(here, there)
        if self.attention.growing is not None:
            queries = dense.scale_queries(queries, self.attention, last)
            scores = _growing_scores(queries * self.scaling, keys, self.attention.growing)
        elif self.attention.remap is None:
            where = self.positions[..., first:last], self.positions[..., :last]
            if "products" in self.encoding.hooks:
                products = self.encoding.products(queries, keys, *where, self.rotate) * self.scaling
                scores = dense.scale_queries(products, self.attention, last).to(precise)
            else:
                queries, keys = self._queries_and_keys(queries, keys, *where)
                queries = dense.scale_queries(queries, self.attention, last)
                scores = multiply_per_group(queries * self.scaling, keys.mT).to(
                    precise
                )  # autocast lowers their precision
        else:
            queries, shape = dense.scale_queries(queries, self.attention, last), Attention(remap=self.attention.remap)
            scores = dense.masked_scores(queries * self.scaling, keys, shape, self.rotate, rotated=self._rotated)
        if self.encoding.rescores:
            scores = self.encoding.rescore(
                scores.masked_fill(~seen, 0.0),
                seen,
                queries,
                self.positions[..., first:last],
                self.positions[..., :last],
            )
            scores = _add_bias(scores, self._method_bias(here, there))
        else:
            scores = _add_bias(scores, self._total_bias(here, there))
        scores, mask = scores.masked_fill(~seen, -torch.inf), self.attention.mask
        return dense.mask_outside_top_k(scores, mask, here, there) if isinstance(mask, TopKMask) else scores

    def _seen_keys(self, here: Positions, there: Positions) -> Tensor:
        seen = there[None, :] <= here[:, None]
        if self.attention.mask is not None:
            seen &= self.attention.mask.allowed(here, there)
        return torch.from_numpy(seen).to(self.queries.device)

    def _method_bias(self, here: Positions, there: Positions) -> Tensor | None:
        if self.attention.bias is None:
            return None
        return torch.from_numpy(self.attention.bias(here, there)).to(self.queries.device)

    def _total_bias(self, here: Positions, there: Positions) -> Tensor | None:
        """The encoding's bias, and the method's."""
        last = len(there)  # not here[-1] + 1: torch.compile cannot trace a slice that ends at a value
        own = self.encoding.bias(self.positions[..., last - len(here) : last], self.positions[..., :last])
        other = self._method_bias(here, there)
        return other if own is None else _add_bias(own, other)

    def statistics_inputs(self) -> tuple[Tensor, Tensor, Logits]:
        """Queries, keys, and how logits follow from them, for the statistics of `lexbench.kernels.observed`."""
        rest = replace(self.attention, inv_freq=None, scale=None, keep_first=None, head_ratios=None)
        moved = "positions" in self.encoding.hooks or self.positions.dim() > 1  # positions are not 0, 1, 2, ...
        made = self.encoding.rescores or "products" in self.encoding.hooks or self.attention.growing is not None
        if made or (self.encoding.decay is not None and moved):
            return self.queries, self.keys, Logits(rotate=self.rotate, scaling=1.0, made=self._chunked_logits)
        queries, keys, rotate = self.queries, self.keys, self.rotate
        if self.encoding.decay is None and self.attention.remap is None:
            queries, keys = self.encoding.qk(queries, keys, self.positions, self.positions, rotate)
            rotate = _without_rotation
        rule = Logits(
            rotate=rotate, scaling=self.scaling, attention=rest, decay=self.encoding.decay, bias=self._bias_at
        )
        return queries, keys, rule

    def _chunked_logits(self, start: int, stop: int) -> Tensor:
        """[H, stop - start, stop] logits, in chunks of the size that `attention_output` takes."""
        few = max(1, dense.MAX_SCORES_IN_MEMORY // (self.queries.shape[1] * self.total * self.encoding.held))
        # Later keys than the last query of a chunk are not computed: they get -inf.
        parts = [self.logits(*some)[0] for some in itertools.pairwise([*range(start, stop, few), stop])]
        return torch.cat([F.pad(part, (0, stop - part.shape[-1]), value=-torch.inf) for part in parts], dim=1)

    def _bias_at(self, query_places: Tensor, key_places: Tensor) -> Tensor | None:
        """The encoding's bias at tokens given by their indices."""
        # Statistics are of one text.
        positions = self.positions.reshape(-1, self.total)[0]
        bias = self.encoding.bias(positions[query_places.long()], positions[key_places.long()])
        return bias if bias is None or bias.dim() == 3 else bias[0]


def _without_rotation(vectors: Tensor, positions: Tensor) -> Tensor:
    return vectors


def _add_bias(scores: Tensor, bias: Tensor | None) -> Tensor:
    return scores if bias is None else scores + bias.to(scores.dtype)


def merge_slots(method: Attention, own: Attention, name: str) -> Attention:
    """Slots of a method and of an encoding, merged; ConfigError where both set the same one."""
    try:
        return method.merge_with(own)
    except ValueError as error:
        raise ConfigError(f"{name} and the method exclude each other ({error}): use another method") from None


def _growing_scores(queries: Tensor, keys: Tensor, growing: Growing) -> Tensor:
    """[B, H, Q, K] products of the last Q of K positions, each query with keys rotated by its own frequencies.

        R(i theta_i) q . R(j theta_i) k = q . R((j - i) theta_i) k,   the half layout

    Keys are rotated once for each query, a few queries at a time: K D numbers for each of them and each key head.
    """
    (batch, heads, count, _), total, groups = queries.shape, keys.shape[2], keys.shape[1]
    asking = queries.reshape(batch, groups, heads // groups, count, -1)
    here, there = np.arange(total - count, total), np.arange(total)
    # Only the difference turns, by the query's frequencies: the query itself stays as it is.
    turns = (there[None, :] - here[:, None])[..., None] * growing.inv_freq(here)[:, None, :]
    few = max(1, dense.MAX_SCORES_IN_MEMORY // (batch * groups * total * queries.shape[3]))
    parts = []
    for first in range(0, count, few):
        turn = torch.from_numpy(turns[first : first + few]).to(queries.device)
        cos, sin = turn.cos().to(keys.dtype), turn.sin().to(keys.dtype)
        one, two = keys[:, :, None].chunk(2, dim=-1)
        known = torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)
        parts.append(torch.einsum("bghqd,bgqkd->bghqk", asking[:, :, :, first : first + few], known))
    return torch.cat(parts, dim=3).reshape(batch, heads, count, total)

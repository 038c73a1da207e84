"""Attention by the definition of `lexbench.core.attention`: exact for every slot, in memory of chunk x keys."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, Floats, Positions, TopKMask, regions_of
from lexbench.kernels.heads import Rotate, multiply_per_group
from lexbench.kernels.spans import mapped_positions, position_tensor

MAX_SCORES_IN_MEMORY = 1 << 21
"""Scores in memory at once, unless a chunk is given."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    attention: Attention,
    rotate: Rotate,
    scaling: float,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """Causal attention of the last Q of K positions, under the slots that the scores need.

        out(i) = sum_j softmax_j(logit(i, j)) v(j),    logit as in `lexbench.core.attention`

    `rotate` applies `inv_freq` and `scale`; the caller applies `layers`. Without remap, mask and bias, PyTorch's fused
    kernel computes it in the inputs' dtype. Else everything up to the output is float32, or float64 for float64 inputs.

    Args:
        queries: [B, H, Q, D], before rotation.
        keys: [B, KV, K, D], before rotation; key j is at position j; H / KV query heads share a key head.
        values: [B, KV, K, D].
        query_positions: [Q], always K - Q .. K - 1.
        attention: query_scale, remap, mask and bias.
        rotate: rotates vectors to positions.
        scaling: factor on the logits, usually 1 / sqrt(D).
        chunk: queries whose scores are in memory at once; None: as many as make `MAX_SCORES_IN_MEMORY` scores.
        sinks: [H] logits that take weight and add no value; None: none.
        cap: c, where the logits of keys x become c tanh(x / c); None: they stay.

    Returns:
        [B, H, Q, D] in the dtype of `queries`.
    """
    (batch, heads, n_queries, _), total = queries.shape, keys.shape[2]
    assert heads % keys.shape[1] == 0, f"{heads} heads cannot share {keys.shape[1]} key heads"
    check_queries_are_last(query_positions, n_queries, total)
    shaped = any(slot is not None for slot in (attention.remap, attention.mask, attention.bias))
    # PyTorch aligns its causal triangle to the first key, which is ours only for a whole text; one query needs no mask.
    if not shaped and n_queries in (1, total) and sinks is None and cap is None:
        turned = rotate(scale_queries(queries, attention, total), query_positions)
        causal = n_queries > 1
        known = rotate(keys, position_tensor(0, total, keys.device))
        return F.scaled_dot_product_attention(turned, known, values, is_causal=causal, scale=scaling, enable_gqa=True)
    precise = torch.promote_types(queries.dtype, torch.float32)
    asking, known = scale_queries(queries.to(precise) * scaling, attention, total), keys.to(precise)
    chunk = chunk or max(1, MAX_SCORES_IN_MEMORY // (batch * heads * total))
    content = values.to(precise)
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start in range(0, n_queries, chunk):
        rows = slice(start, min(start + chunk, n_queries))
        # No query of the chunk sees a key behind the chunk.
        seen = known[:, :, : total - n_queries + rows.stop]
        scores = masked_scores(asking[:, :, rows], seen, attention, rotate, cap)
        if sinks is not None:
            more = sinks.to(scores)[:, None, None].expand(batch, -1, scores.shape[2], 1)
            weights = torch.cat([scores, more], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        output[:, :, rows] = multiply_per_group(weights, content[:, :, : scores.shape[-1]])
    return output


def check_queries_are_last(query_positions: Tensor, n_queries: int, total: int) -> None:
    """Assert that queries are at the last positions; of their values on a CPU alone, as a GPU would be waited for."""
    device = query_positions.device
    right = len(query_positions) == n_queries
    if right and device.type == "cpu":
        right = torch.equal(query_positions, position_tensor(total - n_queries, total, device))
    assert right, "queries are at the last positions of the keys"


@dataclass(frozen=True, eq=False)
class Places:
    """Positions of queries and keys that jump."""

    queries: Positions
    """[Q]"""
    keys: Positions
    """[K]"""
    seen: NDArray[np.bool_]
    """[Q, K] whether a query sees a key, as far as no Attention masks it."""


def attend_at(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Places,
    attention: Attention,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """[B, H, Q, D] attention of queries at places of their own; other arguments as those of `attend`.

    PyTorch's fused kernel computes it with a mask where no slot needs the scores.
    """
    device, precise = queries.device, torch.promote_types(queries.dtype, torch.float32)
    if attention.query_scale is not None:
        factors = torch.from_numpy(attention.query_scale(places.queries)).to(device, precise)
        queries = (queries.to(precise) * factors[:, None]).to(queries.dtype)
    shaped = any(slot is not None for slot in (attention.remap, attention.mask, attention.bias, sinks, cap))
    if not shaped:
        here, there = (torch.from_numpy(each).to(device) for each in (places.queries, places.keys))
        whole = len(here) == len(there) and bool(np.array_equal(places.seen, np.tri(len(here), dtype=bool)))
        mask = None if whole else torch.from_numpy(places.seen).to(device)
        return F.scaled_dot_product_attention(
            rotate(queries, here),
            rotate(keys, there),
            values,
            attn_mask=mask,
            is_causal=whole,
            scale=scaling,
            enable_gqa=True,
        )
    chunk = max(1, MAX_SCORES_IN_MEMORY // (queries.shape[0] * queries.shape[1] * keys.shape[2]))
    parts = []
    for start in range(0, queries.shape[2], chunk):
        rows = slice(start, start + chunk)
        some = Places(places.queries[rows], places.keys, places.seen[rows])
        asking = queries[:, :, rows].to(precise) * scaling
        scores = masked_scores(asking, keys.to(precise), attention, rotate, cap, places=some)
        if sinks is not None:
            more = sinks.to(scores)[:, None, None].expand(len(scores), -1, scores.shape[2], 1)
            scores = torch.cat([scores, more], dim=-1)
        weights = scores.softmax(-1)[..., : keys.shape[2]]
        parts.append(multiply_per_group(weights, values.to(precise)))
    return torch.cat(parts, dim=2).to(queries.dtype)


Rotated = Callable[[int, int, Callable[[int], Tensor]], Tensor]
"""(region, count, turn) -> the first `count` keys as that region rotates them; `turn(n)` rotates the n-th and later."""


def masked_scores(
    queries: Tensor,
    keys: Tensor,
    attention: Attention,
    rotate: Rotate,
    cap: float | None = None,
    rotated: Rotated | None = None,
    begin: int = 0,
    places: Places | None = None,
) -> Tensor:
    """[B, H, Q, K] logits of the last Q of K positions, with remap, mask and bias; -inf where a key is not seen.

    `rotated` keeps rotated keys from call to call. With `begin`, keys are those from this position on; with `places`,
    queries and keys stand there.
    """
    total, device = begin + keys.shape[2], queries.device
    here, there = np.arange(total - queries.shape[2], total), np.arange(begin, total)
    seen = there[None, :] <= here[:, None]
    if places is not None:
        here, there, seen = places.queries, places.keys, places.seen.copy()
    if attention.mask is not None:
        seen &= attention.mask.allowed(here, there)

    def at(vectors: Tensor, places: Floats) -> Tensor:
        return rotate(vectors, torch.from_numpy(places).to(device))

    scores = queries.new_full((*queries.shape[:3], len(there)), -torch.inf)
    for number, region in enumerate(regions_of(attention.remap)):
        held = region.holds(here[:, None], there[None, :]) & seen
        if held.any():  # compute only the rectangle of rows and keys that the region touches
            rows, span = _covering_slice(np.asarray(held.any(1))), _covering_slice(np.asarray(held.any(0)))
            if rotated is None:
                known = at(keys[:, :, span], region.key(there[span]))
            else:
                turn = _rotated_keys_of_part(at, keys[:, :, : span.stop], region.key(there[: span.stop]))
                known = rotated(number, span.stop, turn)[:, :, span]
            logits = multiply_per_group(at(queries[:, :, rows], region.query(here[rows])), known.mT)
            # Capped before bias and mask, as transformers' Gemma 2 does it: a cap behind the mask would make -inf to
            # -cap.
            logits = logits if cap is None else cap * (logits / cap).tanh()
            mine = torch.from_numpy(held[rows, span]).to(device)
            scores[:, :, rows, span] = torch.where(mine, logits, scores[:, :, rows, span])
    if attention.bias is not None:
        scores += torch.from_numpy(attention.bias(here, there)).to(device, scores.dtype)
    return (
        scores if not isinstance(attention.mask, TopKMask) else mask_outside_top_k(scores, attention.mask, here, there)
    )


def _rotated_keys_of_part(
    at: Callable[[Tensor, Floats], Tensor], keys: Tensor, places: Floats
) -> Callable[[int], Tensor]:
    return lambda first: at(keys[:, :, first:], places[first:])


def mask_outside_top_k(scores: Tensor, mask: TopKMask, here: Positions, there: Positions) -> Tensor:
    """Scores with -inf for keys of the middle that are not among the best of their query and head."""
    middle = torch.from_numpy(~mask.always_allowed(here, there)).to(scores.device)
    # The last of the best is a threshold, not a list of places: keys of equal logit are all kept, as `TopKMask` says.
    best = scores.masked_fill(~middle, -torch.inf).topk(min(mask.count, len(there)), dim=-1).values[..., -1:]
    return scores.masked_fill(middle & (scores < best), -torch.inf)


def _covering_slice(used: NDArray[np.bool_]) -> slice:
    """Slice from the first to the last used place, with the largest step that meets all used places."""
    places = np.flatnonzero(used)
    # A region of `Stairs` holds every m-th query: the step spares the others.
    step = int(np.gcd.reduce(np.diff(places))) if len(places) > 1 else 1
    return slice(int(places[0]), int(places[-1]) + 1, step)


def scale_queries(queries: Tensor, attention: Attention, total: int) -> Tensor:
    """Multiply the queries, the last of `total` positions, by their `query_scale`."""
    if attention.query_scale is None:
        return queries
    scale = mapped_positions(attention.query_scale, total - queries.shape[2], total, queries.device)
    precise = torch.promote_types(queries.dtype, torch.float32)
    return (queries.to(precise) * scale.to(precise)[:, None]).to(queries.dtype)

"""Attention by the definition of `lexbench.core.attention`: exact for every slot, in memory of chunk x keys."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lexbench.core.attention import Attention, Floats, regions

Rotate = Callable[[Tensor, Tensor], Tensor]
"""(x [B, H, T, D], positions [T], possibly fractional) -> x rotated there, times the scale of cos and sin."""
SCORES = 1 << 21
"""Scores held at once, unless a chunk is given."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    attention: Attention,
    rotate: Rotate,
    scaling: float,
    chunk: int | None = None,
) -> Tensor:
    """Causal attention of the last Q of K positions, under the slots that the scores need.

        out(i) = sum_j softmax_j(logit(i, j)) v(j),    logit as in `lexbench.core.attention`

    `rotate` brings `inv_freq` and `scale`; `layers` is the caller's to settle. Where neither remap, mask nor bias is
    asked, PyTorch's fused kernel answers, in the inputs' dtype; elsewhere everything up to the output is float32, or
    float64 for float64 inputs.

    Args:
        queries: [B, H, Q, D], not rotated.
        keys: [B, KV, K, D], not rotated; key j is at position j; each serves H / KV heads.
        values: [B, KV, K, D].
        query_positions: [Q], always K - Q .. K - 1.
        attention: its query_scale, remap, mask and bias.
        rotate: turns vectors to positions.
        scaling: of the logits, usually 1 / sqrt(D).
        chunk: queries whose scores are held at once; None: as many as make `SCORES` scores.

    Returns:
        [B, H, Q, D] in the dtype of `queries`.
    """
    (batch, heads, asked, _), total = queries.shape, keys.shape[2]
    assert heads % keys.shape[1] == 0, f"{heads} heads cannot share {keys.shape[1]} key heads"
    positions = torch.arange(total, device=queries.device)
    assert torch.equal(query_positions, positions[total - asked :]), "queries are at the last positions of the keys"
    shaped = any(slot is not None for slot in (attention.remap, attention.mask, attention.bias))
    if not shaped and asked in (1, total):
        turned = rotate(scaled(queries, attention, total), query_positions)
        causal = asked > 1
        return F.scaled_dot_product_attention(
            turned, rotate(keys, positions), values, is_causal=causal, scale=scaling, enable_gqa=True
        )
    precise = torch.promote_types(queries.dtype, torch.float32)
    asking, known = scaled(queries.to(precise) * scaling, attention, total), keys.to(precise)
    chunk = chunk or max(1, SCORES // (batch * heads * total))
    content = values.to(precise)
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start in range(0, asked, chunk):
        rows = slice(start, min(start + chunk, asked))
        scores = masked_scores(asking[:, :, rows], known[:, :, : total - asked + rows.stop], attention, rotate)
        output[:, :, rows] = per_group(scores.softmax(-1), content[:, :, : scores.shape[-1]])
    return output


def masked_scores(queries: Tensor, keys: Tensor, attention: Attention, rotate: Rotate) -> Tensor:
    """[B, H, Q, K] of the last Q of K positions, everything applied, -inf where a key is not seen."""
    total, device = keys.shape[2], queries.device
    here, there = np.arange(total - queries.shape[2], total), np.arange(total)
    seen = there[None, :] <= here[:, None]
    if attention.mask is not None:
        seen &= attention.mask.allowed(here, there)

    def at(vectors: Tensor, places: Floats) -> Tensor:
        return rotate(vectors, torch.from_numpy(places).to(device))

    scores = queries.new_full((*queries.shape[:3], total), -torch.inf)
    for region in regions(attention.remap):
        held = region.holds(here[:, None], there[None, :]) & seen
        if held.any():
            rows, span = _stretch(np.asarray(held.any(1))), _stretch(np.asarray(held.any(0)))
            logits = per_group(
                at(queries[:, :, rows], region.query(here[rows])), at(keys[:, :, span], region.key(there[span])).mT
            )
            mine = torch.from_numpy(held[rows, span]).to(device)
            scores[:, :, rows, span] = torch.where(mine, logits, scores[:, :, rows, span])
    if attention.bias is not None:
        scores += torch.from_numpy(attention.bias(here, there)).to(device, scores.dtype)
    return scores


def _stretch(used: NDArray[np.bool_]) -> slice:
    """From the first to the last that is used, in steps where all between them are as far apart."""
    places = np.flatnonzero(used)
    step = int(np.gcd.reduce(np.diff(places))) if len(places) > 1 else 1
    return slice(int(places[0]), int(places[-1]) + 1, step)


def scaled(queries: Tensor, attention: Attention, total: int) -> Tensor:
    """Queries times their `query_scale`."""
    if attention.query_scale is None:
        return queries
    scale = attention.query_scale(np.arange(total - queries.shape[2], total))
    precise = torch.promote_types(queries.dtype, torch.float32)
    return (queries.to(precise) * torch.from_numpy(scale).to(queries.device, precise)[:, None]).to(queries.dtype)


def per_group(rows: Tensor, columns: Tensor) -> Tensor:
    """[B, H, R, M] times [B, KV, M, N], the H / KV heads of a group against one key head, which is never copied."""
    batch, heads, count, inner = rows.shape
    grouped = rows.reshape(batch, columns.shape[1], -1, inner)
    return (grouped @ columns).reshape(batch, heads, count, columns.shape[3])

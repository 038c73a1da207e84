"""Attention by the definition of `lexbench.attention`: exact for every slot, in memory of chunk x keys."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench.attention import Attention, Line

Rotate = Callable[[Tensor, Tensor], Tensor]
"""(x [B, H, T, D], positions [T], possibly fractional) -> x rotated there, times the scale of cos and sin."""
SCORES = 1 << 25
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

        out(i) = sum_j softmax_j(logit(i, j)) v(j),    logit as in `lexbench.attention`

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
        turned = rotate(_scaled(queries, attention, total), query_positions)
        causal = asked > 1
        return F.scaled_dot_product_attention(
            turned, rotate(keys, positions), values, is_causal=causal, scale=scaling, enable_gqa=True
        )
    precise = torch.promote_types(queries.dtype, torch.float32)
    views = _views(_scaled(queries.to(precise) * scaling, attention, total), keys.to(precise), attention, rotate)
    chunk = chunk or max(1, SCORES // (batch * heads * total))
    content = values.to(precise)
    output = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    for start in range(0, asked, chunk):
        rows = slice(start, min(start + chunk, asked))
        scores = _scores(views, rows, total - asked, attention)
        output[:, :, rows] = _per_group(scores.softmax(-1), content[:, :, : scores.shape[-1]])
    return output


@dataclass(frozen=True)
class _View:
    """Queries and keys, rotated for one region; the first key stands at position `begin`."""

    queries: Tensor
    keys: Tensor
    begin: int

    def logits(self, rows: slice, first: int, last: int) -> Tensor:
        """[B, H, rows, last - first] for keys at first..last-1."""
        return _per_group(self.queries[:, :, rows], self.keys[:, :, first - self.begin : last - self.begin].mT)


def _views(queries: Tensor, keys: Tensor, attention: Attention, rotate: Rotate) -> tuple[_View, _View | None]:
    """The near view, and the far one where there is a remap; rotated once for all chunks, and only where used."""
    asked, total = queries.shape[2], keys.shape[2]
    positions = np.arange(total)
    remap, first = attention.remap, total - asked

    def at(vectors: Tensor, line: Line, places: np.ndarray) -> Tensor:
        return rotate(vectors, torch.from_numpy(line(places)).to(vectors.device))

    begin = 0 if remap is None else max(0, first - remap.window + 1)
    near = _View(at(queries, Line(), positions[first:]), at(keys[:, :, begin:], Line(), positions[begin:]), begin)
    if remap is None:
        return near, None
    end = max(0, total - remap.window)
    far_queries = at(queries, remap.query, positions[first:])
    return near, _View(far_queries, at(keys[:, :, :end], remap.key, positions[:end]), 0)


def _scores(views: tuple[_View, _View | None], rows: slice, past: int, attention: Attention) -> Tensor:
    """[B, H, rows, keys up to the last row's], everything applied, -inf where a key is not seen."""
    near, far = views
    first, last = past + rows.start, past + rows.stop
    queries, keys = np.arange(first, last), np.arange(last)
    device = near.queries.device
    if far is None or attention.remap is None:
        scores = near.logits(rows, 0, last)
    else:
        window = attention.remap.window
        begin = max(0, first - window + 1)  # from here on, keys are near for some row
        scores = near.logits(rows, begin, last)
        if last > window:
            end = last - window  # up to here, keys are far for some row
            distant = far.logits(rows, 0, end)
            is_far = torch.from_numpy(queries[:, None] - keys[None, begin:end] >= window).to(device)
            mixed = torch.where(is_far, distant[..., begin:], scores[..., : end - begin])
            scores = torch.cat([distant[..., :begin], mixed, scores[..., end - begin :]], dim=-1)
    if attention.bias is not None:
        scores += torch.from_numpy(attention.bias(queries, keys)).to(device, scores.dtype)
    seen = keys[None, :] <= queries[:, None]
    if attention.mask is not None:
        seen &= attention.mask.allowed(queries, keys)
    return scores.masked_fill_(~torch.from_numpy(seen).to(device), -torch.inf)


def _scaled(queries: Tensor, attention: Attention, total: int) -> Tensor:
    """Queries times their `query_scale`."""
    if attention.query_scale is None:
        return queries
    scale = attention.query_scale(np.arange(total - queries.shape[2], total))
    precise = torch.promote_types(queries.dtype, torch.float32)
    return (queries.to(precise) * torch.from_numpy(scale).to(queries.device, precise)[:, None]).to(queries.dtype)


def _per_group(rows: Tensor, columns: Tensor) -> Tensor:
    """[B, H, R, M] times [B, KV, M, N], the H / KV heads of a group against one key head, which is never copied."""
    batch, heads, count, inner = rows.shape
    grouped = rows.reshape(batch, columns.shape[1], -1, inner)
    return (grouped @ columns).reshape(batch, heads, count, columns.shape[3])

"""Attention over keys and values as a cache gives them back (the slot `cache`), by its definition.

logit(i, j) = that of q(i) with the kept key of j       for j < kept_before(i)
              that of q(i) with the key of j            for the others up to i
              -inf                                      where j is a token of the prompt that is not held
out(i) = sum_j softmax_j(logit(i, j)) v(j)              with the kept value of j, or the value, alike
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Attention, Keeping, TopKMask
from lexbench.kernels import dense
from lexbench.kernels.heads import Rotate, multiply_per_group

Plain = Callable[[Tensor, Tensor, Tensor, Attention], Tensor]
"""(queries, keys, values, the Attention without its cache) -> [B, H, Q, D]: attention with everything as computed."""


def held_tokens(
    keeping: Keeping, queries: Tensor, keys: Tensor, values: Tensor, rotate: Rotate, scaling: float, window: int | None
) -> Tensor:
    """[B, KV, P] whether a layer's cache holds each token of the prompt, as `Keeping.held_tokens` says.

    A layer with a window stores the tokens in it, and holds some of these.

    Args:
        keeping: the rule.
        queries: [B, H, Q, D] of the prompt's last tokens, before `rotate`.
        keys: [B, KV, P, D], before `rotate`.
        values: [B, KV, P, D].
        rotate: rotates vectors to positions.
        scaling: factor on the logits.
        window: tokens that a query sees, its own among them; None: all.
    """
    total = keys.shape[2]
    begin = 0 if window is None else total - min(total, max(1, window - 1))
    if not begin:
        return keeping.held_tokens(queries, keys, values, rotate, scaling)

    def rotate_later(vectors: Tensor, positions: Tensor) -> Tensor:
        return rotate(vectors, positions + begin)

    asking = queries[:, :, -min(queries.shape[2], total - begin) :]
    held = keeping.held_tokens(asking, keys[:, :, begin:], values[:, :, begin:], rotate_later, scaling)
    return torch.nn.functional.pad(held, (begin, 0))


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    rotate: Rotate,
    scaling: float,
    layer: int,
    prompt: int,
    held: Tensor | None,
    plain: Plain,
    sinks: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """Causal attention of the last Q of K positions under a slot `cache`.

    Args:
        queries: [B, H, Q, D], before `rotate`.
        keys: [B, KV, K, D], before `rotate`, as computed.
        values: [B, KV, K, D].
        attention: with the slot; of one layer.
        rotate: rotates vectors to positions.
        scaling: factor on the logits.
        layer: number of the layer.
        prompt: tokens of the prompt, whose queries see everything as computed, unless the cache is used in it.
        held: [B, KV, prompt] tokens of the prompt that queries behind it see; None: all.
        plain: attention of the prompt's queries.
        sinks: [H] logits that take weight and add no value; None: none.
        cap: c, where the logits of keys x become c tanh(x / c); None: they stay.

    Returns:
        [B, H, Q, D] in the dtype of `queries`.
    """
    keeping, rest = attention.cache, without(attention)
    assert keeping is not None, "the slot is set"
    total, first = keys.shape[2], keys.shape[2] - queries.shape[2]
    inside = max(0, min(prompt, total) - first)
    if keeping.in_prompt and held is None:  # all queries alike
        inside = 0
    parts = []
    if inside:
        own = queries[:, :, :inside], keys[:, :, : first + inside], values[:, :, : first + inside]
        if keeping.in_prompt:
            parts.append(_over_kept(*own, keeping, rest, rotate, scaling, layer, None, sinks, cap))
        else:
            parts.append(plain(*own, rest))
    if first + inside < total:
        behind = queries[:, :, inside:]
        parts.append(_over_kept(behind, keys, values, keeping, rest, rotate, scaling, layer, held, sinks, cap))
    return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]


_plain: dict[int, tuple[Attention, Attention]] = {}


def without(attention: Attention) -> Attention:
    """The Attention without its cache, the same object for every step: kernels keep their plans by it."""
    if id(attention) not in _plain:
        if len(_plain) > 64:
            _plain.clear()
        _plain[id(attention)] = attention, replace(attention, cache=None)  # the first keeps its id from being reused
    return _plain[id(attention)][1]


def _over_kept(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    keeping: Keeping,
    rest: Attention,
    rotate: Rotate,
    scaling: float,
    layer: int,
    held: Tensor | None,
    sinks: Tensor | None,
    cap: float | None,
) -> Tensor:
    """[B, H, Q, D] of the last Q of K positions, each of which sees the keys before its border as they are kept."""
    (batch, heads, count, _), total = queries.shape, keys.shape[2]
    kept_before = keeping.kept_before(np.arange(total - count, total))
    most = int(kept_before[-1])
    old_keys, old_values = keeping.kept_keys_and_values(keys[:, :, :most], values[:, :, :most], layer)
    precise = torch.promote_types(queries.dtype, torch.float32)
    known, content = keys.to(precise), values.to(precise)
    old_known = torch.cat([old_keys.to(precise), known[:, :, most:]], dim=2)
    old_content = torch.cat([old_values.to(precise), content[:, :, most:]], dim=2)
    asking = dense.scale_queries(queries.to(precise) * scaling, rest, total)
    border = torch.from_numpy(np.asarray(kept_before)).to(queries.device)[:, None]
    found = torch.empty(*queries.shape[:3], values.shape[3], dtype=queries.dtype, device=queries.device)
    # The best keys of a `TopKMask` are chosen among the scores of both forms.
    unchosen = replace(rest, mask=None) if isinstance(rest.mask, TopKMask) else rest
    # Two sets of scores.
    chunk = max(1, dense.MAX_SCORES_IN_MEMORY // (2 * batch * heads * total))
    for start in range(0, count, chunk):
        rows = slice(start, min(start + chunk, count))
        end = total - count + rows.stop
        scores = dense.masked_scores(asking[:, :, rows], old_known[:, :, :end], unchosen, rotate, cap)
        # Keys that some queries of the chunk see as they are kept, and others as computed.
        band = slice(int(kept_before[rows.start]), min(most, end))
        is_new = torch.arange(band.start, band.stop, device=queries.device) >= border[rows]
        if band.start < band.stop:
            new = dense.masked_scores(
                asking[:, :, rows], known[:, :, band.start : end], unchosen, rotate, cap, begin=band.start
            )
            scores[..., band] = torch.where(is_new, new[..., : band.stop - band.start], scores[..., band])
        if isinstance(rest.mask, TopKMask):
            here = np.arange(end - scores.shape[2], end)
            scores = dense.mask_outside_top_k(scores, rest.mask, here, np.arange(end))
        if held is not None:
            scores = scores.masked_fill(_hidden_tokens(held, heads, end), -torch.inf)
        if sinks is not None:
            more = sinks.to(scores)[:, None, None].expand(batch, -1, scores.shape[2], 1)
            weights = torch.cat([scores, more], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        mixed = multiply_per_group(weights, old_content[:, :, :end])
        if band.start < band.stop:
            mixed += multiply_per_group(weights[..., band] * is_new, (content - old_content)[:, :, band])
        found[:, :, rows] = mixed.to(found.dtype)
    return found


def _hidden_tokens(held: Tensor, heads: int, total: int) -> Tensor:
    """[B, H, 1, total] tokens that the cache does not hold."""
    hidden = (~held).repeat_interleave(heads // held.shape[1], dim=1)
    return torch.nn.functional.pad(hidden, (0, total - held.shape[2]))[:, :, None]

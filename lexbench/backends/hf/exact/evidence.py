"""Checks of what the attention function really computes, by calling it with known random vectors."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from lexbench.backends.hf.exact.hook import Hook
from lexbench.backends.hf.exact.layers import attention_within_view
from lexbench.core.attention import Attention, Floats, Positions, regions_of
from lexbench.kernels.reference import Angles, attention_weights, rotate_to
from lexbench.kernels.spans import position_tensor

CHECKED_QUERY_PLACES = (1.0, 0.75, 0.4)
"""Positions of the checked queries, as fractions of the text."""
LOGIT_DEVIATION = 4.0
"""Standard deviation of the logits of checked queries: weights far from equal, in which a wrong angle shows."""
ROUNDED_WEIGHT = 1e-3
"""Weights far below are rounded by float32 as this one is, where parts of a softmax are joined."""


@torch.inference_mode()
def weights_difference(hook: Hook, own: Mapping[int, Angles], device: torch.device, length: int) -> float:
    """Largest difference between attention weights and the formula, over a random text of `length` tokens.

    Needs an earlier forward pass, which records the modules of the layers. Layers with the same Attention are checked
    once. Learned sinks and caps are left out: they come with the call.

    Args:
        hook: the attention function.
        own: by id of a `LayerAttention`, how its layers rotate by themselves.
        device: of the vectors.
        length: in tokens.
    """
    if any(held.attention.cache is not None for held in hook.layers):
        return max(of_cache(hook, layer, own[id(hook.layers[layer])], device, length) for layer in sorted(hook.modules))
    # Reversed, so that of equal layers the first one stays.
    kinds = {id(held): layer for layer, held in reversed([*enumerate(hook.layers)]) if layer in hook.modules}
    rows = sorted({max(0, round(share * length) - 1) for share in CHECKED_QUERY_PLACES})
    return max(
        _of_query(hook, layer, own[id(hook.layers[layer])], device, length, row)
        for layer in kinds.values()
        for row in rows
    )


def of_cache(hook: Hook, layer: int, own: Angles, device: torch.device, length: int) -> float:
    """Largest difference between a layer's output and the formula, over keys and values as its cache must keep them.

    Every layer is looked at: what its cache does may depend on its number. Values are normal; what a head holds of the
    prompt is taken from the attention function.
    """
    module, held = hook.modules[layer], hook.layers[layer]
    heads, kv_heads, size = hook.shapes[layer]
    rng = np.random.default_rng([layer, length])
    given = [rng.standard_normal((count, length, size)) * 2 for count in (heads, kv_heads, kv_heads)]
    queries, keys, values = (each.astype(np.float32).astype(np.float64) for each in given)
    attention, prompt = attention_within_view(held.attention, held.view, length), max(1, length // 2)
    if hook.rotated or held.turn is None:  # what arrives is as it stays
        attention, own = _as_it_arrives(attention)
    q, k, v = (torch.from_numpy(vectors).to(device, torch.float32)[None] for vectors in (queries, keys, values))
    hook.begin(prompt)
    mixed, _ = hook(module, q, k, v, None, scaling=size**-0.5)
    _, chosen = hook.prompts.get((layer, 0), (prompt, None))  # a layer without the slot keeps all
    hook.begin(None)
    errors = []
    if attention.remap is None:  # keys are kept rotated
        places = np.arange(length)
        queries, exact = (
            np.stack([rotate_to(vectors, places, places.astype(np.float64), attention, own) for vectors in group])
            for group in (queries, keys)
        )
        # Looked at here, and taken from there: a number between two levels is rounded by its last bit.
        keys = hook.rotation(held)(k, position_tensor(0, length, device))[0].double().cpu().numpy()
        errors.append(float(abs(keys - exact).max()))
        attention, own = _as_it_arrives(attention)
    for row in {length - 1, round(CHECKED_QUERY_PLACES[1] * length) - 1}:
        known, content = keys[:, : row + 1].copy(), values[:, : row + 1].copy()
        if held.attention.cache is not None and (row >= prompt or held.attention.cache.in_prompt):
            border = int(held.attention.cache.kept_before(np.array([row]))[0])
            if border:
                old = held.attention.cache.by_definition(known[:, :border], content[:, :border])
                known[:, :border], content[:, :border] = old
        for head in {0, heads - 1}:
            mine = head * kv_heads // heads
            share = attention_weights(attention, own, queries[head, row], known[mine], row, size**-0.5, head)
            if chosen is not None and row >= prompt:
                share[:prompt] *= chosen[0, mine].cpu().numpy()
                share /= share.sum()
            got = mixed[0, row, head].double().cpu().numpy()
            errors.append(float(abs(got - share @ content[mine]).max()))
    return max(errors)


def _as_it_arrives(attention: Attention) -> tuple[Attention, Angles]:
    """The Attention over vectors that are rotated already, and angles of none."""
    return replace(attention, inv_freq=None, scale=None, keep_first=None), Angles(np.empty(0))


def _of_query(hook: Hook, layer: int, own: Angles, device: torch.device, length: int, row: int) -> float:
    module, held = hook.modules[layer], hook.layers[layer]
    heads, kv_heads, size = hook.shapes[layer]
    rng = np.random.default_rng([layer, length])
    queries = rng.standard_normal((heads, length, size)) * math.sqrt(LOGIT_DEVIATION)
    keys = rng.standard_normal((kv_heads, length, size)) * math.sqrt(LOGIT_DEVIATION)
    attention = attention_within_view(held.attention, held.view, length)
    if hook.rotated or held.turn is None:  # what arrives is as it stays
        attention, own = _as_it_arrives(attention)
    watched = _watched_keys(attention, row, size)
    # Value vectors are one-hot: dimension d of the output is the attention weight of key watched[d].
    values = np.zeros((kv_heads, length, size))
    values[:, watched, np.arange(len(watched))] = 1
    q, k, v = (torch.from_numpy(vectors).to(device, torch.float32)[None] for vectors in (queries, keys, values))
    hook.begin(None)
    mixed, _ = hook(module, q, k, v, None, scaling=size**-0.5)
    group, errors = heads // kv_heads, []
    ratios = hook.ratios.get((layer, 0), (1.0,) * kv_heads)
    for head in {0, heads - 1}:
        known, ratio = keys[head // group, : row + 1], ratios[head // group]
        expected = attention_weights(attention, own, queries[head, row], known, row, size**-0.5, head, ratio)
        got = mixed[0, row, head, : len(watched)].double().cpu().numpy()
        errors.append(_weights_error(got, expected[watched]))
    hook.begin(None)
    return max(errors)


def _weights_error(got: Floats, expected: Floats) -> float:
    """Largest difference of weights, and of their logits as a share of the deviation: a key of small weight counts."""
    errors = abs(got - expected)
    return float(max(errors.max(), (errors / (LOGIT_DEVIATION * expected + ROUNDED_WEIGHT)).max()))


def _watched_keys(attention: Attention, row: int, size: int) -> Positions:
    """At most `size` keys of a query: both sides of every border of the remap and the mask, then evenly spaced ones."""
    here, there = np.array([row]), np.arange(row + 1)
    kinds = np.zeros(row + 1, dtype=np.int64)
    for number, region in enumerate(regions_of(attention.remap)):
        kinds[region.holds(here[:, None], there[None, :])[0]] = number
    if attention.mask is not None:
        kinds[~attention.mask.allowed(here, there)[0]] = -1
    borders = np.flatnonzero(np.diff(kinds))[::-1]  # the nearest first
    others = np.linspace(0, row, size).astype(np.int64)
    return np.unique(np.concatenate([np.stack([borders, borders + 1], axis=1).ravel()[: size // 2], others[::2]]))

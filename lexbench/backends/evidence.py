"""What an attention function really computes, read off by vectors of our own."""

import numpy as np
import torch

from lexbench.backends.hook import Hook, rotation
from lexbench.definition import Angles, weights

ROWS = 6
"""Queries that are looked at."""


@torch.inference_mode()
def of_weights(hook: Hook, own: Angles, device: torch.device, length: int) -> float:
    """Largest difference of attention weights to the formula, over a random text of `length` tokens.

    Values are 1 in one place each, so that what comes out are the weights of as many keys. Needs a forward pass
    before it, which shows the modules of the layers; each kind of layer is looked at once.
    """
    kinds = {id(held.attention): layer for layer, held in reversed([*enumerate(hook.layers)])}
    return max(_of_layer(hook, layer, own, device, length) for layer in kinds.values())


def _of_layer(hook: Hook, layer: int, own: Angles, device: torch.device, length: int) -> float:
    module, held = hook.modules[layer], hook.layers[layer]
    heads, kv_heads, size = hook.shapes[layer]
    rng = np.random.default_rng([layer, length])
    queries = rng.standard_normal((heads, length, size)) * 2
    keys = rng.standard_normal((kv_heads, length, size)) * 2
    watched = np.unique(np.linspace(0, length - 1, min(length, size)).astype(np.int64))
    values = np.zeros((kv_heads, length, size))
    values[:, watched, np.arange(len(watched))] = 1
    q, k, v = (torch.from_numpy(vectors).to(device, torch.float32)[None] for vectors in (queries, keys, values))
    if hook.turned:
        turn, places = rotation(module, held.rotary), torch.arange(length, device=device)
        q, k = turn(q, places), turn(k, places)
    hook.begin(None)
    mixed, _ = hook(module, q, k, v, None, scaling=size**-0.5)
    group, error = heads // kv_heads, 0.0
    ratios = hook.ratios.get((layer, 0), (1.0,) * kv_heads)
    for row in np.unique(np.linspace(0, length - 1, ROWS).astype(np.int64)):
        for head in {0, heads - 1}:
            shared = head // group
            expected = weights(
                held.attention, own, queries[head, row], keys[shared], row, size**-0.5, head, ratios[shared]
            )
            got = mixed[0, row, head, : len(watched)].double().cpu().numpy()
            error = max(error, float(abs(got - expected[watched]).max()))
    hook.begin(None)
    return error

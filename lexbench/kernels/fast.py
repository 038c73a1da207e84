"""Exact attention at about the cost of the fused causal kernel, for each structure that has such a kernel.

Which keys a cache must hold for decoding to rotate none twice is said by `near_far` and `chunked`.
"""

import torch
from torch import Tensor

from lexbench.core.attention import Attention, Blocks, Chunks, Line, Remap, Window
from lexbench.kernels import chunked, dense, flash, near_far
from lexbench.kernels.near_far import Far


def structure(attention: Attention) -> str:
    """Name of the kernel that answers: sdpa, near_far, banded, blocks, lambda, chunks; dense for all else."""
    remap, mask = attention.remap, attention.mask
    if attention.bias is not None:
        return "dense"
    match remap, mask:
        case None, None:
            return "sdpa"
        case None, Window():
            return "banded"
        case None, Blocks():
            return "blocks"
        case Remap(), None:
            return "near_far"
        case Remap(), Window() if mask.size == remap.window:
            return "lambda"
        case Chunks(), None:
            return "chunks"
    return "dense"


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    attention: Attention,
    rotate: dense.Rotate,
    scaling: float,
) -> Tensor:
    """What `dense.attend` computes, with its arguments, in memory of a few spans of queries and keys.

    Vectors are rotated, and scores multiplied, in the inputs' dtype, as stock models do; parts are merged in float32,
    or float64 for float64 inputs. Gradients are the dense kernel's: a log-sum-exp has none.
    """
    name = structure(attention)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    (asked, width), total = queries.shape[2:], keys.shape[2]
    stock = name == "sdpa" and asked in (1, total)
    if name == "dense" or stock or learning or width != values.shape[3]:
        return dense.attend(queries, keys, values, query_positions, attention, rotate, scaling)
    positions = torch.arange(total, device=queries.device)
    assert torch.equal(query_positions, positions[total - asked :]), "queries are at the last positions of the keys"
    queries = dense.scaled(queries, attention, total)
    remap, mask = attention.remap, attention.mask
    if isinstance(remap, Chunks):
        return chunked.attend(queries, keys, values, remap, rotate, scaling)
    if isinstance(mask, Blocks):
        return chunked.attend(queries, keys, values, mask, rotate, scaling)
    if isinstance(remap, Remap):
        count = total if mask is None else mask.sinks
        return near_far.attend(queries, keys, values, remap.window, Far(count, remap.query, remap.key), rotate, scaling)
    if mask is not None:
        return near_far.attend(queries, keys, values, mask.size, Far(mask.sinks, Line(), Line()), rotate, scaling)
    turned = rotate(queries, query_positions), rotate(keys, positions)
    return flash.causal(*turned, values, scaling).out.to(queries.dtype)

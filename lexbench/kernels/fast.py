"""Exact attention at about the cost of the fused causal kernel, for structures of Attention that allow it.

It is for texts and pieces of them; one token over a cache that is ours is computed by `decode`.
"""

from typing import Literal

import torch
from torch import Tensor

from lexbench.core.attention import Attention, Blocks, Chunks
from lexbench.kernels import chunked, dense, flash, near_far
from lexbench.kernels.heads import Rotate
from lexbench.kernels.near_far import Sides
from lexbench.kernels.spans import position_tensor

Form = Literal["merged", "triton", "dense"]
"""Kernels for windows, far keys, blocks and chunks; triton is for GPUs, dense computes all scores, by definition."""


def kernel_name(attention: Attention) -> str:
    """Name of the kernel for an Attention: sdpa, near_far, banded, blocks, lambda, chunks; dense for all others."""
    remap, mask = attention.remap, attention.mask
    if attention.bias is not None:
        return "dense"
    if near_far.sides(attention) is not None:
        return "banded" if remap is None else "near_far" if mask is None else "lambda"
    match remap, mask:
        case None, None:
            return "sdpa"
        case None, Blocks():
            return "blocks"
        case Chunks(), None:
            return "chunks"
    return "dense"


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    attention: Attention,
    rotate: Rotate,
    scaling: float,
    sinks: Tensor | None = None,
    cap: float | None = None,
    form: Form = "merged",
) -> Tensor:
    """The result of `dense.attend`, with the same arguments, in memory for a few spans of queries and keys.

    Windows and far keys are computed by `near_far`, blocks and chunks by `chunked`, in form triton all by
    `triton_regions`. Capped scores are
    computed densely: the fused kernels have no cap.

    Rotations and scores are in the inputs' dtype, as in stock models; parts are merged in float32, or float64 for
    float64 inputs. Where gradients are needed, the dense kernel runs: the fused kernels give none for their lse.
    """
    name = kernel_name(attention)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    (n_queries, width), total = queries.shape[2:], keys.shape[2]
    stock = name == "sdpa" and n_queries in (1, total) and sinks is None
    # PyTorch's CPU kernel refuses values of another size than keys (multi-head latent attention).
    if name == "dense" or form == "dense" or stock or learning or width != values.shape[3] or cap is not None:
        return dense.attend(queries, keys, values, query_positions, attention, rotate, scaling, sinks=sinks, cap=cap)
    dense.check_queries_are_last(query_positions, n_queries, total)
    # Only now: `dense.attend` above multiplies by query_scale itself.
    queries = dense.scale_queries(queries, attention, total)
    if name == "sdpa":
        turned = rotate(queries, query_positions), rotate(keys, position_tensor(0, total, keys.device))
        return flash.attend_causally(*turned, values, scaling).with_sinks(sinks).out.to(queries.dtype)
    batch = len(queries)
    if batch > 1:  # one text with the heads of all: blocks of it are views, and no text has calls of its own
        queries, keys, values = (x.flatten(0, 1)[None] for x in (queries, keys, values))
        sinks = None if sinks is None else sinks.repeat(batch)
    rule = near_far.sides(attention) or (attention.remap if isinstance(attention.remap, Chunks) else attention.mask)
    assert isinstance(rule, Sides | Blocks | Chunks), f"{name} has no kernel here"
    found = None
    if form == "triton":  # imported where it is asked for: it is not everywhere
        from lexbench.kernels import triton_check, triton_regions

        if triton_check.regions_agree(queries, keys, isinstance(rule, Sides), sinks is not None):
            found = triton_regions.attend(queries, keys, values, rule, rotate, scaling, sinks)
    if found is None:
        if isinstance(rule, Sides):
            found = near_far.attend(queries, keys, values, rule, rotate, scaling, sinks)
        else:
            found = chunked.attend(queries, keys, values, rule, rotate, scaling, sinks)
    return found.view(batch, -1, *found.shape[2:])

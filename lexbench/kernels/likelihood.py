"""Negative log-likelihood of given tokens, without all logits at once."""

from collections.abc import Iterator

import torch
from torch import Tensor


def mixed(passes: Tensor) -> Tensor:
    """[..., V] mixture of the logits z of several passes [P, ..., V]: sum_p softmax_p(max_v z_pv) z_p (2312.04455)."""
    return torch.einsum("p...v,p...->...v", passes, passes.amax(-1).softmax(0))


def nll(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, chunk: int = 512) -> Tensor:
    """-ln softmax(weight h + bias)[target] at every position, computed in float32 (float64 for float64 inputs).

    Args:
        hidden: [P, T, W] states before the head, of P passes whose logits are `mixed`; usually one.
        weight: [V, W] of the head.
        targets: [T] token ids.
        bias: [V] of the head.
        chunk: positions at once. Memory is chunk x V, and a float32 copy of a weight of lower precision.

    Returns:
        [T] nats, float32.
    """
    assert hidden.shape[1] == len(targets), f"{hidden.shape[1]} states for {len(targets)} targets"
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    for part, logits in _logits(hidden, weight, bias, chunk):
        losses[part] = logits.logsumexp(1) - logits.gather(1, targets[part, None])[:, 0]
    return losses


def nll_of_options(
    hidden: Tensor, weight: Tensor, options: Tensor, bias: Tensor | None = None, chunk: int = 512
) -> Tensor:
    """[T, options] -ln softmax(weight h + bias)[option] at every position; arguments as in `nll`."""
    losses = torch.empty(hidden.shape[1], len(options), dtype=torch.float32, device=hidden.device)
    for part, logits in _logits(hidden, weight, bias, chunk):
        losses[part] = logits.logsumexp(1, keepdim=True) - logits[:, options]
    return losses


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Positions and their [chunk, V] logits, with passes mixed."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}: positions whose logits are held at once")
    precise = torch.promote_types(hidden.dtype, torch.float32)
    head = weight.to(precise).mT
    for start in range(0, hidden.shape[1], chunk):
        part = slice(start, start + chunk)
        logits = hidden[:, part].to(precise) @ head
        if bias is not None:
            logits += bias.to(precise)
        yield part, mixed(logits) if len(logits) > 1 else logits[0]

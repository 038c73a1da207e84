"""Negative log-likelihood of given tokens, without all logits at once."""

import torch
from torch import Tensor


def mixed(passes: Tensor) -> Tensor:
    """[..., V] logits of several passes [P, ..., V] in one: sum_p softmax_p(max_v z_pv) z_p (arXiv 2312.04455)."""
    return torch.einsum("p...v,p...->...v", passes, passes.amax(-1).softmax(0))


def nll(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, chunk: int = 512) -> Tensor:
    """-ln softmax(weight h + bias)[target] of every position, in float32 (float64 for float64 inputs) inside.

    Args:
        hidden: [P, T, W] states in front of the head, of P passes whose logits are `mixed`; usually one.
        weight: [V, W] of the head.
        targets: [T] token ids.
        bias: [V] of the head.
        chunk: positions at once: memory is chunk x V, besides a copy of a weight of lower precision.

    Returns:
        [T] nats, float32.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}: positions whose logits are held at once")
    assert hidden.shape[1] == len(targets), f"{hidden.shape[1]} states for {len(targets)} targets"
    precise = torch.promote_types(hidden.dtype, torch.float32)
    head = weight.to(precise).mT
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        logits = hidden[:, part].to(precise) @ head
        if bias is not None:
            logits += bias.to(precise)
        logits = mixed(logits) if len(logits) > 1 else logits[0]
        chosen = logits.gather(1, targets[part, None])[:, 0]
        losses[part] = logits.logsumexp(1) - chosen
    return losses

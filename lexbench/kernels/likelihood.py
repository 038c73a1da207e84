"""Negative log-likelihood of given tokens, without all logits at once."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

ToLogits = Callable[[Tensor], Tensor]
"""From [..., T, W] states to [..., T, V] logits."""


def mixed(passes: Tensor) -> Tensor:
    """[..., V] mixture of the logits z of several passes [P, ..., V]: sum_p softmax_p(max_v z_pv) z_p (2312.04455)."""
    return torch.einsum("p...v,p...->...v", passes, passes.amax(-1).softmax(0))


def linear(weight: Tensor, bias: Tensor | None = None) -> ToLogits:
    """The head [V, W] x states + bias, computed in float32, or in float64 for a float64 weight.

    It holds a float32 copy of a weight of lower precision.
    """
    precise = torch.promote_types(weight.dtype, torch.float32)
    head, shift = weight.to(precise).mT, None if bias is None else bias.to(precise)

    def logits(states: Tensor) -> Tensor:
        product = states.to(precise) @ head
        return product if shift is None else product.add_(shift)

    return logits


def nll(hidden: Tensor, head: ToLogits, targets: Tensor, chunk: int = 512) -> Tensor:
    """-ln softmax(logits)[target] at every position.

    Args:
        hidden: [P, T, W] states before the head, of P passes whose logits are `mixed`; usually one.
        head: from [P, t, W] states to [P, t, V] logits, e.g. `linear(weight)`.
        targets: [T] token ids.
        chunk: positions at once. Memory is chunk x V, and what the head needs.

    Returns:
        [T] nats, float32.
    """
    assert hidden.shape[1] == len(targets), f"{hidden.shape[1]} states for {len(targets)} targets"
    losses = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
    for part, logits in _logits(hidden, head, chunk):
        losses[part] = logits.logsumexp(1) - logits.gather(1, targets[part, None])[:, 0]
    return losses


def nll_of_options(hidden: Tensor, head: ToLogits, options: Tensor, chunk: int = 512) -> Tensor:
    """[T, options] -ln softmax(logits)[option] at every position; arguments as in `nll`."""
    losses = torch.empty(hidden.shape[1], len(options), dtype=torch.float32, device=hidden.device)
    for part, logits in _logits(hidden, head, chunk):
        losses[part] = logits.logsumexp(1, keepdim=True) - logits[:, options]
    return losses


def _logits(hidden: Tensor, head: ToLogits, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Positions and their [chunk, V] logits, with passes mixed."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}: positions whose logits are held at once")
    for start in range(0, hidden.shape[1], chunk):
        part = slice(start, start + chunk)
        logits = head(hidden[:, part])
        yield part, mixed(logits) if len(logits) > 1 else logits[0]

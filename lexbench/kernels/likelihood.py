"""Negative log-likelihood of given tokens, without all logits at once."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lexbench.core.errors import ConfigError
from lexbench.kernels.flash import HAS_MIXED_PRECISION_PRODUCTS

ToLogits = Callable[[Tensor], Tensor]
"""Function from [..., T, W] states to [..., T, V] logits."""
WEIGHT_BLOCK_NUMBERS = 1 << 20
"""Numbers of a weight in float32 at once."""


def mix_passes(passes: Tensor) -> Tensor:
    """[..., V] mixture of the logits z of several passes [P, ..., V]: sum_p softmax_p(max_v z_pv) z_p (2312.04455)."""
    if len(passes) == 1:
        return passes[0]
    return torch.einsum("p...v,p...->...v", passes, passes.amax(-1).softmax(0))


def linear_head(weight: Tensor, bias: Tensor | None = None) -> ToLogits:
    """The head [V, W] x states + bias, in float32, or in float64 for a float64 weight.

    A weight of lower precision is never copied whole. On CUDA, states of its dtype are multiplied with it directly;
    products of two halves are exact in float32, in which they are added up. Elsewhere `WEIGHT_BLOCK_NUMBERS` numbers of
    the weight at a time become float32.
    """
    precise = torch.promote_types(weight.dtype, torch.float32)
    shift = None if bias is None else bias.to(precise)

    def logits(states: Tensor) -> Tensor:
        if weight.dtype == precise:
            product = states.to(precise) @ weight.mT
        elif HAS_MIXED_PRECISION_PRODUCTS and weight.is_cuda and states.dtype == weight.dtype:
            flat = torch.mm(states.flatten(0, -2), weight.mT, out_dtype=precise)
            product = flat.view(*states.shape[:-1], -1)
        else:
            known = states.to(precise)
            product = known.new_empty(*states.shape[:-1], len(weight))
            rows = max(1, WEIGHT_BLOCK_NUMBERS // weight.shape[1])
            block = known.new_empty(rows, weight.shape[1])  # one for all: fresh memory costs more than the product
            for first in range(0, len(weight), rows):
                part = weight[first : first + rows]
                product[..., first : first + rows] = known @ block[: len(part)].copy_(part).mT
        return product if shift is None else product.add_(shift)

    return logits


def token_nll(hidden: Tensor, head: ToLogits, targets: Tensor, chunk: int = 512) -> Tensor:
    """NLL of every target in nats: -ln softmax(logits)[target] at each position.

    Args:
        hidden: [P, T, W] states before the head, of P passes whose logits are `mix_passes`; usually one.
        head: from [P, t, W] states to [P, t, V] logits, e.g. `linear_head(weight)`.
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


def token_ranks(hidden: Tensor, head: ToLogits, targets: Tensor, chunk: int = 512) -> Tensor:
    """[T] tokens that are likelier than each target, of equal ones those of a lower id; arguments as in `token_nll`."""
    ranks = torch.empty(len(targets), dtype=torch.int64, device=hidden.device)
    for part, logits in _logits(hidden, head, chunk):
        own = logits.gather(1, targets[part, None])
        before = torch.arange(logits.shape[1], device=logits.device) < targets[part, None]
        ranks[part] = ((logits > own) | ((logits == own) & before)).sum(1)
    return ranks


def nll_of_options(hidden: Tensor, head: ToLogits, options: Tensor, chunk: int = 512) -> Tensor:
    """[T, options] -ln softmax(logits)[option] at every position; arguments as in `token_nll`."""
    losses = torch.empty(hidden.shape[1], len(options), dtype=torch.float32, device=hidden.device)
    for part, logits in _logits(hidden, head, chunk):
        losses[part] = logits.logsumexp(1, keepdim=True) - logits[:, options]
    return losses


def divergences(
    hidden: Tensor, other: Tensor, head: ToLogits, targets: Tensor, chunk: int = 512
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Differences of the next-token distributions q behind `hidden` and p behind `other`, at every position.

    Arguments as in `token_nll`; `other` are the states of the same text, read in another way.

    Returns:
        [T] sum_v p_v ln(p_v / q_v) in nats, at least 0; [T] whether both have the same likeliest token; [T] NLL of the
        target under q, and [T] under p.
    """
    assert hidden.shape[1] == other.shape[1] == len(targets), "both read the same targets"
    found = []
    for (part, logits), (_, others) in zip(_logits(hidden, head, chunk), _logits(other, head, chunk), strict=True):
        own, theirs = logits.log_softmax(1), others.log_softmax(1)
        apart = (theirs.exp() * (theirs - own)).sum(1).clamp_min(0.0)
        losses = (-each.gather(1, targets[part, None])[:, 0] for each in (own, theirs))
        found.append((apart, own.argmax(1) == theirs.argmax(1), *losses))
    apart, same, own_nll, other_nll = (torch.cat(each) for each in zip(*found, strict=True))
    return apart, same, own_nll, other_nll


def _logits(hidden: Tensor, head: ToLogits, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Positions and their [chunk, V] logits, with passes mixed."""
    if chunk < 1:
        raise ConfigError(f"chunk must be at least 1, got {chunk}: positions whose logits are held at once")
    for start in range(0, hidden.shape[1], chunk):
        part = slice(start, start + chunk)
        logits = head(hidden[:, part])
        yield part, mix_passes(logits)

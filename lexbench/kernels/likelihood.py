"""Likelihood of targets without ever holding [length, vocabulary] logits."""

import torch
from torch import Tensor


def nll(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, chunk: int = 256) -> Tensor:
    """Negative log-likelihood of each target under softmax(hidden weight^T + bias), nats.

    Products, bias and log-sum-exp run in float32 (float64 for float64 inputs) whatever the dtype of the network:
    in bfloat16 neighbouring log-likelihoods lie 0.06 nats apart.

    Args:
        hidden: [T, width] states behind the last norm.
        weight: [vocabulary, width] of the head.
        targets: [T] token ids.
        bias: [vocabulary], if the head has one.
        chunk: positions at a time: memory is chunk x vocabulary numbers.

    Returns:
        [T] float32.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    head = weight.to(wide)
    offset = None if bias is None else bias.to(wide)
    losses = []
    for states, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        logits = torch.nn.functional.linear(states.to(wide), head, offset)
        losses.append(logits.logsumexp(-1) - logits.gather(-1, wanted[:, None])[:, 0])
    return torch.cat(losses).float()

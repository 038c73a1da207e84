"""Compute logits from a network's last hidden states, with all that its code does: scale, cap, transform, bias."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lexbench.kernels import likelihood
from lexbench.kernels.likelihood import ToLogits


class LanguageModelHead:
    """The part of a network behind its text tower.

    Where logits are the states times a weight, that product is all. Otherwise the network's own code is run with the
    states in place of what its tower would return. This needs no knowledge of what that code does.

    Args:
        network: a causal language model of transformers.
        tower: the module that makes the last hidden states.
        tokens: [1, T] ids to try it on.
        tolerance: largest difference of logits computed in two ways, as a fraction of their standard deviation.
    """

    def __init__(self, network: Any, tower: nn.Module, tokens: Tensor, tolerance: float) -> None:
        self._network, self._tower = network, tower
        self._last: Any = network.get_output_embeddings()
        self.device: torch.device = self._last.weight.device if isinstance(self._last, nn.Linear) else tokens.device
        """Device of the last product; with several GPUs not that of the first layer."""
        seen: list[Any] = []
        handle = tower.register_forward_hook(lambda module, given, returned: seen.append(returned))
        try:
            theirs = to_full_precision(network(input_ids=tokens, use_cache=False).logits).to(self.device)
        finally:
            handle.remove()
        self._returned: Any = seen[-1] if seen else None
        states = last_hidden_states(tower(input_ids=tokens, use_cache=False)).to(self.device)

        def fits(ours: Tensor) -> bool:
            return ours.shape == theirs.shape and bool((ours - theirs).std() <= tolerance * theirs.std())

        # A head that scales or caps has such a product, too: only the comparison shows that it is all.
        self.plain = isinstance(self._last, nn.Linear) and self._last.in_features == states.shape[-1]
        self.plain = self.plain and fits(self.exact()(states))
        self.right = self.plain or (self._returned is not None and fits(self.exact()(states)))
        """Whether logits follow from the tower's states."""

    def __call__(self, states: Tensor) -> Tensor:
        """[P, T, V] logits of [P, T, width] states, in float32 or float64; a plain product is rounded before."""
        if self.plain and self._last is not None:
            return to_full_precision(self._last(states.to(self._last.weight.dtype)))  # some towers add up in float32
        return self._replay_head(states)

    def exact(self) -> ToLogits:
        """The function from [P, T, width] states to [P, T, V] logits; its last product is in float32 or float64."""
        if self.plain:
            assert isinstance(self._last, nn.Linear)
            return likelihood.linear_head(self._last.weight, self._last.bias)
        return self._replay_head

    def _replay_head(self, states: Tensor) -> Tensor:
        """Logits by the network's own code behind the tower."""
        ids = torch.zeros(states.shape[:2], dtype=torch.int64, device=states.device)
        with self._with_states(states):
            return to_full_precision(self._network(input_ids=ids, use_cache=False).logits)

    @contextmanager
    def _with_states(self, states: Tensor) -> Iterator[None]:
        """Let the tower return these states, and the last product be computed in float32 or float64."""
        was = self._returned
        returned = (states, *was[1:]) if isinstance(was, tuple) else type(was)(last_hidden_state=states)
        with ExitStack() as stack:
            stack.enter_context(_replace_forward(self._tower, lambda *_, **__: returned))
            if isinstance(self._last, nn.Linear):
                stack.enter_context(
                    _replace_forward(self._last, likelihood.linear_head(self._last.weight, self._last.bias))
                )
            yield


@contextmanager
def _replace_forward(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run other code inside the block."""
    own = vars(module).get("forward")  # as set by accelerate, which spreads layers over devices
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def last_hidden_states(returned: Any) -> Tensor:
    """[B, T, width] last hidden states in what a tower returns."""
    states: Tensor = returned[0] if isinstance(returned, tuple) else returned.last_hidden_state
    return states


def to_full_precision(values: Tensor) -> Tensor:
    """Values in float32, or float64 if they are float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))

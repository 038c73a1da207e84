"""Norms and rotations of a step of writing in one Triton kernel each.

transformers' code calls eight small kernels for a norm and ten for the rotation of a layer. Of one token, these take a
fifth of the time of a 7B model's step on an H200. What a module or a function computes is found by trying it; what is
unlike all that is known here stays as it is.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lexbench.backends.hf.exact.layers import ROTATION_FUNCTION_NAME, plain_turn
from lexbench.backends.hf.exact.memory import probe_forward

Norm = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]


class Fused:
    """The norms and the files of a network of half precision that can do with fewer kernels.

    Args:
        network: on its device.
        tolerance: largest difference of rotated vectors, as a fraction of what the rotation moves.
    """

    def __init__(self, network: nn.Module, tolerance: float) -> None:
        self._tolerance = tolerance
        found = {module: norm_of(module) for module in network.modules()}
        self._norms = {module: norm for module, norm in found.items() if norm is not None}
        names = sorted({type(module).__module__ for module in network.modules()})
        self._files = [sys.modules[name] for name in names if ROTATION_FUNCTION_NAME in vars(sys.modules[name])]

    @contextmanager
    def put(self) -> Iterator[None]:
        """Use our kernels inside the block."""
        with ExitStack() as stack:
            for module, norm in self._norms.items():
                stack.enter_context(_replace_function(module, "forward", norm))
            for file in self._files:
                ours = rotation_of(getattr(file, ROTATION_FUNCTION_NAME), self._tolerance)
                stack.enter_context(_replace_function(file, ROTATION_FUNCTION_NAME, ours))
            yield


@contextmanager
def _replace_function(holder: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Another function of an object inside the block; its own may be that of its class."""
    before = vars(holder).get(name)
    setattr(holder, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(holder, name)
        else:
            setattr(holder, name, before)


@torch.inference_mode()
def norm_of(module: nn.Module) -> Norm | None:
    """Our kernel with an RMSNorm module's weight; None for other modules, and where the two do not agree."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    named = type(module).__name__.endswith("RMSNorm") and "forward" not in vars(module)  # no hook of accelerate's
    if not (named and isinstance(weight, Tensor) and weight.dim() == 1 and isinstance(eps, float)):
        return None
    from lexbench.kernels import triton_norm

    tried = torch.linspace(-3, 2, 7 * len(weight), device=weight.device, dtype=weight.dtype).view(7, -1).sin()
    ours = functools.partial(triton_norm.rms_norm, weight=weight, eps=eps)
    # As Llama, GPT-OSS and Gemma do.
    calls = [functools.partial(ours, rounded=True), ours, functools.partial(ours, from_one=True)]
    with probe_forward():
        own, least = module(tried), torch.finfo(weight.dtype).eps
        apart = [float(((call(tried) - own).abs() / own.abs().clamp_min(least)).max()) for call in calls]
        best = min(range(len(calls)), key=apart.__getitem__)
        if own.dtype == weight.dtype and apart[best] <= 2 * least:  # another rounding of a number, or of two
            return _of_one_dtype(module.forward, calls[best], weight.dtype)
    return None


def _of_one_dtype(own: Norm, ours: Norm, dtype: torch.dtype) -> Norm:
    """Norm vectors of a dtype by our kernel, others by the module's own code."""
    return lambda vectors: (ours if vectors.dtype == dtype else own)(vectors)


def rotation_of(own: Callable[..., Pair], tolerance: float) -> Callable[..., Pair]:
    """A modeling file's rotation of queries and keys, by our kernel for shapes for which that agrees at the first call.

    To compare waits for the device: the first call is one that is not recorded.
    """
    known: dict[Any, Callable[[Tensor, Pair], Tensor] | None] = {}

    def rotate(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> Pair:
        name = queries.shape, keys.shape, cos.shape, queries.dtype, len(more), *named
        if name not in known:
            found = own(queries, keys, cos, sin, *more, **named)
            plain = not (more or named)
            known[name] = _find_rotation(queries, found[0], (cos, sin), tolerance) if plain else None
            return found
        turn = known[name]
        if turn is None:
            return own(queries, keys, cos, sin, *more, **named)
        return turn(queries, (cos, sin)), turn(keys, (cos, sin))

    return rotate


def _find_rotation(
    before: Tensor, after: Tensor, made: Pair, tolerance: float
) -> Callable[[Tensor, Pair], Tensor] | None:
    """The rotation that turns vectors `before` into those `after`; None if it is not known here."""
    if torch.equal(before, after):  # cos 1 and sin 0 (`IdentityRotary`)
        return lambda vectors, made: vectors
    # Tables hold each pair's number twice, or once.
    for pairs in (made[0].shape[-1] // 2, made[0].shape[-1]):
        if (turn := plain_turn(before, after, made, pairs, tolerance)) is not None:
            return replace(turn, fused=True)
    return None

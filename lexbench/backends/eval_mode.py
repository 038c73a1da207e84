"""Eval mode of a module, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in eval mode inside the block; each part of it has its own mode afterwards: some may be frozen."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        # From the outside in, by `train`: some modules do more in it than to set the flag.
        for part, mode in modes:
            if part.training != mode:
                part.train(mode)

"""Prompts that have been read: what the next one shares with them, and transformers' caches, cut or side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lexbench.core.task import Tokens

if TYPE_CHECKING:  # which a backend without them need not load
    from transformers import DynamicCache

Held = TypeVar("Held")


class Latest(Generic[Held]):
    """The prompt that was read last, and what a backend holds of it, until another one goes on from there."""

    def __init__(self) -> None:
        self._kept: tuple[Tokens, Held] | None = None

    def keep(self, prompt: Tokens, held: Held) -> None:
        """In place of what was there."""
        self._kept = prompt, held

    def take(self, prompt: Tokens) -> tuple[Held, int] | None:
        """What is held, and how many tokens of the prompt it begins with, but for its last one; None: nothing."""
        kept, self._kept = self._kept, None
        count = 0 if kept is None else min(_in_common(kept[0], prompt), len(prompt) - 1)
        return (kept[1], count) if kept is not None and count else None

    def forget(self) -> None:
        """What another Attention is asked for makes of no use."""
        self._kept = None


def _in_common(one: Tokens, other: Tokens) -> int:
    """Tokens with which both begin."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def keeps_all(cache: Any, tokens: int) -> bool:
    """Whether a model's own cache of so many tokens holds keys and values, of all of them, and nothing else.

    A state of a recurrent or convolutional layer cannot be cut back, and layers that keep it elsewhere know no cache.
    A layer that shares another one's keys and values has none of its own.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if type(cache) is not DynamicCache:  # what is derived from it holds more
        return False
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
    read = {layer.get_seq_length() for layer in cache.layers if layer.is_initialized} if plain else set()
    return read == {tokens}


def cut(caches: "Sequence[DynamicCache]", tokens: int) -> None:
    """Keep the first tokens of caches that keep all."""
    for cache in caches:
        cache.crop(tokens - cache.get_seq_length())


def together(texts: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> "DynamicCache":
    """One cache of the keys and values that each text has in each layer; all are equally long."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for number, layer in enumerate(zip(*texts, strict=True)):
        keys, values = (torch.cat(parts) for parts in zip(*layer, strict=True))
        cache.update(keys, values, number)
    return cache

"""Prompts that have been read: what the next one shares with them, and transformers' caches, cut or side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lexbench.task import Tokens

if TYPE_CHECKING:  # which a backend without them need not load
    from transformers import DynamicCache

Held = TypeVar("Held")


@dataclass(frozen=True)
class Read(Generic[Held]):
    """A prompt that has been read, and what a backend holds of it."""

    prompt: Tokens
    held: Held


def in_common(one: Tokens, other: Tokens) -> int:
    """Tokens with which both begin."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


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

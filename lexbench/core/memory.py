"""Numbers in a KV cache, and errors that mean out of memory, of torch and of other libraries."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lexbench.core.record import Deferred

OUT_OF_MEMORY_PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
"""Words in messages of torch (on a CPU, Windows, accelerators), JAX and CUDA's libraries: they raise no own class."""


def cache_numbers_per_token(layers: int, kv_heads: int, head_dim: int, views: int = 0) -> int:
    """Numbers in a KV cache for each token: a key and a value of each key head in each layer.

    Args:
        layers: that keep keys and values of all tokens.
        kv_heads: key heads of a layer.
        head_dim: numbers of a key, and of a value.
        views: further positions at which each key is kept.
    """
    return (2 + views) * layers * kv_heads * head_dim


class OutOfMemory(Deferred):
    """Not enough memory now; the cell may succeed later or on another machine."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means out of memory."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY_PHRASES)


@contextmanager
def defer_on_oom(what: str) -> Iterator[None]:
    """Turn out-of-memory errors inside into OutOfMemory, which defers the cell."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        short = True
    else:
        short = False
    if short:  # after the except block: the error held there keeps the tensors of its traceback alive
        if torch := sys.modules.get("torch"):
            torch.cuda.empty_cache()
        raise OutOfMemory(f"out of memory for {what}: use fewer tokens, a smaller dtype, or a device with more memory")

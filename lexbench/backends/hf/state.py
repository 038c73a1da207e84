"""What a network keeps of a text that it has begun to read, so that it can go on: found by trying.

Families keep different things: keys and values, a recurrent state, the last inputs of a convolution, or all of these in
one cache. A cache of keys and values can be cut and joined; any other state can only be copied.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache

from lexbench.backends.caches import keeps_all
from lexbench.backends.hf.head import states_of
from lexbench.backends.hf.memory import trying


class State:
    """The state of one batch of texts of one length, under one pass; empty at first."""

    tokens = 0
    """Number of tokens read so far."""
    afresh = False
    """Whether each reading begins at the first token."""

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        raise NotImplementedError

    @contextmanager
    def aside(self) -> Iterator[Self]:
        """A state to go on with inside the block; this one is as before behind it."""
        yield copy.deepcopy(self)


class Keys(State):
    """Keys and values of all tokens.

    Args:
        config: of the network, so that layers with a window drop old keys; None: all keys are kept, and can be cut.
    """

    def __init__(self, config: Any = None) -> None:
        self.cache = DynamicCache() if config is None else DynamicCache(config=config)

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        self.tokens += tokens.shape[1]
        return states_of(tower(input_ids=tokens, past_key_values=self.cache, use_cache=True))

    @classmethod
    def of(cls, cache: DynamicCache, tokens: int) -> "Keys":
        """Those of a cache that holds `tokens` tokens."""
        keys = cls()
        keys.cache, keys.tokens = cache, tokens
        return keys

    def cut(self, tokens: int) -> None:
        """Keep only the first `tokens` tokens."""
        # A negative number removes this many tokens from the end; 0 changes nothing.
        self.cache.crop(tokens - self.tokens)
        self.tokens = tokens

    @contextmanager
    def aside(self) -> Iterator[Self]:
        """The state itself; behind the block it is cut back."""
        before = self.tokens
        yield self
        self.cut(before)


class Handed(State):
    """All that the network returns beside its states and takes again: a cache of its own kind, a recurrent state.

    Args:
        names: of these entries, the same in what it returns and in what it takes.
        placed: tell the positions of the tokens; some code counts from 0 otherwise.
        singly: read one token at a time once begun; some recurrent code continues by single tokens only.
    """

    def __init__(self, names: tuple[str, ...], placed: bool, singly: bool) -> None:
        self._names, self._placed, self._singly = names, placed, singly
        self._kept: dict[str, Any] = {}

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        found = []
        for part in tokens.split(1, dim=1) if self._singly and self.tokens else [tokens]:  # type: ignore[no-untyped-call]
            places = torch.arange(self.tokens, self.tokens + part.shape[1], device=part.device).expand_as(part)
            given = tower(
                input_ids=part, use_cache=True, **self._kept, **({"position_ids": places} if self._placed else {})
            )
            self._kept = {name: given[name] for name in self._names}
            self.tokens += part.shape[1]
            found.append(states_of(given))
        return torch.cat(found, dim=1)


class Unkept(State):
    """Only the tokens: each reading reads the whole text again."""

    afresh = True

    def __init__(self) -> None:
        self._before: Tensor | None = None

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        whole = tokens if self._before is None else torch.cat([self._before, tokens], dim=1)
        self._before, self.tokens = whole, whole.shape[1]
        return states_of(tower(input_ids=whole, use_cache=False))[:, -tokens.shape[1] :]

    @contextmanager
    def aside(self) -> Iterator[Self]:
        """A copy, which shares the tokens."""
        yield copy.copy(self)


def state_of(tower: Any, tokens: Tensor, tolerance: float) -> Callable[[], State]:
    """What makes an empty state of the first kind that reads `tokens` in pieces as at once.

    Between the pieces another end is read and taken back.

    Args:
        tower: makes last hidden states of tokens.
        tokens: [B, T] ids to try it on.
        tolerance: largest difference of states, as a fraction of their standard deviation.
    """
    whole = states_of(tower(input_ids=tokens, use_cache=False))
    size = tokens.shape[1]
    pieces = [size - size // 2, *[1] * min(2, size // 2), max(0, size // 2 - 2)]
    parts = tokens.split([piece for piece in pieces if piece], dim=1)  # type: ignore[no-untyped-call]

    def fits(make: Callable[[], State]) -> bool:
        state = make()
        with trying():
            found = [state.read(tower, parts[0])]
            with state.aside() as other:  # another end, which is taken back
                other.read(tower, tokens[:, -3:].flip(1))
            pieced = torch.cat([*found, *(state.read(tower, part) for part in parts[1:])], dim=1)
            return bool((pieced - whole).std() <= tolerance * whole.std())
        return False

    cache, names = None, tuple[str, ...]()
    taken = inspect.signature(tower.forward).parameters
    with trying():
        given = tower(input_ids=tokens, use_cache=True)
        cache = given.get("past_key_values")
        names = tuple(name for name, value in given.items() if name in taken and value is not None)
    kinds: list[Callable[[], State]] = [Keys] if keeps_all(cache, size) else []
    if names:
        ways = itertools.product((False, True) if "position_ids" in taken else (False,), (False, True))
        kinds += [functools.partial(Handed, names, *way) for way in ways]
    return next((kind for kind in kinds if fits(kind)), Unkept)

"""State of a text that a network has begun to read, so that it can go on: its form is found by trying.

Families keep different things: keys and values, a recurrent state, the last inputs of a convolution, or all of these in
one cache. A cache of keys and values can be cut and joined; any other state can only be copied.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from lexbench.backends.hf.exact.head import last_hidden_states
from lexbench.backends.hf.exact.memory import probe_forward
from lexbench.kernels.decode import DecodeStep
from lexbench.kernels.looped import Loop

CACHE_GROWTH_TOKENS = 64
"""Further tokens for which a full cache layer gets room."""


class TextState:
    """The state of one batch of texts of one length, under one pass; empty at first."""

    tokens = 0
    """Number of tokens read so far."""
    afresh = False
    """Whether each reading begins at the first token."""

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        raise NotImplementedError

    @contextmanager
    def branch(self) -> Iterator[Self]:
        """A state to go on with inside the block; this one is as before behind it."""
        yield copy.deepcopy(self)


class KeptLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values in buffers with room for what follows, and views of the keys at other positions.

    Args:
        room: tokens to come behind the first ones.
    """

    def __init__(self, room: int = CACHE_GROWTH_TOKENS) -> None:
        super().__init__()
        self.keys: Tensor
        self.values: Tensor
        self._room = room
        self._buffers: list[Tensor] = []
        self._views: dict[Hashable, tuple[Tensor, int]] = {}
        self._loop: Loop | None = None
        self._new: Tensor | None = None

    @classmethod
    def with_capacity(cls, keys: Tensor, values: Tensor, rows: int, total: int, room: int) -> Self:
        """A layer to fill, for `rows` texts of up to `total` tokens, in the shapes of keys and values [., KV, ., D]."""
        made = cls(room)
        made.lazy_initialization(keys, values)
        shapes = [(rows, each.shape[1], total + room, each.shape[3]) for each in (keys, values)]
        made._buffers = [x.new_empty(shape) for x, shape in zip((keys, values), shapes, strict=True)]
        made._show(total)
        return made

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [B, KV, T, D] keys and values; returns all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._loop is not None:
            for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
                buffer.index_copy_(2, self._loop.column, new)
            self._new = key_states
            return self.keys, self.values
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        self._reserve(end, key_states, value_states)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin:end] = new
        # Behind `begin` a view may hold keys of tokens that have been cut: they are rotated anew.
        self._views = {line: (view, min(filled, begin)) for line, (view, filled) in self._views.items()}
        self._show(end)
        return self.keys, self.values

    def _reserve(self, end: int, *given: Tensor) -> None:
        """Make room for `end` tokens, in the shapes of keys and values [., KV, ., D]."""
        if self._buffers and end <= self._buffers[0].shape[2]:
            return
        # A full buffer grows by an eighth at least: what is copied stays a constant share of what is written.
        buffers = [x.new_empty(*x.shape[:2], end + max(self._room, end // 8), x.shape[3]) for x in given]
        if begin := self.get_seq_length():
            for buffer, held in zip(buffers, (self.keys, self.values), strict=True):
                buffer[:, :, :begin] = held
        self._buffers, self._room = buffers, CACHE_GROWTH_TOKENS

    def begin_loop(self, loop: Loop) -> None:
        """Show whole buffers, with room for all tokens of the loop; `update` puts each into the loop's column."""
        held = self.get_seq_length()
        self._reserve(held + loop.count, self.keys, self.values)
        # Numbers behind the text: what is not seen has weight 0, and 0 times NaN is NaN.
        self._views = {line: (view, min(filled, held)) for line, (view, filled) in self._views.items()}
        for buffer in (*self._buffers, *(view for view, _ in self._views.values())):
            buffer[:, :, held:] = 0
        self._loop = loop
        self.keys, self.values = self._buffers

    def end_loop(self, end: int) -> None:
        """Show the first `end` tokens, all of which are in the views that the loop has used."""
        assert self._loop is not None
        first = self._loop.total
        self._views = {line: (view, end if filled == first else filled) for line, (view, filled) in self._views.items()}
        self._loop = self._new = None
        self._show(end)

    def _show(self, end: int) -> None:
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)

    def copy_from(self, begin: int) -> tuple[Tensor, Tensor]:
        """Copies of keys and values [B, KV, K - begin, D] from a position on."""
        return self.keys[:, :, begin:].clone(), self.values[:, :, begin:].clone()

    def put_back(self, begin: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values of `copy_from` where others of as many tokens stand."""
        self.keys[:, :, begin:], self.values[:, :, begin:] = keys, values
        self._views = {line: (view, min(filled, begin)) for line, (view, filled) in self._views.items()}

    def view(self, line: Callable[..., Any] | None, turn: Callable[[Tensor, int], Tensor]) -> Tensor:
        """[B, KV, K, D] keys rotated to a line, of which only new ones are rotated (`lexbench.kernels.decode`)."""
        keys: Tensor = self.keys
        if line is None:
            return keys
        # In a loop, all up to the token of its first step stand in a view from that step on.
        end, room = keys.shape[2] if self._loop is None else self._loop.total, self._buffers[0].shape[2]
        view, filled = self._views.get(line, (keys, 0))
        if self._loop is not None and filled == end:
            # Once in a step: several ranges may share a view.
            loop, new = self._loop, self._new
            assert new is not None
            return loop.make_once((self, line), lambda: view.index_copy_(2, loop.column, turn(new, end)))
        if filled == 0 or room > view.shape[2]:
            made = keys.new_zeros(*keys.shape[:2], room, keys.shape[3])
            made[:, :, :filled] = view[:, :, :filled]
            view = made
        if filled < end:
            view[:, :, filled:end] = turn(keys[:, :, filled:end], filled)
            self._views[line] = view, end
        return view[:, :, :end] if self._loop is None else view

    def select(self, rows: Tensor) -> None:
        """Keep some texts of the batch."""
        end = self.get_seq_length()
        self._buffers = [buffer[rows] for buffer in self._buffers]
        self._views = {line: (view[rows], filled) for line, (view, filled) in self._views.items()}
        self._show(end)


class KeyValueState(TextState):
    """Keys and values of all tokens.

    Args:
        config: of the network, so that layers with a window drop old keys; None: all keys are kept, and can be cut.
        room: tokens to come behind the first ones.
    """

    def __init__(self, config: Any = None, room: int = CACHE_GROWTH_TOKENS) -> None:
        self.cache = DynamicCache() if config is None else DynamicCache(config=config)
        self.step: DecodeStep | None = None
        """Numbers that all layers share while one token of each text is read; None: several tokens are read."""
        self.pads: list[int] = []
        """Columns of padding before each text; empty: there is none."""
        self._rows = 1
        if config is None:
            # transformers has no public way to choose the class of layers that a cache makes when it meets them.
            self.cache.layer_class_to_replicate = functools.partial(KeptLayer, room)
        else:
            layers = self.cache.layers
            self.cache.layers = [
                KeptLayer(room) if type(layer) is DynamicLayer or _keeps_nothing(layer) else layer for layer in layers
            ]

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        if (loop := self.loop) is not None:
            loop.begin()
            places = loop.of("token", lambda lengths: lengths - 1)[:, None]
            found = last_hidden_states(
                tower(input_ids=tokens, past_key_values=self.cache, use_cache=True, position_ids=places)
            )
            loop.end()
            return found
        rows, count = tokens.shape
        begun, self.tokens, self._rows = self.tokens, self.tokens + count, rows
        self.step = DecodeStep(self.lengths()) if count == 1 else None
        more = {}
        if self.pads:
            columns = torch.arange(self.tokens, device=tokens.device)
            pads = torch.tensor(self.pads, device=tokens.device)[:, None]
            more = {"position_ids": columns[begun:] - pads, "attention_mask": (columns >= pads).long()}
        return last_hidden_states(tower(input_ids=tokens, past_key_values=self.cache, use_cache=True, **more))

    @property
    def loop(self) -> Loop | None:
        """Decode steps over buffers of fixed size (`begin_loop`); None: no such step is running."""
        return self.step if isinstance(self.step, Loop) else None

    @contextmanager
    def loop_steps(self, count: int) -> Iterator[Loop]:
        """Read `count` further tokens of each text, one in each call of `read`, by the same calls on the device.

        `Loop.done` tells the state how many were read.
        """
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        device = layers[0].keys.device
        loop = Loop(self.lengths() + 1, total=self.tokens + 1, count=count, device=device)
        begun = list[KeptLayer]()
        try:
            for layer in layers:
                layer.begin_loop(loop)
                begun.append(layer)
            self.step = loop
            yield loop
        finally:
            self.tokens += loop.done
            self.step = None
            for layer in begun:
                layer.end_loop(self.tokens)

    def lengths(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """[B] tokens of each text."""
        return self.tokens - np.array(self.pads or [0] * self._rows, dtype=np.int64)

    def windows(self) -> list[int]:
        """Sizes of the windows of layers that drop old keys."""
        return [layer.sliding_window for layer in self.cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]

    def empty(self, sizes: Sequence[int], room: int) -> "KeyValueState":
        """A state like this one for several texts of these sizes, padded on the left, to be filled by `take`."""
        made, total = KeyValueState(), max(sizes)
        made.cache.layers = [_empty_layer_like(layer, len(sizes), total, room) for layer in self.cache.layers]
        made.tokens, made._rows = total, len(sizes)
        if min(sizes) < total:
            made.pads = [total - size for size in sizes]
        return made

    def take(self, rows: Sequence[int], state: "KeyValueState", texts: Sequence[int]) -> None:
        """Copy texts of another state into these rows, from the left end of its columns to the right end of these.

        Args:
            rows: to be filled.
            state: all of whose texts begin in its first column, or all of one length.
            texts: the row in `state` of each.
        """
        for layer, other in zip(self.cache.layers, state.cache.layers, strict=True):
            if other.is_initialized:
                for to, of in ((layer.keys, other.keys), (layer.values, other.values)):
                    for row, text in zip(rows, texts, strict=True):
                        size = min(of.shape[2], to.shape[2], self.tokens - (self.pads or [0] * self._rows)[row])
                        begin = to.shape[2] - size
                        to[row, :, :begin] = 0  # padding: hidden by the mask, and numbers
                        to[row, :, begin:] = of[text, :, :size]

    def select(self, rows: Sequence[int]) -> None:
        """Keep some texts of the batch."""
        for layer in self.cache.layers:
            if layer.is_initialized:
                chosen = torch.tensor(rows, device=layer.keys.device)
                layer.select(chosen) if isinstance(layer, KeptLayer) else layer.batch_select_indices(chosen)
        self._rows = len(rows)
        self.pads = [self.pads[row] for row in rows] if self.pads else []

    def cut(self, tokens: int) -> None:
        """Keep only the first `tokens` tokens."""
        # A negative number removes this many tokens from the end; 0 removes none, or all in older releases.
        if tokens < self.tokens:
            self.cache.crop(tokens - self.tokens)
        self.tokens = tokens

    @contextmanager
    def branch(self) -> Iterator[Self]:
        """The state itself; behind the block it is cut back. Layers that drop old keys get those back that they had."""
        before = self.tokens
        sliding = [layer for layer in self.cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
        held = [(layer, dict(vars(layer))) for layer in sliding]  # `update` makes new tensors
        yield self
        for layer in self.cache.layers if before < self.tokens else ():  # a cut by 0 removes all in older releases
            if layer not in sliding:
                layer.crop(before - self.tokens)
        for layer, fields in held:
            vars(layer).clear()
            vars(layer).update(fields)
        self.tokens = before

    @contextmanager
    def without_last(self, count: int) -> Iterator[Self]:
        """The state without its last `count` tokens, to read them again; behind the block it holds them as before.

        It holds all keys, in layers of `KeptLayer`.
        """
        end = self.tokens
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        ends = [layer.copy_from(end - count) for layer in layers]
        self.cut(end - count)
        yield self
        self.cut(end)
        for layer, last in zip(layers, ends, strict=True):
            layer.put_back(end - count, *last)


def _empty_layer_like(layer: Any, rows: int, total: int, room: int) -> Any:
    """An empty layer of a cache for several texts, as the layer of one of them; as wide as the longest needs."""
    if not isinstance(layer, DynamicSlidingWindowLayer):
        if not layer.is_initialized:  # it shares another layer's keys
            return KeptLayer(room)
        return KeptLayer.with_capacity(layer.keys, layer.values, rows, total, room)
    made = DynamicSlidingWindowLayer(sliding_window=layer.sliding_window)
    if layer.is_initialized:
        made.lazy_initialization(layer.keys, layer.values)
        width = min(total, layer.sliding_window - 1)
        made.keys, made.values = (x.new_zeros(rows, x.shape[1], width, x.shape[3]) for x in (layer.keys, layer.values))
        made.cumulative_length = total
    return made


class ReturnedState(TextState):
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
            found.append(last_hidden_states(given))
        return torch.cat(found, dim=1)


class RereadState(TextState):
    """Only the tokens: each reading reads the whole text again."""

    afresh = True

    def __init__(self) -> None:
        self._before: Tensor | None = None

    def read(self, tower: Any, tokens: Tensor) -> Tensor:
        """[B, T, width] last hidden states of the next tokens [B, T]."""
        whole = tokens if self._before is None else torch.cat([self._before, tokens], dim=1)
        self._before, self.tokens = whole, whole.shape[1]
        return last_hidden_states(tower(input_ids=whole, use_cache=False))[:, -tokens.shape[1] :]

    @contextmanager
    def branch(self) -> Iterator[Self]:
        """Shallow copy; the token tensor is shared."""
        yield copy.copy(self)


def is_full_cache(cache: Any, tokens: int) -> bool:
    """Whether a cache made by the model holds keys and values of all `tokens` tokens, and nothing else.

    Only such a cache can be cropped: the state of a recurrent or convolutional layer cannot go back to an earlier
    token. Layers that use the keys and values of another layer are left out.
    """
    if type(cache) is not DynamicCache:  # subclasses hold more than keys and values
        return False
    layers = [layer for layer in cache.layers if not _keeps_nothing(layer)]
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    read = {layer.get_seq_length() for layer in layers if layer.is_initialized} if plain else set()
    return read == {tokens}


def _keeps_nothing(layer: Any) -> bool:
    """Whether a layer of a cache stands for one that uses another layer's keys, as transformers 5 has it."""
    return bool(getattr(layer, "is_initialized", False)) and getattr(layer, "keys", layer) is None


def state_maker(tower: Any, tokens: Tensor, tolerance: float) -> Callable[[], TextState]:
    """Maker of an empty state of the first kind that reads `tokens` in pieces to the same states as at once.

    Between the pieces another end is read and taken back.

    Args:
        tower: makes last hidden states of tokens.
        tokens: [B, T] ids to try it on.
        tolerance: largest difference of states, as a fraction of their standard deviation.
    """
    whole = last_hidden_states(tower(input_ids=tokens, use_cache=False))
    size = tokens.shape[1]
    # A prompt, two single tokens, and the rest at once: each is a path of its own in some code.
    pieces = [size - size // 2, *[1] * min(2, size // 2), max(0, size // 2 - 2)]
    parts = tokens.split([piece for piece in pieces if piece], dim=1)  # type: ignore[no-untyped-call]

    def fits(make: Callable[[], TextState]) -> bool:
        state = make()
        with probe_forward():
            found = [state.read(tower, parts[0])]
            with state.branch() as other:  # another end, which is taken back
                other.read(tower, tokens[:, -3:].flip(1))
            pieced = torch.cat([*found, *(state.read(tower, part) for part in parts[1:])], dim=1)
            return bool((pieced - whole).std() <= tolerance * whole.std())
        return False

    cache, names = None, tuple[str, ...]()
    taken = inspect.signature(tower.forward).parameters
    with probe_forward():
        given = tower(input_ids=tokens, use_cache=True)
        cache = given.get("past_key_values")
        names = tuple(name for name, value in given.items() if name in taken and value is not None)
    kinds: list[Callable[[], TextState]] = [KeyValueState] if is_full_cache(cache, size) else []
    if names:
        # The fewest helps first: no positions told, several tokens at once.
        ways = itertools.product((False, True) if "position_ids" in taken else (False,), (False, True))
        kinds += [functools.partial(ReturnedState, names, *way) for way in ways]
    return next((kind for kind in kinds if fits(kind)), RereadState)

"""The attention function that computes an Attention inside a transformers model.

transformers calls a registered attention function in place of sdpa or eager, with q, k and v of one layer. This one
keeps what the layer does by itself: learned sinks, capped scores, windows, layers without rotation. It raises
Unrealisable for what it does not implement: dropout, packed texts, and probes of sinks, caps and windows.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexbench.backends.hf.exact.layers import ENDLESS_TEXT_TOKENS, Turn, attention_within_view, call_rotary, is_relative
from lexbench.backends.hf.exact.state import KeptLayer, KeyValueState
from lexbench.core.attention import Attention, Segments, Window
from lexbench.core.record import Refused
from lexbench.kernels import decode, dense, fast, kept, looped, rotations
from lexbench.kernels.heads import Rotate
from lexbench.kernels.logits import Logits
from lexbench.kernels.spans import position_tensor

kernel = fast.attend
"""Computes attention with slots that the stock kernel does not have."""
MAX_CACHED_ANGLE_POSITIONS = 1 << 16
"""Positions whose cos and sin are kept during a forward pass."""
Row = tuple[slice, tuple[int, int]]
"""Rows of a batch that are computed together, and the begin and end of their texts among the keys."""
Watch = Callable[[int, Tensor, Tensor, Logits], None]
"""Called with layer, queries [1, H, T, D], keys [1, KV, K, D], and the recipe of their logits."""


class Unrealisable(Refused):
    """Why our attention function does not fit a model; `AttentionInstaller.explain` adds the slots."""


@dataclass(frozen=True)
class LayerAttention:
    """The Attention of one layer, a rotary module with its frequencies and scale, and what the layer does by itself."""

    attention: Attention
    rotary: nn.Module | None
    kind: str | None = None
    """Kind of layers whose frequencies it takes from the rotary module; None: the module has one kind."""
    turn: Turn | None = None
    """Rotation of queries and keys; None: the layer has none, or they arrive rotated."""
    view: Window | Segments | None = None
    """Keys that the layer sees by itself; None: all."""


@dataclass
class Hook:
    """The attention function of one Attention, with the signature that transformers calls."""

    layers: Sequence[LayerAttention]
    stock: nn.Module | None
    """The model's own rotary module."""
    rotated: bool
    """Whether queries and keys arrive rotated; if not, the cache holds unrotated keys, too."""
    attends: frozenset[int] | None = None
    """Layers that call this function; None: all."""
    prompt: int | None = None
    """Length of the prompt; None: the first forward pass is the prompt."""
    watch: Watch | None = None
    """Called with every layer's queries and keys, for probes."""
    text: KeyValueState | None = None
    """State of the texts that are being read; None: they are not ours, or nothing is kept of them."""
    places: dense.Places | None = None
    """Positions of the tokens that are read and of all keys, where they jump; None: keys are at 0, 1, 2, ..."""
    calls: int = 0
    form: fast.Form = "merged"
    """Kernels for windows and far keys."""

    def __post_init__(self) -> None:
        self.modules: dict[int, nn.Module] = {}
        """The attention module of each layer that has called this function."""
        self.shapes: dict[int, tuple[int, int, int]] = {}
        """Heads, key heads and head_dim of each layer."""
        self.ratios: dict[tuple[int, int], tuple[float, ...]] = {}
        """Ratio of each key head, computed from the prompt (`head_ratios`), by layer and row of the batch."""
        self.prompts: dict[tuple[int, int], tuple[int, Tensor | None]] = {}
        """Tokens of the prompt, and which of them the cache holds (`cache`), by layer and row of the batch."""
        self._windowed: dict[int, Attention] = {}
        self._rotations: dict[int, Rotate] = {}
        self._angles: dict[Any, tuple[Tensor, Any]] = {}
        """Results of rotary modules by positions, kept during one forward pass."""

    def mask(self, attention_mask: Tensor | None, **unused: Any) -> Tensor | None:
        """Mask function for transformers: the padding alone, [B, 1, 1, K]; None without padding."""
        # Our function is causal by itself, and knows the padding of its own texts. Gemma 4 cuts masks of 4 dimensions.
        if attention_mask is None or self.text is not None or bool(attention_mask.all()):
            return None
        return attention_mask[:, None, None]

    def begin(self, prompt: int | None) -> None:
        """Reset before each question."""
        self.prompt = prompt
        self.ratios.clear()
        self.prompts.clear()

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_ids: Tensor | None = None,
        dropout: float = 0.0,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """[B, T, H, D] attended values, and no weights."""
        self.calls += 1
        # `key` holds the whole cache, `query` its last tokens only: with a cache, T is less than `total`.
        total, layer = key.shape[2], int(module.layer_idx)  # type: ignore[arg-type]
        self.modules[layer], self.shapes[layer] = module, (query.shape[1], key.shape[1], key.shape[3])
        held = self.layers[layer]
        self._check_call(held, total, {"dropout": dropout or None, "capped scores": softcap, "learned sinks": s_aux})
        reach = total if self.places is None else int(self.places.keys.max()) + 1
        attention = self._inside(held, reach)
        scaling = scaling if scaling is not None else 1 / math.sqrt(query.shape[3])
        # A new pass over the layers has new positions.
        if layer == self._first:
            self._angles.clear()
        if self.places is not None:
            rotate = self.rotation(held)
            placed = dense.attend_at(query, key, value, self.places, attention, rotate, scaling, s_aux, softcap)
            return placed.transpose(1, 2).contiguous(), None
        # One token of each text: by the rotated keys that the cache keeps, without a look at masks.
        known = softcap is None and self.watch is None
        kept = self._kept_layer(layer, held, attention, query, key, value) if known else None
        mixed = self._one_token(held, attention, query, kept, scaling, s_aux)
        if mixed is None:
            more = {name: given for name, given in (("sinks", s_aux), ("cap", softcap)) if given is not None}
            rows = self._texts(layer, attention, query, key, attention_mask, position_ids)
            mixed = self._by_rows(layer, query, key, value, attention, scaling, rows, more)
        return mixed.transpose(1, 2).contiguous(), None

    def _check_call(self, held: LayerAttention, total: int, given: Mapping[str, Any]) -> None:
        """Unrealisable for what a call asks for and we do not compute, by name; None where it is not asked for."""
        probed = self.watch is not None
        for what in given if probed else ("dropout",):
            if given[what] is not None:
                raise Unrealisable(f"its attention has {what}")
        if probed and held.view is not None and total > held.view.size:
            raise Unrealisable(f"its layers have a window of {held.view.size} tokens, asked for {total}")

    def _one_token(
        self,
        held: LayerAttention,
        attention: Attention,
        query: Tensor,
        kept: KeptLayer | None,
        scaling: float,
        sinks: Tensor | None,
    ) -> Tensor | None:
        """[B, H, 1, D] of one token of each text, over the keys that the cache keeps; None where there are others."""
        if self.text is None:
            return None
        if self.text.loop is not None and kept is None:
            raise Unrealisable("it cannot repeat a recorded step: the visible keys are no list of ranges")
        if kept is None or self.text.step is None or self.form == "dense":
            return None
        rotate = None if self.rotated and held.attention.keep_first is None else self.rotation(held)
        if self.text.loop is not None:
            return looped.attend(query, kept, self.text.loop, attention, rotate, scaling, sinks, self.form)
        return decode.attend(query, kept, self.text.step, attention, rotate, scaling, sinks)

    def _texts(
        self,
        layer: int,
        attention: Attention,
        query: Tensor,
        key: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> list[Row]:
        """Groups of rows to compute together; Unrealisable where texts do not stand as they must."""
        held, total = self.layers[layer], key.shape[2]
        if self.text is not None and self.text.pads:
            # Padding on the left, as our own state knows it: a mask would have to be read from the device.
            begins = (total - self.text.lengths()).tolist()
            rows = [(slice(row, row + 1), (begin, total)) for row, begin in enumerate(begins)]
        else:
            rows = _rows(attention_mask, query, total)
        # Heads are ranked, and prompts end, in each text by itself.
        apart = held.attention.head_ratios is not None or held.attention.cache is not None
        if apart and attention_mask is None:
            rows = [(slice(row, row + 1), (0, total)) for row in range(len(query))]
        drops = held.view is not None and is_relative(attention)
        # To check positions waits for the device: not at every token of a text that we have placed ourselves.
        trusted = self.text is not None and (query.shape[2] == 1 or bool(self.text.pads))
        if not trusted and (layer == self._first or (held.view is not None and not drops)):
            _check_positions(position_ids, key, rows, drops)
        return rows

    def _by_rows(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention: Attention,
        scaling: float,
        rows: list[Row],
        more: dict[str, Any],
    ) -> Tensor:
        """[B, H, T, D] of groups of rows, each without its padding."""
        total = key.shape[2]
        if rows == [(slice(None), (0, total))]:
            return self._attend(layer, query, key, value, attention, scaling, None, more)
        mixed = torch.zeros(*query.shape[:3], value.shape[3], dtype=query.dtype, device=query.device)
        for row, (begin, end) in rows:
            # The row's queries, without padding; queries are counted from the first uncached token.
            own = slice(max(0, begin + query.shape[2] - total), query.shape[2] + end - total)
            mixed[row, :, own] = self._attend(
                layer,
                query[row, :, own],
                key[row, :, begin:end],
                value[row, :, begin:end],
                attention,
                scaling,
                row.start,
                more,
            )
        return mixed

    def _attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention: Attention,
        scaling: float,
        row: int | None,
        more: dict[str, Any],
    ) -> Tensor:
        held = self.layers[layer]
        total, n_queries = key.shape[2], query.shape[2]
        positions = position_tensor(total - n_queries, total, query.device)
        rotate = self.rotation(held)
        ratios = None
        if held.attention.head_ratios is not None:
            name = (layer, row or 0)
            if n_queries == total:  # a new text: rank the heads by the last token of the prompt, and keep the ranks
                end = min(self.prompt or total, total)
                last, known = query[:, :, end - 1 : end], key[:, :, :end]
                self.ratios[name] = rotations.ranked_ratios(last, known, rotate, scaling, held.attention.head_ratios)
            if name not in self.ratios:
                raise Unrealisable(
                    "its cache holds the prompt of an earlier call: read each prompt again, in one forward pass"
                )
            ratios = self.ratios[name]
        if self.watch is not None:
            if attention.cache is not None:
                raise Unrealisable("its weights are of keys in two forms, which a probe does not tell apart")
            logits = Logits(attention=held.attention, rotate=rotate, ratios=ratios, scaling=scaling)
            self.watch(layer, query, key, logits)
        if ratios is not None:
            rotate = rotations.rotate_per_head(ratios, rotate)
        if attention.cache is not None:
            return self._over_cache(layer, query, key, value, attention, rotate, scaling, row or 0, more)
        return kernel(query, key, value, positions, attention, rotate, scaling, **more, form=self.form)

    def _over_cache(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention: Attention,
        rotate: Rotate,
        scaling: float,
        row: int,
        more: dict[str, Any],
    ) -> Tensor:
        """[1, H, T, D] of one text under a slot `cache`."""
        keeping, total, n_queries = attention.cache, key.shape[2], query.shape[2]
        assert keeping is not None, "the slot is set"
        view = self.layers[layer].view
        window = None if view is None else view.size
        if n_queries == total:  # a new text
            prompt = self.prompt or total
            if keeping.drops_tokens and prompt > total:
                raise Unrealisable("its cache keeps a part of the prompt, which must be read in one forward pass")
            asking, known, content = (each[:, :, :prompt] for each in (query, key, value))
            held = None
            if keeping.drops_tokens:
                held = kept.held_tokens(keeping, asking, known, content, rotate, scaling, window)
            self.prompts[layer, row] = prompt, held
        elif keeping.drops_tokens and (layer, row) not in self.prompts:
            # Begun under an Attention that drops nothing: here stand the prompt's last queries, if any are needed.
            prompt, asked = self.prompt or 0, keeping.choosing_queries
            own = max(0, prompt - (total - n_queries))
            if not prompt or asked is None or own < asked:
                raise Unrealisable(
                    "its cache holds the prompt of an earlier call: read each prompt again, in one forward pass"
                )
            known, content = key[:, :, :prompt], value[:, :, :prompt]
            held = kept.held_tokens(keeping, query[:, :, :own], known, content, rotate, scaling, window)
            self.prompts[layer, row] = prompt, held

        def plain(queries: Tensor, keys: Tensor, values: Tensor, rest: Attention) -> Tensor:
            places = position_tensor(keys.shape[2] - queries.shape[2], keys.shape[2], queries.device)
            return kernel(queries, keys, values, places, rest, rotate, scaling, **more, form=self.form)

        if attention.remap is None and rotate is not no_rotation:  # each key has one rotation: it is kept with it
            query = rotate(query, position_tensor(total - n_queries, total, query.device))
            key, rotate = rotate(key, position_tensor(0, total, key.device)), no_rotation
        # A text that was begun under another Attention: what was read there is the prompt.
        prompt, held = self.prompts.get((layer, row), (self.prompt or total - n_queries, None))
        return kept.attend(query, key, value, attention, rotate, scaling, layer, prompt, held, plain, **more)

    @property
    def repeats(self) -> bool:
        """Whether a decode step with this hook can be recorded and repeated, in texts of any length.

        It can where our function attends in all layers, no cache is compressed, and keys stand in few ranges.
        """
        try:
            inside = [
                attention_within_view(each.attention, each.view, total)
                for each in self.layers
                for total in (1, ENDLESS_TEXT_TOKENS)
            ]
        except Refused:
            return False
        few = all(each.cache is None and decode.key_ranges(each) is not None for each in inside)
        return self.attends is None and few

    def _inside(self, held: LayerAttention, total: int) -> Attention:
        """The Attention in a layer that may see a part of `total` keys by itself; the same object for every step."""
        if held.view is None or total <= held.view.size:
            return held.attention
        # Attentions are hashed by identity, and kernels keep their plans by them.
        if id(held) not in self._windowed:
            self._windowed[id(held)] = attention_within_view(held.attention, held.view, total)
        return self._windowed[id(held)]

    @functools.cached_property
    def _first(self) -> int:
        """The first layer that calls this function in a forward pass."""
        return min(self.attends or (0,))

    def _kept_layer(
        self, layer: int, held: LayerAttention, attention: Attention, query: Tensor, key: Tensor, value: Tensor
    ) -> KeptLayer | None:
        """The cache layer of the keys, where one token is read and its keys stand in few ranges; else None."""
        if self.text is None or query.shape[2] != 1 or held.attention.head_ratios is not None:
            return None
        if attention.cache is not None:
            return None
        layers = self.text.cache.layers
        kept = layers[layer] if layer < len(layers) else None
        if not isinstance(kept, KeptLayer) or not kept.is_initialized or query.shape[3] != value.shape[3]:
            return None
        # Some code casts or repeats keys behind the cache: then the buffers are not what attention is to see.
        if kept.keys.data_ptr() != key.data_ptr() or kept.keys.shape != key.shape:
            return None
        return None if decode.key_ranges(attention) is None else kept

    def rotation(self, held: LayerAttention) -> Rotate:
        """Rotation of a layer's queries and keys; the same object for every step, which keeps things by it."""
        if id(held) not in self._rotations:
            rotate = no_rotation if self.rotated else layer_rotation(held, held.rotary, self._angles)
            if held.attention.keep_first is not None:
                rotate = rotations.rotate_keeping_first(
                    held.attention.keep_first, layer_rotation(held, self.stock, self._angles), rotate
                )
            self._rotations[id(held)] = rotate
        return self._rotations[id(held)]


def _rows(mask: Tensor | None, query: Tensor, total: int) -> list[Row]:
    """Groups of rows to compute together, by a mask of padding: [B, 1, 1, K], or [B, K] of a network's own."""
    if mask is None:
        return [(slice(None), (0, total))]
    if mask.shape[1:] not in ((total,), (1, 1, total)):
        raise Unrealisable("its attention uses its own mask")
    found = []
    for row, real in enumerate(mask.reshape(-1, total).bool().cpu()):
        places = real.nonzero()[:, 0]
        begin, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (total, total)
        # Padding on the right stands behind a whole text, but inside one that goes on from a cache.
        if end - begin != len(places) or (end < total and query.shape[2] < total):
            raise Unrealisable("a row of the batch has padding inside its text: pad on the left")
        if begin < end:
            found.append((slice(row, row + 1), (begin, end)))
    return found


def _check_positions(position_ids: Tensor | None, key: Tensor, rows: list[Row], drops: bool) -> None:
    """Raise Unrealisable unless positions end at the last key of each row, or behind it where a cache drops old keys.

    They do not if texts are packed in one row, or if a static cache has empty places behind the text.
    """
    total = key.shape[2]
    if position_ids is None:
        if not bool(key[:, :, -1].any()):
            raise Unrealisable("its cache has empty places: use DynamicCache")
        return
    for row, (begin, end) in rows:
        last = int(position_ids[row if len(position_ids) > 1 else slice(None)].max())
        if last not in (end - begin - 1, total - 1) and not (drops and last >= total):
            raise Unrealisable(
                f"its positions end at {last} with {end - begin} keys: use DynamicCache and one text per row"
            )


# rotation of queries and keys


def no_rotation(vectors: Tensor, positions: Tensor) -> Tensor:
    """Return the vectors unchanged."""
    return vectors


def _angles(rotary: nn.Module, vectors: Tensor, positions: Tensor, kind: str | None, row: int) -> Any:
    """Cos and sin of a rotary module for positions [T], or for [T, bands] where each band of pairs has its own."""
    if positions.dim() == 1:
        return call_rotary(rotary, vectors, positions[None], kind)

    def tables(places: Tensor) -> Tensor:
        made = call_rotary(rotary, vectors, places[None], kind)
        return made if isinstance(made, Tensor) else torch.stack(made)

    joined = rotations.joined_bands(tables, positions, row)
    return joined if joined.is_complex() else tuple(joined)


def layer_rotation(held: LayerAttention, rotary: nn.Module | None, made: dict[Any, tuple[Tensor, Any]]) -> Rotate:
    """Rotation at any positions by a rotary module's cos and sin, as the layer's own code rotates.

    What the module gives is kept in `made` by the positions' own identity, up to `MAX_CACHED_ANGLE_POSITIONS` numbers.
    """
    turn, kind = held.turn, held.kind
    if rotary is None or turn is None:
        return no_rotation

    def rotate(vectors: Tensor, positions: Tensor) -> Tensor:
        # By identity: comparing positions would wait for the device. The tensor is kept beside its angles, so that no
        # other one gets its id.
        name = (id(rotary), kind, id(positions), vectors.dtype, vectors.device)
        known = made.get(name)
        if known is None:
            known = positions, _angles(rotary, vectors, positions, kind, turn.row)
            if (
                len(made) < 512
                and sum(len(each) for each, _ in made.values()) + len(positions) <= MAX_CACHED_ANGLE_POSITIONS
            ):
                made[name] = known
        return turn(vectors, known[1])

    return rotate

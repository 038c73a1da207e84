"""Asserts that a loaded model's attention is the one that was asked for: what it does with angles, and all beside.

Each layer is read at two seams (`attention_seams`): how its queries and keys turn with positions, alone and behind a
cached prefix, and by which weights its own attention function mixes values, of queries and keys that are given to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from lexbench.backends.attention_reading import HeadTurning, TurnReading, likely_turning
from lexbench.backends.eval_mode import in_eval_mode
from lexbench.backends.hf.exact.assert_rope import assert_rope, facts_for, wanted_ropes
from lexbench.backends.hf.exact.attention_layers import WantedLayer, layer_number, other_turnings, wanted_layer
from lexbench.backends.hf.exact.attention_seams import AttentionCall, RotationCall, Seams, read_tokens
from lexbench.backends.hf.exact.attention_weights import WantedWeights, check_options, check_weights
from lexbench.backends.hf.exact.layers import stated_size
from lexbench.backends.hf.exact.network import position_table_size, tower_candidates
from lexbench.backends.hf.exact.rope_modules import OTHER_TOWERS
from lexbench.backends.hf.exact.rotary import new_full_cache
from lexbench.backends.rope_causes import RopeMismatch, WantedRope
from lexbench.backends.rope_reading import places_up_to
from lexbench.checkpoints.structure import STATE_LAYER_KINDS, layer_kinds
from lexbench.core.attention import Attention, Floats, Positions
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.composition import Method

N_READ_PLACES = 24
"""Number of positions that are read, about."""
PREFIX_TOKENS, CHUNK_TOKENS = 3, 2
"""Tokens of a text that is read in two pieces."""
MOST_PREFIX = 8192
"""Tokens of a prefix that is longer than no window."""
INDEX_BUDGETS = ("index_topk", "indexer_budget")
"""Entries of configs for the keys that an index chooses, of which a longer text hides some."""
POSITIONS_BY_CALLER = {"bamba"}
"""Types that count positions from 0 behind a cache, too, unless they are given."""
ATTENTION_CLASS = re.compile("Attention|MLA")
"""Names of classes that have attention, in layers that are no state layers."""
NO_ATTENTION = "no attention"
"""Result line of a layer that keeps a state in place of keys."""
TURNED_VECTORS = ("queries", "keys")
"""What turns."""


def assert_attention(
    given: Any,
    method: str | Sequence[str | Mapping[str, Any]] | Method | None = None,
    *,
    length: int,
    facts: Model | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> tuple[str, ...]:
    """Result line of each layer that is right; arguments and errors are those of `lexbench.assert_attention`.

    Args:
        given: a loaded causal model of transformers.
        method: a name, several, a method, or None for the model's own RoPE.
        length: tokens of the longest text.
        facts: of the model; None: those of its config.
        trained_length: of the model before any scaling.
        parameters: of the method.
    """
    if not is_whole(length, 2):
        raise ConfigError(f"length must be a whole number of at least 2 tokens, got {length!r}: the longest text")
    if not hasattr(given, "config") or not hasattr(given, "get_input_embeddings"):
        raise Refused(
            f"assert_attention reads a loaded model of transformers, got {type(given).__name__}: "
            "assert_rope takes a rotary module or a table"
        )
    if given.config.is_encoder_decoder:
        raise Refused(f"{type(given).__name__} is an encoder with a decoder, which reads another text first")
    model = facts_for(given, facts, trained_length)
    if model.rope_base is not None or model.rope_scaling is not None:
        assert_rope(given, method, length=length, facts=facts, trained_length=trained_length, **parameters)
    elif method is not None:
        raise Refused(f"{model.name} has no rotary positions, which {method} would change")
    ropes = partial(_ropes_at, model, method, parameters)
    with in_eval_mode(given):
        return _AttentionProbe(given, model, ropes, length).check()


@dataclass(frozen=True)
class TheMethod:
    """A method that is the same Attention for every model and length."""

    given: Attention

    def attention(self, model: Model, length: int) -> Attention:
        """The Attention."""
        return self.given


def differing_layer(network: Any, model: Model, attention: Attention, length: int) -> str | None:
    """Name what is wrong with the first layer that turns by other frequencies or scale than an Attention's, or None.

    Refused where the model is not understood.
    """
    try:
        assert_attention(network, TheMethod(attention), length=length, facts=model)
    except RopeMismatch as error:
        return str(error).replace(TheMethod.__name__, "the method")
    return None


def _ropes_at(model: Model, method: Any, parameters: Mapping[str, Any], tokens: int) -> list[WantedRope]:
    """The RoPEs of a text of so many tokens."""
    if model.rope_base is None and model.rope_scaling is None:
        return []
    return wanted_ropes(model, method, tokens, parameters)[0]


class _AttentionProbe:
    """The passes that read a model, and what each should have shown."""

    def __init__(self, network: Any, model: Model, ropes: Callable[[int], list[WantedRope]], length: int) -> None:
        self._model, self._ropes_at, self._length = model, ropes, length
        self._ropes = ropes(length)
        self._tower = tower_candidates(network)[0]
        self._config = self._tower.config.get_text_config()
        self._seams = Seams(self._tower)
        self._end = length
        """Positions that are read: no more than a table of them has."""
        self._made: Any = None
        """What the last pass has returned."""
        self._layers: dict[int, WantedLayer] = {}
        self._starts: dict[tuple[int, str], Floats] = {}
        """[H, D] queries and keys of each module at position 0."""
        self._gains: dict[tuple[int, str], Floats] = {}
        """[H, D] factors of a norm behind the rotation."""

    def check(self) -> tuple[str, ...]:
        """What was found right in each layer; RopeMismatch at the first that is wrong."""
        first = self._record(1, 1)
        token = torch.zeros(1, 1, dtype=torch.int64, device=self._tower.device)
        self._end = min(self._length, position_table_size(self._tower, token) or self._length)
        names = {id(module): name for name, module in self._tower.named_modules()}
        for call in first:
            name = names[id(call.module)]
            self._layers[id(call.module)] = wanted_layer(name, self._config, self._model, self._ropes, call)
        self._check_all_read()
        for call in first:
            check_options(call, self._layers[id(call.module)].place)
        states = self._seams.first_states
        self._seams.states = {each: states[each] for each in self._layers if each in states}
        places = self._places()
        self._check_alone(places)
        self._check_pieces()
        longest = self._check_far()
        read = {layer.number: layer.said for layer in self._layers.values()}
        more = f", read up to {longest:,} keys"
        count = max([*(number + 1 for number in read), len(layer_kinds(self._config))])
        return tuple(read[number] + more if number in read else NO_ATTENTION for number in range(count))

    def _record(self, texts: int, tokens: int, **options: Any) -> list[AttentionCall]:
        """The attention calls of one pass."""
        try:
            with self._seams.open() as seams:
                self._made = read_tokens(self._tower, texts, tokens, **{"use_cache": False, **options})
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            raise Refused(f"{type(self._tower).__name__} does not run on tokens alone: {said}") from None
        return seams.attention

    def _places(self) -> Positions:
        """Positions below the length: few, but with those at which a temperature changes."""
        end = self._end
        every = places_up_to(end)
        powers = [place for place in every if place & (place - 1) == 0]
        others = [place for place in every if place & (place - 1)]
        rest = max(1, len(others) // max(1, N_READ_PLACES - len(powers)))
        steps = [layer.scores.temperature.step for layer in self._layers.values() if layer.scores.temperature]
        edges = [int(step) + more for step in steps for more in (-1, 0)]
        found = [*powers, *others[::rest], every[-1], *range(PREFIX_TOKENS + CHUNK_TOKENS), *edges]
        return np.unique([each for each in found if 0 <= each < end])

    def _possible_ropes(self, layer: WantedLayer, tokens: int) -> list[WantedRope | None]:
        """A layer's RoPE in a text of so many tokens: set by the asked length, or by that of the text."""
        rope = layer.rope
        if rope is None or not (rope.follows_length or (rope.method is None and rope.rope.grows)):
            return [rope]
        by_text = next(each for each in self._ropes_at(tokens) if each.rope.kind == rope.rope.kind)
        return [by_text] if rope.method is None else [rope, by_text]

    # queries and keys

    def _check_alone(self, places: Positions) -> None:
        """RopeMismatch unless queries and keys of texts of one token each turn as they should."""
        ids = torch.from_numpy(places)[:, None].to(self._tower.device)
        calls = self._record(len(places), 1, position_ids=ids)
        rotations = self._seams.rotations
        for call in calls:
            if (layer := self._layers.get(id(call.module))) is None:
                continue
            for of, vectors in zip(TURNED_VECTORS, (call.query, call.key), strict=True):
                if layer.rope is not None and (before := call.before_norm(vectors)) is not None:
                    self._gains[id(call.module), of] = _as_floats(vectors)[0, :, 0] / _as_floats(before)[0, :, 0]
                found = self._vectors(call, of)
                self._starts[id(call.module), of] = found[0]
                self._check_vectors(layer, call, of, found, places, "")
        self._check_rotations(rotations, places)

    def _check_text(self, calls: list[AttentionCall], first: int, where: str) -> None:
        """RopeMismatch unless queries of one text, and its keys as they are kept, turn as they should.

        Args:
            calls: of the pass.
            first: position of the first query.
            where: words about the pass, for messages.
        """
        for call in calls:
            if (layer := self._layers.get(id(call.module))) is None:
                continue
            queries, keys = (self._vectors(call, of) for of in TURNED_VECTORS)
            self._check_vectors(layer, call, "queries", queries, first + np.arange(len(queries)), where)
            if len(keys) == first + len(queries):
                self._check_vectors(layer, call, "keys", keys, np.arange(len(keys)), where)

    def _vectors(self, call: AttentionCall, of: str) -> Floats:
        """[n, H, D] vectors of texts of one token each, or of one text, before any norm that follows the rotation."""
        found = _as_floats(call.query if of == "queries" else call.key)
        found = found[:, :, 0] if len(found) > 1 else found[0].transpose(1, 0, 2)
        return np.asarray(found / self._gains.get((id(call.module), of), 1.0))

    def _check_vectors(
        self, layer: WantedLayer, call: AttentionCall, of: str, found: Floats, places: Positions, where: str
    ) -> None:
        counted = places if where else np.zeros_like(places)
        ropes = self._possible_ropes(layer, int(places[-1]) + 1) if where else [layer.rope]
        wanted = [layer.rotation_of(of, places, call.module, counted, rope) for rope in ropes]
        start = np.repeat(self._starts[id(call.module), of][None], len(places), axis=0)
        reading = TurnReading(places, found, start, _dtype_name(call.query))
        if not any(map(reading.agrees, wanted)):
            raise self._turn_error(layer, layer.place, reading, wanted[0], f"turn its {of}", where)

    def _check_rotations(self, calls: list[RotationCall], places: Positions) -> None:
        """RopeMismatch unless what functions rotate, an index of keys' too, turns as the weights of its type are made.

        Args:
            calls: of texts of one token each.
            places: [n] their positions.
        """
        names = {id(module): name for name, module in self._tower.named_modules()}
        for call in calls:
            name = names.get(id(call.module), "")
            number = layer_number(name, call.module)
            layer = next((each for each in self._layers.values() if each.number == number), None)
            if layer is None or layer.rope is None:
                continue
            for before, after in zip(call.before, call.after, strict=True):
                if not isinstance(after, torch.Tensor) or before.shape != after.shape or len(before) != len(places):
                    continue
                width = before.shape[-1]
                start, found = (_as_floats(each).reshape(len(places), -1, width) for each in (before, after))
                if width < 2 * len(layer.rope.inv_freq):
                    continue
                wanted = layer.rotations(id(call.module) in self._layers, width, places)
                reading = TurnReading(places, found, start, _dtype_name(before))
                if not any(map(reading.agrees, wanted)):
                    place = f"{name} ({type(call.module).__name__})"
                    raise self._turn_error(layer, place, reading, wanted[0], "rotate", "")

    def _turn_error(
        self, layer: WantedLayer, place: str, reading: TurnReading, wanted: HeadTurning, does: str, where: str
    ) -> RopeMismatch:
        errors, slack = reading.errors(wanted)
        row, pair = np.unravel_index(np.argmax(np.minimum(errors, 4.0) - slack), errors.shape)
        width = reading.start.shape[2]
        others = other_turnings(layer, self._ropes, self._config, self._model, width, wanted.pairing)
        cause = likely_turning(reading, wanted, list(others))
        turns = int(pair) < errors.shape[1] - 1
        asked = layer.rope.label if layer.rope else "the model's config"
        return RopeMismatch(
            f"{place} does not {does} as {asked} has it{where}: "
            f"{f'pair {pair}' if turns else 'what does not turn'} at position {reading.places[row]:,} is off by "
            f"{errors[row, pair]:.2g} of its length (rounding explains {slack[row, pair]:.1g}). "
            f"Likely cause: {cause or 'none known'}",
            cause,
            int(pair) if turns else None,
            int(reading.places[row]),
            float(errors[row, pair]),
            place,
        )

    # behind a prefix

    def _check_pieces(self) -> None:
        """RopeMismatch where a text that is read in two pieces is rotated as no whole one is."""
        kept = self._record_kept(PREFIX_TOKENS, None, 0)
        self._record_kept(CHUNK_TOKENS, kept, PREFIX_TOKENS)
        self._check_text(self._seams.attention, PREFIX_TOKENS, " behind a cached prefix")

    def _check_far(self) -> int:
        """Keys that were read; RopeMismatch where queries behind a long prefix turn or weigh keys as they should not.

        Read are several tokens at once and then one, which kernels and masks treat in different ways.
        """
        kept, before = self._far_prefix()
        for tokens in (CHUNK_TOKENS, 1):
            kept = self._record_kept(tokens, kept, before)
            self._check_queries(before, tokens)
            before += tokens
        return before

    def _check_queries(self, before: int, tokens: int) -> None:
        """RopeMismatch where the last queries turn, or weigh keys, otherwise than they should."""
        views = {layer.view for layer in self._layers.values() if layer.view is not None}
        for call in self._seams.attention:
            if (layer := self._layers.get(id(call.module))) is None:
                continue
            places, where = np.arange(before, before + tokens), f" behind {before:,} keys"
            self._check_vectors(layer, call, "queries", self._vectors(call, "queries"), places, where)
            held = _sinks(call.module, layer.place) if layer.scores.has_sink else None
            wanted = WantedWeights(layer.scores, layer.view, held, tuple(views - {layer.view}))
            check_weights(call, wanted, layer.place)

    def _far_prefix(self) -> tuple[Any, int]:
        """A cache of a prefix longer than every window, if the length is, and the tokens in it.

        Of one token that is read, and of others without a direction; all read, and few, where a cache holds more than
        keys and values.
        """
        if not any(stated_size(self._config, name) for name in INDEX_BUDGETS):
            with suppress(Refused):
                kept = self._record_kept(1, new_full_cache(self._config), 0)
                tokens = self._far_tokens()
                held = [each for each in kept.layers if isinstance(getattr(each, "keys", None), torch.Tensor)]
                if all(type(each) is DynamicLayer and each.keys.dim() == 4 for each in held):
                    for each in held:
                        each.keys, each.values = (_stretch(one, tokens) for one in (each.keys, each.values))
                    return kept, tokens
        return self._record_kept(PREFIX_TOKENS, None, 0), PREFIX_TOKENS

    def _far_tokens(self) -> int:
        sizes = [int(layer.view.size) for layer in self._layers.values() if layer.view is not None]
        most = max([MOST_PREFIX, *(size + 2 * CHUNK_TOKENS for size in sizes)])
        return max(1, min(self._end, most) - CHUNK_TOKENS - 1)

    def _record_kept(self, tokens: int, kept: Any, first: int) -> Any:
        """What a pass over the next tokens of a text keeps of it; None for the model's own cache at the beginning."""
        more: dict[str, Any] = {} if kept is None else {"past_key_values": kept}
        if self._config.model_type in POSITIONS_BY_CALLER:
            more["position_ids"] = first + torch.arange(tokens, device=self._tower.device)[None]
        self._record(1, tokens, use_cache=True, **more)
        made = getattr(self._made, "past_key_values", None)
        if made is None and kept is None:  # a tower that hands none out may take one
            made = DynamicCache(config=self._config)
            self._record(1, tokens, use_cache=True, past_key_values=made, **more)
        made = kept if made is None else made
        if not made.get_seq_length():
            raise Refused(f"{type(self._tower).__name__} keeps no keys of a text: only a part of it would be read")
        return made

    # layers

    def _check_all_read(self) -> None:
        """Refused where a layer has attention that calls no attention function."""
        read = {layer.number for layer in self._layers.values()}
        kinds = layer_kinds(self._config)
        for name, module in self._tower.named_modules():
            number = layer_number(name, module)
            attends = ATTENTION_CLASS.search(type(module).__name__) and not OTHER_TOWERS.search(name)
            if number is None or number in read or not attends:
                continue
            if number >= len(kinds) or kinds[number] not in STATE_LAYER_KINDS:
                raise Refused(f"{name} ({type(module).__name__}) calls no attention function of transformers' registry")
        if not read:
            raise Refused(f"{self._model.name} has no layer with attention")


def _sinks(module: Any, place: str) -> Floats:
    """[H] learned logits without a key of a layer's heads."""
    held = getattr(module, "sinks", None)
    if held is None:
        cause = "sinks dropped: the layer holds none"
        raise RopeMismatch(f"{place} has no sinks, which its type has. Likely cause: {cause}", cause, layer=place)
    return _as_floats(held).reshape(-1)


def _dtype_name(given: torch.Tensor) -> str:
    return str(given.dtype).removeprefix("torch.")


def _as_floats(given: torch.Tensor) -> Floats:
    return np.asarray(given.detach().double().cpu().numpy())


def _stretch(kept: torch.Tensor, tokens: int) -> torch.Tensor:
    """[B, KV, tokens, D] zeros in place of keys or values [B, KV, 1, D]."""
    return kept.new_zeros(*kept.shape[:2], tokens, kept.shape[3])

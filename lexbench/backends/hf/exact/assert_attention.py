"""Asserts that a loaded model's attention is the one that was asked for: what it does with angles, and all beside.

Each layer is read at two seams (`attention_seams`): how its queries and keys turn with positions, alone and behind a
cached prefix, and by which weights its own attention function mixes values, of queries and keys that are given to it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from lexbench.backends.attention_reading import OtherTurning, Pairing, Turning, TurnReading, likely_turning, pairing
from lexbench.backends.hf.exact.assert_rope import assert_rope, facts_for, wanted_ropes
from lexbench.backends.hf.exact.attention_seams import AttentionCall, RotationCall, Seams, read_tokens
from lexbench.backends.hf.exact.attention_weights import WantedWeights, check_options, check_weights
from lexbench.backends.hf.exact.layers import stated_size, views_of
from lexbench.backends.hf.exact.network import position_table_size, tower_candidates
from lexbench.backends.hf.exact.rope_modules import OTHER_TOWERS
from lexbench.backends.hf.exact.rotary import new_full_cache
from lexbench.backends.rope_causes import RopeMismatch, WantedRope
from lexbench.backends.rope_reading import places_up_to
from lexbench.checkpoints.config_facts import REORDERED_MODEL_TYPES
from lexbench.checkpoints.layer_scores import (
    INDEX_OF_NEIGHBOURS,
    REORDERED_WITHOUT_ENTRY,
    TURNED_BACK,
    WITHOUT_WINDOWS,
    LayerScores,
    layer_scores,
)
from lexbench.checkpoints.structure import STATE_LAYER_KINDS, layer_kinds
from lexbench.core.attention import Floats, Positions
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.composition import Method

N_READ_PLACES = 24
PREFIX, CHUNK = 3, 2
"""Tokens of a text that is read in two pieces."""
MOST_PREFIX = 8192
"""Tokens of a prefix without windows."""
INDEX_BUDGETS = ("index_topk", "indexer_budget")
"""Entries of configs for the keys that an index chooses, of which a longer text hides some."""
POSITIONS_BY_CALLER = {"bamba"}
"""Types that count positions from 0 behind a cache, too, unless they are given."""
ATTENTION_CLASS = re.compile("Attention|MLA")
"""Names of classes that have attention, in layers that are no state layers."""
NO_ATTENTION = "no attention"
"""What is said of a layer that keeps a state in place of keys."""
VECTORS = ("queries", "keys")


@dataclass(frozen=True, eq=False)
class WantedLayer:
    """What a layer's attention should do."""

    place: str
    """Dotted name of its module in the text tower, with its class."""
    number: int
    scores: LayerScores
    rope: WantedRope | None
    """None: no positions."""
    pairing: Pairing | None
    view: Any
    """Keys that it sees by itself; None: all."""
    turns_back: bool

    @property
    def said(self) -> str:
        """What was found right, in words."""
        turns = f"{len(self.rope.inv_freq)} pairs {self.pairing.words}" if self.rope and self.pairing else "no rotation"
        parts = [turns, f"scale {self.scores.scale:.4g}"]
        parts += [f"{type(self.view).__name__.lower()} of {self.view.size:,} keys"] if self.view is not None else []
        parts += [f"scores capped at {self.scores.cap:g}"] if self.scores.cap else []
        parts += ["a sink"] if self.scores.has_sink else []
        return ", ".join(parts + (["a temperature"] if self.scores.temperature else []))

    def turning(self, of: str, places: Positions, module: Any, counted: Positions) -> Turning:
        """How its queries or keys turn at positions, behind as many keys as are counted."""
        factors = np.ones(len(places))
        if of == "queries" and self.scores.temperature is not None:
            temperature = self.scores.temperature
            at = counted if temperature.counts_keys else places
            factors = temperature.at(at) / temperature.at(np.zeros(1, dtype=np.int64))
        if of == "queries" and (learned := getattr(module, "softmax_scaling", None)) is not None:
            factors = _learned_factors(learned, places)
        if self.rope is None or self.pairing is None:
            nothing = np.empty(0, dtype=np.int64)
            return Turning(Pairing("none", nothing, nothing), np.empty(0), factors)
        return Turning(self.pairing, -self.rope.inv_freq if self.turns_back else self.rope.inv_freq, factors)


def _learned_factors(module: Any, places: Positions) -> Floats:
    """[n, H] factors of Mistral Large 4, a ln(t + 1) + b with a and b of each head, over those at position 0."""
    slope, at_zero = (getattr(module, name).detach().double().cpu().numpy() for name in ("scale", "bias"))
    return np.asarray((slope * np.log(places + 1.0)[:, None] + at_zero) / at_zero)


def assert_attention(
    given: Any,
    method: str | Sequence[str | Mapping[str, Any]] | Method | None = None,
    *,
    length: int,
    facts: Model | None = None,
    trained_length: int | None = None,
    **parameters: Any,
) -> tuple[str, ...]:
    """What was found right in each layer; arguments and errors are those of `lexbench.assert_attention`.

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
    ropes: list[WantedRope] = []
    if model.rope_base is not None or model.rope_scaling is not None:
        assert_rope(given, method, length=length, facts=facts, trained_length=trained_length, **parameters)
        ropes = wanted_ropes(model, method, length, parameters)[0]
    elif method is not None:
        raise Refused(f"{model.name} has no rotary positions, which {method} would change")
    was_training = given.training
    given.eval()
    try:
        return _AttentionProbe(given, model, ropes, length).check()
    finally:
        given.train(was_training)


class _AttentionProbe:
    """The passes that read a model, and what each should have shown."""

    def __init__(self, network: Any, model: Model, ropes: list[WantedRope], length: int) -> None:
        self._model, self._ropes, self._length = model, ropes, length
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
        self._layers = {id(call.module): self._wanted(call) for call in first}
        said = self._said()
        for call in first:
            check_options(call, self._layers[id(call.module)].place)
        states = self._seams.first_states
        self._seams.states = {each: states[each] for each in self._layers if each in states}
        places = self._places()
        self._check_alone(places)
        self._check_pieces()
        self._check_far()
        return said

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
        found = [*powers, *others[::rest], every[-1], *range(PREFIX + CHUNK), *edges]
        return np.unique([each for each in found if 0 <= each < end])

    # what is wanted

    def _wanted(self, call: AttentionCall) -> WantedLayer:
        module = call.module
        name = next((name for name, each in self._tower.named_modules() if each is module), "")
        number = _number(name, module) or 0
        scores = layer_scores(self._config, number, call.query.shape[3])
        kinds = {rope.rope.kind for rope in self._ropes}
        rope = None
        if scores.has_positions:
            rope = next((each for each in self._ropes if each.rope.kind in (None, scores.kind)), None)
        if rope is None and scores.has_positions and kinds and not kinds & set(self._model.layer_types or ()):
            raise Refused(f"{name} is of kind {scores.kind}, whose RoPE the config does not state")
        views = views_of(self._config)
        view = views[number] if number < len(views) and self._config.model_type not in WITHOUT_WINDOWS else None
        if "reference" in scores.kind:
            raise Refused(
                f"{name} sees a window and a part of the prompt ({scores.kind}), which is not understood here"
            )
        place = f"{name} ({type(module).__name__})"
        back = self._config.model_type in TURNED_BACK
        return WantedLayer(place, number, scores, rope, self._pairing(rope, call.query.shape[3]), view, back)

    def _pairing(self, rope: WantedRope | None, width: int) -> Pairing | None:
        if rope is None:
            return None
        rotated = 2 * len(rope.inv_freq)
        reordered = self._config.model_type in REORDERED_MODEL_TYPES
        layout = "half" if reordered else self._model.rotary_layout
        return pairing(layout, rotated, width, width - rotated if self._model.decoupled else 0)

    # queries and keys

    def _check_alone(self, places: Positions) -> None:
        """RopeMismatch unless queries and keys of texts of one token each turn as they should."""
        ids = torch.from_numpy(places)[:, None].to(self._tower.device)
        calls = self._record(len(places), 1, position_ids=ids)
        rotations = self._seams.rotations
        for call in calls:
            if (layer := self._layers.get(id(call.module))) is None:
                continue
            for of, vectors in zip(VECTORS, (call.query, call.key), strict=True):
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
            queries, keys = (self._vectors(call, of) for of in VECTORS)
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
        wanted = layer.turning(of, places, call.module, counted)
        start = np.repeat(self._starts[id(call.module), of][None], len(places), axis=0)
        reading = TurnReading(places, found, start, _dtype_name(call.query))
        if not reading.agrees(wanted):
            raise self._turn_error(layer, layer.place, reading, wanted, f"turn its {of}", where)

    def _check_rotations(self, calls: list[RotationCall], places: Positions) -> None:
        """RopeMismatch unless what functions rotate, an index of keys' too, turns as the weights of its type are made.

        Args:
            calls: of texts of one token each.
            places: [n] their positions.
        """
        names = {id(module): name for name, module in self._tower.named_modules()}
        for call in calls:
            name = names.get(id(call.module), "")
            number = _number(name, call.module)
            layer = next((each for each in self._layers.values() if each.number == number), None)
            if layer is None or layer.rope is None:
                continue
            for before, after in zip(call.before, call.after, strict=True):
                if not isinstance(after, torch.Tensor) or before.shape != after.shape or len(before) != len(places):
                    continue
                width = before.shape[-1]
                start, found = (_as_floats(each).reshape(len(places), -1, width) for each in (before, after))
                wanted = self._rotation(layer, id(call.module) in self._layers, width, places)
                reading = TurnReading(places, found, start, _dtype_name(before))
                if wanted is not None and not any(map(reading.agrees, wanted)):
                    place = f"{name} ({type(call.module).__name__})"
                    raise self._turn_error(layer, place, reading, wanted[0], "rotate", "")

    def _rotation(self, layer: WantedLayer, own: bool, width: int, places: Positions) -> list[Turning] | None:
        """How vectors of a width turn, by where their pairs may stand afterwards; None where nothing is known."""
        rope, kind = layer.rope, self._config.model_type
        assert rope is not None, "the layer rotates"
        rotated = 2 * len(rope.inv_freq)
        if rotated > width:
            return None
        neighbours = kind in INDEX_OF_NEIGHBOURS
        if own:
            neighbours = self._model.rotary_layout == "interleaved" or kind in REORDERED_WITHOUT_ENTRY
        given = pairing("interleaved" if neighbours else "half", rotated, width)
        inv_freq = -rope.inv_freq if layer.turns_back else rope.inv_freq
        halves = pairing("half", rotated, width)
        return [Turning(given, inv_freq, np.ones(len(places)), rope.scale, made) for made in (None, halves)]

    def _turn_error(
        self, layer: WantedLayer, place: str, reading: TurnReading, wanted: Turning, does: str, where: str
    ) -> RopeMismatch:
        errors, slack = reading.errors(wanted)
        row, pair = np.unravel_index(np.argmax(np.minimum(errors, 4.0) - slack), errors.shape)
        width = reading.start.shape[2]
        cause = likely_turning(reading, wanted, list(self._other_turnings(layer, width, wanted)))
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

    def _other_turnings(self, layer: WantedLayer, width: int, wanted: Turning) -> Iterator[OtherTurning]:
        """Rotations that a layer may have in place of its own."""
        if layer.rope is not None:
            yield OtherTurning("scaling not applied in this layer", wanted.pairing, layer.rope.plain.inv_freq())
        for rope in self._ropes:
            if layer.rope is None or rope.rope.kind != layer.rope.rope.kind:
                pairs = self._pairing(rope, width)
                if pairs is not None and 2 * len(rope.inv_freq) <= width:
                    said = f"rotated as {rope.rope.kind or 'other'} layers are"
                    yield OtherTurning(said, pairs, rope.inv_freq, rope.scale)

    # behind a prefix

    def _check_pieces(self) -> None:
        """RopeMismatch where a text that is read in two pieces is rotated as no whole one is."""
        kept = self._record_kept(PREFIX, None, 0)
        self._record_kept(CHUNK, kept, PREFIX)
        self._check_text(self._seams.attention, PREFIX, " behind a cached prefix")

    def _check_far(self) -> None:
        """RopeMismatch where queries behind a long prefix are rotated or weigh keys otherwise than they should."""
        first = self._far_prefix()
        self._record_kept(CHUNK, *first)
        calls, before = self._seams.attention, first[1]
        for call in calls:
            layer = self._layers[id(call.module)]
            places = np.arange(before, before + CHUNK)
            where = f" behind {before:,} keys"
            self._check_vectors(layer, call, "queries", self._vectors(call, "queries"), places, where)
            sinks = getattr(call.module, "sinks", None) if layer.scores.has_sink else None
            held = None if sinks is None else sinks.detach().double().cpu().numpy().reshape(-1)
            views = {other.view for other in self._layers.values()} - {layer.view, None}
            check_weights(call, WantedWeights(layer.scores, layer.view, held, tuple(views)), layer.place)

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
                        each.keys, each.values = (_stretched(one, tokens) for one in (each.keys, each.values))
                    return kept, tokens
        return self._record_kept(PREFIX, None, 0), PREFIX

    def _far_tokens(self) -> int:
        sizes = [int(layer.view.size) for layer in self._layers.values() if layer.view is not None]
        most = max([MOST_PREFIX, *(size + 2 * CHUNK for size in sizes)])
        return max(1, min(self._end, most) - CHUNK)

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

    def _said(self) -> tuple[str, ...]:
        """A line for each layer; Refused where one has attention that is not read."""
        read = {layer.number: layer for layer in self._layers.values()}
        kinds = layer_kinds(self._config)
        for name, module in self._tower.named_modules():
            number = _number(name, module)
            if (
                number is None
                or number in read
                or OTHER_TOWERS.search(name)
                or not ATTENTION_CLASS.search(type(module).__name__)
            ):
                continue
            if number >= len(kinds) or kinds[number] not in STATE_LAYER_KINDS:
                raise Refused(
                    f"{name} ({type(module).__name__}) calls no attention function that transformers registers"
                )
        if not read:
            raise Refused(f"{self._model.name} has no layer with attention")
        count = max([*(number + 1 for number in read), len(kinds)])
        return tuple(read[number].said if number in read else NO_ATTENTION for number in range(count))


def _number(name: str, module: Any) -> int | None:
    """Number of the layer that holds a module; None outside of layers."""
    parts = [int(part) for part in name.split(".") if part.isdecimal()]
    held = getattr(module, "layer_idx", None)
    return held if isinstance(held, int) and held >= 0 else parts[0] if parts else None


def _dtype_name(given: torch.Tensor) -> str:
    return str(given.dtype).removeprefix("torch.")


def _as_floats(given: torch.Tensor) -> Floats:
    return np.asarray(given.detach().double().cpu().numpy())


def _stretched(kept: torch.Tensor, tokens: int) -> torch.Tensor:
    """[B, KV, tokens, D] zeros in place of keys or values [B, KV, 1, D]."""
    return kept.new_zeros(*kept.shape[:2], tokens, kept.shape[3])

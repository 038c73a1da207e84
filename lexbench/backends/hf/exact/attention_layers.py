"""What each layer's attention of a loaded model should do, by the model's config and RoPE."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lexbench.backends.attention_reading import HeadTurning, OtherRotation, Pairing, head_pairs
from lexbench.backends.hf.exact.attention_seams import AttentionCall
from lexbench.backends.hf.exact.layers import views_of
from lexbench.backends.rope_causes import WantedRope
from lexbench.checkpoints.config_facts import REORDERED_MODEL_TYPES
from lexbench.checkpoints.layer_scores import (
    INDEX_OF_NEIGHBOURS,
    TURNED_BACK,
    WITHOUT_WINDOWS,
    LayerScores,
    layer_scores,
)
from lexbench.core.attention import Floats, Positions, Segments, Window
from lexbench.core.model import Model
from lexbench.core.record import Refused


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
    view: Window | Segments | None
    """Keys that it sees by itself; None: all."""
    turns_back: bool
    """Whether it rotates by minus each angle."""
    takes_neighbours: bool
    """Whether the weights are made for pairs of neighbours, wherever their code puts them; `index_does`: those of an
    index of keys."""
    index_does: bool

    @property
    def said(self) -> str:
        """What was found right, in words."""
        turns = f"{len(self.rope.inv_freq)} pairs {self.pairing.words}" if self.rope and self.pairing else "no rotation"
        parts = [turns, f"scale {self.scores.scale:.4g}"]
        parts += [f"{type(self.view).__name__.lower()} of {self.view.size:,} keys"] if self.view is not None else []
        parts += [f"scores capped at {self.scores.cap:g}"] if self.scores.cap else []
        parts += ["a sink"] if self.scores.has_sink else []
        return ", ".join(parts + (["a temperature"] if self.scores.temperature else []))

    def rotation_of(
        self, of: str, places: Positions, module: Any, counted: Positions, rope: WantedRope | None
    ) -> HeadTurning:
        """How its queries or keys turn, of those at position 0.

        Args:
            of: queries or keys.
            places: [n] positions.
            module: the layer's attention.
            counted: [n] keys before each.
            rope: of a text as long as this one.
        """
        factors = np.ones(len(places))
        if of == "queries" and self.scores.temperature is not None:
            temperature = self.scores.temperature
            at = counted if temperature.counts_keys else places
            factors = temperature.at(at) / temperature.at(np.zeros(1, dtype=np.int64))
        if of == "queries" and (learned := getattr(module, "softmax_scaling", None)) is not None:
            factors = _learned_factors(learned, places)
        if self.rope is None or self.pairing is None or rope is None:
            nothing = np.empty(0, dtype=np.int64)
            return HeadTurning(Pairing("none", nothing, nothing), np.empty(0), factors)
        inv_freq = -rope.inv_freq if self.turns_back else rope.inv_freq
        return HeadTurning(self.pairing, inv_freq, factors, rope.scale / self.rope.scale)

    def rotations(self, own: bool, width: int, places: Positions) -> list[HeadTurning]:
        """How a function rotates vectors of a width, by where their pairs may stand afterwards.

        Args:
            own: whether they are the layer's own queries or keys; else those of an index.
            width: of the vectors, of which the first dimensions turn.
            places: [n] positions.
        """
        assert self.rope is not None, "the layer rotates"
        neighbours = self.takes_neighbours if own else self.index_does
        rotated = 2 * len(self.rope.inv_freq)
        given = head_pairs("interleaved" if neighbours else "half", rotated, width)
        inv_freq = -self.rope.inv_freq if self.turns_back else self.rope.inv_freq
        ends = (None, head_pairs("half", rotated, width))
        return [HeadTurning(given, inv_freq, np.ones(len(places)), self.rope.scale, made) for made in ends]


def _learned_factors(module: Any, places: Positions) -> Floats:
    """[n, H] factors of Mistral Large 4, a ln(t + 1) + b with a and b of each head, over those at position 0."""
    slope, at_zero = (getattr(module, name).detach().double().cpu().numpy() for name in ("scale", "bias"))
    return np.asarray((slope * np.log(places + 1.0)[:, None] + at_zero) / at_zero)


def wanted_layer(name: str, config: Any, model: Model, ropes: Sequence[WantedRope], call: AttentionCall) -> WantedLayer:
    """What the layer of a call should do; Refused where its config does not tell.

    Args:
        name: of the module in the text tower.
        config: of the text tower.
        model: its facts.
        ropes: of its kinds of layers.
        call: of its attention function.
    """
    kind, width = config.model_type, call.query.shape[3]
    number = layer_number(name, call.module) or 0
    scores = layer_scores(config, number, width)
    kinds = {rope.rope.kind for rope in ropes}
    of_kind = [rope for rope in ropes if scores.has_positions and rope.rope.kind in (None, scores.kind)]
    rope = of_kind[0] if of_kind else None
    if rope is None and scores.has_positions and kinds and not kinds & set(model.layer_types or ()):
        raise Refused(f"{name} is of kind {scores.kind}, whose RoPE the config does not state")
    if "reference" in scores.kind:
        raise Refused(f"{name} sees a window and a part of the prompt ({scores.kind}), which is not understood here")
    views = views_of(config)
    return WantedLayer(
        place=f"{name} ({type(call.module).__name__})",
        number=number,
        scores=scores,
        rope=rope,
        pairing=None if rope is None else pairs_of(rope, config, model, width),
        view=views[number] if number < len(views) and kind not in WITHOUT_WINDOWS else None,
        turns_back=kind in TURNED_BACK,
        takes_neighbours=model.rotary_layout == "interleaved",
        index_does=kind in INDEX_OF_NEIGHBOURS,
    )


def pairs_of(rope: WantedRope, config: Any, model: Model, width: int) -> Pairing:
    """Pairs of a head's dimensions, as they reach the attention function."""
    rotated = 2 * len(rope.inv_freq)
    layout = "half" if config.model_type in REORDERED_MODEL_TYPES else model.rotary_layout
    return head_pairs(layout, rotated, width, width - rotated if model.decoupled else 0)


def other_turnings(
    layer: WantedLayer, ropes: Sequence[WantedRope], config: Any, model: Model, width: int, own: Pairing
) -> Iterator[OtherRotation]:
    """Rotations that vectors of a width may have in place of those of their layer, whose pairs are its own."""
    if layer.rope is not None:
        yield OtherRotation("scaling not applied in this layer", own, layer.rope.plain.inv_freq())
    for rope in ropes:
        if (layer.rope is None or rope.rope.kind != layer.rope.rope.kind) and 2 * len(rope.inv_freq) <= width:
            said = f"rotated as {rope.rope.kind or 'other'} layers are"
            yield OtherRotation(said, pairs_of(rope, config, model, width), rope.inv_freq, rope.scale)


def layer_number(name: str, module: Any) -> int | None:
    """Number of the layer that holds a module of this name; None outside of layers."""
    parts = [int(part) for part in name.split(".") if part.isdecimal()]
    held = getattr(module, "layer_idx", None)
    return held if isinstance(held, int) and held >= 0 else parts[0] if parts else None

"""What a training depends on beside its texts, its encoding and what it starts from: a yaml of configs/recipe."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lexbench.native.decoder import Shape

SIZES = [field.name for field in fields(Shape) if field.name != "vocabulary"]
"""What `recipe.shape` may say; the vocabulary belongs to the tokenizer."""
WEIGHTS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Sizes, budget and order of what is learnt; the same for every encoding."""

    stages: Sequence[Mapping[str, Any]]
    """One after the other: `steps`; in `lessons` the share of the rows that each kind of lesson takes: `text`, a
    generator of `native/lessons.py`, or a task; and `boost`, if any, by which the learning rate is multiplied."""
    shape: Mapping[str, Any] | None = None
    """Sizes of the decoder: `layers`, `width`, `heads`, `kv_heads`, `hidden`, `block`; None: those of the start."""
    vocabulary: int | None = None
    """Tokens of a tokenizer that is learnt from the texts; None: the start's tokenizer."""
    trained_length: int | None = 256
    """Tokens of a row; None: the start's trained length."""
    batch: int = 24
    """Rows of trained_length tokens in a step."""
    accumulate: int = 1
    """Pieces in which a batch goes through the network, where all of it needs too much memory."""
    rate: float = 1.5e-3
    """Peak learning rate; warmed up linearly, then a cosine down to a tenth."""
    warmup: int = 100
    decay: float = 0.1
    """Weight decay of the decoder's matrices; an encoding's own weights have none."""
    horizon: int | None = None
    """Steps over which the cosine falls, a tenth of the rate from there on; None: all."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    """Of initial weights, order of data and random positions."""
    evaluate: int = 100
    """Steps between held-out losses."""
    save: int = 100
    """Steps between checkpoints."""
    weights: str = "float32"
    """Of the file that is left."""
    compile: bool = False
    """Whether torch.compile translates the network first: some minutes, and faster steps on a GPU."""

    def __post_init__(self) -> None:
        for name in ("trained_length", "batch", "accumulate", "vocabulary", "evaluate", "save"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"recipe.{name} must be at least 1, got {value}")
        if self.accumulate > self.batch:
            raise ValueError(
                f"recipe.accumulate must be at most the batch of {self.batch} rows, got {self.accumulate}: lower it"
            )
        if self.weights not in WEIGHTS:
            raise ValueError(f"recipe.weights must be {' or '.join(WEIGHTS)}, got {self.weights}")
        if wrong := sorted(set(self.shape or {}) - set(SIZES)):
            raise ValueError(f"unknown parameter recipe.shape.{wrong[0]}: choose from {', '.join(SIZES)}")
        self._check_stages()

    def _check_stages(self) -> None:
        for stage in self.stages:
            shares = stage.get("lessons", {}).values()
            if stage.keys() - {"boost"} != {"steps", "lessons"} or stage["steps"] < 1 or not shares or min(shares) <= 0:
                raise ValueError(
                    f"recipe.stages must have steps and shares above 0, got {dict(stage)}: "
                    "e.g. {steps: 100, lessons: {text: 1.0}}"
                )
        if not self.stages:
            raise ValueError("recipe.stages must name at least one stage, got none: e.g. [{steps: 1, lessons: ...}]")

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage["steps"] for stage in self.stages)

    @property
    def length(self) -> int:
        """Tokens of a row, once they are settled."""
        assert self.trained_length is not None, "the start's trained length is not settled yet"
        return self.trained_length

    @property
    def kinds(self) -> list[str]:
        """Every kind of lesson, once."""
        return list(dict.fromkeys(kind for stage in self.stages for kind in stage["lessons"]))

    def stage(self, step: int) -> Mapping[str, Any]:
        """The stage that a step, counted from 0, belongs to."""
        ends = itertools.accumulate(stage["steps"] for stage in self.stages)
        return next(stage for stage, end in zip(self.stages, ends, strict=True) if step < end)

    def sizes(self) -> Shape:
        """Those of the decoder; ValueError where the recipe leaves them to a start."""
        for name in ("shape", "vocabulary", "trained_length"):
            if getattr(self, name) is None:
                raise ValueError(f"recipe.{name} is left to a trained folder, none is given: give start=DIR")
        assert self.shape is not None and self.vocabulary is not None
        return Shape(vocabulary=self.vocabulary, **self.shape)

    def learning_rate(self, step: int) -> float:
        """At one step, counted from 0."""
        rate = self.rate * float(self.stage(step).get("boost", 1.0))
        if step < self.warmup:
            return rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, (self.horizon or self.steps) - self.warmup)
        return rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, progress)))

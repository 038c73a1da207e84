"""Recipes of training (parts/lab/configs/recipe): sizes, budget and lessons, without texts, encoding and start."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION
from lexbench.parts.lab.native.decoder import BLOCK_KINDS, DecoderShape

SHAPE_KEYS = [field.name for field in fields(DecoderShape) if field.name != "vocabulary"]
"""Keys of `recipe.shape`; the vocabulary comes with the tokenizer."""
WEIGHT_DTYPES = ("float32", "bfloat16", "float16")
CHOICES_OF_PARAMETER = {
    "weights": WEIGHT_DTYPES,
    "optimizer": ("adamw", "muon"),
    "initial": ("gpt2", "fan_in"),
    "precision": ("float32", "bfloat16", None),
    "counted": ("all", "copied", "answers"),
    "packing": ("filled", "blank_line", "single", "right_padded"),
}
"""Parameters that are one of some words."""
MIN_OF_PARAMETER = {
    "trained_length": 2,
    **dict.fromkeys(("batch", "accumulate", "vocabulary", "evaluate", "save", "horizon"), 1),
    **dict.fromkeys(("warmup", "seed"), 0),
}
"""Smallest values of parameters that are whole numbers."""
SEED_LIMIT = 2**63
"""Seeds are below: torch takes no larger ones."""
STAGES_EXAMPLE = "e.g. [{steps: 100, lessons: {text: 1.0}}]"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Sizes, budget and order of lessons; the same for every encoding."""

    stages: Sequence[Mapping[str, Any]]
    """In order; each has `steps`, `lessons` with the share of rows of each kind of lesson (`text`, a generator of
    `native/lessons.py`, a task or a suite), an optional `boost`, a factor on the learning rate, and an optional
    `length` of its rows in tokens: batch * trained_length / length of them make a step. Copying is learnt sooner on
    short rows."""
    shape: Mapping[str, Any] | None = None
    """Sizes of the decoder: `layers`, `width`, `heads`, `kv_heads`, `hidden`, `block`; None: the start's."""
    vocabulary: int | None = None
    """Tokens of a new tokenizer, learnt from the texts; None: the start's tokenizer."""
    trained_length: int | None = 256
    """Tokens of a row; None: the start's trained length."""
    batch: int = 24
    """Rows of trained_length tokens per step."""
    accumulate: int = 1
    """Pieces of a batch that go through the network one after the other, to save memory."""
    rate: float = 1.5e-3
    """Peak learning rate of AdamW; linear warm-up, then a cosine down to `last` of it."""
    optimizer: str = "adamw"
    """adamw: of all weights; muon: `muon.py` for the matrices of the layers, AdamW for the rest."""
    matrix_rate: float = 0.02
    """Peak learning rate of Muon, with the same warm-up and cosine."""
    gain_rate: float | None = None
    """Peak learning rate of the norms' gains, with the same warm-up and cosine; None: `rate`. Gains sharpen attention:
    with a high rate copying begins sooner."""
    warmup: int = 100
    last: float = 0.1
    """Learning rate at the end, as a share of the peak."""
    decay: float = 0.1
    """Weight decay of the decoder's matrices; under muon of the layers' matrices only. An encoding's own weights have
    none."""
    horizon: int | None = None
    """Steps after which the learning rate is `last` of its peak; None: all steps."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    """Seed of initial weights, order of data and random positions."""
    evaluate: int = 100
    """Steps between held-out losses."""
    save: int = 100
    """Steps between checkpoints."""
    weights: str = "float32"
    """dtype of the saved weights."""
    initial: str = "gpt2"
    """Initial weights: gpt2 or fan_in (`Decoder.initialise`)."""
    embeddings: float = WEIGHT_DEVIATION
    """Deviation of initial embeddings. AdamW moves all of them by about `rate` in a step, most of them together: where
    they begin small, tokens that no row shows become alike, and cannot be told apart when they are to be copied."""
    precision: str | None = None
    """Precision of matrix products: float32 or bfloat16 (autocast); None: bfloat16 on a GPU, float32 on a CPU. A
    processor without products of bfloat16 takes float32. The record of a training says which it was."""
    counted: str = "all"
    """Targets that a row's loss is the mean of: all; copied: in rows of random tokens only those that repeat an earlier
    pair of neighbours; answers: these, and in rows of a task only its answers. The others cannot be known, and their
    gradient is noise."""
    packing: str = "filled"
    """Placement of lessons in a row. filled: as many as fit, without a gap. blank_line: the same, with a blank line
    between them; without it the digits of an answer and of the next question are one number. single: one lesson behind
    blank lines, for a task one question of any length that fits. right_padded: the same, with the blank lines behind
    it. All but filled are for counted=answers. Abacus over NoPE and coupled positions know only the place of a digit in
    its number: they cannot tell two sums of a row apart, and need one a row. Questions that begin right behind BOS, as
    those of `parity`, need right_padded: a model may count from the first blank line."""
    compile: bool = False
    """Whether to use torch.compile: it takes some minutes first, then steps are faster."""

    def __post_init__(self) -> None:
        for name, least in MIN_OF_PARAMETER.items():
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), least)
        if self.seed >= SEED_LIMIT:
            raise ConfigError(f"recipe.seed must be below 2^63, got {self.seed}: give a smaller one")
        for name in ("rate", "matrix_rate", "clip", "embeddings"):
            _check_positive(name, getattr(self, name))
        if self.gain_rate is not None:
            _check_positive("gain_rate", self.gain_rate)
        for name in ("decay", "last"):
            if not _is_number(value := getattr(self, name)) or value < 0:
                raise ConfigError(f"recipe.{name} must be a number of at least 0, got {value!r}: e.g. 0.1")
        if self.accumulate > self.batch:
            raise ConfigError(
                f"recipe.accumulate must be at most the batch of {self.batch} rows, got {self.accumulate}: lower it"
            )
        for name, words in CHOICES_OF_PARAMETER.items():
            if getattr(self, name) not in words:
                said = " or ".join("null" if word is None else word for word in words)
                raise ConfigError(f"recipe.{name} must be {said}, got {getattr(self, name)}: choose one")
        if self.packing != "filled" and self.counted != "answers":
            raise ConfigError(
                f"recipe.packing={self.packing} is for counted=answers, got counted={self.counted}: drop it"
            )
        if self.shape is not None:
            _check_shape(self.shape)
        self._check_stages()

    def _check_stages(self) -> None:
        if isinstance(self.stages, str | Mapping) or not isinstance(self.stages, Sequence) or not self.stages:
            raise ConfigError(
                f"recipe.stages must be a list of at least one stage, got {self.stages!r}: {STAGES_EXAMPLE}"
            )
        for stage in self.stages:
            _check_stage(stage)
            if self.trained_length is not None and self.trained_length % stage.get("length", 1):
                raise ConfigError(
                    f"recipe.stages.length must divide trained_length={self.trained_length}, got {stage['length']}: "
                    "e.g. half of it"
                )

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage["steps"] for stage in self.stages)

    @property
    def length(self) -> int:
        """Tokens of a row, once the start has given them."""
        assert self.trained_length is not None, "the start's trained length is not settled yet"
        return self.trained_length

    @property
    def kinds(self) -> list[str]:
        """Every kind of lesson, once."""
        return list(dict.fromkeys(kind for stage in self.stages for kind in stage["lessons"]))

    def stage(self, step: int) -> Mapping[str, Any]:
        """The stage of a step, counted from 0."""
        ends = itertools.accumulate(stage["steps"] for stage in self.stages)
        return next(stage for stage, end in zip(self.stages, ends, strict=True) if step < end)

    def rows(self, step: int) -> tuple[int, int]:
        """Rows of a step, counted from 0, and their length in tokens."""
        length = self.stage(step).get("length", self.length)
        return self.batch * self.length // length, length

    def sizes(self) -> DecoderShape:
        """Sizes of the decoder; ConfigError where the recipe leaves them to a start."""
        for name in ("shape", "vocabulary", "trained_length"):
            if getattr(self, name) is None:
                raise ConfigError(f"recipe.{name} is missing, and no trained folder states it: give start=DIR")
        assert self.shape is not None and self.vocabulary is not None
        return DecoderShape(vocabulary=self.vocabulary, **self.shape)

    def learning_rate_share(self, step: int) -> float:
        """The learning rate of a step, counted from 0, as a share of the peak."""
        boost = float(self.stage(step).get("boost", 1.0))
        # From rate / warmup at the first step to the full rate at the last of the warm-up.
        if step < self.warmup:
            return boost * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, (self.horizon or self.steps) - self.warmup)
        # A cosine from the full rate to the last one.
        return boost * ((1 + self.last) / 2 + (1 - self.last) / 2 * math.cos(math.pi * min(1.0, progress)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"recipe.{name} must be a whole number, got {value!r}: e.g. {max(least, 1)}")
    if value < least:
        raise ConfigError(f"recipe.{name} must be at least {least}, got {value}: raise it")


def _check_positive(name: str, value: Any) -> None:
    if not _is_number(value) or value <= 0:
        raise ConfigError(f"recipe.{name} must be a number above 0, got {value!r}: e.g. 0.001")


def _check_shape(shape: Any) -> None:
    """Check each size alone; `DecoderShape` checks how they fit together."""
    if not isinstance(shape, Mapping):
        raise ConfigError(f"recipe.shape must be sizes by name, got {shape!r}: e.g. {{layers: 4, width: 256}}")
    for name, size in shape.items():
        if name not in SHAPE_KEYS:
            raise ConfigError(f"unknown parameter recipe.shape.{name}: choose from {', '.join(SHAPE_KEYS)}")
        if name == "norm_epsilon":
            _check_positive(f"shape.{name}", size)
        elif name == "block":
            if size not in BLOCK_KINDS:
                raise ConfigError(f"recipe.shape.block must be {' or '.join(BLOCK_KINDS)}, got {size!r}: choose one")
        else:
            _check_whole(f"shape.{name}", size, 1)


def _check_stage(stage: Any) -> None:
    if not isinstance(stage, Mapping) or stage.keys() - {"boost", "length"} != {"steps", "lessons"}:
        raise ConfigError(
            f"recipe.stages must each have steps and lessons, and boost and length if any, got {stage!r}: "
            f"{STAGES_EXAMPLE}"
        )
    _check_whole("stages.steps", stage["steps"], 1)
    _check_whole("stages.length", stage.get("length", 2), 2)
    _check_positive("stages.boost", stage.get("boost", 1.0))
    lessons = stage["lessons"]
    if not isinstance(lessons, Mapping) or not lessons:
        raise ConfigError(f"recipe.stages.lessons must be shares by name, got {lessons!r}: {STAGES_EXAMPLE}")
    for kind, share in lessons.items():
        _check_positive(f"stages.lessons.{kind}", share)

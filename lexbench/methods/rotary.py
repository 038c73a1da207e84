"""What methods that change rotary frequencies share: the factor, the NTK base, the blend by rotations."""

import math
from dataclasses import replace

import numpy as np

from lexbench.attention import Floats
from lexbench.model import Model
from lexbench.record import Refused


def check_factor(method: str, factor: float | None) -> None:
    """ValueError unless the factor is left out or stretches."""
    if factor is not None and not 1 <= factor < math.inf:
        raise ValueError(
            f"{method}'s factor must be finite and at least 1, got {factor}: leave it out for length / trained_length"
        )


def check_trained_length(method: str, trained_length: int | None) -> None:
    """ValueError unless the trained length is left out or can be one."""
    if trained_length is not None and trained_length < 1:
        raise ValueError(
            f"{method}'s trained_length must be at least 1, got {trained_length}: leave it out to take the model's"
        )


def trained_on(model: Model, trained_length: int | None) -> Model:
    """The model as if it had been trained on texts of `trained_length` tokens; None: as it was."""
    return model if trained_length is None else replace(model, trained_length=trained_length)


def resolve_factor(factor: float | None, model: Model, length: int) -> float:
    """The factor s; None: length / trained_length, never below 1."""
    return max(1.0, length / model.trained_length) if factor is None else float(factor)


def ntk_base(model: Model, factor: float) -> float:
    """The base b s^(d / (d - 2)) that slows the last pair by exactly s and leaves the first alone.

    d counts the rotated dimensions, not the head's. Refused at d = 2, where the first pair is the last.
    """
    base = model.rotary_base()
    dims = model.rotated
    if dims < 4:
        raise Refused(f"an NTK base needs at least 4 rotary dimensions, {model.name} has {dims}: use method=pi")
    return float(base * factor ** (dims / (dims - 2)))


def blend_by_rotations(model: Model, factor: float, slow: float, fast: float) -> Floats:
    """[rotated / 2] radians per token, stretched the less the more often a pair turned in training.

    A pair made r = L theta / 2 pi rotations within the trained length L. It keeps its frequency where r >= fast, is
    slowed by the factor where r <= slow, and between them the two frequencies mix linearly in r.
    """
    plain = model.inv_freq()
    rotations = model.trained_length * plain / (2 * math.pi)
    kept = np.clip((rotations - slow) / (fast - slow), 0.0, 1.0)
    return np.asarray(plain * (kept + (1 - kept) / factor))

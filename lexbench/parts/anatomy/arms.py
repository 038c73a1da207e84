"""Arms: forms of the task anatomy that differ in one cause, and contrasts between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEAR_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "gap": {},
    "near8": {"near": 8},
    "near64": {"near": 64},
    "near8_blind": {"near": 8, "blind": True},
    "near64_blind": {"near": 64, "blind": True},
}
SINK_FORMS: Mapping[str, Mapping[str, Any]] = {"": {}, "_unsunk": {"sink": False}}
FILLER_FORMS: Mapping[str, Mapping[str, Any]] = {"": {}, "_filled": {"filler": "blind"}}
ARM_FORMS: Mapping[str, Mapping[str, Any]] = {
    "adjacent": {"far": False},
    "adjacent_unsunk": {"far": False, "sink": False},
    **{
        near + filler + sink: {**one, **two, **three}
        for near, one in NEAR_TEXTS.items()
        for filler, two in FILLER_FORMS.items()
        for sink, three in SINK_FORMS.items()
    },
    "present": {"filler": "present"},
    "present_1": {"filler": "present", "rivals": 1},
    "present_4": {"filler": "present", "rivals": 4},
}
"""Parameters of the task for each arm: near x sink x (no filler, blind filler) in full, present filler with rivals."""
CONTROL_FORMS: Mapping[str, Mapping[str, Any]] = {
    "stock": {"far": False, "placed": False},
    "masked": {"filler": "masked"},
    "keyless": {"far": False, "key": False},
}
"""The same of controls, which are asked at the shortest length."""


@dataclass(frozen=True)
class Contrast:
    """The loss of one arm minus that of another, for the same questions."""

    name: str
    arm: str
    base: str
    words: str


ARM_CONTRASTS: Sequence[Contrast] = (
    Contrast("distance", "near8", "adjacent", "the distance, with 8 tokens of text in front of the question"),
    Contrast("neighbourhood", "gap", "near8", "no text in front of the question"),
    Contrast("sight", "near8_blind", "near8", "the 8 near tokens see neither the key nor the intro"),
    Contrast("near 64", "near64", "near8", "64 near tokens in place of 8"),
    Contrast("sink", "gap", "gap_unsunk", "the question sees the first token, nothing near it"),
    Contrast("filler, blind", "near64_filled", "near64", "text in the distance that does not see the key"),
    Contrast("filler", "present", "near64", "text in the distance that does"),
    Contrast("one rival", "present_1", "present", "a statement of another key in the filler"),
    Contrast("four rivals", "present_4", "present", "four of them"),
)
"""Contrasts of the page; above 0: what they name costs."""


def arm_of(parameters: Mapping[str, Any]) -> str | None:
    """Name of the arm or control with these parameters of the task; None: they are none's."""
    known = {**ARM_FORMS, **CONTROL_FORMS}
    return next((name for name, each in known.items() if dict(each) == dict(parameters)), None)

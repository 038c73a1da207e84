"""Looks of methods: each has one colour and one marker in every figure and on every page.

The unmodified model is the only dark line. Each of the seven methods that are compared most, among them the five of
`lexbench versus`, has a colour and a marker of its own, and a solid line. Of all others the marker is that of their
family, the attribute `family` of the method's class, and the colour is their own within it, in the order of their
names. A method outside the registry is the reader's own: a thick line in a colour that no other method has, with a
star. Methods of one name with other parameters keep colour and marker: dashes and hollow markers tell them apart.
"""

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lexbench.core import registry
from lexbench.core.method_key import BASELINE, MethodKey

FAMILIES = {
    "interpolation": "square",
    "base": "diamond",
    "other frequencies": "triangle-down",
    "grouped distances": "cross",
    "chunks": "triangle-up",
    "keys seen": "x",
    "logits and heads": "pentagon",
}
"""Marker of each family, in the order of its panels."""
OWN = "your methods"
"""The family of methods outside the registry."""
UNCHANGED = "none"
"""The family of the baseline alone."""
ORDER = (OWN, UNCHANGED, *FAMILIES)
"""Families in the order of their panels."""
INK = "#000000"
HIGHLIGHT = "#F8004A"
HUES = ("#DF7605", "#1158A5", "#594A0E", "#11A871", "#931255", "#A17AFF", "#CE73B0")
"""Orange, blue, brown, green, wine, violet and pink: each is at least 3:1 on white paper, and at least 20 (CIE76) from
every other one, the ink and the highlight, for readers with full colour vision and without red, green or blue cones."""
LIGHT = (INK, HIGHLIGHT, *HUES)
DARK = ("#F2F4F6", "#E82A68", "#EFA61B", "#1F66FA", "#9D7E2A", "#09AE9B", "#B536A5", "#AB8DFF", "#F0B2F6")
"""Ink, highlight and hues on a dark page, as far apart, and at least 3:1 on it."""
USUAL = {
    "pi": (0, "square"),
    "ntk": (3, "diamond"),
    "yarn": (1, "triangle-left"),
    "self_extend": (5, "cross"),
    "rerope": (4, "triangle-right"),
    "dca": (2, "triangle-up"),
    "streaming_llm": (6, "x"),
}
"""Place in HUES and marker of the methods that are compared most."""
DASHES: tuple[tuple[float, ...], ...] = (
    *((), (5, 2), (1.5, 1.5), (6, 1.5, 1, 1.5)),
    *((8, 4), (3, 1), (6, 1, 1, 1, 1, 1), (9, 1.5, 3, 1.5)),
)
"""Lengths of dashes and gaps, in widths of the line; none: solid."""
LINES = 8
"""Lines that one panel tells apart."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    family: str
    tone: int
    """0: ink, 1: the reader's own; else 2 + the place in HUES."""
    marker: str
    dash: int = 0
    """Place in DASHES."""
    hollow: bool = False
    front: bool = False
    """Drawn in front, thick: the reader's own or highlighted."""

    @property
    def colour(self) -> str:
        """On paper."""
        return LIGHT[self.tone]


def name_of(method: MethodKey) -> str:
    """The name of a method in figures and on pages: its label, and that of the baseline in words."""
    return f"unmodified ({method})" if method == BASELINE else str(method)


def is_own(method: MethodKey) -> bool:
    """Whether any part of it is outside the registry."""
    return any(name not in BASELINE.names and family_of(name) is None for name in method.names)


def own_of(methods: Iterable[MethodKey], highlight: Collection[str] = ()) -> list[MethodKey]:
    """The reader's own methods: outside the registry, or named by `highlight` with or without their parameters."""
    return [each for each in methods if each != BASELINE and _in_front(each, highlight)]


def _in_front(method: MethodKey, highlight: Collection[str]) -> bool:
    return is_own(method) or str(method) in highlight or not set(highlight).isdisjoint(method.names)


def looks(methods: Sequence[MethodKey], highlight: Collection[str] = ()) -> dict[MethodKey, Look]:
    """The look of each method; of several with one colour and marker, the first has the usual dashes."""
    seen: Counter[tuple[int, str]] = Counter()
    found = {}
    for method in methods:
        family, tone, marker, dash = _usual(method)
        again = seen[tone, marker]
        seen[tone, marker] += 1
        front = _in_front(method, highlight)
        found[method] = Look(family, tone, marker, (dash + again) % len(DASHES), again % 2 == 1, front)
    return found


def _usual(method: MethodKey) -> tuple[str, int, str, int]:
    """Family, tone, marker and dash of a method without parameters."""
    if is_own(method):
        return OWN, 1, "star", 0
    named = [name for name in method.names if name not in BASELINE.names]
    if not named:
        return UNCHANGED, 0, "circle", 0
    family = family_of(named[0]) or OWN
    if named[0] in USUAL:
        hue, marker = USUAL[named[0]]
        return family, 2 + hue, marker, 0
    members = _members()[family]
    taken = {USUAL[name][0] for name in USUAL if family_of(name) == family}
    free = [hue for hue in range(len(HUES)) if hue not in taken]
    place = members.index(named[0])
    return family, 2 + free[place % len(free)], FAMILIES[family], 1 + place % (len(DASHES) - 1)


@functools.cache
def family_of(name: str) -> str | None:
    """The family that a method of lexbench states; None for a name that is not of lexbench."""
    if name not in registry.names("method"):
        return None
    config = registry.read("method", name)
    if not re.fullmatch(rf"lexbench\.[\w.]*\b{name}\.\w+", str(config.get("_target_"))):
        return None
    return getattr(registry.class_of(config, "method"), "family", None)


@functools.cache
def _members() -> dict[str, list[str]]:
    """Methods of each family but the usual ones, by name."""
    others = [name for name in registry.names("method") if name not in USUAL]
    return {family: [name for name in others if family_of(name) == family] for family in FAMILIES}


def panels(methods: Sequence[MethodKey], highlight: Collection[str] = ()) -> list[tuple[str, list[MethodKey]]]:
    """Title and methods of each panel: one where the lines are few, else one a family.

    The baseline is in every panel, and the reader's own methods are while they are three or fewer.
    """
    if len(methods) <= LINES:
        return [("", ordered(methods, highlight))]
    known, own = looks(methods, highlight), own_of(methods, highlight)
    first = [method for method in methods if method == BASELINE]
    every = first + (own if len(own) <= 3 else [])
    found = []
    for family in ORDER:
        members = [method for method in methods if known[method].family == family and method not in every]
        for start in range(0, len(members), len(HUES)):
            again = f", {start // len(HUES) + 1}" if len(members) > len(HUES) else ""
            found.append((f"{family}{again}", every + members[start : start + len(HUES)]))
    return found


def ordered(methods: Sequence[MethodKey], highlight: Collection[str]) -> list[MethodKey]:
    """The baseline, the reader's own, then the others as they come."""
    first = [method for method in methods if method == BASELINE] + own_of(methods, highlight)
    return [*first, *(method for method in methods if method not in first)]

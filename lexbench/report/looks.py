"""Looks of methods: each has one colour and one marker in every figure and on every page, computed from its name.

Of place p in family number f, the colour is number f - p and the marker number f + 2p, both modulo 7. So methods of one
family differ in both, and no two methods of the registry share the pair: marker - colour = 3p gives p, then f.
The baseline `none` is the only dark line. A method outside the registry is the reader's own: a thick line in a colour
that no other method has, with a star. Methods of one name with other parameters keep colour and marker: dashes and
hollow markers tell them apart.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lexbench.core.method_key import BASELINE, MethodKey

FAMILIES: dict[str, tuple[str, ...]] = {
    "interpolation": ("pi", "yarn", "ntk_by_parts", "yarn_paper", "llama3", "resonance"),
    "base": ("ntk", "dynamic_ntk", "abf", "ntk_mixed", "ntk_fixed", "ntk_old", "critical_base"),
    "other frequencies": ("longrope", "longrope2", "clex", "p_rope", "hope", "truncated_basis", "power_basis"),
    "grouped distances": ("rerope", "leaky_rerope", "adagrope", "self_extend", "dpe"),
    "chunks": ("dca", "string", "chunkllama", "jet_long"),
    "keys seen": ("streaming_llm", "lambda_mask", "sliding_window", "bca", "kv"),
    "logits and heads": ("log_n", "entropy_abf", "ms_poe", "attention_buckets", "qk_gain"),
}
"""Families of the registry's methods, at most seven methods each."""
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
MARKERS = ("square", "diamond", "triangle-down", "cross", "x", "triangle-up", "pentagon")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1, 1.5), (8, 4), (3, 1), (6, 1, 1, 1, 1, 1))
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


def is_own(method: MethodKey) -> bool:
    """Whether any part of it is outside the registry."""
    return any(name not in BASELINE.names and name not in _PLACES for name in method.names)


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
    family, number, place = _PLACES[named[0]]
    return family, 2 + (number - place) % len(HUES), MARKERS[(number + 2 * place) % len(MARKERS)], number


_PLACES = {
    name: (family, number, place)
    for number, (family, names) in enumerate(FAMILIES.items())
    for place, name in enumerate(names)
}
"""Family, its number and the place in it, of each method of the registry."""


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

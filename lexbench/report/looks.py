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

from lexbench.core import objects, registry
from lexbench.core.method_key import BASELINE_METHOD, MethodKey

METHOD_FAMILIES = {
    "interpolation": "square",
    "base": "diamond",
    "other frequencies": "triangle-down",
    "grouped distances": "cross",
    "chunks": "triangle-up",
    "keys seen": "x",
    "logits and heads": "pentagon",
}
"""Marker of each family, in the order of its panels."""
OWN_METHODS_FAMILY = "your methods"
"""The family of methods outside the registry."""
BASELINE_FAMILY = "none"
"""The family of the baseline alone."""
FAMILY_ORDER = (OWN_METHODS_FAMILY, BASELINE_FAMILY, *METHOD_FAMILIES)
"""Families in the order of their panels."""
INK_COLOUR = "#000000"
HIGHLIGHT_COLOUR = "#F8004A"
FAMILY_COLOURS = ("#DF7605", "#1158A5", "#594A0E", "#11A871", "#931255", "#A17AFF", "#CE73B0")
"""Orange, blue, brown, green, wine, violet and pink: each is at least 3:1 on white paper, and at least 20 (CIE76) from
every other one, the ink and the highlight, for readers with full colour vision and without red, green or blue cones."""
LIGHT_PAGE_COLOURS = (INK_COLOUR, HIGHLIGHT_COLOUR, *FAMILY_COLOURS)
DARK_PAGE_COLOURS = ("#F2F4F6", "#E82A68", "#EFA61B", "#1F66FA", "#9D7E2A", "#09AE9B", "#B536A5", "#AB8DFF", "#F0B2F6")
"""Ink, highlight and hues on a dark page, as far apart, and at least 3:1 on it."""
LOOK_OF_USUAL_METHOD = {
    "pi": (0, "square"),
    "ntk": (3, "diamond"),
    "yarn": (1, "triangle-left"),
    "self_extend": (5, "cross"),
    "rerope": (4, "triangle-right"),
    "dca": (2, "triangle-up"),
    "streaming_llm": (6, "x"),
}
"""Place in FAMILY_COLOURS and marker of the methods that are compared most."""
PAPER_NAME_OF_METHOD = {
    **{"none": "unmodified", "pi": "PI", "ntk": "NTK-aware", "ntk_by_parts": "NTK-by-parts", "yarn": "YaRN"},
    **{"dynamic_ntk": "Dynamic NTK", "longrope": "LongRoPE", "longrope2": "LongRoPE2", "llama3": "Llama 3"},
    **{"self_extend": "Self-Extend", "rerope": "ReRoPE", "leaky_rerope": "Leaky ReRoPE", "dca": "DCA"},
    **{"streaming_llm": "StreamingLLM", "string": "STRING", "abf": "ABF", "clex": "CLEX", "hope": "HoPE", "dpe": "DPE"},
    **{"ms_poe": "Ms-PoE", "p_rope": "p-RoPE", "chunkllama": "ChunkLlama", "resonance": "Resonance RoPE"},
}
"""Names as papers write them; a method without one has its label."""
PART_NAME = re.compile(r"(^|\+)(\w+)")
"""The name of a method or of a part of a composed one, at its place in a label."""
DASH_PATTERNS: tuple[tuple[float, ...], ...] = (
    *((), (5, 2), (1.5, 1.5), (6, 1.5, 1, 1.5)),
    *((8, 4), (3, 1), (6, 1, 1, 1, 1, 1), (9, 1.5, 3, 1.5)),
)
"""Lengths of dashes and gaps, in widths of the line; none: solid."""
MAX_PANEL_LINES = 8
"""Lines that one panel tells apart."""


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of a method in figures."""

    family: str
    tone: int
    """Number of the colour: 0 ink, 1 the reader's own methods, else 2 + the place in FAMILY_COLOURS."""
    marker: str
    dash: int = 0
    """Place in DASH_PATTERNS."""
    hollow: bool = False
    front: bool = False
    """Drawn in front, thick: the reader's own or highlighted."""

    @property
    def colour(self) -> str:
        """Colour on paper, as #RRGGBB."""
        return LIGHT_PAGE_COLOURS[self.tone]


def name_of(method: MethodKey) -> str:
    """The name of a method in figures and on pages: its label, and that of the baseline in words."""
    return f"unmodified ({method})" if method == BASELINE_METHOD else str(method)


def paper_name(method: MethodKey) -> str:
    """The name of a method in a table for a paper: as its own paper writes it, where that differs from its label."""
    return PART_NAME.sub(lambda part: f"{part[1]}{PAPER_NAME_OF_METHOD.get(part[2], part[2])}", str(method))


def is_own(method: MethodKey) -> bool:
    """Whether any part of it is outside the registry."""
    return any(name not in BASELINE_METHOD.names and family_of(name) is None for name in method.names)


def readers_own_methods(methods: Iterable[MethodKey], highlight: Collection[str] = ()) -> list[MethodKey]:
    """The reader's own methods: outside the registry, or named by `highlight` with or without their parameters."""
    return [each for each in methods if each != BASELINE_METHOD and _is_in_front(each, highlight)]


def _is_in_front(method: MethodKey, highlight: Collection[str]) -> bool:
    return is_own(method) or str(method) in highlight or not set(highlight).isdisjoint(method.names)


def looks_of_methods(methods: Sequence[MethodKey], highlight: Collection[str] = ()) -> dict[MethodKey, Look]:
    """The look of each method; of several with one colour and marker, the first has the usual dashes."""
    seen: Counter[tuple[int, str]] = Counter()
    found = {}
    for method in methods:
        family, tone, marker, dash = _default_look(method)
        again = seen[tone, marker]
        seen[tone, marker] += 1
        front = _is_in_front(method, highlight)
        found[method] = Look(family, tone, marker, (dash + again) % len(DASH_PATTERNS), again % 2 == 1, front)
    return found


def _default_look(method: MethodKey) -> tuple[str, int, str, int]:
    """Family, tone, marker and dash of a method without parameters."""
    if is_own(method):
        return OWN_METHODS_FAMILY, 1, "star", 0
    named = [name for name in method.names if name not in BASELINE_METHOD.names]
    if not named:
        return BASELINE_FAMILY, 0, "circle", 0
    family = family_of(named[0]) or OWN_METHODS_FAMILY
    if named[0] in LOOK_OF_USUAL_METHOD:
        hue, marker = LOOK_OF_USUAL_METHOD[named[0]]
        return family, 2 + hue, marker, 0
    members = _members()[family]
    taken = {LOOK_OF_USUAL_METHOD[name][0] for name in LOOK_OF_USUAL_METHOD if family_of(name) == family}
    free = [hue for hue in range(len(FAMILY_COLOURS)) if hue not in taken]
    place = members.index(named[0])
    return family, 2 + free[place % len(free)], METHOD_FAMILIES[family], 1 + place % (len(DASH_PATTERNS) - 1)


@functools.cache
def family_of(name: str) -> str | None:
    """The family that a method of lexbench states; None for a name that is not of lexbench."""
    if name not in registry.registered_names("method"):
        return None
    config = registry.read_named_config("method", name)
    if not re.fullmatch(rf"lexbench\.[\w.]*\b{name}\.\w+", str(config.get("_target_"))):
        return None
    return getattr(objects.class_of(config, "method"), "family", None)


@functools.cache
def _members() -> dict[str, list[str]]:
    """Methods of each family but the usual ones, by name."""
    others = [name for name in registry.registered_names("method") if name not in LOOK_OF_USUAL_METHOD]
    return {family: [name for name in others if family_of(name) == family] for family in METHOD_FAMILIES}


def family_panels(methods: Sequence[MethodKey], highlight: Collection[str] = ()) -> list[tuple[str, list[MethodKey]]]:
    """Title and methods of each panel: one where the lines are few, else one a family.

    The baseline is in every panel, and the reader's own methods are while they are three or fewer.
    """
    if len(methods) <= MAX_PANEL_LINES:
        return [("", order_methods(methods, highlight))]
    known, own = looks_of_methods(methods, highlight), readers_own_methods(methods, highlight)
    first = [method for method in methods if method == BASELINE_METHOD]
    every = first + (own if len(own) <= 3 else [])
    found = []
    for family in FAMILY_ORDER:
        members = [method for method in methods if known[method].family == family and method not in every]
        for start in range(0, len(members), len(FAMILY_COLOURS)):
            again = f", {start // len(FAMILY_COLOURS) + 1}" if len(members) > len(FAMILY_COLOURS) else ""
            found.append((f"{family}{again}", every + members[start : start + len(FAMILY_COLOURS)]))
    return found


def order_methods(methods: Sequence[MethodKey], highlight: Collection[str]) -> list[MethodKey]:
    """The baseline, the reader's own, then the others as they come."""
    first = [method for method in methods if method == BASELINE_METHOD] + readers_own_methods(methods, highlight)
    return [*first, *(method for method in methods if method not in first)]

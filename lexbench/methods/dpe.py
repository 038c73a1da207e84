"""DPE: far positions by groups, of another size in each band of rotary pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from types import MappingProxyType
from typing import Any, ClassVar

from lexbench.core.attention import Attention, Bands, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count, check_rotary, whole_groups

PUBLISHED_BAND_GROUPS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "llama-3-8b": (2, 8, 2, 8, 32, 32, 32, 4),
        "llama-3-8b-readme": (4, 4, 2, 16, 32, 32, 16, 128),
        "llama-3.1-8b": (2, 32, 32, 2, 2, 2, 2, 1),
        "mistral-7b-v0.2": (4, 16, 2, 16, 32, 16, 16, 2),
        "qwen2.5-7b": (2, 16, 8, 8, 32, 8, 2, 4),
    }
)
"""Group of each band, as the authors released it for instruction-tuned models of 64 pairs (config/dpe_config.yaml of
github.com/LuLuLuyi/DPE; the second from its README)."""
NEAR_TOKENS = 1024
"""Window of every released setting."""
NEAR_SHARE = 8
"""Windows in the shortest trained length of these settings, 8,192 tokens of Llama 3."""


@dataclass(frozen=True)
class Dpe:
    """Give far keys positions by groups of G_b tokens in band b of the rotary pairs (COLM 2025, arXiv 2504.18857).

        distance of band b = i - j where i - j < W, else floor(i / G_b) - floor(j / G_b) + W - W / G_b

    Self-Extend with a group for each band: bands have equal numbers of pairs, from the fastest to the slowest. The
    groups are searched on each model, at 16 times the trained length L for Llama 3: those that find most of four
    needles while all other bands keep 2 length / L. Where the sources differ, this is the released code:

    - For Llama 3 it has two settings, `llama-3-8b` in its config and `llama-3-8b-readme` in its README; the names of
      its predictions on RULER at 131,072 tokens state the second.
    - The paper changes in each head its key pairs alone, those with the largest products of norms of queries and keys
      in samples (48 of 64 in these predictions); the code's example changes all pairs, as is done here.
    - At prefill the shift is W - W / G_b, in decoding W - floor(W / G_b). They are equal where groups divide the
      window, as they must here.

    Args:
        groups: G_b of each band, at least 1 token each, or the name of a released setting; None: 1 in all bands within
            L, and beyond it 2 length / L rounded up, from which the search begins.
        window: W in tokens, a multiple of all groups; None: the largest one within 1024 and L/8, or the least.
    """

    family: ClassVar[str] = "grouped distances"
    groups: Sequence[int] | str | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _check_groups(self.groups))
        check_count("dpe's window", self.window, "the released settings have 1024")
        if self.window and self.window % (least := lcm(*self._given_groups())):
            raise ConfigError(
                "dpe's window must be a multiple of all groups (else prefill and decoding of its code differ), "
                f"got window {self.window} and groups with least common multiple {least}: change one"
            )

    def attention(self, model: Model, length: int) -> Attention:
        """The grouped remap; Refused without rotary positions, where bands do not divide the pairs or no group fits."""
        check_rotary(model)
        groups = self._given_groups() or (self._fitting_group(model, length),)
        if model.rotated // 2 % len(groups):
            raise Refused(
                f"dpe's bands must divide the {model.rotated // 2} pairs of {model.name}, got {len(groups)}: "
                "give another number of groups"
            )
        near = min(NEAR_TOKENS, model.trained_length // NEAR_SHARE)
        window = self.window or whole_groups(lcm(*groups), near)
        far = [PositionMap(group, window - window // group, floor=True) for group in groups]
        keys = [PositionMap(group, floor=True) for group in groups]
        return Attention(remap=Remap(window=window, query=_of_bands(far), key=_of_bands(keys)))

    def _given_groups(self) -> tuple[int, ...]:
        return PUBLISHED_BAND_GROUPS[self.groups] if isinstance(self.groups, str) else tuple(self.groups or ())

    def _fitting_group(self, model: Model, length: int) -> int:
        """Size of a group of positions: 2 length / L rounded up; with a window, the next number that divides it."""
        if length <= model.trained_length:
            return 1
        least = -(-2 * length // model.trained_length)
        if self.window is None:
            return least
        found = next((group for group in range(least, self.window + 1) if self.window % group == 0), None)
        if found is None:
            raise Refused(
                f"dpe's group must be at least {least} at {length} tokens of {model.name} and divide the window, "
                f"got window {self.window}: raise window, or give groups"
            )
        return found


def _check_groups(groups: Any) -> tuple[int, ...] | str | None:
    """Groups that are given, as a tuple; ConfigError for others than whole numbers and names of released settings."""
    if isinstance(groups, str) and groups not in PUBLISHED_BAND_GROUPS:
        raise ConfigError(
            f"dpe has no released groups {groups!r}: take one of {', '.join(PUBLISHED_BAND_GROUPS)}, or a list"
        )
    if groups is None or isinstance(groups, str):
        return groups
    if not isinstance(groups, Sequence) or not groups:
        raise ConfigError(f"dpe's groups must be a list or the name of a released setting, got {groups!r}")
    for group in groups:
        check_count("a group of dpe", group, "1 leaves the distances of its band as they are")
    return tuple(map(int, groups))


def _of_bands(lines: Sequence[PositionMap]) -> PositionMap | Bands:
    """Map of positions of all bands: a single one where they have the same."""
    return lines[0] if len(set(lines)) == 1 else Bands(tuple(lines))

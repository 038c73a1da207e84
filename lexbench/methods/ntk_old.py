"""NTK-aware scaling as it was first derived."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.model import Model
from lexbench.methods.rotary import Rebased, check_factor, resolve_factor


@dataclass(frozen=True)
class NtkOld(Rebased):
    """Raise the base by the factor itself (Su 2023, kexue.fm/archives/9675, NTK-RoPE-old in archives/9706).

        theta'_p = (b s)^(-2p/d) = theta_p s^(-2p/d)

    If positions are read as numbers of d/2 digits to the base b^(2/d), there are s times as many. The last pair is
    slowed by s^((d-2)/d), which is less than s, so it leaves its trained range; `ntk` closes that gap.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy.
    """

    family: ClassVar[str] = "base"

    factor: float | None = None

    def __post_init__(self) -> None:
        check_factor("ntk_old", self.factor)

    def _base(self, model: Model, length: int) -> float:
        # b s, not b s^(d/(d-2)): the derivation that the article corrects later (`ntk`).
        return model.rotary_base() * resolve_factor(self.factor, model, length)

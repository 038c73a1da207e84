"""NTK-aware scaling of the rotary base."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.model import Model
from lexbench.methods.rotary import Rebased, check_factor, ntk_base, resolve_factor


@dataclass(frozen=True)
class Ntk(Rebased):
    """Raise the base so that only the slowest pair is fully interpolated (bloc97 2023; arXiv 2309.00071, definition 1).

        theta'_p = b'^(-2p/d),  b' = b s^(d/(d-2))  =>  theta'_p = theta_p s^(-2p/(d-2))

    Pair 0 keeps its frequency; the last pair is slowed by exactly s, as in position interpolation. Pairs between are
    slowed by less than s and leave their trained range, so that without training it works up to less than s trained
    lengths. Some write b' = b s instead (`ntk_old`); then the last pair is slowed by less than s, too.

    Args:
        factor: s, at least 1; None: length / trained_length, the local static policy.
    """

    family: ClassVar[str] = "base"

    factor: float | None = None

    def __post_init__(self) -> None:
        check_factor("ntk", self.factor)

    def _base(self, model: Model, length: int) -> float:
        """b' of the docstring; Refused below 4 rotary dimensions."""
        return ntk_base(model, resolve_factor(self.factor, model, length))

"""Adjusted base frequency."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.model import Model
from lexbench.methods.rotary import Rebased, base_for_length, check_base


@dataclass(frozen=True)
class Abf(Rebased):
    """Rotate with a larger base, the one that fits the length (Xiong et al. 2023, arXiv 2309.16039, section 2.1).

        theta'_p = base^(-2p/d),  base = b^(ln(T / 2 pi) / ln(L / 2 pi)),  T = max(L, length)

    The rule for the base is the scaling law of RoPE (Liu et al. 2023, arXiv 2310.05209): the pair that makes one
    turn within the trained length L makes one within T. The base never falls below b, and within L nothing changes.
    LongRoPE2 (arXiv 2502.20082) calls this rule NTK. For the smaller bases of the same paper see `critical_base`.

    Meant to be followed by fine-tuning: the paper takes 500000 for Llama 2 at 32768 tokens, Code Llama (arXiv
    2308.12950) 1000000. A model fine-tuned this way states its base in its own config, and needs no method.

    Args:
        base: the new b, above 1, the same at every length; None: by the law, for the length.
    """

    family: ClassVar[str] = "base"

    base: float | None = None

    def __post_init__(self) -> None:
        check_base("abf", self.base)

    def _base(self, model: Model, length: int) -> float:
        """The new base; Refused where it follows the length, and the trained length is below 7 tokens."""
        return base_for_length(model, length) if self.base is None else float(self.base)

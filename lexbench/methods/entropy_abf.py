"""Entropy-aware adjusted base frequency."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention, LogScale
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods.distances import check_count
from lexbench.methods.rotary import base_for_length, check_base, check_trained_length, with_trained_length


@dataclass(frozen=True)
class EntropyAbf:
    """A larger base in all layers, sharper queries in all but the first two (Zhang et al. 2024, arXiv 2401.07004).

        theta'_p = base^(-2p/d) in every layer
        q_i <- q_i max(1, ln(i + 1) / ln L) from layer 2 on, layers counted from 0

    It is `abf` with `log_n`, except that queries of the first layers do not change. The released code intends to exempt
    them, but sets a function that no attention layer uses, so it scales all layers: exempt_layers=0. The paper
    fine-tunes on 100 samples, with base 500000.

    Args:
        base: the new b, above 1, the same at every length; None: the base that fits the length, as in `abf`.
        exempt_layers: first layers whose queries stay as they are, at least 0.
        trained_length: L in tokens, above 1; None: the model's.
    """

    family: ClassVar[str] = "logits and heads"

    base: float | None = None
    exempt_layers: int = 2
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_base("entropy_abf", self.base)
        check_count("entropy_abf's exempt_layers", self.exempt_layers, "the paper takes 2", least=0)
        check_trained_length("entropy_abf", self.trained_length)

    def attention(self, model: Model, length: int) -> Attention:
        """Both changes, the second for the later layers; Refused unless the model has plain RoPE."""
        model = with_trained_length(model, self.trained_length)
        if model.trained_length < 2:
            raise Refused(f"entropy_abf needs a trained length of at least 2, {model.name} has 1: give trained_length")
        inv_freq = model.inv_freq(base_for_length(model, length) if self.base is None else self.base)
        sharpened = Attention(inv_freq=inv_freq, query_scale=LogScale(trained_length=model.trained_length))
        # A model may have fewer layers than are exempt.
        exempt = self.exempt_layers if model.layers is None else min(self.exempt_layers, model.layers)
        if not exempt:
            return sharpened
        # The first layers get the base alone, all others base and scale.
        return Attention(inv_freq=inv_freq, layers=tuple(range(exempt)), otherwise=sharpened)

"""Resonance RoPE: whole wavelengths."""

from dataclasses import dataclass, replace

import numpy as np

from lexbench.core.attention import Attention, Floats
from lexbench.core.model import Model


@dataclass(frozen=True)
class Resonance:
    """Round every wavelength to whole tokens (Wang et al. 2024, arXiv 2403.00071).

        theta'_p = 2 pi / max(1, round(2 pi / theta_p))

    A pair then repeats its angles exactly, so that what came round in training shows nothing new beyond it. It is a
    modifier: method=[yarn,resonance] rounds the wavelengths that YaRN has left, as the paper does, and everything else
    stays. Composition calls `over` with what the methods before it ask for, in place of `attention`.

    Alone it changes a model at every length: pair 0, of wavelength 2 pi, turns by 1.047 instead of 1 radian a token.
    """

    def attention(self, model: Model, length: int) -> Attention:
        """The model's own wavelengths, rounded; Refused unless it has plain RoPE."""
        return self.over(Attention(), model, length)

    def over(self, attention: Attention, model: Model, length: int) -> Attention:
        """The same attention with rounded wavelengths, in all its layers and passes; pairs that stand still stay.

        Where it sets no frequencies the model's own are rounded, and Refused unless it has plain RoPE. ValueError
        where frequencies change while a text is read (`dynamic`).
        """
        if attention.mixture is not None:
            return Attention(mixture=tuple(self.over(part, model, length) for part in attention.mixture))
        if attention.dynamic is not None:
            raise ValueError(
                "resonance needs frequencies that stand before the text begins, got dynamic: "
                "compose it with dynamic_ntk's policy=local_static"
            )
        frequencies = model.inv_freq() if attention.inv_freq is None else attention.inv_freq
        otherwise = attention.otherwise
        if attention.layers is not None:
            otherwise = self.over(otherwise or Attention(), model, length)
        return replace(attention, inv_freq=_rounded(frequencies), otherwise=otherwise)


def _rounded(frequencies: Floats) -> Floats:
    """[pairs] the nearest frequencies whose wavelengths are whole tokens; 0 stays 0."""
    with np.errstate(divide="ignore"):  # a pair that stands still has an endless wavelength
        wavelengths = np.round(2 * np.pi / frequencies)
    return np.asarray(2 * np.pi / np.maximum(wavelengths, 1.0))

"""Resonance RoPE: whole wavelengths."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench.core.attention import Attention, Floats
from lexbench.core.model import Model
from lexbench.methods.rotary import change_frequencies


@dataclass(frozen=True)
class Resonance:
    """Round every wavelength to whole tokens (Wang et al. 2024, arXiv 2403.00071).

        theta'_p = 2 pi / max(1, round(2 pi / theta_p))

    A pair then repeats its angles exactly, so a pair with a full turn in training meets no new angle beyond it. It is a
    modifier: method=yarn+resonance rounds YaRN's wavelengths, as the paper does, and changes nothing else.
    Composition calls `over` with the Attention of the methods before it, instead of `attention`.

    Alone it changes a model at every length: pair 0, of wavelength 2 pi, rotates by 1.047 radians per token, not 1.
    """

    family: ClassVar[str] = "interpolation"

    def attention(self, model: Model, length: int) -> Attention:
        """The model's own wavelengths, rounded; Refused unless it has plain RoPE."""
        return self.over(Attention(), model, length)

    def over(self, attention: Attention, model: Model, length: int) -> Attention:
        """Round the wavelengths of an Attention in all its layers and passes; pairs that do not rotate stay so.

        Where it has no frequencies, the model's own are rounded; Refused unless the model has plain RoPE. ConfigError
        where frequencies change while a text is read (`dynamic`).
        """
        return change_frequencies("resonance", attention, model, _round_wavelengths)


def _round_wavelengths(frequencies: Floats) -> Floats:
    """[pairs] the nearest frequencies whose wavelengths are whole tokens; 0 stays 0."""
    with np.errstate(divide="ignore"):  # the wavelength of a pair that does not rotate is infinite
        # Of a pair that does not rotate 2 pi / inf = 0 comes out again.
        wavelengths = np.round(2 * np.pi / frequencies)
    return np.asarray(2 * np.pi / np.maximum(wavelengths, 1.0))

import math
from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Attention, Dynamic, Floats, LogScale, PositionMap, Remap
from lexbench.methods.resonance import Resonance
from lexbench.methods.yarn import Yarn


def wavelengths(inv_freq: Floats | None) -> Floats:
    assert inv_freq is not None
    return 2 * np.pi / inv_freq


def test_every_wavelength_is_the_nearest_whole_number_of_tokens(llama2: Model) -> None:
    got = wavelengths(Resonance().attention(llama2, 10).inv_freq)
    own = [2 * math.pi * 10_000.0 ** (pair / 64) for pair in range(64)]
    np.testing.assert_allclose(got, np.rint(got), rtol=1e-14)
    assert np.abs(got - own).max() <= 0.5 + 1e-9
    assert got[0] == pytest.approx(6, rel=1e-14)


def test_angles_repeat_after_a_whole_number_of_tokens(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    inv_freq = frequencies(Resonance(), tiny, 10)
    for pair, period in enumerate((6, 63, 628, 6283)):
        assert math.cos(inv_freq[pair] * (5 + 9 * period)) == pytest.approx(math.cos(inv_freq[pair] * 5), abs=1e-9)


def test_over_another_method_it_rounds_what_that_left_and_keeps_the_rest(llama2: Model) -> None:
    yarn = Yarn(factor=8).attention(llama2, 1)
    got = Resonance().over(yarn, llama2, 1)
    assert set(got.slots()) == {"inv_freq", "scale"} and got.scale == yarn.scale
    np.testing.assert_allclose(wavelengths(got.inv_freq), np.rint(wavelengths(yarn.inv_freq)), rtol=1e-13)


def test_without_frequencies_the_models_own_are_rounded_and_other_slots_stay(tiny: Model) -> None:
    asked = Attention(
        query_scale=LogScale(trained_length=16),
        remap=Remap(window=4, query=PositionMap(), key=PositionMap()),
        keep_first=None,
    )
    got = Resonance().over(asked, tiny, 64)
    np.testing.assert_allclose(wavelengths(got.inv_freq), [6, 63, 628, 6283], rtol=1e-14)
    assert got.query_scale is asked.query_scale and got.remap is asked.remap


def test_all_layers_and_passes_are_rounded(tiny: Model) -> None:
    slow = Attention(inv_freq=tiny.inv_freq() / 2)
    layered = Resonance().over(Attention(inv_freq=slow.inv_freq, layers=(0, 1)), tiny, 64)
    np.testing.assert_allclose(wavelengths(layered.at(1).inv_freq), [13, 126, 1257, 12566], rtol=1e-14)
    np.testing.assert_allclose(wavelengths(layered.at(2).inv_freq), [6, 63, 628, 6283], rtol=1e-14)
    mixed = Resonance().over(Attention(mixture=(slow, Attention())), tiny, 64).mixture
    assert mixed is not None
    np.testing.assert_allclose(wavelengths(mixed[0].inv_freq), [13, 126, 1257, 12566], rtol=1e-14)
    np.testing.assert_allclose(wavelengths(mixed[1].inv_freq), [6, 63, 628, 6283], rtol=1e-14)


def test_pairs_that_stand_still_stay_and_the_fastest_turn_once_a_token(tiny: Model) -> None:
    asked = Attention(inv_freq=np.array([20.0, 0.1, 0.0, 0.0]))
    got = Resonance().over(asked, tiny, 64).inv_freq
    assert got is not None
    np.testing.assert_allclose(got, [2 * math.pi, 2 * math.pi / 63, 0, 0], rtol=1e-14)


def test_frequencies_that_change_while_a_text_is_read_are_refused(tiny: Model) -> None:
    with pytest.raises(
        ValueError, match="resonance needs frequencies that are fixed before the text begins, got dynamic"
    ):
        Resonance().over(Attention(dynamic=Dynamic(factor=2, trained_length=16)), tiny, 64)

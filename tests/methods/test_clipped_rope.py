from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Attention, Dynamic, Floats
from lexbench.methods.clipped_rope import ClippedRope
from lexbench.methods.hope import Hope
from lexbench.methods.yarn import Yarn


def test_llama_3_has_29_pairs_without_a_full_turn_and_clips_these(frequencies: Callable[..., Floats]) -> None:
    # 64 ln(8192 / 2 pi) / ln 500000 is 34.98: pairs 35 to 63 did not come round.
    model = Model(name="llama3", trained_length=8192, head_dim=128, rope_base=500_000.0)
    ratio = frequencies(ClippedRope(), model, 10) / model.inv_freq()
    assert (ratio[:36] == 1).all() and ratio[36] < 1 and ratio[63] == 0
    assert ratio[49] == pytest.approx(0.5)  # the middle of 29
    np.testing.assert_allclose(ratio[35:] + ratio[35:][::-1], np.ones(29), rtol=1e-12)


def test_the_taper_is_the_half_of_hanns_window(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    got = frequencies(ClippedRope(clipped_pairs=3), tiny, 10)
    np.testing.assert_allclose(got, [1, 0.1, 0.01 * 0.5, 0], rtol=1e-14)
    np.testing.assert_allclose(
        frequencies(ClippedRope(clipped_pairs=4), tiny, 10), tiny.inv_freq() * np.hanning(7)[3:], atol=1e-17
    )
    assert (frequencies(ClippedRope(clipped_pairs=1), tiny, 10) == tiny.inv_freq()).all()
    assert (frequencies(ClippedRope(clipped_pairs=99), tiny, 10) == frequencies(ClippedRope(4), tiny, 10)).all()


def test_it_begins_where_hope_stops(llama2: Model, frequencies: Callable[..., Floats]) -> None:
    stopped = frequencies(Hope(), llama2, 10) == 0
    changed = frequencies(ClippedRope(), llama2, 10) != llama2.inv_freq()
    assert changed.sum() == stopped.sum() - 1 and not (changed & ~stopped).any()  # the first stays


def test_a_trained_length_beyond_all_periods_is_the_model(tiny: Model, frequencies: Callable[..., Floats]) -> None:
    assert (frequencies(ClippedRope(trained_length=6284), tiny, 10) == tiny.inv_freq()).all()


def test_over_yarn_it_tapers_what_that_left_by_the_models_own_periods(llama2: Model) -> None:
    yarn = Yarn(factor=8).attention(llama2, 1)
    got, own = ClippedRope().over(yarn, llama2, 1), ClippedRope().attention(llama2, 1)
    assert got.scale == yarn.scale and got.inv_freq is not None and own.inv_freq is not None
    np.testing.assert_allclose(got.inv_freq, yarn.inv_freq * own.inv_freq / llama2.inv_freq(), rtol=1e-13)  # type: ignore[operator]
    mixed = ClippedRope().over(Attention(mixture=(yarn, Attention())), llama2, 1).mixture
    assert mixed is not None
    np.testing.assert_array_equal(mixed[0].inv_freq, got.inv_freq)


def test_wrong_arguments_are_refused(tiny: Model) -> None:
    with pytest.raises(ValueError, match="clipped_rope's clipped_pairs must be at least 1, got 0"):
        ClippedRope(clipped_pairs=0)
    with pytest.raises(ValueError, match="clipped_rope's trained_length must be at least 1, got 0"):
        ClippedRope(trained_length=0)
    with pytest.raises(ValueError, match=r"clipped_rope needs frequencies that are fixed .* got dynamic"):
        ClippedRope().over(Attention(dynamic=Dynamic(2.0, 16)), tiny, 64)

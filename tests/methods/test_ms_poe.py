import math

import pytest

from lexbench import Model, Refused
from lexbench.methods.ms_poe import MsPoe
from tests.methods.remaps import trained_on


def ratios(method: MsPoe, model: Model, length: int = 64) -> tuple[float, ...]:
    head_ratios = method.attention(model, length).head_ratios
    assert head_ratios is not None
    return head_ratios.ratios


def test_ratios_climb_in_equal_steps_whatever_the_length() -> None:
    for length in (4, 64):
        assert ratios(MsPoe(), trained_on(16, heads=4, layers=3), length) == pytest.approx((1.2, 1.4, 1.6, 1.8))
    given = MsPoe(low=0.5, high=2, first_layer=0)
    assert ratios(given, trained_on(16, heads=3)) == pytest.approx((0.5, 1.25, 2.0))


def test_shared_keys_have_one_ratio() -> None:
    assert ratios(MsPoe(), trained_on(16, heads=8, kv_heads=2, layers=3)) == pytest.approx((1.2, 1.8))
    assert ratios(MsPoe(), trained_on(16, heads=8, kv_heads=1, layers=3)) == pytest.approx((1.2,))


def test_ratios_of_one_are_the_model() -> None:
    assert ratios(MsPoe(low=1, high=1), trained_on(16, heads=4, layers=3)) == (1, 1, 1, 1)


def test_the_threshold_is_handed_on() -> None:
    for method, threshold in ((MsPoe(), 3.0), (MsPoe(threshold=4), 4.0)):
        head_ratios = method.attention(trained_on(16, heads=4, layers=3), 64).head_ratios
        assert head_ratios is not None
        assert head_ratios.threshold == threshold


def test_the_first_two_layers_are_left_alone() -> None:
    model = trained_on(16, heads=4, layers=5)
    assert MsPoe().attention(model, 64).layers == (2, 3, 4)
    assert MsPoe(first_layer=4).attention(model, 64).layers == (4,)
    assert MsPoe(first_layer=0).attention(model, 64).layers is None


def test_models_of_too_few_layers_are_refused() -> None:
    with pytest.raises(Refused, match="begins at layer 2, known has 2 layers: give first_layer=0"):
        MsPoe().attention(trained_on(16, heads=4, layers=2), 64)
    with pytest.raises(Refused, match="known has no known number of layers"):
        MsPoe().attention(trained_on(16, heads=4), 64)


def test_unknown_heads_are_refused() -> None:
    with pytest.raises(Refused, match=r"ms_poe needs the number of heads, known states none: give model\.kv_heads"):
        MsPoe().attention(trained_on(16, layers=4), 64)


def test_models_that_scale_their_angles_keep_them() -> None:
    model = trained_on(16, heads=4, layers=4, rope_scaling={"rope_type": "yarn"})
    assert MsPoe().attention(model, 64).slots() == ("head_ratios", "layers")


def test_bad_parameters_are_refused() -> None:
    for low, high in ((0, 1), (2, 1), (1, math.inf), (math.nan, 1)):
        with pytest.raises(ValueError, match="ms_poe needs 0 < low <= high"):
            MsPoe(low=low, high=high)
    for threshold in (0, math.inf):
        with pytest.raises(ValueError, match="ms_poe's threshold must be finite and above 0"):
            MsPoe(threshold=threshold)
    with pytest.raises(ValueError, match="ms_poe's first_layer must be a whole number of at least 0, got -1"):
        MsPoe(first_layer=-1)

import numpy as np
import pytest

from lexbench import Model
from lexbench.methods.rerope import Rerope
from tests.methods.remaps import distances, plain


def test_a_window_above_the_length_is_the_model(llama2: Model) -> None:
    np.testing.assert_array_equal(distances(Rerope(), llama2, 40), plain(40))
    np.testing.assert_array_equal(distances(Rerope(window=40), llama2, 40), plain(40))


@pytest.mark.parametrize("window", [1, 4, 30])
def test_no_distance_is_above_the_window(tiny: Model, window: int) -> None:
    expected = [[min(i - j, window) if j <= i else -1 for j in range(64)] for i in range(64)]
    np.testing.assert_array_equal(distances(Rerope(window=window), tiny, 64), expected)


def test_the_window_left_out_is_half_the_trained_length(llama2: Model) -> None:
    assert distances(Rerope(), llama2, 2100).max() == 2048


def test_models_with_several_kinds_of_rotary_layers_are_remapped() -> None:
    layers = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    model = Model(name="mixed", trained_length=64, head_dim=8, rope_scaling=layers)
    assert distances(Rerope(), model, 100).max() == 32


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rerope's window must be a whole number of at least 1, got 0"):
        Rerope(window=0)

import numpy as np
import pytest

from lexbench import Model
from lexbench.methods.bca import Bca
from tests.methods.remaps import distances, plain, trained_on


@pytest.mark.parametrize("block", [1, 4, 7])
def test_the_own_block_and_the_one_before_are_seen(tiny: Model, block: int) -> None:
    expected = [[i - j if max(0, (i // block - 1) * block) <= j <= i else -1 for j in range(30)] for i in range(30)]
    np.testing.assert_array_equal(distances(Bca(block=block), tiny, 30), expected)


def test_left_out_the_block_is_half_the_trained_length(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(Bca(), tiny, 16), plain(16))
    seen = distances(Bca(), tiny, 64)
    assert seen.max() == 15
    # Rows of a full block see 9 to 16 keys: 12.5 on average.
    assert (seen[8:] >= 0).sum(1).mean() == 12.5
    assert distances(Bca(), trained_on(1), 5).max() == 1


def test_any_model_can_have_blocks(nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        assert Bca().attention(model, 1024).slots() == ("mask",)


def test_a_block_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="bca's block must be a whole number of at least 1, got 0"):
        Bca(block=0)

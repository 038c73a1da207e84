import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.dca import Dca
from tests.methods.remaps import distances, plain, trained_on


@pytest.mark.parametrize("chunk", [1, 5, 12, 15])
def test_keys_stand_inside_chunks_and_queries_further_back(tiny: Model, chunk: int) -> None:
    expected = np.full((50, 50), -1)
    for i in range(50):
        for j in range(i + 1):
            apart, inside = i // chunk - j // chunk, i % chunk
            asking = inside if apart == 0 else min(inside + chunk, 15) if apart == 1 else 15
            expected[i, j] = asking - j % chunk
    np.testing.assert_array_equal(distances(Dca(chunk=chunk), tiny, 50), expected)


def test_left_out_the_chunk_is_three_quarters_of_the_trained_length(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(Dca(), tiny, 12), plain(12))
    assert distances(Dca(), tiny, 200).max() == 15
    assert Dca().attention(tiny, 200).as_data()["remap"] == {"kind": "Chunks", "size": 12, "limit": 15}


def test_the_last_keys_are_where_they_are(tiny: Model) -> None:
    seen = distances(Dca(), tiny, 60)
    for rel in range(16 - 12):
        assert (np.diagonal(seen, -rel) == rel).all()


def test_up_to_a_chunk_it_is_the_model(tiny: Model) -> None:
    np.testing.assert_array_equal(distances(Dca(chunk=7), tiny, 7), plain(7))


def test_a_chunk_as_long_as_the_trained_length_is_refused(tiny: Model) -> None:
    with pytest.raises(Refused, match="dca's chunk must be below the 16 tokens that tiny knows, got 16"):
        Dca(chunk=16).attention(tiny, 64)
    with pytest.raises(Refused, match="below the 1 tokens"):
        Dca().attention(trained_on(1), 4)
    assert distances(Dca(), trained_on(2), 9).max() == 1


def test_a_chunk_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="dca's chunk must be a whole number of at least 1, got 0"):
        Dca(chunk=0)

import numpy as np
import pytest

from lexbench import Model
from lexbench.methods.streaming_llm import StreamingLlm
from tests.methods.remaps import distances, plain, trained_on


def rolled(length: int, sinks: int, window: int) -> np.ndarray:
    """A cache that is really filled and evicted, token by token; positions are places in it."""
    seen, cache = np.full((length, length), -1), []
    for query in range(length):
        cache.append(query)
        if len(cache) > sinks + window:
            del cache[sinks]
        for place, key in enumerate(cache):
            seen[query, key] = len(cache) - 1 - place
    return seen


@pytest.mark.parametrize(("sinks", "window"), [(2, 4), (0, 5), (4, 1), (1, 1), (4, 12), (3, 40)])
def test_distances_are_those_inside_a_rolling_cache(tiny: Model, sinks: int, window: int) -> None:
    seen = distances(StreamingLlm(sinks=sinks, window=window), tiny, 30)
    np.testing.assert_array_equal(seen, rolled(30, sinks, window))


@pytest.mark.parametrize(("sinks", "length"), [(4, 16), (2, 16), (0, 16), (4, 7)])
def test_until_the_cache_is_full_it_is_the_model(tiny: Model, sinks: int, length: int) -> None:
    np.testing.assert_array_equal(distances(StreamingLlm(sinks=sinks), tiny, length), plain(length))


def test_left_out_the_window_fills_the_trained_length(tiny: Model) -> None:
    seen = distances(StreamingLlm(), tiny, 50)
    assert seen.max() == 15
    np.testing.assert_array_equal((seen >= 0).sum(1), [min(row + 1, 16) for row in range(50)])


def test_a_trained_length_of_fewer_tokens_than_sinks_keeps_one_more() -> None:
    np.testing.assert_array_equal(distances(StreamingLlm(), trained_on(3), 20), rolled(20, 4, 1))


def test_models_that_scale_their_angles_keep_them(scaled: Model) -> None:
    assert StreamingLlm().attention(scaled, 8192).slots() == ("remap", "mask")


def test_bad_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="streaming_llm's sinks must be a whole number of at least 0, got -1"):
        StreamingLlm(sinks=-1)
    with pytest.raises(ValueError, match="streaming_llm's window must be a whole number of at least 1, got 0"):
        StreamingLlm(window=0)

import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.core.attention import seen_distances
from lexbench.methods.adagrope import Adagrope
from tests.methods.remaps import distances, plain, trained_on

# 16 positions, r = 1/4: r_1 = 4, r_2 = 2, r_4 = 1. Times that positions 0 .. 15 occur, worked out by hand:
# M_1 = 16, M_2 = 32 - 4 = 28, M_3 = 48 - 8 - 2 = 38, M_4 = 64 - 12 - 4 = 48, M_5 = 80 - 16 - 6 - 1 = 57.
TIMES = {
    16: [1] * 16,
    17: [1] * 15 + [2],
    27: [1] * 5 + [2] * 11,
    28: [1] * 4 + [2] * 12,
    30: [1] * 4 + [2] * 10 + [3] * 2,
    38: [1] * 4 + [2] * 2 + [3] * 10,
    40: [1] * 4 + [2] * 2 + [3] * 8 + [4] * 2,
    56: [1] * 4 + [2] * 2 + [4] * 2 + [5] * 8,
    57: [1] * 4 + [2] * 2 + [4] * 1 + [5] * 9,
    60: [1] * 4 + [2] * 2 + [4] * 1 + [5] * 6 + [6] * 3,
}


@pytest.mark.parametrize("length", TIMES)
def test_positions_far_away_stand_for_more_tokens(tiny: Model, length: int) -> None:
    places = np.repeat(np.arange(16), TIMES[length])
    assert len(places) == length
    expected = [[places[i - j] if j <= i else -1 for j in range(length)] for i in range(length)]
    np.testing.assert_array_equal(distances(Adagrope(), tiny, length), expected)


@pytest.mark.parametrize("reuse", [0.02, 0.25, 0.33, 0.5])
@pytest.mark.parametrize("length", [100, 101, 333, 2000])
def test_every_position_is_used_and_the_last_query_sees_them_all(reuse: float, length: int) -> None:
    remap = Adagrope(reuse=reuse, positions=64).attention(trained_on(100), length).remap
    [last] = seen_distances(remap, np.array([length - 1]), np.arange(length))
    times = np.bincount(last.astype(int))
    assert len(times) == 64
    assert (np.diff(times) >= 0).all()
    alone = int(reuse * 64)
    # While each token beyond 64 repeats one more position, the others stay alone; from M_2 on only r_1 of them do.
    assert (times == 1).sum() == (alone if length >= 2 * 64 - alone else 64 - (length - 64))


@pytest.mark.parametrize("length", [1, 5, 16])
def test_within_its_positions_it_is_the_model(tiny: Model, length: int) -> None:
    np.testing.assert_array_equal(distances(Adagrope(), tiny, length), plain(length))


def test_fewer_positions_can_be_used_than_were_trained(tiny: Model) -> None:
    # P = 8: r_1 = 2, M_2 = 16 - 2.
    np.testing.assert_array_equal(
        distances(Adagrope(positions=8), tiny, 14)[-1][::-1], [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    )


def test_a_quarter_of_the_positions_stands_alone(llama2: Model) -> None:
    assert Adagrope().attention(llama2, 32768).as_data()["remap"]["steps"][:3] == [[1024, 1], [512, 2], [256, 4]]


def test_more_positions_than_were_trained_are_refused(tiny: Model) -> None:
    with pytest.raises(Refused, match="adagrope's positions must be at most the 16 that tiny knows, got 17"):
        Adagrope(positions=17).attention(tiny, 64)


def test_bad_parameters_are_refused() -> None:
    for reuse in (0, -0.1, 0.51):
        with pytest.raises(ValueError, match=r"adagrope's reuse must be above 0 and at most 0\.5"):
            Adagrope(reuse=reuse)
    with pytest.raises(ValueError, match="adagrope's positions must be a whole number of at least 1, got 0"):
        Adagrope(positions=0)

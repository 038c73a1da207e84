import numpy as np
import pytest

from lexbench import Model, Refused
from lexbench.methods.log_n import LogN


def scales(method: LogN, model: Model, positions: list[int]) -> list[float]:
    scale = method.attention(model, 64).query_scale
    assert scale is not None
    return [float(value) for value in scale(np.asarray(positions))]


def test_queries_within_the_trained_length_are_left_alone(tiny: Model) -> None:
    assert scales(LogN(), tiny, list(range(16))) == [1.0] * 16


def test_the_square_of_the_trained_length_doubles_queries(tiny: Model, llama2: Model) -> None:
    assert scales(LogN(), tiny, [31, 63, 255]) == pytest.approx([5 / 4, 6 / 4, 8 / 4], rel=1e-14)
    assert scales(LogN(), llama2, [8191, 4096**2 - 1]) == pytest.approx([13 / 12, 2], rel=1e-14)


def test_unclipped_short_queries_shrink(tiny: Model) -> None:
    assert scales(LogN(clip=False), tiny, [0, 1, 3, 15, 63]) == pytest.approx([0, 1 / 4, 2 / 4, 1, 6 / 4], rel=1e-14)


def test_a_trained_length_given_takes_the_place_of_the_models(llama2: Model) -> None:
    assert scales(LogN(trained_length=8), llama2, [7, 63]) == pytest.approx([1, 2], rel=1e-14)


@pytest.mark.parametrize("name", ["nope", "scaled", "partial"])
def test_only_queries_change_whatever_the_encoding(name: str, request: pytest.FixtureRequest) -> None:
    assert LogN().attention(request.getfixturevalue(name), 4096).slots() == ("query_scale",)


def test_a_trained_length_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="log_n's trained_length must be at least 2, got 1"):
        LogN(trained_length=1)
    with pytest.raises(Refused, match="at least 2, stub has 1"):
        LogN().attention(Model(name="stub", trained_length=1, head_dim=8), 64)


def test_a_power_sharpens_more_or_not_at_all(tiny: Model) -> None:
    assert scales(LogN(power=2), tiny, [15, 63, 255]) == pytest.approx([1, 9 / 4, 4], rel=1e-14)
    assert scales(LogN(power=0, clip=False), tiny, [0, 3, 255]) == [1.0] * 3
    assert LogN().attention(tiny, 64).as_data() == LogN(power=1.0).attention(tiny, 64).as_data()
    assert "power" not in str(LogN().attention(tiny, 64).as_data())
    with pytest.raises(ValueError, match="log_n's power must be finite and at least 0, got -1"):
        LogN(power=-1)

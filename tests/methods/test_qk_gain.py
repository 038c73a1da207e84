import math

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import ConstantScale, SlotError
from lexbench.methods.qk_gain import QkGain


def scales(method: QkGain, model: Model, length: int) -> list[float]:
    scale = method.attention(model, length).query_scale
    assert scale is not None
    return [float(value) for value in scale(np.arange(length))]


def test_queries_beyond_the_trained_length_have_the_gain(tiny: Model) -> None:
    assert scales(QkGain(gain=1.3), tiny, 20) == [1.0] * 16 + [1.3] * 4


def test_everywhere_the_first_query_has_it_too(tiny: Model) -> None:
    assert scales(QkGain(gain=1.57, everywhere=True), tiny, 20) == [1.57] * 20
    assert scales(QkGain(gain=1.57, everywhere=True), tiny, 4) == [1.57] * 4


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_gain_of_one_changes_nothing(tiny: Model, everywhere: bool) -> None:
    assert scales(QkGain(gain=1, everywhere=everywhere), tiny, 20) == [1.0] * 20


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_default_changes_nothing_within_the_trained_length(tiny: Model, everywhere: bool) -> None:
    assert scales(QkGain(everywhere=everywhere), tiny, 16) == [1.0] * 16


@pytest.mark.parametrize(("stretch", "published"), [(8, 1.57), (32, 1.75)])
def test_the_default_is_marins_formula_over_its_trained_gain(llama2: Model, stretch: int, published: float) -> None:
    found = QkGain().attention(llama2, stretch * 4096).query_scale
    assert isinstance(found, ConstantScale) and found.begin == 4096
    assert 1.3 * found.factor == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize("name", ["nope", "scaled", "partial"])
def test_only_queries_change_whatever_the_encoding(name: str, request: pytest.FixtureRequest) -> None:
    assert QkGain().attention(request.getfixturevalue(name), 4096).slots() == ("query_scale",)


@pytest.mark.parametrize("gain", [0, -1.3, math.inf, math.nan])
def test_a_gain_that_is_no_finite_number_above_0_is_refused(gain: float) -> None:
    with pytest.raises(ValueError, match=r"qk_gain's gain must be finite and above 0, got .*: leave it out"):
        QkGain(gain=gain)
    with pytest.raises(SlotError, match="query_scale needs a finite gain above 0"):
        ConstantScale(gain)

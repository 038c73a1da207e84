"""Public faults that are planted in models are named as the page has it; healthy models of many families pass."""

import pytest
import torch

import lexbench
from lexbench import Model, RopeMismatch
from lexbench.backends.hf.exact.assert_rope import assert_rope
from tools.attention_faults import BENCHMARKS, COUNTED, FAULTS, LIST, read_list, verdict_of
from tools.engine_rope import (
    DIMS,
    LENGTH,
    PLAIN,
    TRAINED,
    EngineRotary,
    by_fast_math,
    false_alarms,
    frequencies,
    in_float32,
    model_with,
)


@pytest.mark.everyday("F07", "F17", "F19", *(f"F{number}" for number in range(22, 37)))
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", COUNTED)
def test_a_public_fault_is_named_as_the_page_has_it(name: str) -> None:
    page = (BENCHMARKS / LIST).read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    verdict = verdict_of(FAULTS[name])
    assert row.split(" | ")[4] == verdict.word, verdict.said


def test_every_row_of_the_list_is_planted() -> None:
    assert {name[:3] for name in FAULTS} == {*read_list()}


@pytest.mark.everyday("assert_rope")
@pytest.mark.parametrize("check", ["assert_rope", "assert_attention"])
def test_forty_healthy_setups_pass(check: str) -> None:
    assert false_alarms(getattr(lexbench, check)) == (40, [])


def test_fast_math_is_found_by_the_error_that_its_thread_states() -> None:
    """imp#1325 measured 1e-2 at position 131,071, where an angle is the position itself."""
    module = EngineRotary(model_with(PLAIN, "qwen3").config, frequencies(1e6), by_fast_math)
    with pytest.raises(RopeMismatch, match="in fast arithmetic") as found:
        assert_rope(module, length=131_072)
    assert found.value.pair == 0 and found.value.difference == pytest.approx(1e-2, rel=0.5)


def test_rounding_of_inexact_frequencies_is_no_fast_math() -> None:
    """A third of a radian a token is no number of float32: its angles are rounded on any machine."""
    facts = Model(name="mine", trained_length=LENGTH, head_dim=DIMS, rope_base=1e4)
    module = EngineRotary(None, frequencies(1e4) / 3, in_float32)
    assert_rope(module, "pi", factor=3, length=131_072, facts=facts)


def test_dynamic_scaling_for_one_length_is_named_by_that_length() -> None:
    """vLLM before its PR 41277: s L' / L - (s - 1) with L' = s L, whatever the text's length."""
    factor = 4.0
    config = model_with({"rope_type": "dynamic", "rope_theta": 1e4, "factor": factor}).config
    base = 1e4 * (factor * factor - (factor - 1)) ** (DIMS / (DIMS - 2))
    module = EngineRotary(config, frequencies(base), in_float32)
    assert_rope(module, "dynamic_ntk", factor=factor, length=4 * TRAINED, trained_length=TRAINED)
    with pytest.raises(RopeMismatch) as found:
        assert_rope(module, "dynamic_ntk", factor=factor, length=8 * TRAINED, trained_length=TRAINED)
    assert found.value.cause == "scaling by length (dynamic) is fixed: angles are those of 8,192 tokens, not 16,384"


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_a_scaling_that_does_not_follow_the_length_is_not_called_dynamic(kind: str) -> None:
    facts = Model(name="mine", trained_length=TRAINED, head_dim=DIMS, rope_base=1e4)
    with pytest.raises(RopeMismatch, match=r"Likely cause: scaling not applied"):
        assert_rope(EngineRotary(None, frequencies(1e4), in_float32), kind, factor=4, length=LENGTH, facts=facts)


def test_float16_is_told_through_frequencies_that_are_near_a_half_of_its_numbers() -> None:
    """Frequencies that are off by some roundings of float32, but for the first, which is 1."""
    facts = Model(name="mine", trained_length=LENGTH, head_dim=DIMS, rope_base=1e7)

    def computed(positions: torch.Tensor, inv_freq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(positions.float(), inv_freq.float()).half().float()
        return angles.cos(), angles.sin()

    exact = torch.tensor([1e7 ** (-2 * pair / DIMS) for pair in range(DIMS // 2)], dtype=torch.float64)
    for off in (-3.0, 0.0, 3.0):
        inv_freq = exact * (1 + off * 2.0**-24)
        inv_freq[0] = 1.0
        module = EngineRotary(None, inv_freq, computed)
        with pytest.raises(RopeMismatch) as found:
            assert_rope(module, length=60_000, facts=facts)
        assert found.value.cause == "angles computed in float16"

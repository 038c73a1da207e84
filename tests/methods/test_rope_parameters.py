"""What methods call themselves in transformers' config gives the frequencies and the scale that they ask for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lexbench import Attention, Model, Refused
from lexbench.core.attention import Floats
from lexbench.core.record import Deferred
from lexbench.methods import export
from lexbench.methods.abf import Abf
from lexbench.methods.critical_base import CriticalBase
from lexbench.methods.dynamic_ntk import DynamicNtk
from lexbench.methods.llama3 import Llama3
from lexbench.methods.longrope import Longrope
from lexbench.methods.longrope2 import Longrope2
from lexbench.methods.none import NoMethod
from lexbench.methods.ntk import Ntk
from lexbench.methods.ntk_old import NtkOld
from lexbench.methods.p_rope import PRope
from lexbench.methods.pi import Pi
from lexbench.methods.yarn import Yarn

MODELS = [
    Model(name="tiny", trained_length=16, head_dim=8, rope_base=10_000.0),
    Model(name="wide", trained_length=8192, head_dim=128, rope_base=500_000.0),
    Model(name="quarter", trained_length=2048, head_dim=64, rotary_dim=16, rope_base=10_000.0),
    Model(name="odd", trained_length=256, head_dim=44, rotary_dim=30, rope_base=10_000.0),
]
WHOLE = [
    ("default", NoMethod()),
    ("linear", Pi()),
    ("linear", Pi(factor=5)),
    ("default", Ntk()),
    ("default", Ntk(factor=5)),
    ("default", NtkOld()),
    ("default", NtkOld(factor=5)),
    ("default", Abf()),
    ("default", Abf(base=700_000)),
    ("default", CriticalBase(divisor=1)),
    ("default", CriticalBase(divisor=2)),
    ("default", DynamicNtk()),
    ("default", DynamicNtk(factor=3, trained_length=12)),
    ("default", DynamicNtk(policy="static", target_length=100_000)),
    ("yarn", Yarn()),
    ("yarn", Yarn(factor=5, beta_fast=64, beta_slow=2, truncate=False)),
    ("yarn", Yarn(attention_factor=1, trained_length=12)),
    ("llama3", Llama3()),
    ("llama3", Llama3(low_freq_factor=2, high_freq_factor=8)),
    ("llama3", Llama3(factor=5, low_freq_factor=2, high_freq_factor=8, trained_length=12)),
    ("longrope", Longrope()),
    ("longrope", Longrope(factor=5, trained_length=12)),
    ("longrope", Longrope(attention_factor=2)),
    ("longrope", Longrope2()),
    ("longrope", Longrope2(factor=5, critical_pair=2, attention_factor=1.5, trained_length=12)),
]


def theirs(model: Model, rope: dict[str, Any], length: int, longest: int | None = None) -> tuple[Floats, float]:
    """Frequencies and scale that transformers computes from the parameters alone, for a text of this length."""
    from transformers import GPTNeoXConfig, LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parts, whole = (GPTNeoXConfig, GPTNeoXRotaryEmbedding), (LlamaConfig, LlamaRotaryEmbedding)
    kind, module = whole if model.rotated == model.head_dim else parts
    config = kind(
        hidden_size=2 * model.head_dim,
        num_attention_heads=2,
        max_position_embeddings=longest or length,
        rope_parameters=dict(rope),
    )
    if rope["rope_type"] == "default":
        inv_freq, scale = module.compute_default_rope_parameters(config)
    else:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=length)
    return inv_freq.double().numpy(), scale


def assert_same(attention: Attention, model: Model, got: tuple[Floats, float]) -> None:
    expected = model.inv_freq() if attention.inv_freq is None else attention.inv_freq
    np.testing.assert_allclose(got[0], expected, rtol=2e-6, atol=0)
    assert got[1] == pytest.approx(attention.scale or 1.0, rel=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(("kind", "method"), WHOLE, ids=lambda value: value if isinstance(value, str) else repr(value))
def test_transformers_computes_the_methods_own_numbers(kind: str, method: Any, model: Model) -> None:
    for length in (model.trained_length // 2, model.trained_length, model.trained_length + 1, 6 * model.trained_length):
        rope = method.rope_parameters(model, length)
        assert rope["rope_type"] == kind
        assert ("partial_rotary_factor" in rope) == (model.rotated < model.head_dim)
        assert_same(method.attention(model, length), model, theirs(model, rope, length))


@pytest.mark.parametrize("length", [15, 16, 17, 64])
def test_searched_factors_are_said_for_short_and_long_texts(length: int) -> None:
    method = Longrope([1, 2, 3.5, 4.25], [1, 1.05, 1.1, 1.15], factor=4)
    rope = method.rope_parameters(MODELS[0], 999)
    assert (rope["short_factor"], rope["long_factor"]) == ([1, 1.05, 1.1, 1.15], [1, 2, 3.5, 4.25])
    assert_same(method.attention(MODELS[0], length), MODELS[0], theirs(MODELS[0], rope, length))


@pytest.mark.parametrize("fraction", [0.25, 0.74, 0.75, 1.0])
def test_p_rope_is_proportional_in_whole_heads(fraction: float) -> None:
    method = PRope(fraction=fraction)
    for model in MODELS[:2]:
        rope = method.rope_parameters(model, 99)
        assert rope["rope_type"] == "proportional" and rope["partial_rotary_factor"] == fraction
        assert_same(method.attention(model, 99), model, theirs(model, rope, 99))
    with pytest.raises(Refused, match="proportional is for whole heads, quarter rotates 16 of 64 dimensions"):
        method.rope_parameters(MODELS[2], 99)


def test_hf_dynamic_is_dynamic_with_the_trained_length_in_the_config() -> None:
    method = DynamicNtk(factor=3, policy="hf_dynamic")
    for model in MODELS:
        rope = method.rope_parameters(model, 99)
        assert (rope["rope_type"], rope["factor"]) == ("dynamic", 3)
        for length in (model.trained_length, 3 * model.trained_length):
            got = theirs(model, rope, length, longest=model.trained_length)
            assert_same(DynamicNtk(factor=3).attention(model, length), model, got)


def test_a_ramp_without_width_has_a_name_but_one_that_runs_backwards_has_none() -> None:
    # 8 ln(6 / 2 pi) / (2 ln 10000) is -0.02, rounded up 0: both ends are pair 0. With 2 tokens it is -0.5, also 0;
    # unrounded it stays below.
    for length in (6, 2):
        model = Model(name="short", trained_length=length, head_dim=8, rope_base=10_000.0)
        rope = Yarn(factor=2).rope_parameters(model, 12)
        assert_same(Yarn(factor=2).attention(model, 12), model, theirs(model, rope, 12))
    with pytest.raises(Refused, match=r"transformers' yarn has no ramp from pair 0 to pair -0\.49"):
        Yarn(factor=2, truncate=False).rope_parameters(model, 12)


def test_start_tokens_have_no_name() -> None:
    with pytest.raises(Refused, match="transformers' longrope has no start tokens: give start_tokens=0"):
        Longrope(start_tokens=4).rope_parameters(MODELS[0], 64)


@pytest.mark.parametrize(("kind", "method"), [*WHOLE, ("proportional", PRope())], ids=lambda value: str(value))
def test_models_without_plain_rope_have_no_name(kind: str, method: Any, nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        with pytest.raises(Refused, match=model.name):
            method.rope_parameters(model, 1024)


@dataclass(frozen=True)
class Own:
    """A method of one's own with rope parameters that are none."""

    gives: Any

    def attention(self, model: Model, length: int) -> Attention:
        return Attention(inv_freq=model.inv_freq() / 2)

    def rope_parameters(self, model: Model, length: int) -> Any:
        return self.gives[0]


@pytest.mark.parametrize("gives", [5, {"factor": 2.0}, ["rope_type"]], ids=str)
def test_rope_parameters_that_are_none_are_said_in_a_line(gives: Any) -> None:
    with pytest.raises(ValueError, match=r"^Own\.rope_parameters must return rope parameters") as error:
        export.as_data(Own([gives]), "own", MODELS[1], 16384, "transformers")
    assert str(error.value).endswith(f"got {gives!r}")


def test_rope_parameters_that_fail_are_said_in_a_line() -> None:
    with pytest.raises(Deferred, match=r"^Own\.rope_parameters fails with IndexError"):
        export.as_data(Own([]), "own", MODELS[1], 16384, "transformers")

"""Models whose numbers are known, and what transformers computes for them."""

from collections.abc import Callable

import numpy as np
import pytest

from lexbench import Attention, Model
from lexbench.core.attention import Floats
from lexbench.methods.composition import Method


@pytest.fixture
def tiny() -> Model:
    """Four pairs with frequencies 1, 0.1, 0.01, 0.001."""
    return Model(name="tiny", trained_length=16, head_dim=8, rope_base=10_000.0)


@pytest.fixture
def llama2() -> Model:
    return Model(
        name="Llama-2", trained_length=4096, head_dim=128, rope_base=10_000.0, layers=32, heads=32, kv_heads=32
    )


@pytest.fixture
def llama3_1() -> Model:
    return Model(name="Llama-3.1", trained_length=8192, head_dim=128, rope_base=500_000.0)


@pytest.fixture
def gpt_oss() -> Model:
    return Model(name="gpt-oss", trained_length=4096, head_dim=64, rope_base=150_000.0)


@pytest.fixture
def partial() -> Model:
    """Rotates a quarter of its head."""
    return Model(name="partial", trained_length=2048, head_dim=64, rotary_dim=16, rope_base=10_000.0, layers=4, heads=8)


@pytest.fixture
def scaled() -> Model:
    """Scales its angles itself."""
    return Model(
        name="scaled",
        trained_length=4096,
        head_dim=64,
        rope_base=150_000.0,
        rope_scaling={"rope_type": "yarn", "factor": 32.0},
    )


@pytest.fixture
def nope() -> Model:
    return Model(name="nope", trained_length=512, head_dim=64)


@pytest.fixture
def frequencies() -> Callable[..., Floats]:
    """[pairs] radians per token that a method asks for."""

    def ask(method: Method, model: Model, length: int) -> Floats:
        inv_freq = method.attention(model, length).inv_freq
        assert inv_freq is not None
        return inv_freq

    return ask


@pytest.fixture
def assert_as_transformers() -> Callable[..., None]:
    """Compares frequencies (theirs are float32) and scale with what transformers computes for the same parameters."""

    def compare(attention: Attention, model: Model, kind: str, length: int | None = None, **parameters: object) -> None:
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        share = model.rotated / model.head_dim
        config = LlamaConfig(
            head_dim=model.head_dim,
            hidden_size=model.head_dim,
            num_attention_heads=1,
            max_position_embeddings=model.trained_length,
            rope_parameters={
                "rope_type": kind,
                "rope_theta": model.rope_base,
                "partial_rotary_factor": share,
                **parameters,
            },
        )
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        assert attention.inv_freq is not None
        np.testing.assert_allclose(attention.inv_freq, inv_freq.double().numpy(), rtol=2e-6)
        assert (attention.scale or 1.0) == pytest.approx(scale, rel=1e-12)

    return compare

"""What is printed for scaled, nested and mixed configs gives vLLM's config classes and rotary tables our numbers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lexbench.methods.composition import named_method
from lexbench.methods.export import as_data
from lexbench.methods.scaled import attention_of, ropes_of_model
from tests.scaled.families import LENGTH
from tests.scaled.test_exports import saved


def overridden(folder: Path, overrides: dict[str, Any]) -> Any:
    """The text config that vLLM's ModelConfig makes of a folder and `hf_overrides`, in its own two steps."""
    from vllm.config import ModelConfig
    from vllm.transformers_utils.config import get_config

    flat = {key: value for key, value in overrides.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in overrides.items() if isinstance(value, dict)}
    config = get_config(str(folder), trust_remote_code=False, hf_overrides_kw=flat)
    ModelConfig._apply_dict_overrides(ModelConfig.__new__(ModelConfig), config, nested)
    return config.get_text_config()


@pytest.mark.parametrize(
    ("name", "method", "over"),
    [
        ("Llama 3.1", "pi", "scaled"),
        ("Llama 3.1", "yarn", "plain"),
        ("Gemma 3", "yarn", "scaled"),
        ("gemma3", "ntk", "scaled"),
        ("qwen3_5", "ntk", "scaled"),
        ("GLM-4.5", "longrope", "scaled"),
    ],
)
def test_vllm_rotates_by_what_is_printed(
    name: str, method: str, over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope, phi3_long_rope_scaled_rope

    # Of a whole engine, longrope asks for its length.
    engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=LENGTH))
    monkeypatch.setattr(phi3_long_rope_scaled_rope, "get_current_vllm_config", lambda: engine)

    model, built = saved(name, tmp_path), named_method(method, over=over)
    data = as_data(built, method, model, LENGTH, "vllm")
    config = overridden(tmp_path, json.loads(json.dumps(data["hf_overrides"])))
    assert isinstance(config, transformers.PreTrainedConfig)
    assert config.max_position_embeddings == data["max_model_len"] == LENGTH
    attention = attention_of(built, model, LENGTH)
    for rope in ropes_of_model(model):
        parameters = config.rope_parameters if rope.kind is None else config.rope_parameters[rope.kind]
        with set_current_vllm_config(VllmConfig()):
            module = get_rope(rope.plain.head_dim, LENGTH, True, parameters, dtype=torch.float32)
        tables = getattr(module, "long_short_cos_sin_cache", None)  # rows for short texts, then rows for long ones
        table = module.cos_sin_cache[:LENGTH] if tables is None else tables[-LENGTH:]
        cos, sin = table.double().numpy().reshape(LENGTH, 2, -1).transpose(1, 0, 2)
        part = attention.at(0 if rope.layers is None else rope.layers[0])
        own, scale = rope.own(LENGTH)
        angles = np.arange(LENGTH)[:, None] * (own if part.inv_freq is None else part.inv_freq)
        scale = scale if part.scale is None else part.scale
        np.testing.assert_allclose(cos, scale * np.cos(angles), atol=2e-5)
        np.testing.assert_allclose(sin, scale * np.sin(angles), atol=2e-5)

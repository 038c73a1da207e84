"""Whether a layer of a config sees all keys."""

from typing import Any

import pytest

from lexbench.checkpoints.structure import has_full_attention


@pytest.mark.parametrize(
    ("config", "sees_all"),
    [
        ({"num_attention_heads": 8}, True),
        ({"n_head": 12}, True),
        ({"num_attention_heads": 8, "sliding_window": None}, True),
        ({"num_attention_heads": 32, "sliding_window": 4096}, False),  # Mistral 7B v0.1
        (
            {"num_attention_heads": 8, "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28},
            True,
        ),
        ({"num_attention_heads": 8, "sliding_window": 512, "sliding_window_pattern": 6}, True),  # Gemma 3
        ({"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_attention_heads": 8}, True),
        ({"layer_types": ["sliding_attention"] * 6, "num_attention_heads": 8}, False),
        ({"attention_layers": ["global", "local"]}, True),
        ({"layers_block_type": ["mamba", "attention"]}, True),
        ({"layer_types": ["linear_attention", "conv"], "num_attention_heads": 8}, False),
        ({"text_config": {"num_attention_heads": 8}}, True),
        ({"model_type": "mamba", "state_size": 16}, False),
        ({}, False),
    ],
)
def test_a_layer_sees_all_keys_or_none_does(config: dict[str, Any], sees_all: bool) -> None:
    assert has_full_attention(config) == sees_all

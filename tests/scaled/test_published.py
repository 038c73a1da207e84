"""Published forms of config.json: the frequencies read from them are those of transformers' own modules.

Sizes are small; names of entries, and rope parameters, are those of the published files.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from lexbench import Refused
from lexbench.backends.hf.exact import layers
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.model import Model
from lexbench.methods.scaled import ropes_of_model

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"num_hidden_layers": 4, "vocab_size": 128, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
YARN = {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}
PUBLISHED: dict[str, dict[str, Any]] = {
    "olmo3": {
        "max_position_embeddings": 65536,
        "rope_theta": 500000,
        "sliding_window": 4096,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "rope_scaling": {**YARN, "original_max_position_embeddings": 8192},
    },
    "hunyuan_v1_dense": {
        "head_dim": 16,
        "max_position_embeddings": 262144,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1}
        | {"mscale": 1.0, "mscale_all_dim": 0.0},
    },
    "modernbert-decoder": {
        "max_position_embeddings": 8192,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "cls_token_id": 0,
        "sep_token_id": 0,
    },
    "minimax": {
        "head_dim": 16,
        "rotary_dim": 8,
        "max_position_embeddings": 10240000,
        "rope_theta": 10000000,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "block_size": 16,
    },
    "zamba2": {
        "max_position_embeddings": 4096,
        "use_mem_rope": True,
        "rope_theta": 10000,
        "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "hybrid_layer_ids": [1, 3],
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_headdim": 32,
    },
}


def rotary_of(config: Mapping[str, Any]) -> Any:
    """The rotary module that transformers makes of a file."""
    made = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(made)
    [place] = [place for place, module in network.named_modules() if layers.rotary_kinds(module)]
    return type(network.get_submodule(place))(made)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_frequencies_and_scales_are_those_of_the_module(kind: str) -> None:
    config = {"model_type": kind, **SMALL, **PUBLISHED[kind]}
    rotary = rotary_of(config)
    stated: dict[str, Any] = {"name": kind, "trained_length": 4096, **facts_of_config(config)}
    found = {rope.kind: rope for rope in ropes_of_model(Model(**stated))}
    assert set(found) == set(layers.rotary_kinds(rotary))
    for each, rope in found.items():
        inv_freq, scale = rope.own(1)
        np.testing.assert_allclose(inv_freq, layers.rotary_frequencies(rotary, each).double().numpy(), rtol=1e-6)
        assert scale == pytest.approx(layers.rotary_scale(rotary, each))
    if kind == "modernbert-decoder":
        assert [rope.layers for rope in found.values()] == [(0, 3), (1, 2)]


LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "rope"),
    [
        # What a model card says to add to config.json, to a file of transformers 5: the base beside it is not read.
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_scaling": LINEAR}),
        ("llama", {"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("llama", {"rope_parameters": {"type": "linear", "factor": 2.0, "rope_theta": 5e5}, "rope_scaling": None}),
        ("gemma3_text", {"rope_parameters": {"full_attention": {"type": "linear", "factor": 8.0, "rope_theta": 1e6}}}),
        ("gemma3_text", {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}}),
    ],
)
def test_of_both_names_and_of_old_ones_transformers_choice_is_taken(kind: str, rope: dict[str, Any]) -> None:
    config = {"model_type": kind, **SMALL, "num_hidden_layers": 6, **rope}
    found = {
        each.kind: each
        for each in ropes_of_model(Model(**{"name": kind, "trained_length": 4096, **facts_of_config(config)}))
    }
    rotary = rotary_of(copy.deepcopy(config))  # transformers completes the parameters in place
    for each, own in found.items():
        inv_freq, scale = own.own(1)
        np.testing.assert_allclose(inv_freq, layers.rotary_frequencies(rotary, each).double().numpy(), rtol=1e-6)
        assert scale == layers.rotary_scale(rotary, each) == 1


def test_layers_of_one_kind_may_state_their_rope_by_kind() -> None:
    linear = {"full_attention": {**LINEAR, "rope_theta": 1e6}}
    config = {"model_type": "cohere_compass_text", **SMALL, "layer_types": ["full_attention"] * 4}
    [rope] = ropes_of_model(
        Model(name="m", trained_length=64, **facts_of_config({**config, "rope_parameters": linear}))
    )
    assert (rope.kind, rope.layers) == ("full_attention", (0, 1, 2, 3))
    # pair p turns by b^(-2p/d) / 4, d = 16
    np.testing.assert_allclose(rope.own(1)[0], 1e6 ** (-np.arange(8) / 8) / 4)


def test_a_scaling_that_transformers_does_not_know_is_refused() -> None:
    stated: dict[str, Any] = {"name": "odd", "trained_length": 64, "head_dim": 16, "rope_base": 1e4}
    [rope] = ropes_of_model(Model(**stated, rope_scaling={"rope_type": "other"}))
    with pytest.raises(Refused, match="its RoPE is scaled by other"):
        rope.own(1)


def test_llava_leaves_the_sizes_of_llama_out() -> None:
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064, "rms_norm_eps": 1e-5}
    found = facts_of_config({"model_type": "llava", "text_config": text})
    llama = CONFIG_MAPPING["llama"]()
    assert (found["head_dim"], found["layers"]) == (llama.head_dim, llama.num_hidden_layers)
    assert (found["heads"], found["kv_heads"]) == (llama.num_attention_heads, llama.num_key_value_heads)

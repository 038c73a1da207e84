"""Tiny random models of every type of causal language model in transformers, made by one rule.

The rule: the type's default config, with every size replaced by a small one of the same name (`SIZES`), and one layer
of each kind that the default has. What a type needs beside that stands in `EXCEPTIONS`.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers.models.auto import modeling_auto

VOCABULARY = 96
PADDING = VOCABULARY - 1
"""The last id. Some families count their positions without it, so no text holds it."""
WINDOW = 16
"""Tokens that a layer with a window or a chunk sees."""
LONGEST = 160
"""Positions of a model with a table of them."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "decoder_attention_heads", "encoder_attention_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 8,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), LONGEST),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention", "window_size"), WINDOW),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    "bos_token_id": 0,
    "eos_token_id": None,  # what is written fills its room
    "pad_token_id": PADDING,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    "first_k_dense_replace": 1,
    # multi-head latent attention
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    "qk_head_dim": 16,
    **dict.fromkeys(("index_head_dim", "index_n_heads"), 8),
    "index_topk": 128,
    # recurrent and convolutional layers
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_groups"), 1),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "mamba_dt_rank"), 4),
    "chunk_size": 8,
    "lru_width": 32,
    # other towers
    **{"image_size": 28, "patch_size": 14, "depth": 2},
    **dict.fromkeys(("out_hidden_size", "embed_dim", "projector_hidden_size", "text_hidden_size"), 32),
}
"""Small values of the names of sizes in configs, wherever in a config they stand."""

QWEN4: dict[str, Any] = {
    **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 128},
    **{"indexer_compress_ratio": 4, "hc_lowrank": 8},
}
MROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
IMAGE = {"<image>": 90}
LLAMA4: dict[str, Any] = {"no_rope_layers": [1, 0], "floor_scale": 8}
"""Layers without positions, and a temperature that changes within a short text."""
DOTS: dict[str, Any] = {
    **{"num_key_value_heads": 4, "shared_experts_intermediate_size": 16, "index_head_dim": 16, "head_dim": 16},
    "per_layer_config": ...,
    **{f"swa_{name}": 4 for name in ("num_attention_heads", "num_key_value_heads")},
    **{
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
    },
}
GEMMA3N: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    **{"num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCABULARY},
    **{"intermediate_size": [48] * 4, "hidden_size_per_layer_input": 8, "laurel_rank": 4},
    "activation_sparsity_pattern": [0.0] * 4,
}
SIGLIP = {
    **{"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "image_size": 28, "patch_size": 14},
}
"""An image tower in place of one that needs the timm library."""
HALF_MROPE: dict[str, Any] = {**MROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}
BY_THREE_AXES = (
    *("qwen2_vl", "qwen2_5_vl", "glm4v", "glm46v", "glm_ocr", "glmga", "paddleocr_vl"),
    "qwen2_5_omni_thinker",
)
"""Types that rotate by time, height and width."""
ONE_WAY = (
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("prophetnet", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta"),
    *("xlm-roberta-xl", "xmod"),
)
"""Types of encoders, which read in one direction if their config says so."""
EXCEPTIONS: dict[str, dict[str, Any]] = {
    **{kind: {"is_decoder": True} for kind in ONE_WAY},
    **{kind: {"text_config": {"rope_parameters": MROPE}} for kind in BY_THREE_AXES},
    "glm4v_moe": {"text_config": {"rope_parameters": HALF_MROPE}},
    "big_bird": {"is_decoder": True, "attention_type": "original_full"},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "cpmant": {"dim_ff": 48, "dim_head": 8, "prompt_length": 4, "prompt_types": 4, "position_bias_max_distance": 64},
    "ctrl": {"dff": 48},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": GEMMA3N,
    **{key: {"text_config": {"vocab_size_per_layer_input": VOCABULARY}} for key in ("gemma4", "gemma4_unified")},
    **{key: {"vocab_size_per_layer_input": VOCABULARY} for key in ("gemma4_text", "gemma4_unified_text")},
    **{kind: {"attn_logit_softcapping": 0.5} for kind in ("gemma2", "vaultgemma")},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4": {"text_config": LLAMA4},
    "llama4_text": LLAMA4,
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    **{kind: QWEN4 if kind.endswith("text") else {"text_config": QWEN4} for kind in ("qwen4_exp", "qwen4_exp_text")},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "roc_bert": {
        **{"is_decoder": True, "pronunciation_vocab_size": VOCABULARY, "pronunciation_embed_dim": 8},
        **{"shape_vocab_size": VOCABULARY, "shape_embed_dim": 8},
    },
    "xlnet": {"d_inner": 48, "d_head": 8},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {
        **{"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"]},
        **{"mamba_headdim": 8, "n_mamba_heads": 8, "num_mem_blocks": 1, "adapter_rank": 8},
    },
    "smollm3": {"no_rope_layers": [1, 0]},
    "unlimited_ocr": {"text_config": {"num_key_value_heads": 4}},
    **{key: {"text_config": {"sliding_window": None}} for key in ("qwen3_vl_moe", "qwen3_omni_moe_thinker")},
    "zaya": {"num_experts_per_tok": 1},
    "blt": {
        "encoder_hash_byte_group_vocab": 64,
        **{name: {"hidden_size_global": 64, "head_dim": ...} for name in ("encoder_config", "decoder_config")},
        "global_config": {"hidden_size": 64, "head_dim": ...},
    },
    "chameleon": {"vocabulary_map": IMAGE, "vq_config": {"base_channels": 32, "resolution": 32}},
    "emu3": {"vocabulary_map": IMAGE, "vq_config": {"base_channels": 32, "codebook_size": 64}},
    "cosmos3_edge": {"text_config": {"rope_parameters": MROPE}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": MROPE}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_ocr2": {
        "vision_config": {"sam_config": {"output_channels": 16, "downsample_channels": [16, 32]}},
        "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_key_value_heads": 4},
    },
    "dots3_note": {
        "text_config": DOTS,
        "vision_config": {"pyramid_num_routed": [-1, 4], "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32, "downsample_hidden_size": 16},
    },
    "dots3_note_text": DOTS,
    "ernie4_5_vl_moe": {
        "text_config": {"moe_intermediate_size": [16, 16], "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}
    },
    "exaone4_5": {"text_config": {"model_type": "exaone4"}},
    "florence2": {
        "vision_config": {
            **{"patch_size": [7, 3, 3, 3], "embed_dim": [8, 8, 16, 16]},
            **{"num_heads": [1, 1, 2, 2], "num_groups": [1, 1, 2, 2]},
        },
    },
    "gemma3n": {"text_config": GEMMA3N, "vision_config": SIGLIP, "audio_config": {"conf_num_hidden_layers": 1}},
    "fast_vlm": {"vision_config": SIGLIP},
    "perception_lm": {"vision_config": {**SIGLIP, "model_args": {"embed_dim": 32}}},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0}},
    "granite4_vision": {
        "vision_config": {"hidden_size": 64},
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [0, 1],
        "downsample_rate": "1/2",
    },
    "hunyuan_vl": {"text_config": {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 1, 1]}}},
    "mistral4": {"head_dim": 16},
    "molmo2": {"vision_config": {"image_size": [28, 28]}, "adapter_config": {"vision_feature_layer": [0, 1]}},
    "muse_spark": {
        "audio_config": {"num_hidden_layers": 1, "patch_sizes": [16], "hidden_sizes": [8], "depths": [1]},
    },
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
}
"""Settings of a type that the rule does not find."""


UNMADE = {
    "evolla": "no automatic class of transformers opens it",
    "gemma3n": "needs the timm library; gemma3n_text is its text tower",
    "gemma4_assistant": "reads another model's keys and values",
    "gemma4_unified_assistant": "reads another model's keys and values",
    "musicgen": "writes sound, not text",
    "musicgen_melody": "writes sound, not text",
    "pi0": "writes a robot's actions, not text",
    "shieldgemma2": "classifies images, and writes no text",
}
"""Types without a tiny model here, and why."""


def types() -> list[str]:
    """Every type, causal or multimodal."""
    return causal_types() + multimodal_types()


def causal_types() -> list[str]:
    """Every type that `AutoModelForCausalLM` opens."""
    return sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def multimodal_types() -> list[str]:
    """Every type with a text tower that `AutoModelForImageTextToText` opens, and `AutoModelForCausalLM` does not."""
    known = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted(kind for kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if kind not in known)


def small(config: Any) -> dict[str, Any]:
    """Small settings for a default config, and for the configs inside it."""
    known = {**config.to_dict(), **dict.fromkeys(config.attribute_map)}
    found = {name: value for name, value in SIZES.items() if name in known}
    for name in config.sub_configs:
        inner = vars(config).get(name)
        if isinstance(inner, transformers.PreTrainedConfig):
            found[name] = small(inner)
    if "kv_lora_rank" in found:
        found["num_key_value_heads"] = found["num_attention_heads"]
    kinds = vars(config).get("layer_types")
    if kinds:
        found["layer_types"] = list(dict.fromkeys(kinds)) if len(set(kinds)) > 1 else list(kinds[:1]) * 2
        found["num_hidden_layers"] = len(found["layer_types"])
    return found


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others put over them; ... removes one."""
    both = dict(one)
    for name, value in other.items():
        if value is ...:
            both.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(both.get(name), Mapping):
            both[name] = _joined(both[name], value)
        else:
            both[name] = value
    return both


def config_of(kind: str, **changes: Any) -> Any:
    """The tiny config of a type."""
    settings = _joined(small(transformers.AutoConfig.for_model(kind)), EXCEPTIONS.get(kind, {}))
    return transformers.AutoConfig.for_model(kind, **_joined(settings, changes))


def network_of(kind: str, **changes: Any) -> Any:
    """A tiny random network of a type, with all its towers, as checkpoints hold them."""
    torch.manual_seed(0)
    config = config_of(kind, **changes)
    sees = kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = auto.from_config(config)
    with torch.no_grad():  # also what begins as zeros or ones: biases, gates, norms, sinks
        for weight in network.parameters():
            if weight.is_floating_point():
                weight += 0.05 * torch.randn_like(weight)
    return network.eval()


def save(folder: Path, kind: str, **changes: Any) -> Path:
    """A folder with a tiny random model of a type and a tokenizer of whole words."""
    network_of(kind, **changes).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words, one a token."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    spoken = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    spoken.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    spoken.save(str(folder / "tokenizer.json"))

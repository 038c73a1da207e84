"""What layers keep is what the cache of transformers' own network holds, counted."""

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from lexbench import Model
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.layer_cache import LayerCache
from tests.census import tiny as census

TOKENS = 81
SIZES = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16}


def kinds(*names: str) -> dict[str, Any]:
    return {**SIZES, "layer_types": [*names]}


WINDOWS = kinds(*["sliding_attention", "full_attention"] * 2)
STATES = kinds("linear_attention", "linear_attention", "linear_attention", "full_attention")
GEMMA4 = {**WINDOWS, "num_kv_shared_layers": 1, "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}}}
FAMILIES: dict[str, tuple[dict[str, Any], float | None]] = {
    # Numbers of a layer by hand: 2 heads of 16, keys and values, 64. A window of 16 holds 15 of 81 tokens.
    "mistral": (SIZES, 4 * 64 * 15 / TOKENS),
    "gemma3_text": (WINDOWS, 2 * 64 * (1 + 15 / TOKENS)),
    "gpt_oss": (WINDOWS, 2 * 64 * (1 + 15 / TOKENS)),
    "gemma3n_text": (WINDOWS, 64 * (1 + 15 / TOKENS)),  # the last two of four layers use the keys of others
    "gemma4_text": (GEMMA4, 2 * 64 * 15 / TOKENS + 2 * 64),  # heads of 32 without a window; the last layer shares
    "deepseek_v3": ({"num_hidden_layers": 4}, 4 * (16 + 8)),  # the latent and the rotary key
    "qwen3_next": (STATES, 64),
    "qwen3_5_text": (STATES, 64),
    "granitemoehybrid": (STATES, None),
    "lfm2": (kinds("conv", "conv", "full_attention", "conv"), None),
    "minimax": (kinds(*["linear_attention", "full_attention"] * 2), 2 * 64),
    "qwen3": (kinds(*["full_attention"] * 4), 4 * 64),
}
"""Type, sizes, and numbers a token by hand; None: its heads have no size of their own."""


def counted(network: Any, tokens: int) -> int | None:
    """Numbers of keys and values in the cache of transformers; None where it has none."""
    with torch.no_grad():
        cache = network(input_ids=torch.arange(tokens)[None] % 90, use_cache=True).get("past_key_values")
    layers = getattr(cache, "layers", None)
    if not layers:
        return None
    held = [each for each in layers if getattr(each, "keys", None) is not None]
    return int(sum(each.keys.numel() + each.values.numel() for each in held))


def model_of(config: Any) -> Model:
    return Model(**{"name": "m", "trained_length": 64, **facts_of_config(config.to_dict())})


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_keeps_what_the_cache_of_transformers_holds(kind: str) -> None:
    sizes, by_hand = FAMILIES[kind]
    network = census.network_of(kind, **sizes)
    found = model_of(network.config).kept_numbers(TOKENS)
    assert found == counted(network, TOKENS)
    assert by_hand is None or found / TOKENS == pytest.approx(by_hand)


UNKNOWN = {
    "deepseek_v4",  # compresses its cache itself
    *("gpt_neo", "trocr", "xglm", "openai-gpt"),  # sizes under names that are not read
    *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
    *("prophetnet", "whisper"),
}
"""Types of which `Model` does not know what layers keep."""
NOT_COMPARED = {
    "blt": "its config states no number of layers",
    "cpmant": "puts a prompt of its own before the text",
    "minimax_m3_vl_text": "its tiny config rotates more dimensions than a head has",
    "xlm": "its config states no size of a head",
    "xlstm": "its tiny network reads no text",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*census.causal_types()} - {*census.UNMADE, *NOT_COMPARED}))
def test_each_causal_type_keeps_what_the_cache_of_transformers_holds(kind: str) -> None:
    network = census.network_of(kind)
    model, kept = model_of(network.config), counted(network, 40)
    if model.kept_by_layer() is None:
        assert kind in UNKNOWN
    elif kept is not None:  # else its cache is none of transformers' common ones
        assert model.kept_numbers(40) == kept


PUBLISHED: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    # Entries as files on the hub state them; window of each layer by hand: 0 none, None no keys.
    "jamba": ({"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1}, [None, 0, None, 0]),
    "bamba": ({"num_hidden_layers": 3, "attn_layer_indices": [1]}, [None, 0, None]),
    "nemotron_h": ({"num_hidden_layers": 4, "hybrid_override_pattern": "M-*M"}, [None, None, 0, None]),
    "qwen3_next": ({"num_hidden_layers": 4, "full_attention_interval": 4}, [None, None, None, 0]),
    "qwen2": (
        {"num_hidden_layers": 3, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
        [0, 8, 8],
    ),
    "qwen2_moe": ({"num_hidden_layers": 2, "sliding_window": 8, "use_sliding_window": False}, [0, 0]),
    "gemma2": ({"num_hidden_layers": 2, "sliding_window": 8}, [8, 0]),
    "phi3": ({"num_hidden_layers": 2, "sliding_window": 8}, [8, 8]),
    "llama4_text": ({"num_hidden_layers": 4, "attention_chunk_size": 8}, [8, 8, 8, 0]),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_file_says_which_layers_keep_keys_and_in_which_windows(kind: str) -> None:
    entries, windows = PUBLISHED[kind]
    usual = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    caches = Model(**{"name": "m", "trained_length": 64, **facts_of_config({**usual, **entries})}).kept_by_layer()
    assert caches == tuple(None if size is None else LayerCache(2, 16, 16, size or None) for size in windows)
    theirs = CONFIG_MAPPING[kind].from_dict({**usual, **entries})
    listed = getattr(theirs, "layer_types", None) or getattr(theirs, "layers_block_type", None)
    if listed is not None:  # transformers fills in the kinds that the file leaves out
        named = [None if "attention" not in each or "linear" in each else "full" not in each for each in listed]
        assert named == [None if size is None else bool(size) for size in windows]


def test_a_window_below_1_is_none_and_a_number_of_layers_that_no_network_has_is_no_list() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": -1}
    sizes |= {"max_position_embeddings": 64}
    model = Model(**{"name": "m", **facts_of_config({"model_type": "mistral", **sizes, "num_hidden_layers": 2})})
    assert model.kept_by_layer() == (LayerCache(2, 16, 16),) * 2
    many = Model(**{"name": "m", **facts_of_config({"model_type": "mistral", **sizes, "num_hidden_layers": 1 << 50})})
    assert many.kept_by_layer() is None


def test_what_a_file_does_not_say_is_not_known() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 64}
    window = {"layer_types": ["sliding_attention", "full_attention"]}
    latent = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    for entries in (window, latent):
        model = Model(**{"name": "m", **facts_of_config({"model_type": "llama", **sizes, **entries})})
        assert model.kept_by_layer() is None
    # Mamba has no heads at all, and keeps no keys.
    states = facts_of_config({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2})
    assert states["layer_caches"] == (None, None)
    # RecurrentGemma: every third layer sees a window.
    griffin = {"block_types": ["recurrent", "recurrent", "attention"], "attention_window_size": 8, "head_dim": 16}
    found = facts_of_config({"model_type": "recurrent_gemma", **sizes, **griffin, "num_key_value_heads": 1})
    assert found["layer_caches"] == (None, None)
    assert facts_of_config({**sizes, **griffin, "num_key_value_heads": 1, "num_hidden_layers": 3})["layer_caches"] == (
        *(None, None),
        LayerCache(1, 16, 16, 8),
    )


def test_sizes_of_layers_with_a_window_of_their_own() -> None:
    """MiMo-V2-Flash, as its file on the hub has it: 4 key heads, 8 in windows; keys of 192 numbers, values of 128."""
    entries: dict[str, Any] = {"hidden_size": 4096, "num_attention_heads": 64, "num_hidden_layers": 2, "head_dim": 192}
    entries |= {"v_head_dim": 128, "num_key_value_heads": 4, "sliding_window": 128}
    entries |= {"layer_types": ["full_attention", "sliding_attention"]}
    stated = {**entries, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128}
    expected = LayerCache(4, 192, 128), LayerCache(8, 192, 128, 128)
    assert facts_of_config(stated)["layer_caches"] == expected
    assert facts_of_config({**entries, "model_type": "mimo_v2_flash"})["layer_caches"] == expected

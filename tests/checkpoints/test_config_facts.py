"""Facts from the many forms of config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.config_facts import IMPLIED_BASE, IMPLIED_HEAD_DIM, IMPLIED_SHARE, facts_of_config
from lexbench.core import registry

SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "vocab_size": 100,
}
KNOWN = {"layers": 3, "width": 64, "heads": 4, "kv_heads": 2, "vocabulary": 100, "head_dim": 16}


def folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


TINY = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96}
GROUPED = {**TINY, "num_key_value_heads": 2, "max_position_embeddings": 256}


# forms of config.json


def test_transformers_4_and_5_forms_state_the_same_facts() -> None:
    scaled = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    old = {**SIZES, "rope_theta": 5e5, "rope_scaling": {**scaled, "type": "llama3"}}
    new = {**SIZES, "rope_parameters": {**scaled, "rope_type": "llama3", "rope_theta": 5e5}}
    expected = {**KNOWN, "trained_length": 128, "rope_base": 5e5, "rope_scaling": {**scaled, "rope_type": "llama3"}}
    assert facts_of_config(old) == expected
    assert facts_of_config(new) == expected


@pytest.mark.parametrize("rope", [{"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}, {}])
def test_an_old_llama_without_a_base_has_the_base_of_its_time(rope: dict[str, Any]) -> None:
    assert facts_of_config({**SIZES, **rope}) == {**KNOWN, "trained_length": 128, "rope_base": 10_000.0}


@pytest.mark.parametrize(
    "partial",
    [
        {"rotary_pct": 0.25, "rotary_emb_base": 2e4},
        {"partial_rotary_factor": 0.25, "rope_theta": 2e4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.25}},
        {"rotary_dim": 4, "rope_theta": 2e4},
    ],
)
def test_every_word_for_partial_rotation_gives_the_rotated_dimensions(partial: dict[str, Any]) -> None:
    found = facts_of_config({**SIZES, "model_type": "of its own", **partial})
    assert found == {**KNOWN, "trained_length": 128, "rope_base": 2e4, "rotary_dim": 4}


def test_the_share_of_a_scaled_head_is_no_part_of_its_scaling() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 2e4, "partial_rotary_factor": 0.25}
    found = facts_of_config({**SIZES, "rope_parameters": rope})
    assert (found["rotary_dim"], found["rope_scaling"]) == (4, {"rope_type": "dynamic", "factor": 2.0})


def test_gpt_2_has_positions_in_a_table_and_no_rotation() -> None:
    config = {"model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_layer": 3, "n_positions": 11, "vocab_size": 3}
    expected = {"layers": 3, "width": 48, "heads": 3, "kv_heads": 3, "vocabulary": 3, "head_dim": 16}
    assert facts_of_config(config) == {**expected, "trained_length": 11}


def test_layers_of_several_kinds_have_no_one_base() -> None:
    layers = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    expected = {**KNOWN, "trained_length": 128, "rope_scaling": layers}
    assert facts_of_config({**SIZES, "rope_parameters": layers}) == expected
    # Gemma 3 as transformers 4 wrote it
    assert facts_of_config({**SIZES, "rope_theta": 1e6, "rope_local_base_freq": 1e4}) == expected


@pytest.mark.parametrize("kind", ["llama3", "yarn", "longrope"])
def test_an_original_length_beside_the_rope_parameters_counts_before_the_one_in_them(kind: str) -> None:
    from transformers import LlamaConfig

    scaled = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "attention_factor": 1.0}
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 16}
    rope = {"rope_type": kind, "rope_theta": 1e4, **scaled, **lists}
    config = {**SIZES, "rope_parameters": rope, "original_max_position_embeddings": 32}
    theirs = LlamaConfig.from_dict(json.loads(json.dumps(config)))
    theirs.standardize_rope_params()  # as each of its functions of frequencies does first
    assert facts_of_config(config)["rope_scaling"]["original_max_position_embeddings"] == 32
    assert theirs.rope_parameters["original_max_position_embeddings"] == 32


def test_a_model_with_a_picture_part_is_its_text_part() -> None:
    assert facts_of_config({"model_type": "llava", "hidden_size": 1, "text_config": {**SIZES, "rope_theta": 3e4}}) == {
        **KNOWN,
        "config_section": "text_config",
        "trained_length": 128,
        "rope_base": 3e4,
    }


def test_falcon_states_a_base_that_alibi_does_not_use() -> None:
    assert "rope_base" not in facts_of_config({**SIZES, "model_type": "falcon", "alibi": True, "rope_theta": 1e4})


def test_one_key_value_head_is_said_by_multi_query() -> None:
    falcon = {**SIZES, "num_kv_heads": 4, "multi_query": True}
    assert facts_of_config(falcon)["kv_heads"] == 1
    assert facts_of_config({**falcon, "num_key_value_heads": None, "new_decoder_architecture": True})["kv_heads"] == 4


def test_latent_attention_rotates_a_part_of_its_own() -> None:
    # DeepSeek-V3: 128 dimensions without positions, 64 rotated; width / heads would say 56
    latent = {"hidden_size": 7168, "num_attention_heads": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    found = facts_of_config({**SIZES, **latent, "rope_theta": 1e4})
    assert (found["head_dim"], found["rotary_dim"]) == (192, 64)


@pytest.mark.parametrize("windowed", ["sliding_attention", "chunked_attention"])
def test_layers_that_see_all_keys_have_the_sizes_that_transformers_gives_them(windowed: str) -> None:
    from transformers import Qwen3Config

    sizes = {"head_dim": 16, "num_key_value_heads": 2}
    theirs = Qwen3Config(
        **{**TINY, **sizes, "layer_types": [windowed, "full_attention"]},
        per_layer_config={1: {"head_dim": 32, "num_key_value_heads": 1}},
    )
    theirs.serialize_explicit_per_layer_config = True  # layer 0, too
    config = theirs.to_dict()
    assert config["per_layer_config"].keys() == {"0", "1"}
    found, whole = facts_of_config(config), theirs.per_layer_config[1]
    assert found["global_head_dim"] == whole.head_dim == 32
    assert found["global_kv_heads"] == whole.num_key_value_heads == 1
    assert (found["head_dim"], found["kv_heads"]) == (16, 2)


@pytest.mark.parametrize("own", [{"num_attention_heads": 2}, {"head_dim": 32}])
def test_layers_of_one_kind_that_differ_have_no_one_size(own: dict[str, int]) -> None:
    from transformers import Qwen3Config

    theirs = Qwen3Config(**{**TINY, "num_key_value_heads": 2, "head_dim": 16}, per_layer_config={1: own})
    found = facts_of_config(theirs.to_dict())
    assert (found["layers"], found["kv_heads"], found["head_dim"]) == (2, 2, 16)
    assert not {"global_head_dim", "global_kv_heads", "layer_types"} & found.keys()


# how long it was trained


def scaled(kind: str, claimed: int, **more: Any) -> dict[str, Any]:
    return {**SIZES, "max_position_embeddings": claimed, "rope_scaling": {"rope_type": kind, **more}}


@pytest.mark.parametrize(
    ("config", "trained_length"),
    [
        (scaled("llama3", 131072, factor=8.0, original_max_position_embeddings=8192), 131072),
        (scaled("longrope", 131072, original_max_position_embeddings=4096), 131072),
        (scaled("dynamic", 4096, factor=2.0), 4096),
        (scaled("yarn", 131072, factor=32.0, original_max_position_embeddings=4096), 131072),  # gpt-oss
        (scaled("yarn", 131072, original_max_position_embeddings=4096), 131072),
    ],
)
def test_the_trained_length_is_what_the_checkpoint_claims(config: dict[str, Any], trained_length: int) -> None:
    assert facts_of_config(config)["trained_length"] == trained_length


@pytest.mark.parametrize(
    "config",
    [
        scaled("linear", 4096, factor=4.0),  # Vicuna 16k: trained at 16384
        scaled("linear", 32768, factor=8.0),  # LLaMA-2-7B-32K: trained at 32768
        scaled("yarn", 32768, factor=4.0, original_max_position_embeddings=32768),  # Qwen2.5: trained at 32768
        scaled("yarn", 4096, factor=32.0),
    ],
)
def test_a_stretch_that_leaves_two_lengths_possible_asks_for_the_trained_one(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = str(folder(tmp_path, config))
    with pytest.raises(ValueError, match=r"model.trained_length is ambiguous.* give model.trained_length=\.\.\."):
        read_model({"path": path})
    stretched = read_model({"path": path, "trained_length": 16384})
    assert stretched.trained_length == 16384
    assert stretched.rope_scaling == config["rope_scaling"]
    assert stretched.rope_base == 10_000.0


# against transformers


@pytest.mark.parametrize("kind", sorted({*IMPLIED_BASE, *IMPLIED_SHARE, *IMPLIED_HEAD_DIM}))
def test_what_a_silent_config_implies_is_what_transformers_takes(kind: str) -> None:
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(kind)
    rope = getattr(theirs, "rope_parameters", None) or {}
    if kind in IMPLIED_BASE and kind not in ("gptj", "codegen"):  # those two write theirs into the code
        assert IMPLIED_BASE[kind] == rope["rope_theta"]
    assert IMPLIED_SHARE.get(kind, 1.0) == rope.get("partial_rotary_factor", 1.0)
    if kind in IMPLIED_HEAD_DIM:
        assert IMPLIED_HEAD_DIM[kind] == theirs.head_dim


SHORT: dict[str, dict[str, Any]] = {
    "gemma2": {"num_hidden_layers": 5, "sliding_window": 32},
    "gemma3_text": {"num_hidden_layers": 7, "sliding_window": 32},
    "llama4_text": {"num_hidden_layers": 5, "no_rope_layers": [], "attention_chunk_size": 32},
    "qwen3_next": {"num_hidden_layers": 9, "full_attention_interval": 4},
}
"""Kinds of layers that published files do not list."""


@pytest.mark.parametrize("kind", SHORT)
def test_kinds_of_layers_and_vocabulary_that_a_file_leaves_out_are_those_of_transformers(kind: str) -> None:
    from transformers import CONFIG_MAPPING

    theirs = CONFIG_MAPPING[kind].from_dict(dict(SHORT[kind]))
    found = facts_of_config({"model_type": kind, "rope_theta": 1e4, **SHORT[kind]})
    assert found["layer_types"] == tuple(theirs.layer_types)
    if kind == "gemma3_text":
        assert found["vocabulary"] == theirs.vocab_size


HYBRID = {"vocab_size": 96, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
UNUSED: list[tuple[str, dict[str, Any], bool]] = [
    ("granitemoehybrid", {"position_embedding_type": "nope", "layer_types": ["mamba", "attention"]}, False),
    ("granitemoehybrid", {"position_embedding_type": "rope", "layer_types": ["mamba", "attention"]}, True),
    ("zamba2", {"use_mem_rope": False, "layers_block_type": ["mamba", "hybrid"]}, False),
    ("zamba2", {"use_mem_rope": True, "layers_block_type": ["mamba", "hybrid"]}, True),
    ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}, False),
    ("kimi_linear", {"mla_use_nope": True}, False),
    ("nemotron_h", {"layers_block_type": ["mamba", "attention"]}, False),
]
"""Type, entries of its file, and whether its network rotates. All files state a base."""


@pytest.mark.parametrize(("kind", "entries", "rotates"), UNUSED)
def test_a_base_that_no_layer_uses_is_no_fact(kind: str, entries: dict[str, Any], rotates: bool) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = {**HYBRID, "num_hidden_layers": 2, "pad_token_id": 0, "rope_theta": 1e4, **entries}
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind].from_dict(dict(config)))
    assert any(hasattr(module, "inv_freq") for module in network.modules()) == rotates
    assert facts_of_config({"model_type": kind, **config}).get("rope_base") == (1e4 if rotates else None)


SAVED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    ("mistral", {**GROUPED, "sliding_window": 32}),
    ("qwen2", GROUPED),
    ("qwen3", {**GROUPED, "head_dim": 32}),
    ("gemma", {**GROUPED, "head_dim": 24}),
    ("phi", {**GROUPED, "partial_rotary_factor": 0.5}),
    ("gpt_neox", {**TINY, "max_position_embeddings": 256, "rotary_pct": 0.25}),
    ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "vocab_size": 96}),
    ("gemma3_text", {**GROUPED, "head_dim": 24}),
]


@pytest.mark.parametrize(("kind", "settings"), SAVED, ids=[kind for kind, _ in SAVED])
def test_a_saved_config_gives_the_facts_that_transformers_reads(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model(kind, **settings, bos_token_id=1, eos_token_id=2, pad_token_id=0).save_pretrained(tmp_path)
    theirs = AutoConfig.from_pretrained(tmp_path)
    ours = read_model({"path": str(tmp_path)})
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    rope = getattr(theirs, "rope_parameters", None) or {}
    assert ours.trained_length == theirs.max_position_embeddings == 256
    assert ours.head_dim == head_dim
    assert ours.heads == theirs.num_attention_heads
    assert ours.kv_heads == getattr(theirs, "num_key_value_heads", theirs.num_attention_heads)
    assert (ours.layers, ours.width, ours.vocabulary) == (2, 64, 96)
    assert ours.rope_base == rope.get("rope_theta")
    assert ours.rotated == int(head_dim * rope.get("partial_rotary_factor", 1.0))
    assert ours.rope_scaling == (rope if "full_attention" in rope else None)


@pytest.mark.parametrize(("name", "kind"), [("llama2", "llama"), ("mistral", "mistral")])
def test_our_yaml_states_the_network_after_which_transformers_defaults_are_made(name: str, kind: str) -> None:
    from transformers import AutoConfig

    published = facts_of_config(AutoConfig.for_model(kind).to_dict())
    stated = registry.read_named_config("model", name)
    # The checkpoint alone states windows.
    apart = {"trained_length", "layer_caches"}
    assert {key: stated[key] for key in published if key not in apart} == {
        key: value for key, value in published.items() if key not in apart
    }

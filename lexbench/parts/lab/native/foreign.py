"""Convert trained folders to ordinary architectures of transformers, where one computes the same.

plain RoPE, block llama                    Llama     (copied, where the folder is a Llama already)
RoPE in some layers or none, block llama   SmolLM3
ALiBi, block gpt                           MPT
learned positions, block gpt               GPT-2
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialize
from torch import Tensor

from lexbench.checkpoints.checkpoint import CONFIG_FILE_PATTERNS, read_config
from lexbench.core.errors import ConfigError
from lexbench.core.files import write_bytes, write_text
from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.learned import Learned
from lexbench.parts.lab.encodings.nope import Nope
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.wrappers import UnrotatedLayer
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape
from lexbench.parts.lab.native.folder import llama_sizes, load_model

ConfigAndWeights = tuple[dict[str, Any], dict[str, Tensor]]
"""config.json and weights."""

MPT_MAX_TOKENS = 65536
"""Length for which transformers computes MPT's biases in every pass, in tokens; longer texts fail."""


def convert_folder(folder: Path, into: Path) -> str:
    """Convert a folder of `lexbench train` to an ordinary model with its tokenizer; the model_type.

    Args:
        folder: of a trained model.
        into: a new or empty folder.

    Raises:
        ConfigError: transformers has no such model, or `into` holds files.
    """
    config = read_config(str(folder))
    if into.exists() and any(into.iterdir()):
        raise ConfigError(f"convert writes into an empty folder, {into} holds files: give another")
    stored = getattr(torch, config.get("torch_dtype") or config.get("dtype") or "float32")
    written = None if config.get("model_type") == "llama" else _ordinary_model(load_model(folder), config)
    into.mkdir(parents=True, exist_ok=True)
    for file in sorted(
        {file for pattern in CONFIG_FILE_PATTERNS for file in folder.glob(pattern)} - {folder / "config.json"}
    ):
        shutil.copyfile(file, into / file.name)
    if written is None:
        for file in (folder / "config.json", *folder.glob("*.safetensors")):
            shutil.copyfile(file, into / file.name)
        return "llama"
    facts, weights = written
    stored_weights = {name: weight.detach().to(stored).contiguous() for name, weight in weights.items()}
    write_bytes(into / "model.safetensors", serialize(stored_weights, metadata={"format": "pt"}))
    write_text(into / "config.json", json.dumps(facts, indent=1) + "\n")
    return str(facts["model_type"])


def _ordinary_model(decoder: Decoder, config: Mapping[str, Any]) -> ConfigAndWeights:
    """config.json and weights of the ordinary model; ConfigError where the encoding or the block has none."""
    encoding = decoder.encoding
    while encoding.used is not encoding:
        encoding = encoding.used
    layers = [encoding.at(layer) for layer in range(decoder.shape.layers)]
    trained_length = int(config["max_position_embeddings"])
    if type(encoding) is Learned:
        facts, weights = _gpt2_model(decoder, encoding)
    elif not _only_within_layers(encoding, decoder.shape, trained_length):
        raise ConfigError(f"transformers has no model with {encoding.name}: use backend=native")
    elif all(type(layer) is Alibi for layer in layers):
        facts, weights = _mpt_model(decoder)
    elif all(type(layer) is Rope or _has_no_positions(layer) for layer in layers):
        facts, weights = _smollm3_model(decoder, [layer.base if isinstance(layer, Rope) else None for layer in layers])
    else:
        raise ConfigError(f"transformers has no model with {encoding.name}: use backend=native")
    common = {key: config[key] for key in ("bos_token_id", "eos_token_id", "torch_dtype") if key in config}
    lengths = {} if "n_positions" in facts else {"max_position_embeddings": trained_length}
    return {**facts, **lengths, **common, "tie_word_embeddings": True, "use_cache": True}, weights


def _only_within_layers(encoding: Encoding, shape: DecoderShape, trained_length: int) -> bool:
    """Whether, at use, positions are 0, 1, .. and token embeddings are unchanged."""
    tokens = torch.arange(2 * trained_length)[None] % shape.vocabulary
    if encoding.longest is not None and encoding.longest < tokens.shape[1]:
        return False
    embedded = torch.ones(*tokens.shape, shape.width)
    positions = encoding.positions(tokens, tokens.shape[1])
    # Beyond the trained length, too: there some encodings move their positions.
    counted = torch.arange(tokens.shape[1], dtype=torch.float64)
    return torch.equal(positions, counted) and torch.equal(encoding.embed(embedded, tokens, positions), embedded)


def _has_no_positions(layer: Encoding) -> bool:
    return type(layer) in (Encoding, Nope) or (type(layer) is UnrotatedLayer and type(layer.over) is Rope)


def _smollm3_model(decoder: Decoder, bases: list[float | None]) -> ConfigAndWeights:
    """RMSNorm, SwiGLU and grouped queries; layers with RoPE, all of one base, and layers without."""
    shape, known = decoder.shape, sorted({base for base in bases if base is not None})
    _check_block(shape, "llama", "SmolLM3 has no LayerNorm")
    if len(known) > 1:
        raise ConfigError(f"SmolLM3 has one RoPE base for all layers, got {known}: use backend=native")
    facts = llama_sizes(shape) | {"hidden_act": "silu", "attention_bias": False}
    rope = {"rope_type": "default", "rope_theta": (known or [10000.0])[0]}
    # SmolLM3 is Llama with layers without positions: 1 marks a layer that rotates.
    if None in bases:
        facts |= {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "pad_token_id": None}
        facts |= {"no_rope_layers": [int(base is not None) for base in bases], "rope_parameters": rope}
        facts |= {"layer_types": ["full_attention"] * shape.layers, "use_sliding_window": False}
    else:
        facts |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_parameters": rope}
    return facts, {f"model.{name}": weight for name, weight in _shared_weights(decoder).items()}


def _mpt_model(decoder: Decoder) -> ConfigAndWeights:
    """LayerNorm and GELU without biases, inner width of 4, ALiBi."""
    shape = decoder.shape
    _check_block(shape, "gpt", "MPT has no SwiGLU")
    if shape.hidden != 4 * shape.width:
        raise ConfigError(
            f"MPT has an inner width of 4 times {shape.width}, got {shape.hidden}: "
            f"train with recipe.shape.hidden={4 * shape.width}"
        )
    facts = {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "d_model": shape.width,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "expansion_ratio": 4,
        "vocab_size": shape.vocabulary,
        "max_seq_len": MPT_MAX_TOKENS,
        "layer_norm_epsilon": shape.norm_epsilon,
        "no_bias": True,
        "learned_pos_emb": False,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch"},
    }
    ours = _shared_weights(decoder)
    weights = {"transformer.wte.weight": ours["embed_tokens.weight"], "transformer.norm_f.weight": ours["norm.weight"]}
    for layer in range(shape.layers):
        own, theirs = f"layers.{layer}.", f"transformer.blocks.{layer}."
        weights |= {
            f"{theirs}norm_1.weight": ours[f"{own}input_layernorm.weight"],
            f"{theirs}norm_2.weight": ours[f"{own}post_attention_layernorm.weight"],
            f"{theirs}attn.Wqkv.weight": _stacked_projections(ours, own, shape),
            f"{theirs}attn.out_proj.weight": ours[f"{own}self_attn.o_proj.weight"],
            f"{theirs}ffn.up_proj.weight": ours[f"{own}mlp.up_proj.weight"],
            f"{theirs}ffn.down_proj.weight": ours[f"{own}mlp.down_proj.weight"],
        }
    return facts, weights


def _gpt2_model(decoder: Decoder, encoding: Learned) -> ConfigAndWeights:
    """LayerNorm and GELU, with biases that are 0, weights transposed; a table of positions."""
    shape = decoder.shape
    _check_block(shape, "gpt", "GPT-2 has no SwiGLU")
    facts = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": shape.width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.hidden,
        "n_positions": encoding.longest,
        "vocab_size": shape.vocabulary,
        "layer_norm_epsilon": shape.norm_epsilon,
        "activation_function": "gelu",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }
    ours = _shared_weights(decoder)
    weights = {"transformer.wte.weight": ours["embed_tokens.weight"], "transformer.wpe.weight": encoding.table}
    weights |= _with_zero_bias("transformer.ln_f", ours["norm.weight"])
    for layer in range(shape.layers):
        own, theirs = f"layers.{layer}.", f"transformer.h.{layer}."
        weights |= {
            **_with_zero_bias(f"{theirs}ln_1", ours[f"{own}input_layernorm.weight"]),
            **_with_zero_bias(f"{theirs}ln_2", ours[f"{own}post_attention_layernorm.weight"]),
            # transformers keeps GPT-2's weights as [inputs, outputs].
            **_with_zero_bias(f"{theirs}attn.c_attn", _stacked_projections(ours, own, shape).mT),
            **_with_zero_bias(f"{theirs}attn.c_proj", ours[f"{own}self_attn.o_proj.weight"].mT),
            **_with_zero_bias(f"{theirs}mlp.c_fc", ours[f"{own}mlp.up_proj.weight"].mT),
            **_with_zero_bias(f"{theirs}mlp.c_proj", ours[f"{own}mlp.down_proj.weight"].mT),
        }
    return facts, weights


def _shared_weights(decoder: Decoder) -> dict[str, Tensor]:
    """All weights but the encoding's, by parameter name."""
    return {name: weight for name, weight in decoder.named_parameters() if not name.startswith("encoding.")}


def _check_block(shape: DecoderShape, block: str, rule: str) -> None:
    if shape.block != block:
        raise ConfigError(f"{rule}: train with recipe.shape.block={block}")


def _stacked_projections(ours: Mapping[str, Tensor], layer: str, shape: DecoderShape) -> Tensor:
    """[3 width, width] projections to queries, keys and values; shared key and value heads are repeated."""
    query, key, value = (ours[f"{layer}self_attn.{name}_proj.weight"] for name in "qkv")
    times = shape.heads // shape.kv_heads
    # MPT and GPT-2 have a key head for each query head.
    shared = [w.view(shape.kv_heads, -1, shape.width).repeat_interleave(times, 0).flatten(0, 1) for w in (key, value)]
    return torch.cat([query, *shared])


def _with_zero_bias(name: str, weight: Tensor) -> dict[str, Tensor]:
    """The weight under this name, and a bias of 0."""
    return {f"{name}.weight": weight, f"{name}.bias": weight.new_zeros(weight.shape[-1])}

"""Trained decoders in folders: in Hugging Face's Llama format where possible, else in a format of our own.

config.json          sizes under Llama's names; `encoding` and `block` where model_type is lexbench
model.safetensors    weights under Llama's names; the encoding's under `model.encoding.`
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from lexbench.checkpoints.checkpoint import LEXBENCH_MODEL_TYPE
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object, write_bytes, write_text
from lexbench.core.values import has_type
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

LLAMA_SIZE_KEYS = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    "intermediate_size",
)


def save_model(
    decoder: Decoder,
    folder: Path,
    trained_length: int,
    *,
    bos: int,
    eos: int,
    dtype: torch.dtype,
    encoding: Mapping[str, Any] | None = None,
    scaling: Mapping[str, Any] | None = None,
) -> None:
    """Write config.json and model.safetensors.

    Args:
        decoder: plain RoPE in Llama's block becomes an ordinary Llama.
        folder: exists.
        trained_length: tokens.
        bos: id of the token that begins a text.
        eos: id of the token that ends it.
        dtype: of the weights in the file.
        encoding: its spec from `build.resolve_spec`; None only for plain RoPE.
        scaling: entries of an ordinary Llama's config.json for the frequencies in training, in transformers' format.
    """
    shape = decoder.shape
    config = llama_sizes(shape) | {
        "max_position_embeddings": trained_length,
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if is_llama(decoder):
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False}
        config |= {"rope_theta": decoder.encoding.base, "hidden_act": "silu"}
    else:
        assert encoding is not None, "an encoding that is no plain RoPE must be named"
        config |= {
            "model_type": LEXBENCH_MODEL_TYPE,
            "block": shape.block,
            "encoding": encoding,
            **decoder.encoding.facts,
        }
    weights = {f"model.{name}": _weight_to_save(name, weight, dtype) for name, weight in decoder.named_parameters()}
    if odd := next((name for name, weight in weights.items() if not weight.isfinite().all()), None):
        raise ConfigError(
            f"weight {odd} must be finite in {dtype}, it is not: lower recipe.rate, or give recipe.weights=float32"
        )
    write_bytes(folder / "model.safetensors", serialize(weights, metadata={"format": "pt"}))
    write_text(folder / "config.json", json.dumps(config | dict(scaling or {}), indent=1) + "\n")


def _weight_to_save(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight as it is saved; the encoding's are multiplied by positions and keep at least float32."""
    exact = torch.promote_types(dtype, torch.float32) if name.startswith("encoding.") else dtype
    return weight.detach().to(exact).contiguous()


def is_llama(decoder: Decoder) -> bool:
    """Whether it is an ordinary Llama."""
    return type(decoder.encoding) is Rope and decoder.shape.block == "llama"


def llama_sizes(shape: DecoderShape) -> dict[str, Any]:
    """A decoder's sizes under the names of Llama's config.json."""
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": shape.norm_epsilon,
    }


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    """Load a folder of `lexbench train`, or a Llama with tied embeddings and plain RoPE; ConfigError for any other."""
    config = read_object(folder / "config.json", "train it again")
    try:
        return _load_decoder(folder, config, dtype)
    except (KeyError, TypeError, AttributeError, RuntimeError, ArithmeticError, SafetensorError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(f"model folder {folder} is damaged ({said}): train it again") from error


def _load_decoder(folder: Path, config: Mapping[str, Any], dtype: torch.dtype) -> Decoder:
    ours = config.get("model_type") == LEXBENCH_MODEL_TYPE
    found = {} if ours else facts_of_config(config)
    plain = "rope_scaling" not in found and config.get("hidden_act", "silu") in ("silu", "swish")
    if not ours and not (config.get("model_type") == "llama" and config.get("tie_word_embeddings") and plain):
        raise ConfigError(
            f"native reads Llama folders with SiLU, tied embeddings and plain RoPE, {folder} is another: use backend=hf"
        )
    for name in LLAMA_SIZE_KEYS:
        if not has_type(config[name], int) or not config[name]:
            raise ConfigError(f"{name} of {folder} must be a whole number of at least 1: train it again")
    shape = DecoderShape(
        vocabulary=config["vocab_size"],
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        hidden=config["intermediate_size"],
        norm_epsilon=float(config["rms_norm_eps"]),
        block=config.get("block", "llama"),
    )
    if ours:
        decoder = Decoder(
            shape,
            build.build_encoding(
                build.update_stored_spec(config["encoding"]), shape, config["max_position_embeddings"]
            ),
        )
    else:
        decoder = Decoder(shape, Rope(shape.head_dim, found["rope_base"]))
    files = sorted(folder.glob("*.safetensors"))
    weights = {name.removeprefix("model."): weight for file in files for name, weight in load_file(file).items()}
    # Tied weights may be stored twice.
    weights.pop("lm_head.weight", None)
    for weight in decoder.parameters():  # not Module.to: frequencies stay in float64
        weight.data = weight.data.to(dtype)
    decoder.load_state_dict(weights, strict=False)  # a weight that layers share is stored once
    known = {name for name, _ in decoder.named_parameters()}
    if odd := sorted(known ^ weights.keys()):
        raise ConfigError(
            f"model folder {folder} must hold the weights of its config.json, {odd[0]} differs: train it again"
        )
    return decoder.eval()

"""Sizes of the GPU campaign (tools/gpu.py): shapes of attention, models of random weights."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from tools.board_gpu import TWELVE

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Heads:
    """Shape of attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    sinks: bool = False


@dataclass(frozen=True)
class Scale:
    """Sizes of a campaign."""

    heads: Mapping[str, Heads]
    """Of checked and measured kernels."""
    checked: int
    """Tokens of a checked kernel."""
    lengths: tuple[int, ...]
    """Tokens of a measured kernel's text."""
    models: Mapping[str, Mapping[str, Any]]
    """Config of each measured model, with its model_type."""
    methods: Mapping[str, tuple[str, ...]]
    """Methods under which each model is measured; stock and static are transformers' own loops."""
    prefills: tuple[int, int]
    """Tokens of a measured model's prompts: its trained length, and one beyond at which methods act."""
    room: int
    """Tokens that are written."""
    verified: int
    """Tokens of a checked method."""
    pairs: int
    """Tokens of a text whose scores of all pairs do not fit into memory."""
    copied: int
    """Bytes of a copy."""
    product: int
    """Rows of a matrix product."""
    repeats: int
    """Of a kernel."""
    model_repeats: int
    """Of a model's call."""
    scored: tuple[int, ...]
    """Lengths of texts that `lexbench run` and lm_eval score."""
    written: tuple[int, ...]
    """Lengths of needles' prompts that both answer."""
    asked: int
    """Texts, and needles, at each length."""
    toy: bool = False
    """Whether it is to try the campaign, on any machine."""


LARGE = Scale(
    heads={"qwen3_8b": Heads(32, 8, 128, 4096), "gpt_oss_20b": Heads(64, 8, 64, 128, sinks=True)},
    checked=1500,
    lengths=(8192, 32768),
    models={
        "qwen3_8b": {
            "model_type": "qwen3",
            **{
                "vocab_size": 151936,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "head_dim": 128,
            },
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096,
        },
        "gpt_oss_20b": {
            "model_type": "gpt_oss",
            **{
                "vocab_size": 201088,
                "hidden_size": 2880,
                "num_hidden_layers": 24,
                "head_dim": 64,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "intermediate_size": 64,
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
            },
        },
    },
    methods={"qwen3_8b": ("stock", *TWELVE, "static"), "gpt_oss_20b": ("none", "rerope")},
    prefills=(4096, 16384),
    room=64,
    verified=600,
    pairs=32768,
    copied=1 << 32,
    product=8192,
    repeats=5,
    model_repeats=3,
    scored=(2048, 4096, 8192, 16384),
    written=(2048, 4096, 8192),
    asked=16,
)
TOY = Scale(
    heads={"toy": Heads(4, 2, 16, 24, sinks=True)},
    checked=61,
    lengths=(64,),
    models={
        "toy": {
            "model_type": "qwen3",
            "vocab_size": 2048,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "head_dim": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 48,
        }
    },
    methods={"toy": ("stock", *TWELVE, "static")},
    prefills=(48, 96),
    room=24,
    verified=90,
    pairs=64,
    copied=1 << 16,
    product=32,
    repeats=2,
    model_repeats=3,
    scored=(128, 256),
    written=(512,),
    asked=2,
    toy=True,
)
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 24},
    "gemma3_text": {
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt_oss": {
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,  # all: a router would choose others in another dtype
        "intermediate_size": 16,  # small, so that attention matters
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
}
GIVEN: dict[str, dict[str, Any]] = {"ms_poe": {"first_layer": 0}, "qk_gain": {"gain": 2.0}}
"""Parameters with which methods change what shows in few layers and in bfloat16."""


@dataclass
class Campaign:
    """State that the steps share."""

    device: str
    scale: Scale
    dtype: torch.dtype
    """Of measured models and kernels."""
    place: Path = ROOT / "runs" / "board_gpu"
    """Folder in which tools/board_gpu.py joins SmolLM2 and packages."""
    held: tuple[str, Any] = field(default=("", None))
    """The last model that was made."""

    def model(self, name: str) -> Any:
        """A backend of a measured model; replaces the last one."""
        if self.held[0] != name:
            self.release()
            self.held = (name, backend(self.scale.models[name], self.device, self.dtype, name))
        return self.held[1]

    def release(self) -> None:
        """Free the memory of the last model."""
        self.held = ("", None)
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def network_of(sizes: Mapping[str, Any], device: str, dtype: torch.dtype, **more: Any) -> Any:
    """A network of random weights; `more` overrules its sizes."""
    import transformers

    torch.manual_seed(0)
    given = {key: value for key, value in {**sizes, **more}.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(sizes["model_type"], **given)
    if dtype == torch.float64:
        config._experts_implementation = "eager"  # the grouped product of experts has no float64
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def backend(sizes: Mapping[str, Any], device: str, dtype: torch.dtype, name: str, **more: Any) -> Any:
    """A model of random weights, as `lexbench` runs it."""
    from lexbench.backends.hf.backend import Hf
    from lexbench.backends.hf.exact.extended import model_of
    from lexbench.checkpoints.tokenizer import load_tokenizer

    network = network_of(sizes, device, dtype, **more)
    model = model_of(network, network.config.max_position_embeddings, name)
    return Hf.of(network, model, load_tokenizer(ROOT / "lexbench" / "lexlet"), (), "random")


def small(family: str, device: str, dtype: torch.dtype) -> Any:
    """A small model whose attention matters."""
    sizes = {"model_type": family, **SMALL, **FAMILIES[family]}
    return backend(sizes, device, dtype, family, max_position_embeddings=64, initializer_range=0.1)


def facts_of(sizes: Mapping[str, Any], name: str) -> Model:
    """A model's facts from its sizes, without its network; its width is that of all heads, as attention computes it."""
    heads, width = sizes["num_attention_heads"], sizes["head_dim"]
    return Model(
        name=name,
        trained_length=sizes["max_position_embeddings"],
        head_dim=width,
        layers=sizes["num_hidden_layers"],
        heads=heads,
        kv_heads=sizes["num_key_value_heads"],
        width=heads * width,
        vocabulary=sizes["vocab_size"],
    )


def attention_of(name: str, model: Model, length: int) -> Attention | None:
    """A method's Attention; None where it does not apply to the model at all."""
    from lexbench.core.record import Refused
    from lexbench.methods import scaled
    from lexbench.methods.composition import named_method

    try:
        return scaled.attention_of(named_method(name, **GIVEN.get(name, {})), model, length)
    except (Refused, ValueError):
        return None

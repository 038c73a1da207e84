"""Tiny random models whose RoPE is scaled, of several kinds, partial, decoupled, or missing in some layers."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lexbench.backends.hf import Hf
from lexbench.checkpoints.checkpoint import read_model
from tests.census import tiny

TRAINED, ORIGINAL, WINDOW, LENGTH = 32, 16, 12, 64
"""Tokens: the models' trained length, that before their RoPE was scaled, of sliding layers, of the texts."""
SCALED = {"factor": 2.0, "original_max_position_embeddings": ORIGINAL}
BASE = 200.0
FULL = ["full_attention"] * 4
ALTERNATE = ["sliding_attention", "full_attention"] * 2
LOCAL = {"layer_types": ALTERNATE, "sliding_window": WINDOW}


@dataclass(frozen=True)
class Family:
    """A kind of tiny model, and by hand what its config and its code mean."""

    kind: str
    changes: dict[str, Any] = field(default_factory=dict)
    offset: int = 0
    """First rotated dimension of a head."""
    layout: str = "half"
    windows: tuple[int, ...] = ()
    """Layers with a window."""
    without: tuple[int, ...] = ()
    """Layers without rotary positions."""
    by_kind: bool = False
    """Whether windowed layers have a RoPE of their own."""
    original: int = TRAINED
    """Trained length before the RoPE was scaled, where the config states it."""
    still: float = 1.0
    """Share of the pairs that rotate."""


def rope(kind: str = "default", **parameters: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": BASE, **parameters}


LONG = {"short_factor": [1.0, 1.0, 1.1, 1.2], "long_factor": [1.0, 1.3, 2.0, 2.5]}
MSCALE = {"mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 2.0, "beta_slow": 0.5}
LOW = {"low_freq_factor": 0.5, "high_freq_factor": 2.0}
FAMILIES = {
    "Llama 3.1": Family("llama", {"rope_parameters": rope("llama3", **SCALED, **LOW)}, original=ORIGINAL),
    "Qwen3": Family("qwen3", {"layer_types": FULL, "rope_parameters": rope()}),
    "Qwen3.5": Family(
        "qwen3_5_text",
        {
            **{
                "head_dim": 16,
                "layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"],
            },
            "rope_parameters": rope(partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True),
        },
    ),
    "Gemma 3": Family(
        "gemma3_text",
        {
            **LOCAL,
            "rope_parameters": {
                "full_attention": rope("linear", factor=2.0),
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        windows=(0, 2),
        by_kind=True,
    ),
    "Gemma 4": Family(
        "gemma4_text",
        {
            **LOCAL,
            "global_head_dim": 16,
            "rope_parameters": {
                "full_attention": rope("proportional", partial_rotary_factor=0.75),
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        windows=(0, 2),
        by_kind=True,
        still=0.75,
    ),
    "gpt-oss": Family(
        "gpt_oss",
        {**LOCAL, "rope_parameters": rope("yarn", **SCALED, beta_fast=2.0, beta_slow=0.5, truncate=False)},
        windows=(0, 2),
        original=ORIGINAL,
    ),
    "SmolLM3": Family(
        "smollm3", {"layer_types": FULL, "no_rope_layers": [1, 0, 1, 0], "rope_parameters": rope()}, without=(1, 3)
    ),
    "DeepSeek-V3": Family(
        "deepseek_v3", {"rope_parameters": rope("yarn", **SCALED, **MSCALE)}, offset=8, original=ORIGINAL
    ),
    "GLM-4.5": Family("glm4_moe", {"head_dim": 16, "rope_parameters": rope(partial_rotary_factor=0.5)}),
    "Phi-3 long": Family(
        "phi3",
        {
            "sliding_window": None,
            "original_max_position_embeddings": ORIGINAL,
            "rope_parameters": rope("longrope", **LONG),
        },
        original=ORIGINAL,
    ),
    "Vicuna 16k": Family("llama", {"rope_parameters": rope("linear", factor=2.0)}),
    "InternLM 2": Family("llama", {"rope_parameters": rope("dynamic", factor=2.0)}),
    "DeepSeek-V2": Family("deepseek_v2", {"rope_parameters": rope()}, offset=8, layout="interleaved"),
    "Llama 4": Family(
        "llama4_text",
        {
            **{"no_rope_layers": [1, 0, 1, 0], "layer_types": ["chunked_attention", "full_attention"] * 2},
            **{"attention_chunk_size": WINDOW, "rope_parameters": rope()},
        },
        layout="interleaved",
        windows=(0, 2),
        without=(1, 3),
    ),
}
ASKED = (*("Llama 3.1", "Qwen3", "Qwen3.5", "Gemma 3", "Gemma 4", "gpt-oss", "SmolLM3", "DeepSeek-V3", "GLM-4.5"),)
"""Families of which at least 30 of the methods must run."""
SHARED = {"num_hidden_layers": 4, "max_position_embeddings": TRAINED}


def save(folder: Path, name: str, **changes: Any) -> Path:
    """The folder of a tiny model of a family."""
    family = FAMILIES[name]
    return tiny.save(folder, family.kind, **SHARED, **copy.deepcopy({**family.changes, **changes}))


def opened(folder: Path) -> Hf:
    """The backend, with the facts of the checkpoint's config."""
    return Hf(read_model({"path": str(folder), "trained_length": TRAINED}), device="cpu")

"""RoPE as engines compute it, in tiny models of transformers, and healthy set-ups of 20 families."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from lexbench import Refused, RopeMismatch

TRAINED, LENGTH, DIMS = 2048, 8192, 64
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 2 * DIMS,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": DIMS,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
Computed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Cos and sin, [T, pairs] each, of positions [T] and frequencies [pairs]."""


def model_with(rope: dict[str, Any], kind: str = "llama", **sizes: Any) -> Any:
    """A tiny random model of transformers with RoPE parameters."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **sizes}, rope_parameters=rope)
    return transformers.AutoModelForCausalLM.from_config(config)


class EngineRotary(nn.Module):
    """A rotary module that computes cos and sin as an engine does.

    Args:
        config: of the checkpoint.
        inv_freq: [pairs] radians per token.
        computed: cos and sin of positions and frequencies.
        scale: of cos and sin.
    """

    def __init__(self, config: Any, inv_freq: Tensor, computed: Computed, scale: float = 1.0) -> None:
        super().__init__()
        self.config, self.computed, self.scale = config, computed, scale
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin, [1, T, 2 pairs]."""
        cos, sin = self.computed(position_ids[0], self.inv_freq)
        return self.scale * torch.cat([cos, cos], -1)[None], self.scale * torch.cat([sin, sin], -1)[None]


def frequencies(base: float, pairs: int = DIMS // 2) -> Tensor:
    """[pairs] of plain RoPE, in float32."""
    return 1.0 / base ** (torch.arange(pairs, dtype=torch.float32) / pairs)


def in_float32(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin in float32."""
    angles = torch.outer(positions.float(), inv_freq.float())
    return angles.cos(), angles.sin()


def by_half_precision(dtype: torch.dtype, positions_too: bool) -> Computed:
    """Angles in half precision, of positions and frequencies in it, or of those in float32."""

    def computed(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
        parts = (positions, inv_freq) if not positions_too else (positions.to(dtype), inv_freq.to(dtype))
        angles = (parts[0][:, None] * parts[1]).to(dtype)
        return angles.cos(), angles.sin()

    return computed


def by_fast_math(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """As CUDA's __cosf and __sinf reduce an angle: times 1 / 2 pi in float32, and the fraction of a turn."""
    turns = torch.outer(positions.float(), inv_freq) * torch.tensor(1 / (2 * math.pi), dtype=torch.float32)
    angles = 2 * math.pi * (turns.double() % 1.0)
    return angles.cos().float(), angles.sin().float()


# healthy set-ups

PLAIN = {"rope_type": "default", "rope_theta": 1e6}
KINDS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * (DIMS // 2),
    "long_factor": [1.0 + pair / 4 for pair in range(DIMS // 2)],
    "original_max_position_embeddings": TRAINED,
}
HEALTHY_ROPES: dict[str, dict[str, Any]] = {
    "llama": LLAMA3,
    "qwen2": {**YARN, "rope_theta": 1e6},
    "qwen3": {**YARN, "rope_theta": 1e6},
    "mistral": PLAIN,
    "gemma": PLAIN,
    "olmo": PLAIN,
    "gemma3_text": KINDS,
    "phi": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
    "phi3": LONGROPE,
    "gpt_neox": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "olmo2": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0},
    "granite": PLAIN,
    "cohere": PLAIN,
    "stablelm": PLAIN,
    "starcoder2": PLAIN,
    "glm": PLAIN,
    "nemotron": PLAIN,
    "mixtral": LLAMA3,
    "smollm3": {**YARN, "rope_theta": 2e6},
    "exaone4": LLAMA3,
}
"""RoPE parameters by families of transformers."""
MORE_SIZES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": list(KINDS)},
    "phi3": {"original_max_position_embeddings": TRAINED},
}
HALF_DTYPES = (torch.bfloat16, torch.float16)


def healthy_setups() -> Iterator[tuple[str, Any]]:
    """Each family in float32 and in a half precision, after forward passes by two kernels, of 1 text and of 3."""
    for place, (kind, rope) in enumerate(HEALTHY_ROPES.items()):
        for other, dtype in enumerate((torch.float32, HALF_DTYPES[place % 2])):
            kernel, texts = ("eager", "sdpa")[(place + other) % 2], (1, 3)[other]
            torch.manual_seed(0)
            model = _loaded(rope, kind, dtype, kernel)
            with torch.no_grad():
                model(torch.randint(3, 64, (texts, 40 + place)))
            yield f"{kind}, {dtype}, {kernel}, {texts} texts", model


def _loaded(rope: dict[str, Any], kind: str, dtype: torch.dtype, kernel: str) -> Any:
    """As from_pretrained makes it: weights in the dtype, frequencies in float32."""
    sizes = {**SIZES, **MORE_SIZES.get(kind, {})}
    config = transformers.AutoConfig.for_model(kind, **sizes, rope_parameters=dict(rope))
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=kernel).eval()


def false_alarms(check: Callable[..., Any]) -> tuple[int, list[str]]:
    """Number of healthy set-ups, and what `assert_rope` or `assert_attention` says of those that do not pass."""
    count, said = 0, []
    for label, model in healthy_setups():
        count += 1
        try:
            check(model, length=LENGTH, trained_length=TRAINED)
        except (RopeMismatch, Refused) as error:
            said.append(f"{label}: {error}")
    return count, said

"""What a layer does with the products of queries and keys, as the config of its type has it: scale, cap, temperature.

transformers' code has the rules; a rule that its configs do not state is known here by type. Tests compare all with
networks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lexbench.checkpoints.config_facts import QUERY_SCALE
from lexbench.checkpoints.structure import first_stated, layer_kinds, layers_with_sinks, layers_without_positions
from lexbench.core.attention import Floats, Positions

UNSCALED_TYPES = {
    "gemma3n_text",
    *("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"),
}
"""Types whose queries and keys have a norm in place of a scale."""
SCALED_BY_HALF_A_HEAD = {"zamba", "zamba2"}
"""Types whose heads are two of the model's side by side, scaled as one of them."""
SCALED_QUERIES = {"opt", "whisper", "kosmos_2_5_text_model"}
"""Types whose queries arrive scaled at the attention function."""
WITHOUT_WINDOWS = {"moshi"}
"""Types whose configs state a window that their masks do not have."""
INDEX_OF_NEIGHBOURS = {"deepseek_v4", "dots3_note_text", "glm_moe_dsa", "mistral_large4_text"}
"""Types whose index of keys rotates neighbouring dimensions; that of others rotates halves."""
TURNED_BACK = {"nanochat"}
"""Types that rotate the other way round, by minus each angle."""


@dataclass(frozen=True)
class Temperature:
    """A factor of queries at position t: 1 + slope ln(1 + floor(x)) or (1 + x)^slope, of x = (t + ahead) / step."""

    slope: float
    step: float
    ahead: int = 0
    """1: the position is counted from 1."""
    counts_keys: bool = False
    """Whether t is counted from the keys in the cache, whatever positions are given."""
    is_power: bool = False
    """Whether the factor is a power."""

    def at(self, places: Positions) -> Floats:
        """[n] factors at positions."""
        if self.is_power:
            return np.asarray((1 + (places + self.ahead) / self.step) ** self.slope)
        return np.asarray(1 + self.slope * np.log1p(np.floor((places + self.ahead) / self.step)))


@dataclass(frozen=True)
class LayerScores:
    """What a layer does by its config, beside rotation and windows."""

    kind: str
    has_positions: bool
    scale: float
    """Factor of the products before softmax."""
    latent: float
    """DeepSeek's mscale, whose square is part of the scale; 1: it has none."""
    cap: float | None
    """c of c tanh(s / c); None: no cap."""
    has_sink: bool
    temperature: Temperature | None


def layer_scores(config: Any, layer: int, head_dim: int) -> LayerScores:
    """What a layer does with products of queries and keys.

    Args:
        config: of the text tower, of transformers.
        layer: its number.
        head_dim: of its queries and keys.
    """
    kinds = layer_kinds(config)
    kind = kinds[layer] if layer < len(kinds) else "full_attention"
    rotates = layer not in layers_without_positions(config, kinds)
    return LayerScores(
        kind,
        rotates,
        softmax_scale(config, layer, head_dim),
        latent_scale(config),
        first_stated(config, "attn_logit_softcapping"),
        layer in layers_with_sinks(config, kinds),
        _temperature(config, rotates),
    )


def softmax_scale(config: Any, layer: int, head_dim: int) -> float:
    """Factor of the products before softmax."""
    if config.model_type in UNSCALED_TYPES | SCALED_QUERIES:
        return 1.0
    if config.model_type in SCALED_BY_HALF_A_HEAD:
        return 1 / math.sqrt(head_dim / 2)
    if (stated := first_stated(config, "attention_multiplier")) is not None:
        return float(stated)
    if (of := first_stated(config, "query_pre_attn_scalar")) is not None:
        return 1 / math.sqrt(of)
    scale = 1.0 if first_stated(config, "scale_attn_weights") is False else 1 / math.sqrt(head_dim)
    if first_stated(config, "scale_attn_by_inverse_layer_idx"):
        scale /= layer + 1
    return scale * latent_scale(config) ** 2


def latent_scale(config: Any) -> float:
    """DeepSeek's mscale of multi-head latent attention: 0.1 m ln s + 1 at a factor s; 1 for any other attention.

    Its square stands beside the scale of the softmax (DeepSeek-V2's and V3's modeling files).
    """
    rope = _rope(config)
    by = rope.get("mscale_all_dim")
    if not by or not first_stated(config, "kv_lora_rank") or rope.get("rope_type", "default") == "default":
        return 1.0
    return 1.0 if rope["factor"] <= 1 else 0.1 * by * math.log(rope["factor"]) + 1.0


def _temperature(config: Any, rotates: bool) -> Temperature | None:
    if first_stated(config, "attn_temperature_tuning"):
        slope, step = first_stated(config, "attn_scale"), first_stated(config, "floor_scale")
        return None if rotates else Temperature(slope, step, ahead=1, counts_keys=True)
    if config.model_type == "beam":
        return None if rotates else Temperature(0.1, 2048, ahead=1, is_power=True)
    rope = _rope(config)
    if beta := rope.get(QUERY_SCALE):
        return Temperature(beta, rope["original_max_position_embeddings"])
    return None


def _rope(config: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = first_stated(config, "rope_parameters") or {}
    return found

"""What each layer of a network keeps of a text, by the entries of its config.json (`Model.layer_caches`).

Multi-head latent attention stores one latent and one rotary key for all heads, as transformers 5 and vLLM have it. Keys
of an indexer beside (DeepSeek sparse attention), and states of layers without keys, are not counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lexbench.core.layer_cache import MAX_LAYERS, LayerCache
from lexbench.core.layer_types import has_attention, is_chunked, is_windowed

WINDOW_ENTRIES = ("sliding_window", "sliding_window_size", "attention_window_size")
"""Entries for the size of a window."""
TWICE_THE_HEADS_IN_WINDOWS = {"mimo_v2_flash"}
"""Model types whose layers with a window have twice the key heads; no entry of their files says it."""
TWO_ATTENTIONS_A_LAYER = {"longcat_flash"}
SHARED_LAYERS_ENTRY = "num_kv_shared_layers"
"""Entry for the number of last layers that use the keys and values of earlier ones."""


def layer_caches(config: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[LayerCache | None, ...] | None:
    """What each layer keeps, None for one that keeps no keys; None for all where the sizes of a head say enough.

    None, too, where the entries do not say it: then the facts do not suffice for `Model.kept_by_layer` either.

    Args:
        config: entries of the text model in config.json.
        facts: fields of `Model` that are known of it.
    """
    kinds = _kinds(config, facts)
    unknown_latent = config.get("qk_rope_head_dim") and not config.get("kv_lora_rank")
    if not kinds or unknown_latent:
        return None
    made = [
        _cache_of_layer(config, facts, layer, kind) if has_attention(kind) else None for layer, kind in enumerate(kinds)
    ]
    if any(each is None for each, kind in zip(made, kinds, strict=True) if has_attention(kind)):
        return None
    shared = config.get(SHARED_LAYERS_ENTRY) or 0
    found = (*made[: len(made) - shared], *(None,) * shared)
    alike = facts.get("layer_types") is None and len(found) == facts.get("layers") and len(set(found)) == 1
    first = found[0]
    if not alike or first is None or first.latent or first.window is not None:
        return found
    sizes = first.heads, first.key_dim, first.value_dim
    return None if sizes == (facts["kv_heads"], facts["head_dim"], facts["head_dim"]) else found


def _kinds(config: Mapping[str, Any], facts: Mapping[str, Any]) -> Sequence[str] | None:
    """Kind of each layer; None where their number is not known."""
    if listed := facts.get("layer_types") or config.get("layer_types") or config.get("layers_block_type"):
        return tuple(listed)
    if pattern := config.get("hybrid_override_pattern"):  # Nemotron-H: M a state, * attention, - an MLP
        return tuple("full_attention" if each == "*" else "none" for each in pattern)
    layers: int | None = facts.get("layers")
    if config.get("model_type") in TWO_ATTENTIONS_A_LAYER:
        layers = 2 * config["num_layers"] if config.get("num_layers") else layers
    if layers is None or layers > MAX_LAYERS:
        return None
    if facts.get("heads") is None:  # Mamba, RWKV: states alone
        return ("none",) * layers if facts.keys().isdisjoint({"rope_base", "rope_scaling"}) else None
    if (places := _attention_places(config, layers)) is not None:
        kind = "sliding_attention" if _window(config, ("attention_window_size",)) else "full_attention"
        return tuple(kind if layer in places else "none" for layer in range(layers))
    if _window(config, ("sliding_window",)) is None or config.get("use_sliding_window") is False:
        return ("full_attention",) * layers
    first = (config.get("max_window_layers") or 0) if config.get("use_sliding_window") else 0  # Qwen2
    return tuple("sliding_attention" if layer >= first else "full_attention" for layer in range(layers))


def _window(config: Mapping[str, Any], entries: Sequence[str]) -> int | None:
    """The size in the first of these entries that states one: some files write -1 for none."""
    return next((config[name] for name in entries if (config.get(name) or 0) > 0), None)


def _attention_places(config: Mapping[str, Any], layers: int) -> set[int] | None:
    """Layers with attention among those with states, by the entries of three families; None where there are none."""
    if (listed := config.get("attn_layer_indices")) is not None:  # Bamba
        return set(listed)
    if pattern := config.get("block_types"):  # RecurrentGemma
        return {layer for layer in range(layers) if pattern[layer % len(pattern)] == "attention"}
    if (period := config.get("attn_layer_period")) is not None:  # Jamba
        return {layer for layer in range(layers) if layer % period == (config.get("attn_layer_offset") or 0)}
    return None


def _cache_of_layer(config: Mapping[str, Any], facts: Mapping[str, Any], layer: int, kind: str) -> LayerCache | None:
    """What a layer with attention keeps; None where a size is not known."""
    own = (config.get("per_layer_config") or {}).get(str(layer)) or {}
    windowed = is_windowed(kind)

    def size(name: str, of_global: str | None, usual: Any) -> Any:
        """A size: stated for the layer, for its kind, or for all layers."""
        of_kind = config.get(f"swa_{name}") if windowed else facts.get(of_global or "")
        return own.get(name) or of_kind or usual

    window = None
    if windowed:
        window = _window(config, ("attention_chunk_size",) if is_chunked(kind) else WINDOW_ENTRIES)
        if window is None:
            return None
    if config.get("kv_lora_rank"):
        rotary = size("qk_rope_head_dim", None, config.get("qk_rope_head_dim"))
        latent = size("kv_lora_rank", None, config["kv_lora_rank"])
        return LayerCache(1, latent, rotary, window, latent=True) if rotary else None
    head_dim = size("head_dim", "global_head_dim", facts.get("head_dim"))
    heads = size("num_key_value_heads", "global_kv_heads", facts.get("kv_heads"))
    if head_dim is None or heads is None:
        return None
    if (
        windowed
        and config.get("model_type") in TWICE_THE_HEADS_IN_WINDOWS
        and not config.get("swa_num_key_value_heads")
    ):
        heads *= 2
    return LayerCache(heads, head_dim, size("v_head_dim", None, config.get("v_head_dim") or head_dim), window)

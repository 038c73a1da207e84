"""Facts of a `Model` in a config.json, as transformers 4 and 5 and the model families write it.

A fact has several names (`num_attention_heads`, `n_head`), may stand in a section (`text_config`), and is left out by
old files where it is the default of the model_type. The tables `IMPLIED...` hold these defaults, as transformers has
them.
"""

from collections.abc import Mapping
from typing import Any

from lexbench.checkpoints.layer_caches import layer_caches
from lexbench.core.layer_types import has_attention, is_windowed

IMPLIED_BASE = {
    **dict.fromkeys(("codegen", "falcon", "gemma", "gemma2", "gpt_neox", "gptj", "granite", "llama", "mistral"), 1e4),
    **dict.fromkeys(("olmo", "olmo2", "persimmon", "phi", "phi3", "qwen2", "qwen3", "stablelm", "starcoder2"), 1e4),
    **dict.fromkeys(("arcee", "cohere2", "deepseek_v2", "deepseek_v3", "qwen2_moe", "qwen3_moe", "seed_oss"), 1e4),
    **dict.fromkeys(("cohere", "ernie4_5", "ernie4_5_moe", "llama4_text"), 5e5),
    **{"gpt_oss": 1.5e5, "mixtral": 1e6, "smollm3": 2e6},
}
"""Base of the rotary angles, by model_type."""
LONGROPE_ONLY = {"phi3", "phi4_multimodal", "phimoe"}
"""Model types of which transformers takes plain rope parameters and those of longrope: Phi-3's reads yarn as longrope,
and Phi-MoE's reads the scale from entries that only its longrope has."""
READ_APART = {"gpt_oss", *LONGROPE_ONLY}
"""Model types whose rope parameters an engine reads by code of its own, which counts for exports."""
_LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}
IMPLIED_CONFIG_ENTRIES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,  # the text part of LLaVA's file leaves them out
    "mistral": {**_LLAMA, "num_key_value_heads": 8},
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    | {"max_position_embeddings": 131072, "sliding_window_pattern": 6, "vocab_size": 262208},
}
"""Values of entries that a config.json may leave out, by model_type."""
IMPLIED_SHARE = {"bamba": 0.5, "gpt_neox": 0.25, "persimmon": 0.5, "phi": 0.5, "stablelm": 0.25}
"""Share of a head's dimensions that rotate, by model_type, where config.json does not state it."""
IMPLIED_HEAD_DIM = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "qwen3": 128}
"""Dimensions of a head, by model_type, where config.json does not state them."""
NO_ROPE = {"jamba", "kimi_linear", "nemotron_h"}
"""Model types that never rotate; their files may state a base."""
ROPE_IF = {"granitemoehybrid": ("position_embedding_type", "rope"), "zamba2": ("use_mem_rope", True)}
"""Model types that rotate only with this entry of their config."""
INTERLEAVED_MODEL_TYPES = {
    *("blt", "codegen", "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "deepseek_v4", "ernie4_5"),
    *("ernie4_5_moe", "ernie4_5_vl_moe_text", "glm", "glm4", "glm4v_text", "glm_ocr_text", "gptj", "helium"),
    "llama4_text",
}
"""Model types that rotate dimension 2p with 2p + 1."""
REORDERED_BY_ENTRY = {"axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu"}
"""Types of `REORDERED_MODEL_TYPES` that rotate halves where `rope_interleave` is false."""
REORDERED_MODEL_TYPES = REORDERED_BY_ENTRY | {
    *("axk2", "bailing_hybrid", "deepseek_v32", "dots3_note_text", "glm_moe_dsa", "longcat_flash"),
    "mistral_large4_text",
}
"""Model types that rotate so; transformers puts their pairs into halves, vLLM not."""

ANGLE_ROPE_PARAMETERS = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "alpha"),
    *("original_max_position_embeddings", "attention_factor", "mscale", "mscale_all_dim"),
    *("beta_fast", "beta_slow", "truncate", "low_freq_factor", "high_freq_factor"),
    *("short_factor", "long_factor", "short_mscale", "long_mscale", "attn_factor", "extrapolation_factor"),
}
"""Rope parameters of which angles are computed, or that a scaling of the angles replaces."""
QUERY_SCALE = "llama_4_scaling_beta"
"""Rope parameter of a factor of the queries, log of the position by original_max_position_embeddings (Ministral)."""


def other_entries(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The rope parameters that are read for something else than angles, and the length that they share with these."""
    found = {key: value for key, value in rope.items() if key not in ANGLE_ROPE_PARAMETERS}
    shared = rope.get("original_max_position_embeddings")
    if QUERY_SCALE in found and shared is not None:
        found["original_max_position_embeddings"] = shared
    return found


def facts_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Model` in a config.json of transformers 4 or 5; unstated fields are left out.

    `rope_scaling` has the names of transformers 5 (rope_type), without the base and the rotated share, which are facts
    of their own. If kinds of layers rotate differently, there is no single base, and it maps each kind to its
    parameters.
    """
    section = "text_config" if config.get("text_config") else None
    # The last one wins: defaults of transformers, the file, its section for text.
    config = {**config, **(config.get("text_config") or {})}
    config = {**IMPLIED_CONFIG_ENTRIES.get(config.get("model_type", ""), {}), **config}
    heads = _first_stated(config, "num_attention_heads", "n_head", "n_heads")
    width = _first_stated(config, "hidden_size", "n_embd", "d_model")
    head_dim = _head_dim(config, width, heads)
    base, scaling = _rope(config)
    extra = {} if _by_kind(_rope_parameters(config)) else other_entries(_rope_parameters(config))
    if original := config.get(
        "original_max_position_embeddings"
    ):  # transformers takes it before that of rope parameters
        extra["original_max_position_embeddings"] = original
    rotates = base is not None or scaling is not None
    if head_dim is None and heads is None and not rotates:  # no attention: a state of the whole width
        head_dim = width
    one_kv_head = config.get("multi_query") and not config.get("new_decoder_architecture")  # StarCoder, Falcon
    found = {
        "trained_length": _trained_length(config, scaling),
        "head_dim": head_dim,
        "rope_base": base,
        "rotary_dim": _rotary_dim(config, head_dim) if rotates else None,
        "rope_scaling": scaling,
        "rope_extra": extra or None,
        "decoupled": True if config.get("qk_rope_head_dim") else None,
        "architecture": kind if (kind := config.get("model_type")) in READ_APART else None,
        "config_section": section,
        "max_position_embeddings": config.get("max_position_embeddings") if _needs_claimed(scaling or {}) else None,
        "layer_types": _layer_types(config),
        "global_head_dim": _of_global_layers(config, "head_dim", "global_head_dim"),
        "global_kv_heads": _of_global_layers(config, "num_key_value_heads", "num_global_key_value_heads"),
        "rotary_layout": "interleaved" if rotates and _is_interleaved(config) else None,
        "layers": _first_stated(config, "num_hidden_layers", "n_layer", "n_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": 1 if one_kv_head else _first_stated(config, "num_key_value_heads", "num_kv_heads") or heads,
        "vocabulary": config.get("vocab_size"),
    }
    found = {key: value for key, value in found.items() if value is not None}
    kept = layer_caches(config, found)
    return found if kept is None else found | {"layer_caches": kept}


def _is_interleaved(config: Mapping[str, Any]) -> bool:
    """Whether the weights are for pairs of neighbours."""
    kind = config.get("model_type", "")
    halves = kind in REORDERED_BY_ENTRY and not config.get("rope_interleave", True)
    return kind in INTERLEAVED_MODEL_TYPES | REORDERED_MODEL_TYPES and not halves


def _needs_claimed(scaling: Mapping[str, Any]) -> bool:
    """Whether a scaling is computed from max_position_embeddings: it states no length of its own, or no factor."""
    kinds = [scaling] if "rope_type" in scaling else [each for each in scaling.values() if isinstance(each, Mapping)]
    needed = {
        "dynamic": {"max_position_embeddings"},
        "llama3": {"original_max_position_embeddings"},
        **{kind: {"original_max_position_embeddings", "factor"} for kind in ("yarn", "longrope")},
    }
    return any(each.get(name) is None for each in kinds for name in needed.get(each.get("rope_type", ""), ()))


def _layer_types(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Kind of attention of each layer; None if all see all keys under one RoPE, or the file does not say it."""
    kinds = config.get("layer_types")
    every = _first_stated(config, "sliding_window_pattern", "_sliding_window_pattern")
    layers = config.get("num_hidden_layers")
    if kinds is None and every and layers:  # Gemma in transformers 4: every n-th layer sees all keys
        kinds = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    every = config.get("global_attn_every_n_layers")
    if kinds is None and every and layers:  # ModernBERT: the first of every n does
        kinds = ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]
    every = config.get("full_attention_interval")
    if kinds is None and every and layers:  # Qwen3-Next: every n-th layer has attention
        kinds = ["linear_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    if kinds is None and config.get("model_type") == "llama4_text" and layers:
        every = config.get("no_rope_layer_interval") or 4
        rotates = config.get("no_rope_layers") or [(layer + 1) % every for layer in range(layers)]
        kinds = ["chunked_attention" if rotating else "full_attention" for rotating in rotates]
    return tuple(kinds) if kinds and (set(kinds) != {"full_attention"} or _by_kind(_rope_parameters(config))) else None


def _of_global_layers(config: Mapping[str, Any], name: str, stated: str) -> int | None:
    """A size of the layers that see all keys, where other layers have another one (Gemma 4); None if they differ."""
    if not config.get("per_layer_config"):
        return config.get(stated) if stated != "num_global_key_value_heads" or config.get("attention_k_eq_v") else None
    # As transformers 5 writes it: the sizes of a layer that are not those of the whole config.
    by_layer = {int(layer): sizes for layer, sizes in config["per_layer_config"].items()}
    kinds = _layer_types(config) or ("full_attention",) * (config.get("num_hidden_layers") or 0)
    layers = [layer for layer, kind in enumerate(kinds) if has_attention(kind) and not is_windowed(kind)]
    found = {by_layer.get(layer, {}).get(name) or config.get(name) for layer in layers}
    return found.pop() if len(found) == 1 and found != {config.get(name)} else None


def _first_stated(config: Mapping[str, Any], *names: str) -> Any:
    """The first of these entries that is not null."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def _head_dim(config: Mapping[str, Any], width: int | None, heads: int | None) -> int | None:
    if config.get("qk_rope_head_dim"):  # multi-head latent attention: an unrotated part beside the rotated one
        return int(config.get("qk_nope_head_dim") or 0) + int(config["qk_rope_head_dim"])
    own = config.get("attention_head_dim") if config.get("model_type") == "zamba2" else None
    stated = own or config.get("head_dim") or IMPLIED_HEAD_DIM.get(config.get("model_type", ""))
    return stated or (width // heads if width and heads else None)


def _rotary_dim(config: Mapping[str, Any], head_dim: int | None) -> int | None:
    """Rotated dimensions; None: all."""
    # transformers' MiniMax, unlike its MiniMax M2, leaves rotary_dim unread.
    stated = _first_stated(
        config, "qk_rope_head_dim", *(() if config.get("model_type") == "minimax" else ("rotary_dim",))
    )
    if stated or head_dim is None:
        return int(stated) if stated else None
    share = _first_stated({**config, **_rope_parameters(config)}, "partial_rotary_factor", "rotary_pct")
    if _rope_parameters(config).get("rope_type") == "proportional":  # counts all pairs, of which some stand still
        return None
    share = share or IMPLIED_SHARE.get(config.get("model_type", ""), 1.0)
    return int(head_dim * share) if share != 1.0 else None


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters (transformers 5) or rope_scaling (transformers 4); of both, transformers takes the latter.

    Parameters of kinds of layers stand in the former only.
    """
    new, old = (config.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    return dict(new if not old or _by_kind(new) else old)


def _by_kind(rope: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rope parameters of kinds of layers; empty if all layers share one set."""
    return {kind: value for kind, value in rope.items() if isinstance(value, Mapping)}


def _rope(config: Mapping[str, Any]) -> tuple[float | None, dict[str, Any] | None]:
    """Base and scaling: (None, None) without rotary positions, (None, layers) if kinds of layers differ."""
    rope = _rope_parameters(config)
    if layers := _by_kind(rope):
        return None, {kind: _complete(kind, value, config) for kind, value in layers.items()}
    kind = config.get("model_type", "")
    entry, value = ROPE_IF.get(kind, ("", None))
    # Falcon with ALiBi, Granite 4.0-H: the file has a base even if it is not used.
    if config.get("alibi") or kind in NO_ROPE or (entry and config.get(entry) != value):
        return None, None
    base = _first_stated(rope, "rope_theta") or _first_stated(config, "rope_theta", "rotary_emb_base")
    base = base or IMPLIED_BASE.get(kind)
    kind = _first_stated(rope, "rope_type", "type") or "default"
    kind = "default" if kind == "mrope" else kind  # one axis for text, and nothing is scaled
    # Facts of their own; of a proportional RoPE the share is part of its formula.
    apart = ("rope_theta", "type", *(() if kind == "proportional" else ("partial_rotary_factor",)))
    rest = {key: value for key, value in rope.items() if key not in apart}
    original = config.get("original_max_position_embeddings")
    if original and kind in ("llama3", "longrope", "yarn"):  # Phi: beside the parameters, and before those in them
        rest["original_max_position_embeddings"] = original
    if kind == "dynamic" and rest.get("alpha"):  # HunYuan: a larger base at every length
        kind = "ntk_alpha"
    scaling = {**rest, "rope_type": kind} if kind != "default" else None
    if scaling is not None and config.get("model_type") == "olmo3":  # windows keep the plain RoPE
        plain = {"rope_type": "default", "rope_theta": base}
        return None, {"full_attention": {**scaling, "rope_theta": base}, "sliding_attention": plain}
    if full := config.get("global_rope_theta"):  # ModernBERT in transformers 4
        bases = {"full_attention": full, "sliding_attention": config.get("local_rope_theta") or full}
        return None, {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    if local := config.get("rope_local_base_freq"):  # Gemma 3 in transformers 4
        full = {**rest, "rope_type": kind, "rope_theta": base}
        return None, {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local}}
    return base, scaling


def _complete(kind: str, rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a kind of layers, with what transformers fills in: the names of older files, and the base."""
    found = {key: value for key, value in rope.items() if key != "type"}
    if "type" in rope:
        found.setdefault("rope_type", rope["type"])
    local = config.get("rope_local_base_freq") if is_windowed(kind) else None
    base = local or config.get("rope_theta") or IMPLIED_BASE.get(config.get("model_type", ""))
    return {"rope_theta": base, **found} if base else found


def _trained_length(config: Mapping[str, Any], scaling: Mapping[str, Any] | None) -> int | None:
    """max_position_embeddings; None if a scaling factor makes it ambiguous.

    A linear or yarn factor scales one length to another. If max_position_embeddings is the longer of the two
    (original_max_position_embeddings times factor, as in gpt-oss), it is the trained length. Otherwise the file does
    not say whether the scaling was trained (Vicuna 16k: 4096, linear 4) or is for later use (Qwen2.5: 32768, yarn 4).
    """
    claimed: int | None = _first_stated(config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    if claimed is None or scaling is None or scaling.get("rope_type") not in ("linear", "yarn"):
        return claimed
    original = scaling.get("original_max_position_embeddings") or claimed
    stretched = original * (scaling.get("factor") or claimed / original)
    return claimed if stretched == claimed else None

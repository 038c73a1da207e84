"""Properties of a checkpoint's attention and head beside plain causal attention, read from its config.

transformers fills in what config.json leaves out. What its code does without an entry of the config is known by type
(`ROTATES_IN_WINDOWS`, `SINK_MODEL_TYPES`); tests compare both with networks.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lexbench.checkpoints.checkpoint import facts_suffice, local_folder, read_config
from lexbench.checkpoints.config_facts import ROPE_IF
from lexbench.core.errors import ConfigError
from lexbench.core.extras import install_remedy, is_installed
from lexbench.core.layer_types import is_chunked, is_windowed

ROTATES_IN_WINDOWS = {"afmoe", "beam", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1"}
"""Types whose layers rotate if they have a window, and have no positions otherwise."""
SINK_MODEL_TYPES = {"deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4"}
"""Types with a learned sink in every layer."""
SINKS_IN_WINDOWS = {"mimo_v2_flash"}
LAYER_KIND_ENTRIES = ("layer_types", "layers_block_type", "attention_layers")
"""Entries of a config that hold the kind of each layer."""
STATE_LAYER_KINDS = ("linear_attention", "mamba", "conv", "recurrent")
"""Kinds of layers that keep a state in place of keys."""
ROPE_ENTRIES, LENGTH_KINDS = ("rope_scaling", "rope_parameters"), ("dynamic", "longrope", "su")
"""Entries of a config that hold a scaling of RoPE, and types whose angles depend on the length of the prompt."""


def attention_properties(stated: Mapping[str, Any]) -> dict[str, str]:
    """Properties of a checkpoint's attention and head: sentence by name; empty where there is no config to read.

    Without transformers one sentence says how to install it.

    Args:
        stated: fields of `Model`; without a folder on disk, the checkpoint is read only if its facts are needed.
    """
    path = stated.get("path")
    if not path:
        return {}
    try:
        if local_folder(path) is None and facts_suffice(stated):
            return {}
        found = read_config(path, stated.get("revision"))
    except ValueError:  # its package or folder is not here, and the stated facts suffice
        return {}
    if not is_installed("transformers"):
        return {"windows, sinks and head": f"read by transformers, which is not installed: {install_remedy('hf')}"}
    import transformers

    kind = found.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        return {}
    try:
        # The class of the config fills in what the file leaves out.
        config = transformers.CONFIG_MAPPING[kind].from_dict(_floats(found)).get_text_config()
    except Exception as error:  # each class checks its entries in its own way
        said = " ".join(str(error).split())[:120]
        raise ConfigError(f"config of {path} cannot be read as {kind} ({said}): download config.json again") from None
    return dict(_properties(config))


def has_full_attention(config: Mapping[str, Any]) -> bool:
    """Whether a layer of a config.json sees all keys: else what stands far back may leave no trace in an answer."""
    text = config.get("text_config")
    stated = {**config, **(text if isinstance(text, Mapping) else {})}
    kinds = next((kinds for name in LAYER_KIND_ENTRIES if isinstance(kinds := stated.get(name), list)), None)
    if kinds is not None:
        return any(not is_windowed(str(kind)) and kind not in STATE_LAYER_KINDS for kind in kinds)
    if stated.get("sliding_window") and stated.get("use_sliding_window") is not False:
        return bool(stated.get("max_window_layers") or stated.get("sliding_window_pattern"))
    return any(stated.get(name) for name in ("num_attention_heads", "n_head", "n_heads"))


def turns_by_length(config: Mapping[str, Any]) -> bool:
    """Whether a config.json scales positions by the length of a prompt: then a beginning is read otherwise alone."""
    text = config.get("text_config")
    entries = {**config, **(text if isinstance(text, Mapping) else {})}
    return any(f'"{kind}"' in json.dumps(entries.get(name)) for name in ROPE_ENTRIES for kind in LENGTH_KINDS)


def _floats(entry: Any) -> Any:
    """Numbers that JSON lacks, as transformers writes them: {"__float__": "Infinity"}."""
    if isinstance(entry, Mapping):
        return float(entry["__float__"]) if entry.keys() == {"__float__"} else {k: _floats(v) for k, v in entry.items()}
    return [_floats(each) for each in entry] if isinstance(entry, list) else entry


def _properties(config: Any) -> Iterator[tuple[str, str]]:
    kinds = layer_kinds(config)
    if groups := _by_layer([_seen_keys_words(config, kind) for kind in kinds]):
        yield "layers", groups
    yield "positions", "; ".join(_positions(config, kinds))
    if cap := first_stated(config, "attn_logit_softcapping"):
        yield "scores", f"capped at {cap:g}: s becomes {cap:g} tanh(s / {cap:g})"
    if sinks := _sinks(config, kinds):
        yield "sinks", f"a learned logit per head without a key takes part of the weight, in {sinks}"
    if queries := _queries(config):
        yield "queries", queries
    yield "head", ", ".join(_head(config))


def first_stated(config: Any, *names: str) -> Any:
    """The first of these entries that is not null; layers that differ in one have none."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except RuntimeError:  # transformers' error for a size that layers differ in
            continue
        if value is not None:
            return value
    return None


def layer_kinds(config: Any) -> list[str]:
    """Kind of each layer, by transformers' names."""
    kinds = first_stated(config, *LAYER_KIND_ENTRIES)
    if kinds is not None:
        return list(kinds)
    window = first_stated(config, "sliding_window") and first_stated(config, "use_sliding_window") is not False
    return ["sliding_attention" if window else "full_attention"] * int(
        first_stated(config, "num_hidden_layers", "n_layers") or 0
    )


def _seen_keys_words(config: Any, kind: str) -> str:
    if kind in ("full_attention", "attention", "global"):
        return "see all keys"
    if is_chunked(kind):
        return f"see their own chunk of {first_stated(config, 'attention_chunk_size')} keys"
    if is_windowed(kind):
        window = first_stated(config, "sliding_window", "sliding_window_size", "window_size")
        return f"see the last {window} keys"
    if kind in STATE_LAYER_KINDS:
        return "keep a state in place of keys"
    return f"are of kind {kind}"


def _by_layer(said: Sequence[str]) -> str:
    """Sentence of all layers, grouped by equal text: `all 12 ...`, or `0-3 ...; 4 ...`."""
    groups: dict[str, list[int]] = {}
    for layer, sentence in enumerate(said):
        groups.setdefault(sentence, []).append(layer)
    if len(groups) == 1:
        return f"all {len(said)} {said[0]}"
    return "; ".join(f"{format_ranges(layers)} {sentence}" for sentence, layers in groups.items())


def _positions(config: Any, kinds: Sequence[str]) -> Iterator[str]:
    """Sentences on the layers' positions."""
    rope = dict(first_stated(config, "rope_parameters") or {})
    if first_stated(config, "alibi") or config.model_type in ("bloom", "mpt"):
        yield "ALiBi: a bias per token of distance"
        return
    # Their configs have rope_parameters, used or not.
    entry, value = ROPE_IF.get(config.model_type, ("", None))
    chosen = not entry or first_stated(config, entry) == value
    if not rope or not chosen or first_stated(config, "position_embedding_type") in ("nope", "absolute"):
        yield "no RoPE"
        return
    own = {kind: each for kind, each in rope.items() if isinstance(each, Mapping)}
    for kind, each in own.items():
        if kind in kinds:
            yield f"{kind} has a RoPE of its own: {_rope(config, each)}"
    if not own:
        yield f"RoPE: {_rope(config, rope)}"
    if latent := first_stated(config, "qk_rope_head_dim"):
        beside = first_stated(config, "qk_nope_head_dim") or 0
        yield f"multi-head latent attention: {latent} rotated dimensions, one key for all heads, beside {beside} others"
    if sections := next(
        (each.get("mrope_section") for each in (rope, *own.values()) if each.get("mrope_section")), None
    ):
        axes = ", ".join(map(str, sections))
        yield f"axes share the pairs ({axes}): text has one position on all axes, which is plain RoPE"
    without = layers_without_positions(config, kinds)
    if without:
        yield f"none in layers {format_ranges(without)}"


def _rope(config: Any, rope: Mapping[str, Any]) -> str:
    base, kind = rope.get("rope_theta"), rope.get("rope_type", "default")
    share = rope.get("partial_rotary_factor") or first_stated(config, "partial_rotary_factor") or 1.0
    said = [f"base {base:g}" if base else "base unstated"]
    if kind != "default":
        said.append(f"scaled by {kind}")
    width = first_stated(config, "head_dim")
    if (turned := first_stated(config, "rotary_dim")) and width and turned < width:
        said.append(f"{turned} of {width} dimensions rotate")
    elif share < 1 and not first_stated(config, "qk_rope_head_dim"):
        said.append(f"{share:g} of the dimensions rotate")
    return ", ".join(said)


def layers_without_positions(config: Any, kinds: Sequence[str]) -> list[int]:
    """Layers that have keys and no positions, of layers of these kinds."""
    keyed = [layer for layer, kind in enumerate(kinds) if kind not in STATE_LAYER_KINDS]
    if (rotates := first_stated(config, "no_rope_layers")) is not None:  # 1 where a layer rotates
        return [layer for layer in keyed if layer < len(rotates) and not rotates[layer]]
    if (bases := first_stated(config, "layer_rope_theta")) is not None:
        return [layer for layer in keyed if layer < len(bases) and not bases[layer]]
    if config.model_type in ROTATES_IN_WINDOWS and first_stated(config, "sliding_window"):
        return [layer for layer in keyed if not is_windowed(kinds[layer])]
    return []


def _sinks(config: Any, kinds: Sequence[str]) -> str:
    """Layers with learned sinks, in words; empty: none."""
    if config.model_type in SINK_MODEL_TYPES:
        return "all layers"
    layers = layers_with_sinks(config, kinds)
    return f"layers {format_ranges(layers)}" if layers else ""


def layers_with_sinks(config: Any, kinds: Sequence[str]) -> list[int]:
    """Layers with learned sinks, of layers of these kinds."""
    if config.model_type in SINK_MODEL_TYPES:
        return list(range(len(kinds)))
    return [layer for layer, kind in enumerate(kinds) if config.model_type in SINKS_IN_WINDOWS and is_windowed(kind)]


def _queries(config: Any) -> str:
    """A factor of queries that grows with the position."""
    if first_stated(config, "attn_temperature_tuning"):
        scale, floor = first_stated(config, "attn_scale"), first_stated(config, "floor_scale")
        return f"times 1 + {scale:g} ln(1 + floor((t + 1) / {floor:g})) at position t, in layers without positions"
    rope = first_stated(config, "rope_parameters") or {}
    if beta := rope.get("llama_4_scaling_beta"):
        return f"times 1 + {beta:g} ln(1 + floor(t / {rope['original_max_position_embeddings']:g})) at position t"
    return ""


def _head(config: Any) -> Iterator[str]:
    """Sentences on the head behind the last states."""
    if factor := first_stated(config, "logit_scale", "output_multiplier", "lm_head_multiplier"):
        yield f"logits times {factor:g}"
    if divisor := first_stated(config, "logits_scaling"):
        yield f"logits divided by {divisor:g}"
    if cap := first_stated(config, "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"):
        yield f"logits capped at {cap:g}"
    yield "weights tied to the embeddings" if first_stated(config, "tie_word_embeddings") else "weights of its own"


def format_ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in words, runs by their ends: `0, 2-31`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

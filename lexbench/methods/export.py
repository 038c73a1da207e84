"""Export a method at one length as configuration of transformers, vLLM or llama.cpp, to paste into a deployment.

The export is exact or refused: it rotates every pair as the method does, at each position of a text of that length.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lexbench.checkpoints.checkpoint import local_folder
from lexbench.checkpoints.config_facts import LONGROPE_ONLY
from lexbench.core.attention import Attention, Floats, PositionMap, Remap
from lexbench.core.errors import ConfigError
from lexbench.core.guard import plugin_guard
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.methods.composition import Method
from lexbench.methods.rotary import kept_rope_entries, transformers_rope_parameters, yarn_scale
from lexbench.methods.scaled import (
    Fixed,
    LayerRope,
    OnScaled,
    attention_of,
    deepseek_scale,
    join_layers,
    ropes_of_model,
)

EXPORT_TARGETS = ("transformers", "vllm", "llama.cpp")
NO_ROTATION_DIVISOR = 1e39
"""Divisor of a pair that does not rotate: finite in JSON, infinite in float32, in which both libraries divide, so that
the frequency is exactly 0. In float64 the angle would stay below 1e-30 for the first 1e9 positions."""

SLOT_DESCRIPTIONS = {"remap": "remapped distances"}
"""Slots as messages call them, where the slot's name is no word of the field."""
VLLM_SCALES = ("short_mscale", "long_mscale")
"""Keys that vLLM's longrope, and transformers' of Phi-MoE, read instead of attention_factor."""
MSCALE_DEFAULTS = {"mscale": 1.0, "mscale_all_dim": 0.0}
"""DeepSeek's keys of a scale, and what vLLM takes where they are left out."""
STATES_SCALE = frozenset({"attention_factor", "attn_factor", *MSCALE_DEFAULTS})
"""Keys by which a checkpoint's own parameters state a scale of cos and sin."""


def export_text(method: Method, label: str, model: Model, length: int, target: str) -> str:
    """Text to paste: JSON for config.json or from_pretrained(...), a shell line for vLLM, flags for llama.cpp.

    Raises Refused where the target cannot express the method, ConfigError for an unknown target.
    """
    data = as_data(method, label, model, length, target)
    if target == "transformers":
        lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in data.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    if target == "llama.cpp":
        return shlex.join(word for flag, value in data.items() for word in (flag, str(value)))
    words = ["vllm", "serve", _vllm_model_path(model), "--max-model-len", str(length)]
    overrides = data["hf_overrides"]
    return shlex.join([*words, *(["--hf-overrides", json.dumps(overrides, allow_nan=False)] if overrides else [])])


def _vllm_model_path(model: Model) -> str:
    """The model as vLLM opens it: a folder or a name on the hub."""
    path = model.path or model.name
    return str(local_folder(path)) if path.startswith("lexbench:") else path


def as_data(method: Method, label: str, model: Model, length: int, target: str) -> dict[str, Any]:
    """The export as JSON values: entries of config.json, arguments of vLLM's LLM(...), flags of llama.cpp.

    Raises as `export_text` does.
    """
    if target not in EXPORT_TARGETS:
        raise ConfigError(f"export knows {', '.join(EXPORT_TARGETS)}, got {target}: choose one of them")
    if length < 1:
        raise ConfigError(f"export needs a length of at least 1 token, got {length}: give length=N")
    # The parameters that a fixed method states would be those of this length.
    stating = None if isinstance(method, Fixed) else method
    return export_attention(attention_of(method, model, length), label, model, length, target, stating)


def export_attention(
    attention: Attention, label: str, model: Model, length: int, target: str, method: Method | None = None
) -> dict[str, Any]:
    """The export of an Attention at a length; the method, if given, states its parameters in transformers."""
    if model.rope_base is None and model.rope_scaling is None:
        _check_slots(attention, label, target)
        raise Refused(f"{model.name} has no rotary positions to export: deploy it as it is")
    if model.rope_scaling is not None:
        if not attention.slots():
            return _own_rope_parameters(label, model, length, target)
        return _parameters_of_each_rope(attention, label, model, length, target, method)
    _check_slots(attention, label, target)
    start = method.method if isinstance(method, OnScaled) else method
    if target == "llama.cpp":
        return {"--ctx-size": length, **_flags(start, attention, label, model, length)}
    if attention.dynamic is not None:
        if model.architecture in LONGROPE_ONLY:
            raise _refusal("dynamic", label, target, f"of {model.architecture} it reads longrope only: ")
        # transformers takes the trained length from max_position_embeddings.
        rope = transformers_rope_parameters(model, "dynamic", factor=attention.dynamic.factor)
        return _config(rope, attention.dynamic.trained_length, model, target)
    rope = _parameters(start, attention, model, length, target)
    return _place_rope_parameters(rope, label, model, length, target)


def _check_slots(attention: Attention, label: str, target: str) -> None:
    """Refused for slots that the target cannot express."""
    known = {"inv_freq", "scale", *(["dynamic"] if target == "transformers" else [])}
    if not (unknown := [slot for slot in attention.slots() if slot not in known]):
        return
    why = ""
    line = attention.remap.query if isinstance(attention.remap, Remap) else None
    if target == "llama.cpp" and isinstance(line, PositionMap) and line.floor:
        why = "its --grp-attn-n moves cached positions block by block, which only approximates it: "
    raise _refusal(", ".join(SLOT_DESCRIPTIONS.get(slot, slot) for slot in unknown), label, target, why)


def _refusal(slots: str, label: str, target: str, why: str = "") -> Refused:
    return Refused(f"{target} cannot express {slots} ({label}): {why}run it with backend=hf")


# transformers and vLLM


def _config(rope: dict[str, Any], positions: int | None, model: Model, target: str) -> dict[str, Any]:
    """Entries of config.json, in the section of the text model where it has one."""
    entries = {"rope_parameters": rope, **({} if positions is None else {"max_position_embeddings": positions})}
    if target == "transformers":
        # transformers 5 prefers an older config.json's rope_scaling. It comes first: as an argument of from_pretrained
        # it sets the same attribute as rope_parameters.
        entries = {"rope_scaling": None, **entries}
    return {model.config_section: entries} if model.config_section else entries


def _place_rope_parameters(
    rope: dict[str, Any], label: str, model: Model, length: int, target: str, own: bool = False
) -> dict[str, Any]:
    """Put rope parameters where the target reads them; Refused where vLLM would rotate other pairs with them.

    vLLM's table of angles has max_position_embeddings rows, and vLLM reads beyond its end without an error.
    """
    if target == "transformers":
        return _config(rope, length, model, target)
    # Without a rope_type of its own, it is a dict of kinds of layers.
    for each in [rope] if "rope_type" in rope else rope.values():
        if why := _unread_by_vllm(each, model, own):
            raise _refusal("inv_freq", label, target, f"{why}: ")
    return {"hf_overrides": _config(rope, length, model, target), "max_model_len": length}


def _unread_by_vllm(rope: Mapping[str, Any], model: Model, own: bool) -> str | None:
    """Why vLLM would not rotate by these parameters, or None."""
    kind = rope.get("rope_type")
    if model.decoupled and kind != "default" and not own:
        return "its multi-head latent attention takes any scaling for yarn"
    if kind == "longrope" and model.rotary_layout == "interleaved":
        return f"its longrope rotates halves of the head, {model.name} rotates neighbours"
    if own:
        return None
    if model.architecture == "gpt_oss" and kind != "yarn":
        return "its gpt-oss reads yarn's parameters only"
    if any(entry.startswith("mrope") for entry in model.rope_extra or {}) and kind not in ("default", "yarn"):
        return f"its {kind} has no sections of mRoPE"
    return None


def _parameters(method: Method | None, attention: Attention, model: Model, length: int, target: str) -> dict[str, Any]:
    """Rope parameters for a target: stated by the method, or another base or factor, or one factor for each pair."""
    scale = attention.scale or 1.0
    # First what the method itself states, then the fewest numbers that say the same, then one factor for each pair.
    rope = _method_rope_parameters(method, model, length)
    if rope is not None and target == "vllm" and not _same_in_vllm(rope, scale, length):
        rope = None
    if rope is None:
        rope = _ladder_parameters(attention, model)
    # An entry that is read for something else, too, stays; in a table of all pairs it changes no angle.
    if rope is not None and any(
        rope.get(key, value) != value for key, value in _kept_rope_parameters(rope, model).items()
    ):
        rope = None
    longrope_only = target == "transformers" and model.architecture in LONGROPE_ONLY
    if rope is None or (longrope_only and rope["rope_type"] != "default"):
        rope = _pair_by_pair(attention, model, length)
    if rope["rope_type"] == "longrope" and (target == "vllm" or model.architecture == "phimoe"):
        # vLLM computes a scale of its own from the factor unless both are given; transformers' Phi-MoE needs both.
        rope = {**rope, **dict.fromkeys(VLLM_SCALES, scale)}
    return {**transformers_rope_parameters(model, rope["rope_type"]), **rope, **_kept_rope_parameters(rope, model)}


def _kept_rope_parameters(rope: Mapping[str, Any], model: Model) -> dict[str, Any]:
    return kept_rope_entries(model, rope["rope_type"])


def _method_rope_parameters(method: Method | None, model: Model, length: int) -> dict[str, Any] | None:
    """Rope parameters that the method states for transformers; None where it has none."""
    state = getattr(method, "rope_parameters", None)
    if state is None:
        return None
    name = f"{type(method).__name__}.rope_parameters"
    try:
        with plugin_guard(name):
            given = state(model, length)
    except Deferred:
        raise
    except Refused:  # none for this model: export numbers instead
        return None
    if given is not None and not (isinstance(given, dict) and isinstance(given.get("rope_type"), str)):
        raise ConfigError(f"{name} must return rope parameters with their rope_type, or None, got {given!r}")
    return given


def _same_in_vllm(rope: dict[str, Any], scale: float, length: int) -> bool:
    """Whether every release of vLLM computes transformers' numbers from these parameters.

    Some releases ignore yarn's attention_factor, or hold at most factor times the original positions; all ignore the
    factor of proportional.
    """
    kind, factor = rope["rope_type"], rope.get("factor") or 1.0
    if kind == "yarn":
        rows = rope["original_max_position_embeddings"] * factor
        return bool(rows >= length and math.isclose(scale, yarn_scale(factor), rel_tol=1e-9))
    return kind in ("default", "linear", "llama3", "longrope") or (kind == "proportional" and factor == 1)


def _ladder_parameters(attention: Attention, model: Model) -> dict[str, Any] | None:
    """A base, and perhaps a factor, that give exactly these frequencies; None where there is none."""
    ladder = fit_base_and_factor(_frequencies(attention, model), model)
    if ladder is None or ladder[1] < 1 or (attention.scale or 1.0) != 1:
        return None
    base, factor = ladder
    kind: dict[str, Any] = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor}
    return {**kind, "rope_theta": base}


def _pair_by_pair(attention: Attention, model: Model, length: int) -> dict[str, Any]:
    """Any frequencies, as longrope with the factors plain / wanted for short and long texts."""
    plain = model.inv_freq()
    divided = (plain / np.maximum(_frequencies(attention, model), plain / NO_ROTATION_DIVISOR)).tolist()
    return {
        "rope_type": "longrope",
        "short_factor": divided,
        "long_factor": divided,
        "factor": max(1.0, length / model.trained_length),  # transformers requires it; attention_factor overrides it
        "attention_factor": attention.scale or 1.0,
        "original_max_position_embeddings": model.trained_length,
    }


def _frequencies(attention: Attention, model: Model) -> Floats:
    return model.inv_freq() if attention.inv_freq is None else attention.inv_freq


def fit_base_and_factor(wanted: Floats, model: Model) -> tuple[float, float] | None:
    """Base b and factor s with frequencies b^(-2p/d) / s for all pairs p; None where there are none."""
    dims = model.rotated
    if not (wanted > 1 / NO_ROTATION_DIVISOR).all():
        return None
    base = model.rotary_base()
    if dims > 2:
        # theta_0 / theta_last = b^((d-2)/d), whatever the factor.
        base = _round_to_12_digits((wanted[0] / wanted[-1]) ** (dims / (dims - 2)))
    # Pair 0 rotates by 1 under every base: what it has is 1 / s.
    factor = _round_to_12_digits(1 / wanted[0])
    return (base, factor) if np.allclose(model.inv_freq(base) / factor, wanted, 1e-9, 0) else None


def _round_to_12_digits(value: float) -> float:
    """Round to 12 digits, so that 500000 is not printed as 499999.99999999994."""
    return float(f"{value:.12g}")


# models that scale their angles themselves


def _parameters_of_each_rope(
    attention: Attention, label: str, model: Model, length: int, target: str, method: Method | None
) -> dict[str, Any]:
    """Parameters of each RoPE that the method changes, and the others' own; Refused where a RoPE would need several."""
    for part in attention.parts():
        _check_slots(part, label, target)
    if target == "llama.cpp":
        raise _refusal(
            ", ".join(attention.slots()), label, target, f"its flags keep the scaling in the file of {model.name}: "
        )
    rope: dict[str | None, dict[str, Any]] = {}
    changed = set[str | None]()
    for each in ropes_of_model(model):
        parts = [attention.at(layer) for layer in (range(model.layers or 1) if each.layers is None else each.layers)]
        # Config.json has one set of parameters for a kind of layers, not one for a layer.
        if any(part.as_data() != parts[0].as_data() for part in parts):
            raise _refusal("layers", label, target, f"it has one RoPE for {each.kind or 'all layers'}: ")
        rope[each.kind] = dict(each.parameters)
        if parts[0].slots():
            changed.add(each.kind)
            rope[each.kind] = _of_rope(each, parts[0], length, target, method)
    if kept := [rope[kind] for kind in rope.keys() - changed if _depends_on_max_positions(rope[kind], length, target)]:
        kind = kept[0]["rope_type"]
        raise _refusal("inv_freq", label, target, f"its {kind} layers follow max_position_embeddings: ")
    whole = rope[None] if None in rope else {str(kind): parameters for kind, parameters in rope.items()}
    return _place_rope_parameters(whole, label, model, length, target)


def _of_rope(each: LayerRope, part: Attention, length: int, target: str, method: Method | None) -> dict[str, Any]:
    """Parameters of one RoPE under an Attention."""
    over = method.over if isinstance(method, OnScaled) else "scaled"
    start = method.method if isinstance(method, OnScaled) else method
    own = each.parameters
    if part.inv_freq is None:
        part = replace(part, inv_freq=each.own(length)[0])
    seen = each.as_model(over, length)
    if (
        own.get("mscale_all_dim") and each.plain.decoupled
    ):  # multi-head latent attention: its softmax scale is computed from these, and stays
        rope = _pair_by_pair(part, each.plain, length)
        rope |= {key: own[key] for key in ("factor", "mscale_all_dim")}
    elif seen.frequencies is None:
        rope = _parameters(start, part, seen, length, target)
    else:
        rope = _parameters(None, part, each.plain, length, target)
    rope = {
        **transformers_rope_parameters(each.plain, rope["rope_type"]),
        **rope,
        **_kept_rope_parameters(rope, each.plain),
    }
    if "partial_rotary_factor" in own and "partial_rotary_factor" not in rope:
        rope["partial_rotary_factor"] = 1.0  # vLLM merges these parameters with the checkpoint's own
    return rope


def _own_rope_parameters(label: str, model: Model, length: int, target: str) -> dict[str, Any]:
    """The model's own parameters, unchanged; Refused where the length would change them."""
    assert model.rope_scaling is not None
    if target == "llama.cpp":
        return {"--ctx-size": length}  # the GGUF file has the rest
    rope, kinds = dict(model.rope_scaling), list(model.rope_scaling.values())
    if "rope_type" in rope:  # else each kind of layers has its own, base included
        kinds = [rope]
    if target == "vllm" and any(STATES_SCALE.intersection(kind) for kind in kinds):
        unread = [each for each in ropes_of_model(model) if not _reads_scale(each, length)]
        if unread:
            return _parameters_of_each_rope(_as_stated(unread, model, length), label, model, length, target, None)
    if "rope_type" in rope:
        rope = {**transformers_rope_parameters(replace(model, rope_scaling=None), rope["rope_type"]), **rope}
    tied = [kind for kind in kinds if _depends_on_max_positions(kind, length, target)]
    if not tied:
        return _place_rope_parameters(rope, label, model, length, target, own=True)
    if target == "transformers":
        return _config(rope, None, model, target)  # transformers needs no entry to go beyond max_position_embeddings
    if length > model.trained_length:
        raise Refused(
            f"vllm cannot take {model.name} to {length} tokens: its own angles ({tied[0]['rope_type']}) would change "
            f"beyond {model.trained_length}: lower length, or run it with backend=hf"
        )
    return {"hf_overrides": {}, "max_model_len": length}


def _reads_scale(each: LayerRope, length: int) -> bool:
    """Whether every release of vLLM computes the scale of cos and sin that a RoPE's parameters mean in transformers.

    Releases up to 0.25 ignore an attention_factor, and a pair of mscale but in multi-head latent attention.
    """
    own, scale = each.parameters, each.own(length)[1]
    factor = own.get("factor")
    if own["rope_type"] == "longrope":
        return STATES_SCALE.isdisjoint(own) or not {*VLLM_SCALES}.isdisjoint(own)
    if own["rope_type"] != "yarn" or factor is None:
        return bool(own["rope_type"] != "yarn")
    by, over_all = (default if own.get(name) is None else own[name] for name, default in MSCALE_DEFAULTS.items())
    theirs = (
        deepseek_scale(factor, by) / deepseek_scale(factor, over_all)
        if each.plain.decoupled
        else deepseek_scale(factor, 1.0)
    )
    return math.isclose(scale, theirs * (own.get("attn_factor") or 1.0), rel_tol=1e-9)


def _as_stated(some: Sequence[LayerRope], model: Model, length: int) -> Attention:
    """Some RoPEs of a model, as transformers computes them, as an Attention in their layers."""
    made = [Attention(inv_freq=inv_freq, scale=scale) for inv_freq, scale in (each.own(length) for each in some)]
    if some[0].layers is None:
        return made[0]
    by_layer = {layer: attention for each, attention in zip(some, made, strict=True) for layer in each.layers or ()}
    return join_layers([by_layer.get(layer, Attention()) for layer in range(len(model.layer_types or ()))])


def _depends_on_max_positions(kind: Mapping[str, Any], length: int, target: str) -> bool:
    """Whether angles depend on max_position_embeddings, or end before the length: then it must not change."""
    name, stated = kind.get("rope_type"), {key for key, value in kind.items() if value is not None}
    if name in ("llama3", "yarn", "longrope") and "original_max_position_embeddings" not in stated:
        return True
    if name == "longrope":
        if target == "transformers":
            return not stated & {"attention_factor", "factor"}
        return not stated.issuperset(VLLM_SCALES)
    if name == "yarn" and "factor" in stated:
        return target == "vllm" and bool(kind["original_max_position_embeddings"] * kind["factor"] < length)
    return name in ("dynamic", "yarn")


# llama.cpp


def _flags(method: Method | None, attention: Attention, label: str, model: Model, length: int) -> dict[str, Any]:
    """A base and a factor, or yarn's parameters; Refused for all other frequencies.

    llama.cpp's yarn has the ramp of `yarn` with truncate. It multiplies cos and sin by 0.1 ln s + 1 and ignores
    --yarn-attn-factor (releases before December 2025 multiply by both), so any other scale is refused.
    """
    # A base and a linear factor are exact in every release: yarn is tried only where they do not suffice.
    scale, ladder = attention.scale or 1.0, fit_base_and_factor(_frequencies(attention, model), model)
    if ladder is not None and scale == 1:
        base, factor = ladder
        linear = {} if factor == 1 else {"--rope-scaling": "linear", "--rope-scale": factor}
        return linear if base == model.rope_base else {**linear, "--rope-freq-base": base}
    rope = _method_rope_parameters(method, model, length)
    if rope is None or rope["rope_type"] != "yarn" or not rope.get("truncate", True):
        slot = "inv_freq" if ladder is None else "scale"
        raise _refusal(slot, label, "llama.cpp", "its flags are a base, a factor, or yarn's with whole pairs: ")
    factor = float(rope["factor"])
    if not math.isclose(scale, yarn_scale(factor), rel_tol=1e-9):
        raise _refusal("scale", label, "llama.cpp", "its yarn always has the scale 0.1 ln(factor) + 1: ")
    return {
        "--rope-scaling": "yarn",
        "--rope-scale": factor,
        "--yarn-orig-ctx": rope["original_max_position_embeddings"],
        "--yarn-ext-factor": 1.0,
        "--yarn-attn-factor": 1.0,
        "--yarn-beta-fast": rope.get("beta_fast") or 32.0,
        "--yarn-beta-slow": rope.get("beta_slow") or 1.0,
    }

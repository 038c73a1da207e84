"""What `assert_rope` and `assert_attention` say of public faults: python tools/attention_faults.py PAGE

PAGE is results/benchmarks/attention_faults.md. Each row of the list `attention_faults.md` of
results/benchmarks/planted_lists.tar.gz is planted in a tiny random model after it was made; `identify` is asked of two
faults of caches, which are in no model.
"""

import argparse
import contextlib
import copy
import hashlib
import math
import re
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

sys.path.insert(0, str(Path(__file__).parents[1]))

import lexbench
from lexbench import Refused, RopeMismatch
from lexbench.backends.hf.exact.extended import model_of
from lexbench.core.errors import ConfigError
from tests.backends import scripted
from tests.census import tiny
from tests.parts.serving.plain_server import PlainServer
from tools import serving, sides
from tools.engine_rope import (
    DIMS,
    HEALTHY_ROPES,
    KINDS,
    LENGTH,
    LLAMA3,
    LONGROPE,
    TRAINED,
    YARN,
    Computed,
    EngineRotary,
    by_fast_math,
    by_half_precision,
    false_alarms,
    frequencies,
)

LIST = "attention_faults.md"
BENCHMARKS = sides.ROOT / "results" / "benchmarks"
CHECKS = (lexbench.assert_rope, lexbench.assert_attention)
Patch = pytest.MonkeyPatch
Plant = Callable[[Any, Patch], None]
PAIRS = DIMS // 2
SIZES: dict[str, Any] = {
    **{"num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 2 * DIMS},
    **{"head_dim": DIMS, "max_position_embeddings": LENGTH, "no_rope_layers": None, "layer_types": None},
}
"""Of all models, where their family has the entry."""


# how faults are planted


def code_of(network: Any) -> Any:
    """The modeling file of a network."""
    return sys.modules[type(network).__module__]


def attentions(network: Any) -> list[Any]:
    """Attention of each layer that has it."""
    return [layer.self_attn for layer in network.model.layers if hasattr(layer, "self_attn")]


def of_layers(**values: Callable[[Any], Any]) -> Plant:
    """Attributes of each layer's attention, of that attention."""

    def plant(network: Any, patch: Patch) -> None:
        for attention in attentions(network):
            for name, value in values.items():
                setattr(attention, name, value(attention))

    return plant


def of_rotary(**values: Any) -> Plant:
    """Attributes of the rotary module; a function is given the module."""

    def plant(network: Any, patch: Patch) -> None:
        rotary = network.model.rotary_emb
        for name, value in values.items():
            setattr(rotary, name, value(rotary) if callable(value) else value)

    return plant


def of_scale(scale: float) -> Plant:
    """Of the softmax, in all layers."""
    return of_layers(scaling=lambda each: scale)


def of_code(name: str, change: Callable[[Any], Any]) -> Plant:
    """A function of the modeling file in place of its own."""

    def plant(network: Any, patch: Patch) -> None:
        patch.setattr(code_of(network), name, change(getattr(code_of(network), name)))

    return plant


def of_rope(**changes: Any) -> Plant:
    """The rotary module that transformers makes of changed RoPE parameters."""

    def plant(network: Any, patch: Patch) -> None:
        rotary = network.model.rotary_emb
        made = type(rotary)(with_rope(network.config, **changes))
        rotary.inv_freq, rotary.attention_scaling = made.inv_freq, made.attention_scaling

    return plant


def with_rope(config: Any, **changes: Any) -> Any:
    """A config with other RoPE parameters."""
    found = copy.deepcopy(config)
    found.rope_parameters.update(changes)
    return found


def into_config(rope: dict[str, Any]) -> Plant:
    """RoPE parameters that the config has once the model was made."""
    return lambda network, patch: setattr(network.config, "rope_parameters", {**rope})


def long_beyond(tokens: int) -> Plant:
    """Long factors of texts that are longer than so many tokens."""
    return of_rotary(
        long_inv_freq=frequencies(1e4) / torch.tensor(LONGROPE["long_factor"]),
        config=lambda own: with_rope(own.config, original_max_position_embeddings=tokens),
    )


def plain_drafter(network: Any, patch: Patch) -> None:
    """Neither the network nor its config has the scaling: only the target's facts tell."""
    of_rotary(inv_freq=frequencies(5e5))(network, patch)
    into_config({"rope_type": "default", "rope_theta": 5e5})(network, patch)


def further(pair: int) -> Plant:
    """1 % of one pair."""
    return of_rotary(inv_freq=lambda own: own.inv_freq * (1 + 0.01 * (torch.arange(PAIRS) == pair)))


def further_in_layer_1(pair: int) -> Plant:
    """1 % of one pair of plain RoPE, in one layer."""

    def plant(network: Any, patch: Patch) -> None:
        attention = attentions(network)[1]
        own, inv_freq = attention.forward, frequencies(1e4) * (1 + 0.01 * (torch.arange(PAIRS) == pair))

        def forward(hidden_states: Tensor, **named: Any) -> Any:
            named["position_embeddings"] = cos_and_sin(named["position_ids"], inv_freq)
            return own(hidden_states, **named)

        patch.setattr(attention, "forward", forward)

    return plant


def by_engine(base: float, computed: Computed) -> Plant:
    """A rotary module that computes as an engine does."""

    def plant(network: Any, patch: Patch) -> None:
        network.model.rotary_emb = EngineRotary(network.config, frequencies(base), computed)

    return plant


def wrapped(change: Callable[..., Any]) -> Plant:
    """`change`, of the eager attention function and what it is given, in its place."""

    def attend(module: Any, *given: Any, **options: Any) -> Any:
        return change(sys.modules[type(module).__module__].eager_attention_forward, module, *given, **options)

    return lambda network, patch: patch.setitem(ALL_ATTENTION_FUNCTIONS, "eager", attend)


def seeing(size: int, where: Callable[[Any, int, int], Any]) -> Plant:
    """So many keys are seen, where a function of module, queries and keys has it so."""

    def change(own: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        tokens, total = query.shape[2], key.shape[2]
        if where(module, tokens, total):
            back = torch.arange(total - tokens, total)[:, None] - torch.arange(total)
            mask = torch.zeros(1, 1, tokens, total).masked_fill((back < 0) | (back >= size), -torch.inf)
        return own(module, query, key, value, mask, **options)

    return wrapped(change)


def with_sinks(changed: Callable[[Tensor, int], Tensor]) -> Plant:
    """Others, of the layer's own and of the number of queries."""

    def change(own: Any, module: Any, query: Tensor, *given: Any, **options: Any) -> Any:
        held = module.sinks.data
        module.sinks.data = changed(held, query.shape[2])
        try:
            return own(module, query, *given, **options)
        finally:
            module.sinks.data = held

    return wrapped(change)


def without_cap(own: Any, *given: Any, **options: Any) -> Any:
    """Scores without a cap."""
    return own(*given, **{**options, "softcap": None})


def without_first_key(own: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> Any:
    """Chunks of 512 whose first key is not seen, of queries behind a cache."""
    tokens, total = query.shape[2], key.shape[2]
    if module.use_rope and total > tokens:
        mask = mask.clone()
        for row in range(tokens):
            mask[..., row, (total - tokens + row) // 512 * 512] = -torch.inf
    return own(module, query, key, value, mask, **more)


def with_masks_of_texts(
    own: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
) -> Any:
    """The mask of text b for key head b."""
    if mask is not None and mask.shape[0] == key.shape[1] > 1:
        mask = mask.transpose(0, 1).repeat_interleave(query.shape[1] // key.shape[1], 1)
    return own(module, query, key, value, mask, **more)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + half)."""
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, one), dim=-1) * sin


def within_block(own: Any) -> Any:
    """Pairs (i, i + k/2) in the first k dimensions, a quarter of them, of heads that are wider than a window's."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if x.shape[-1] == DIMS:
            return own(x, cos, sin, unsqueeze_dim)
        half = x.shape[-1] // 8
        cos, sin = (torch.cat([each[..., :half]] * 2, -1).unsqueeze(unsqueeze_dim) for each in (cos, sin))
        return torch.cat([turned(x[..., : 2 * half], cos, sin), x[..., 2 * half :]], -1)

    return rotate


def rotated_by(change: Callable[[Any], Any]) -> Plant:
    """Another rotation of queries and keys."""
    return of_code("apply_rotary_pos_emb", change)


def of_neighbours(own: Any) -> Any:
    """Pairs (2i, 2i + 1)."""

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, ...]:
        cos, sin = (each.chunk(2, -1)[0].unsqueeze(unsqueeze_dim) for each in (cos, sin))
        halves = ((x[..., ::2], x[..., 1::2]) for x in (q, k))
        return tuple(torch.stack([x * cos - y * sin, y * cos + x * sin], -1).flatten(-2) for x, y in halves)

    return rotate


def cos_and_sin(places: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T, 2 pairs] of positions [B, T]."""
    angles = places[..., None].float() * torch.cat([inv_freq, inv_freq])
    return angles.cos(), angles.sin()


def plain_index(network: Any, patch: Patch) -> None:
    """Plain RoPE in the index of keys."""
    for attention in attentions(network):

        def forward(
            hidden: Any, q: Any, given: Any, mask: Any, places: Tensor, *more: Any, own: Any, **named: Any
        ) -> Any:
            return own(hidden, q, cos_and_sin(places, frequencies(1e4)), mask, places, *more, **named)

        patch.setattr(attention.indexer, "forward", partial(forward, own=attention.indexer.forward))


def at_positions(change: Callable[[int, int], Tensor | None]) -> Plant:
    """Other positions of tokens behind a cache, of the numbers of cached tokens and of new ones."""

    def plant(network: Any, patch: Patch) -> None:
        own = network.model.forward

        def forward(input_ids: Tensor, position_ids: Any = None, past_key_values: Any = None, **named: Any) -> Any:
            cached = past_key_values.get_seq_length() if past_key_values is not None else 0
            if position_ids is None and cached:
                position_ids = change(cached, input_ids.shape[1])
            return own(input_ids=input_ids, position_ids=position_ids, past_key_values=past_key_values, **named)

        patch.setattr(network.model, "forward", forward)

    return plant


def from_0(least: int) -> Plant:
    """A chunk of at least so many tokens behind a cache has positions from 0."""
    return at_positions(lambda cached, tokens: torch.arange(tokens)[None] if tokens >= least else None)


def later_layers_ahead(network: Any, patch: Patch) -> None:
    """A token behind a cache has the next position in layers 1 and above."""
    for attention in attentions(network)[1:]:
        own = attention.forward

        def forward(hidden_states: Tensor, *, own: Any = own, **named: Any) -> Any:
            if (cache := named["past_key_values"]) is not None and cache.get_seq_length(1):
                named["position_embeddings"] = network.model.rotary_emb(hidden_states, named["position_ids"] + 1)
            return own(hidden_states, **named)

        patch.setattr(attention, "forward", forward)


def clamped(network: Any, patch: Patch) -> None:
    """Full layers rotate by positions over 4, up to the original length."""
    rotary, own = network.model.rotary_emb, network.model.rotary_emb.forward

    def forward(x: Tensor, places: Tensor, kind: str) -> Any:
        plain = frequencies(network.config.rope_parameters[kind]["rope_theta"])
        full = kind == "full_attention"
        return cos_and_sin((places / 4).clamp(max=TRAINED - 1), plain) if full else own(x, places, kind)

    patch.setattr(rotary, "forward", forward)


def in_chunks(network: Any, patch: Patch) -> None:
    """Pairs by time, height and width one after another."""
    rotary = network.model.language_model.rotary_emb

    def recomposed(angles: Tensor) -> Tensor:
        parts = torch.split(angles, list(rotary.mrope_section), dim=-1)
        found = torch.cat([part[axis] for axis, part in enumerate(parts)], -1)
        return torch.cat([found, found], -1)

    patch.setattr(rotary, "recomposition_frequencies", recomposed)


def rooted_gate(network: Any, patch: Patch) -> None:
    """The square root of the gate on what attention gives."""
    for attention in attentions(network):
        gates: list[Tensor] = []
        attention.q_proj.register_forward_hook(
            lambda module, given, made, gates=gates: gates.append(
                made.unflatten(-1, (-1, 2 * DIMS))[..., DIMS:].flatten(-2)
            )
        )
        attention.o_proj.register_forward_pre_hook(
            lambda module, given, gates=gates: (given[0] / gates.pop().sigmoid().sqrt(),)
        )


def of_slopes(first: int) -> Plant:
    """ALiBi's slopes of 12 heads as one geometric row, of heads that are counted from `first`."""
    slopes = 2.0 ** (-8 * torch.arange(first, 12 + first) / 12)
    return of_code("_get_alibi_slopes", lambda own: lambda heads, device: slopes)


def without_bias(network: Any, patch: Patch) -> None:
    """Keys of layer 1."""
    attentions(network)[1].k_proj.bias = None


# what is planted


@dataclass(frozen=True)
class Fault:
    """A row of the list, and a model to plant it in."""

    kind: str
    """Type of the model."""
    rope: dict[str, Any]
    """RoPE parameters; none: the type's own."""
    plant: Plant
    cause: str = ""
    """Pattern of the cause that the list demands in the text."""
    rest: tuple[str, ...] = ()
    """Patterns of what else its last column has."""
    ratio: float | None = None
    """Ratio of the two numbers of a text "..., x, not y", where the list demands one."""
    config: dict[str, Any] = field(default_factory=dict)
    """Other entries of the config."""
    length: int = LENGTH
    facts_of: str | None = None
    """Row whose healthy model has the facts."""


PLAIN, PLAIN_6, PLAIN_7 = ({"rope_type": "default", "rope_theta": base} for base in (1e4, 1e6, 1e7))
YARN_4, YARN_6 = ({**YARN, "rope_theta": base} for base in (1e4, 1e6))
LATENT_YARN = {**YARN_4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
MSCALE, OWN_FACTOR = 0.1 * math.log(40) + 1, 0.1 * math.log(4) + 1
GPT_OSS = {**YARN, "rope_theta": 150_000.0, "truncate": False}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
QWEN_3_5 = {**YARN_6, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}
OLMO = {"sliding_attention": PLAIN, "full_attention": YARN_4}
OLMO_STATED = {**OLMO, "full_attention": {**YARN_4, "attention_factor": 1.0}}
LATENT = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "index_head_dim": 128}
TURNS = {"layer_types": list(KINDS) * 2}
GLOBAL_128 = {**TURNS, "global_head_dim": 2 * DIMS}
WINDOW, WINDOW_256, WINDOW_512 = ({"sliding_window": size} for size in (128, 256, 512))
GEMMA_2 = {"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 256}
PHI_3 = {"original_max_position_embeddings": TRAINED}
BLOOM = {"n_head": 12, "num_attention_heads": 12, "hidden_size": 96}
CHUNKS = {"attention_chunk_size": 512}
LINEAR = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
QWEN_3_VL = {"text_config": {"head_dim": DIMS, "rope_parameters": {**PLAIN_6, "mrope_section": [12, 10, 10]}}}
FULL, SLIDING, BEHIND = (r"full_attention|layers\.[13]\b",), (r"sliding_attention|layers\.[02]\b",), ("behind|cache",)
ALL_KEYS = 10**9

no_mscale = of_layers(scaling=lambda each: each.qk_head_dim**-0.5)
no_window = seeing(ALL_KEYS, lambda module, tokens, total: module.sliding_window)
window_513 = seeing(513, lambda module, tokens, total: module.sliding_window)
no_window_behind = seeing(ALL_KEYS, lambda module, tokens, total: total > tokens)
no_chunks = seeing(ALL_KEYS, lambda module, tokens, total: module.use_rope)
no_temperature = of_code(
    "get_llama_4_attn_scale", lambda own: lambda places, *_: torch.ones(places.shape)[:, None, :, None]
)
block_exponents = of_rotary(full_attention_inv_freq=torch.cat([frequencies(1e6, 16), torch.zeros(48)]))
compress_as_main = of_rotary(compress_inv_freq=lambda own: own.main_inv_freq)
plain_full, local_full = (of_rotary(full_attention_inv_freq=frequencies(base)) for base in (1e6, 1e4))
linear_windows = of_rotary(sliding_attention_inv_freq=frequencies(1e4) / 8)
no_sinks = with_sinks(lambda own, tokens: torch.full_like(own, -torch.inf))
sinks_of_others = with_sinks(lambda own, tokens: own.roll(-1) if tokens > 1 else own)
scale_of_layer_2 = of_layers(scaling=lambda each: each.scaling * (1.1 if each.layer_idx == 2 else 1))
all_in_bfloat16 = by_engine(1e6, by_half_precision(torch.bfloat16, positions_too=True))
angles_in_float16 = by_engine(1e7, by_half_precision(torch.float16, positions_too=False))
all_in_float16 = by_engine(1e6, by_half_precision(torch.float16, positions_too=True))
longest_as_trained = of_rotary(max_seq_len_cached=LENGTH, original_max_seq_len=LENGTH)
tiled_keys = of_code("repeat_kv", lambda own: lambda keys, times: keys.repeat(1, times, 1, 1))
later_temperature = of_layers(floor_scale=lambda each: each.floor_scale * (1 + 1e-5))  # floor(i / f), of f near (i + 1)
tokens_at_0 = at_positions(lambda cached, tokens: torch.zeros(1, 1, dtype=torch.int64) if tokens == 1 else None)
rotated_twice = of_code("apply_rotary_pos_emb", lambda own: lambda q, k, *angles: own(*own(q, k, *angles), *angles))
yarn_windows = of_rotary(
    sliding_attention_inv_freq=lambda own: own.full_attention_inv_freq,
    sliding_attention_attention_scaling=lambda own: own.full_attention_attention_scaling,
)
eight_turn = of_rotary(inv_freq=torch.cat([frequencies(1e4, 4), torch.zeros(28)]))

FAULTS: dict[str, Fault] = {
    "F01": Fault("deepseek_v3", LATENT_YARN, no_mscale, r"without mscale\^2", ratio=MSCALE**-2, config=LATENT),
    "F02": Fault("gemma4_text", {}, rotated_by(within_block), r"pairs \(i, i \+ 16\)", FULL, config=GLOBAL_128),
    "F03": Fault("gpt_oss", GPT_OSS, no_window, "window (dropped|missing)", SLIDING, config=WINDOW),
    "F04": Fault("ministral3", {**YARN_4, "llama_4_scaling_beta": 0.1}, no_temperature, "temperature", ("2,048",)),
    "F05": Fault("gemma4_text", {}, block_exponents, "denominator|pairs? .*by other angles", FULL, config=GLOBAL_128),
    "F06": Fault("qwen3_5_text", QWEN_3_5, of_rope(rope_type="default"), "scaling not applied", config=LINEAR),
    "F07": Fault("deepseek_v4", {}, compress_as_main, "base", ("compress",), config={"layer_types": ...}),
    "F08": Fault("gemma3_text", KINDS, plain_full, "scaling not applied", FULL, config=TURNS),
    "F09": Fault("gemma3_text", KINDS, linear_windows, "scaling .*in place of", SLIDING, config=TURNS),
    "F10": Fault("deepseek_v32", LATENT_YARN, rotated_by(of_neighbours), "pairs", ("indexer",), config=LATENT),
    "F11": Fault("deepseek_v32", LATENT_YARN, plain_index, "scaling not applied", ("indexer",), config=LATENT),
    "F12": Fault(
        *("llama", LLAMA3, plain_drafter, "scaling not applied"),
        config={"num_hidden_layers": 1},
        facts_of="F26",
    ),
    "F13": Fault("gemma3_text", KINDS, window_513, "window", ("513", "512"), config={**TURNS, **WINDOW_512}),
    "F14": Fault("mistral", PLAIN, no_window_behind, "window", BEHIND, config=WINDOW_256),
    "F15": Fault("gemma2", PLAIN, wrapped(without_cap), "cap of 50", config=GEMMA_2),
    "F16": Fault("gpt_oss", GPT_OSS, no_sinks, "sinks (dropped|missing)", config=WINDOW),
    "F17": Fault("gpt_oss", GPT_OSS, sinks_of_others, "sink", ("head",), config=WINDOW),
    "F18": Fault("smollm3", PLAIN_6, of_layers(use_rope=lambda each: True), "rotat", (r"layers\.3\b",)),
    "F19": Fault("smollm3", PLAIN_6, of_layers(use_rope=lambda each: not each.use_rope), "rotat", (r"layers\.3\b",)),
    "F20": Fault(
        "gemma2", PLAIN, of_scale(224**-0.5), "scale of the softmax", ratio=(256 / 224) ** 0.5, config=GEMMA_2
    ),
    "F21": Fault("llama", PLAIN, scale_of_layer_2, "scale of the softmax", (r"layers\.2\b",)),
    "F22": Fault("qwen3", PLAIN_6, from_0(2), "positions begin at 0", BEHIND),
    "F23": Fault("llama", PLAIN, into_config(YARN_4), "scaling not applied"),
    "F24": Fault("qwen2", PLAIN_6, of_rotary(inv_freq=frequencies(1e4)), "base .*10,000"),
    "F25": Fault("llama", LLAMA3, of_rotary(inv_freq=frequencies(1e4) / 2), "linear scaling", ("base .*10,000",)),
    "F26": Fault("llama", LLAMA3, of_rotary(inv_freq=frequencies(5e5)), "scaling not applied"),
    "F27": Fault("qwen3", YARN_6, of_rope(rope_theta=1e4), "base .*10,000"),
    "F28": Fault("qwen2", PLAIN_6, all_in_bfloat16, "bfloat16"),
    "F29": Fault("qwen3", PLAIN_7, angles_in_float16, "float16", length=524_288),
    "F30": Fault("qwen3", PLAIN_6, all_in_float16, "float16"),
    "F31": Fault("qwen3", PLAIN_6, by_engine(1e6, by_fast_math), "fast arithmetic|float16", length=131_072),
    "F32": Fault(
        *("llama", DYNAMIC, longest_as_trained, "dynamic.* does nothing"), config={"max_position_embeddings": TRAINED}
    ),
    "F33": Fault(
        *("olmo3", OLMO_STATED, of_rotary(full_attention_attention_scaling=OWN_FACTOR), "attention factor"),
        ratio=OWN_FACTOR,
        config=TURNS,
    ),
    "F34": Fault("glm", {**PLAIN, "partial_rotary_factor": 0.5}, of_rotary(inv_freq=frequencies(1e4)), "dimensions"),
    "F35": Fault("llama", PLAIN, tiled_keys, "keys of other heads", config={"num_attention_heads": 8}),
    "F36": Fault("llama", YARN_4, further(5), "pair 5", (r"1\.01|1 %",)),
    "F07, gemma3": Fault("gemma3_text", {**KINDS, "full_attention": PLAIN_6}, local_full, "base", FULL, config=TURNS),
    "F22, chunks of 2,048 only": Fault("qwen3", PLAIN_6, from_0(TRAINED), "positions begin at 0", BEHIND),
    "G01": Fault("llama4_text", PLAIN, no_chunks, config=CHUNKS),
    "G01, second": Fault("llama4_text", PLAIN, wrapped(without_first_key), config=CHUNKS),
    "G02": Fault("llama4_text", PLAIN, of_layers(attn_temperature_tuning=lambda each: False), config=CHUNKS),
    "G02, second": Fault("llama4_text", PLAIN, later_temperature, config=CHUNKS),
    "G03": Fault("phi3", LONGROPE, long_beyond(TRAINED - 1), config=PHI_3, length=TRAINED),
    "G03, second": Fault("phi3", LONGROPE, long_beyond(0), config=PHI_3, length=TRAINED),
    "G04": Fault("bloom", {}, of_slopes(1), config=BLOOM),
    "G04, second": Fault("bloom", {}, of_slopes(0), config=BLOOM),
    "G05": Fault("olmo3", OLMO, clamped, config=TURNS),
    "G06": Fault("gpt_oss", GPT_OSS, of_rope(beta_fast=1.0, beta_slow=32.0)),
    "G07": Fault("llama", PLAIN, later_layers_ahead),
    "G08": Fault("qwen3", PLAIN_6, tokens_at_0),
    "G09": Fault("qwen3", PLAIN_6, rotated_twice),
    "G10": Fault("olmo3", OLMO, yarn_windows, config=TURNS),
    "G11": Fault("gemma2", PLAIN, wrapped(with_masks_of_texts), config=GEMMA_2),
    "G12": Fault("deepseek_v3", PLAIN, eight_turn, config=LATENT),
    "G13": Fault("qwen3_vl", {}, in_chunks, config=QWEN_3_VL),
    "G14": Fault("qwen3_next", PLAIN_6, rooted_gate, config=LINEAR),
    "G15": Fault("llama", PLAIN, of_scale(1.0)),
    "G15, second": Fault("llama", PLAIN, of_scale((2 * DIMS) ** -0.5)),
    "G16": Fault("qwen2", PLAIN_6, without_bias),
}
"""By the list's ids. Those of an F alone count for its aim."""
COUNTED = [name for name in FAULTS if re.fullmatch(r"F\d+", name)]


def healthy_of(fault: Fault) -> Any:
    """The tiny random model, in which nothing is planted."""
    known = tiny.config_of(fault.kind).to_dict()
    sizes = {name: value for name, value in SIZES.items() if name in known}
    rope = {"rope_parameters": copy.deepcopy(fault.rope)} if fault.rope else {}
    network = tiny.network_of(fault.kind, **{**sizes, **rope, **fault.config})
    network.set_attn_implementation("eager")
    return network


def read_list() -> dict[str, list[str]]:
    """Cells of each row of the list, which must be the one whose hash was committed first."""
    with tarfile.open(BENCHMARKS / "planted_lists.tar.gz") as lists:
        member = next(each for each in lists.getmembers() if Path(each.name).name == LIST)
        file = lists.extractfile(member)
        assert file is not None, "the list is a file"
        text = file.read()
    assert hashlib.sha256(text).hexdigest() == hash_of_list(), "the list has changed"
    rows = [line.strip("| ").split(" | ") for line in text.decode().splitlines() if re.match(r"\| [FG]\d", line)]
    return {cells[0]: cells for cells in rows}


def hash_of_list() -> str:
    """SHA-256 that was committed before anything was tried."""
    lines = (line.split() for line in (BENCHMARKS / "planted.sha256").read_text().splitlines())
    return next(digest for digest, name in lines if name == LIST)


# what is said


@dataclass(frozen=True)
class Verdict:
    """What a check says of a fault."""

    by: str
    said: str
    """The cause and its place; what passes, or is refused, with the reason."""
    raised: bool
    named: bool
    whole: bool
    """Whether all that the list's last column has is in the text."""
    seconds: float
    """CPU time; behind a server that of the engine, too."""

    @property
    def word(self) -> str:
        """By which check it is named."""
        missed = f"missed, raised by {self.by}" if self.raised else "missed"
        return self.by if self.whole else f"{self.by}, in part" if self.named else missed


def verdict_of(fault: Fault) -> Verdict:
    """By assert_rope, or, where that does not name it, by assert_attention."""
    network = healthy_of(fault)
    facts = {"facts": model_of(healthy_of(FAULTS[fault.facts_of]), None)} if fault.facts_of else {}
    begun, verdicts = time.process_time(), list[Verdict]()
    with Patch.context() as patch:
        fault.plant(network, patch)
        for check in CHECKS:
            said, text = _said_by(check, network, fault.length, **facts)
            named = bool(text) and re.search(fault.cause, text) is not None
            whole = named and all(re.search(each, text) for each in fault.rest) and _has_ratio(text, fault.ratio)
            verdicts.append(Verdict(check.__name__, said, bool(text), named, whole, time.process_time() - begun))
    first, last = verdicts
    return first if (first.whole, first.named) >= (last.whole, last.named) and first.raised else last


def _said_by(check: Callable[..., Any], network: Any, length: int, **facts: Any) -> tuple[str, str]:
    """In short, and the whole text of a mismatch."""
    try:
        check(network, length=length, **facts)
    except RopeMismatch as error:
        kind = re.search(r"of its (\w+) layers", str(error))
        place = error.layer or (f"{kind[1]} layers" if kind else "")
        return ": ".join(filter(None, (place, error.cause or "no likely cause"))), str(error)
    except (Refused, ConfigError) as refusal:
        return f"refused: {refusal}", ""
    return "passes", ""


def _has_ratio(text: str, ratio: float | None) -> bool:
    if ratio is None:
        return True
    told = re.findall(r"([\d.]*\d), not ([\d.]*\d)", text)
    return any(float(each) and math.isclose(float(one) / float(each), ratio, rel_tol=0.01) for one, each in told)


def is_seen(pair: int, plant: Plant) -> bool:
    """Whether a pair that turns 1 % further in a Llama is named, and by how much."""
    return verdict_of(Fault("llama", PLAIN, plant, rf"pair {pair}\b", (r"by 1\.01 of",))).whole


def alarms_of_twins() -> tuple[int, int, list[str]]:
    """Number of healthy twins, in float32 and bfloat16, of those that are refused, and what is said of others."""
    count, refused, alarms = 0, 0, list[str]()
    for name in FAULTS:
        for dtype in (torch.float32, torch.bfloat16):
            network = healthy_of(FAULTS[name])
            for weight in network.parameters():  # as from_pretrained does it: frequencies stay in float32
                weight.data = weight.data.to(dtype)
            said = [_said_by(check, network, FAULTS[name].length)[0] for check in CHECKS]
            count += 1
            refused += any(each.startswith("refused") for each in said)
            alarms += [f"{name}, {dtype}: {each}" for each in said if each != "passes" and "refused" not in each]
    return count, refused, alarms


# behind a server


@dataclass(frozen=True, kw_only=True)
class CacheFault:
    """A fault of a public thread that is in no model, and engines with it."""

    thread: str
    was: str
    cause: str
    """Pattern that what `identify` says must match."""
    engine: Callable[[], serving.Engine]
    plain: Callable[[], PlainServer]
    """Tells its likeliest next tokens only."""


CACHE_FAULTS = (
    CacheFault(
        thread="sgl-project/sglang#39830",
        was="states evicted to the host and restored are those of another pass",
        cause="evicted from a cache and restored are others",
        engine=lambda: serving.Engine(edit=serving.HostTier(4)),
        plain=lambda: PlainServer(edit=serving.HostTier(4)),
    ),
    CacheFault(
        thread="tenstorrent/vllm#415",
        was="prefill that resumes behind cached blocks (made anew: its positions begin at 0 again)",
        cause="hits of a prefix cache",
        engine=lambda: serving.Engine(edit=serving.ResumedPrefix(64)),
        plain=lambda: PlainServer(places=lambda places: places - places[0]),
    ),
)


def verdicts_behind_server(fault: CacheFault, reference: Path) -> list[Verdict]:
    """By identify, of the engine, and of one that tells next tokens only."""
    with serving.served(fault.engine()) as server:
        first = _verdict_at("identify", fault, server.url, reference)
    with scripted.serving(fault.plain().answer) as server:
        # Its cache holds one prompt: others between the prefixes of a text would leave no hits.
        words = ("backend.concurrency=1",)
        return [first, _verdict_at("identify, by next tokens", fault, server.url, reference, *words)]


def _verdict_at(by: str, fault: CacheFault, url: str, reference: Path, *words: str) -> Verdict:
    begun = time.process_time()
    said = re.sub("; (told by|holds up to) [^;]*", "", serving.named_at(url, reference, *words)[1])
    named = re.search(fault.cause, said) is not None
    return Verdict(by, said, named, named, named, time.process_time() - begun)


# the page

ABOUT = """\
The list was drawn by somebody else before anything was tried or mended (`attention_faults.md` in
`planted_lists.tar.gz`, its hash in `planted.sha256`). Each fault is planted in a tiny random model of transformers once
it is made, so that its config is right and the network is not. Named: the assertion raises, and the cause that the
list's last column has is in its text; *in part*: not all else that this column has, such as where a fault begins. A
refusal is a miss. `assert_attention` calls `assert_rope`, which is said where it suffices."""
NOTES = """\
- F07 is planted in the family that the list names first, which is refused healthy, too; of gemma3, its second choice,
  the text says which layers, and that they rotate as the others do, in place of the base.
- F22 by the letter of its row, in chunks of 2,048 tokens alone, is in no pass that is read: few tokens behind a prefix.
- F32 was first planted by the longest length so far alone, which a short text sets back: `assert_rope` passed, and
  `assert_attention` said "scaling not applied in this layer".
- Changed, too, after a first outcome was seen: F12's drafter has the plain config, so that only the facts tell (named
  before and after); G03 and G04 were planted without effect at first; the two numbers of a ratio (F01, F20) were read
  from another part of the text; F19 was counted as whole, though only the first layer that is wrong is said.
- G04 is refused healthy, too. G11 needs texts with other masks, G13 positions that differ by axis, G14 what a layer
  gives: none is read. Of G16, weights, silence is right.
- F17 was missed at first ("another scale of the softmax: 0.125, not 0.125") and mended afterwards, by somebody who was
  told the kind of the miss alone."""


def linked(threads: str) -> str:
    """Threads in Markdown; GitHub leads from issues to pull requests."""
    one, whole = r"([\w.-]+/[\w.-]+)#(\d+)", re.sub(r"([\w./-]+)(#\d+) and #", r"\1\2, \1#", threads.replace("S: ", ""))
    return re.sub(one, lambda found: f"[{found[0]}](https://github.com/{found[1]}/issues/{found[2]})", whole)


def print_rows(names: Sequence[str], verdicts: dict[str, Verdict], rows: dict[str, list[str]]) -> None:
    """Print a table of faults; of rows without an aim, by which check something is said."""
    counted = names == COUNTED
    sides.table(
        ":id", ":thread", ":family", ":planted", f":{'named' if counted else 'raised'} by", ":said", "CPU seconds"
    )
    for name in names:
        _, _, threads, family, was, *_ = rows[name[:3]]
        verdict = verdicts[name]
        word = verdict.word if counted else verdict.by if verdict.raised else "none"
        said = verdict.said if len(verdict.said) < 200 else f"{verdict.said[:200]}..."
        sides.row(name, linked(threads), family, was, word, said, f"{verdict.seconds:.2f}")


def print_page(reference: Path) -> None:
    """Print the page."""
    rows = read_list()
    verdicts = {name: verdict_of(fault) for name, fault in FAULTS.items()}
    twins, refused, alarms = alarms_of_twins()
    named, whole = (sum(getattr(verdicts[name], of) for name in COUNTED) for of in ("named", "whole"))
    print(f"Named: {named} of {len(COUNTED)}, {whole} of them with all that the list demands; none is void.\n")
    print(
        f"Alarms on healthy twins, in float32 and bfloat16: {len(alarms)} of {twins}, of which {refused} are refused."
    )
    print(*alarms, sep="\n")
    print(f"SHA-256 of the list: `{hash_of_list()}`.\n\n{ABOUT}")
    print_rows(COUNTED, verdicts, rows)
    sides.table(":1 % of one pair, of each in turn", f"seen, of {PAIRS}")
    for where, plant in (("of the rotary module", further), ("in layer 1 alone", further_in_layer_1)):
        sides.row(where, sum(is_seen(pair, plant(pair)) for pair in range(PAIRS)))
    print("\nMore, asked and recorded, that do not count:")
    print_rows([name for name in FAULTS if name not in COUNTED], verdicts, rows)
    print(f"\n{NOTES}\n\nFaults of caches, of which only `identify` can tell, behind a server:")
    sides.table(":thread", ":fault", ":named by", ":said", "CPU seconds")
    for fault in CACHE_FAULTS:
        for each in verdicts_behind_server(fault, reference):
            sides.row(linked(fault.thread), fault.was, each.word, each.said, f"{each.seconds:.2f}")
    print(
        f"\nMore healthy set-ups: {len(HEALTHY_ROPES)} families in float32 and a half precision, after forward passes."
    )
    for check in CHECKS:
        count, said = false_alarms(check)
        print(f"`{check.__name__}` alarms on, or refuses, {len(said)} of {count}.", *said, sep="\n- ")


def main(given: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="Markdown file to write")
    page = parser.parse_args(given).page
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch, page.open("w") as out, contextlib.redirect_stdout(out):
        sides.header("Public faults of attention, planted")
        reference = Path(scratch) / "pack.npz"
        serving.write_pack(reference, length=384, n=8)
        print_page(reference)


if __name__ == "__main__":
    main()

"""`lexbench.assert_attention`: healthy models pass, each planted fault is named, what is not understood is refused.

Faults are planted in transformers' own code: what a layer calls is replaced, and its config says what it said before.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lexbench
from lexbench import Refused, RopeMismatch
from lexbench.backends.attention_reading import HeadTurning, TurnReading, head_pairs
from lexbench.checkpoints.layer_scores import Temperature, softmax_scale
from lexbench.core.errors import ConfigError
from tests.census import tiny

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 160
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
MSCALE = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.8}
MINISTRAL = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
Patch = pytest.MonkeyPatch
Plant = Callable[[Any, Patch], None]


def code_of(network: Any) -> Any:
    """The modeling file of a network."""
    return sys.modules[type(network).__module__]


def attentions(network: Any) -> list[Any]:
    return [layer.self_attn for layer in network.model.layers]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + half) of all of a block."""
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, one), dim=-1) * sin


def turned_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (2i, 2i + 1), of cos and sin in two equal halves."""
    one, two = x[..., ::2], x[..., 1::2]
    cos, sin = (each.chunk(2, dim=-1)[0] for each in (cos, sin))
    return torch.stack([one * cos - two * sin, two * cos + one * sin], dim=-1).flatten(-2)


def rotate_with(network: Any, patch: Patch, rotate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, ...]:
        return tuple(rotate(x, cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)) for x in (q, k))

    patch.setattr(code_of(network), "apply_rotary_pos_emb", both)


def rotate_neighbours(network: Any, patch: Patch) -> None:
    rotate_with(network, patch, turned_neighbours)


def rotate_halves(network: Any, patch: Patch) -> None:
    """Of GLM, whose first half of a head turns in pairs of neighbours."""

    def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        block, rest = x.tensor_split([cos.shape[-1]], dim=-1)
        return torch.cat([turned(block, cos, sin), rest], dim=-1)

    rotate_with(network, patch, halves)


def pair_within_block(network: Any, patch: Patch) -> None:
    """Megatron-Bridge#4195: pairs (i, i + k/2) of the k dimensions that turn, in place of (i, i + d/2)."""

    def rotate(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        if x.shape[-1] == 8:  # a window
            return turned(x, cos, sin)
        turns = x.shape[-1] // 4
        block, rest = x.tensor_split([turns], dim=-1)
        cos, sin = (torch.cat([each[..., : turns // 2]] * 2, dim=-1) for each in (cos, sin))
        return torch.cat([turned(block, cos, sin), rest], dim=-1)

    patch.setattr(code_of(network), "apply_rotary_pos_emb", rotate)


def put_no_neighbours_into_halves(network: Any, patch: Patch) -> None:
    code = code_of(network)

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        return code.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

    patch.setattr(code, "apply_rotary_pos_emb_interleave", rotate)


def rotate_index_of_neighbours(network: Any, patch: Patch) -> None:
    """sglang#13530."""
    code = code_of(network)
    patch.setattr(code, "apply_rotary_pos_emb", code.apply_rotary_pos_emb_interleave)


def plain_angles(places: Tensor, pairs: int, base: float = 1e4) -> tuple[Tensor, Tensor]:
    angles = places[..., None].float() * base ** (-torch.arange(pairs) / pairs)
    twice = torch.cat([angles, angles], dim=-1)
    return twice.cos(), twice.sin()


def index_without_scaling(network: Any, patch: Patch) -> None:
    """omlx PR 3594."""
    for attention in attentions(network):
        own = attention.indexer.forward

        def forward(hidden: Tensor, q: Tensor, angles: Any, mask: Any, places: Tensor, own: Any = own, **k: Any) -> Any:
            return own(hidden, q, plain_angles(places, pairs=4), mask, places, **k)

        patch.setattr(attention.indexer, "forward", forward)


def rotate_one_layer(network: Any, patch: Patch, angles: Callable[[Tensor, Tensor], Any]) -> None:
    attention = attentions(network)[1]
    own = attention.forward

    def forward(hidden_states: Tensor, position_ids: Tensor, position_embeddings: Any, **named: Any) -> Any:
        given = angles(hidden_states, position_ids)
        return own(hidden_states, position_embeddings=given, position_ids=position_ids, **named)

    patch.setattr(attention, "forward", forward)


def turn_a_pair_further(network: Any, patch: Patch) -> None:
    inv_freq = network.model.rotary_emb.inv_freq * torch.tensor([1, 1, 1.01, 1])

    def angles(hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        found = places[..., None].float() * torch.cat([inv_freq, inv_freq])
        return found.cos(), found.sin()

    rotate_one_layer(network, patch, angles)


def rotate_as_windows(network: Any, patch: Patch) -> None:
    rotary = network.model.rotary_emb
    rotate_one_layer(network, patch, lambda hidden, places: rotary(hidden, places, "sliding_attention"))


def rotate_no_keys(network: Any, patch: Patch) -> None:
    code = code_of(network)
    own = code.apply_rotary_pos_emb
    patch.setattr(code, "apply_rotary_pos_emb", lambda q, k, cos, sin: (own(q, k, cos, sin)[0], k))


def rotate_all_layers(network: Any, patch: Patch) -> None:
    for attention in attentions(network):
        attention.use_rope = 1


def begin_anew(network: Any, patch: Patch) -> None:
    """tenstorrent/vllm#415: positions of a text behind a cache begin at 0."""
    own = network.model.forward

    def forward(input_ids: Tensor, position_ids: Tensor | None = None, **named: Any) -> Any:
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        return own(input_ids=input_ids, position_ids=places, **named)

    patch.setattr(network.model, "forward", forward)


def drop_windows(network: Any, patch: Patch) -> None:
    """TensorRT-Model-Connect#399."""
    code = code_of(network)
    patch.setattr(code, "create_sliding_window_causal_mask", code.create_causal_mask)


def put_windows_everywhere(network: Any, patch: Patch) -> None:
    code = code_of(network)
    patch.setattr(code, "create_causal_mask", code.create_sliding_window_causal_mask)


def with_window(make: Callable[..., Any], size: int) -> Callable[..., Any]:
    def made(config: Any, **named: Any) -> Any:
        other = type(config)(**{**config.to_dict(), "sliding_window": size})
        other._attn_implementation = config._attn_implementation
        return make(config=other, **named)

    return made


def widen_windows(network: Any, patch: Patch) -> None:
    own = code_of(network).create_sliding_window_causal_mask
    patch.setattr(code_of(network), "create_sliding_window_causal_mask", with_window(own, tiny.WINDOW + 1))


def slide_chunks(network: Any, patch: Patch) -> None:
    from transformers.masking_utils import create_sliding_window_causal_mask as create_mask

    patch.setattr(code_of(network), "create_chunked_causal_mask", with_window(create_mask, tiny.WINDOW))


def scale_by_the_head(network: Any, patch: Patch) -> None:
    """transformers PR 47435, onnxruntime/mobius#548 (of latent attention)."""
    for attention in attentions(network):
        width = attention.qk_head_dim if hasattr(attention, "qk_head_dim") else attention.head_dim
        attention.scaling = width**-0.5


def scale_one_layer(network: Any, patch: Patch) -> None:
    attentions(network)[1].scaling *= 1.1


def drop_temperature(network: Any, patch: Patch) -> None:
    """ferrox#213, llama.cpp PR 17945."""
    patch.setattr(
        code_of(network), "get_llama_4_attn_scale", lambda places, *_: torch.ones_like(places)[:, None, :, None]
    )


def drop_temperature_of_llama4(network: Any, patch: Patch) -> None:
    for attention in attentions(network):
        attention.attn_temperature_tuning = False


def drop_sinks(network: Any, patch: Patch) -> None:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any) -> Any:
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
        weights = (q @ k.transpose(2, 3) * scaling + mask).softmax(-1)
        return (weights @ v).transpose(1, 2), weights

    patch.setattr(code_of(network), "eager_attention_forward", attend)


def change_sinks(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Patch], None]:
    def plant(network: Any, patch: Patch) -> None:
        with torch.no_grad():
            for number, attention in enumerate(attentions(network)):
                attention.sinks.copy_(torch.linspace(-1, 1, len(attention.sinks)) + number)

        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any) -> Any:
            k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
            sinks = change(module.sinks)[None, :, None, None].expand(len(q), -1, q.shape[2], -1)
            weights = torch.cat([q @ k.transpose(2, 3) * scaling + mask, sinks], -1).softmax(-1)[..., :-1]
            return (weights @ v).transpose(1, 2), weights

        patch.setattr(code_of(network), "eager_attention_forward", attend)

    return plant


def drop_cap(network: Any, patch: Patch) -> None:
    for attention in attentions(network):
        attention.attn_logit_softcapping = None


def tile_keys(network: Any, patch: Patch) -> None:
    network.set_attn_implementation("eager")
    patch.setattr(code_of(network), "repeat_kv", lambda keys, times: keys.repeat(1, times, 1, 1))


def divide_by_the_block(network: Any, patch: Patch) -> None:
    """neuronx-distributed-inference PR 106: exponents over the dimensions that turn in place of those of a head."""
    rotary = network.model.rotary_emb
    pairs = int((rotary.full_attention_inv_freq > 0).sum())
    rotary.full_attention_inv_freq[:pairs] = 1e6 ** (-torch.arange(pairs) / pairs)


def turn_a_frequency_further(network: Any, patch: Patch) -> None:
    network.model.rotary_emb.inv_freq[3] *= 1.01


def lose_yarn(network: Any, patch: Patch) -> None:
    """omlx#3347."""
    rotary = network.model.rotary_emb
    pairs = len(rotary.inv_freq)
    rotary.inv_freq, rotary.attention_scaling = 1e4 ** (-torch.arange(pairs) / pairs), 1.0


@dataclass(frozen=True)
class Fault:
    kind: str
    plant: Plant
    cause: str
    config: dict[str, Any] = field(default_factory=dict)
    layer: str | None = ""
    """Of the layer's name; None: found in cos and sin, of all layers."""


def latent(scale: float = 16**-0.5) -> str:
    """DeepSeek's mscale at factor 8 is 0.1 * 0.8 ln 8 + 1."""
    return f"without mscale^2: {scale:.4g}, not {scale * (0.08 * math.log(8) + 1) ** 2:.4g}"


FAULTS = {
    "no mscale": Fault("deepseek_v3", scale_by_the_head, latent(), {"rope_parameters": MSCALE}, "layers.0"),
    "no mscale, V2": Fault("deepseek_v2", scale_by_the_head, latent(), {"rope_parameters": MSCALE}),
    "pairs of a block": Fault(
        "gemma4_text", pair_within_block, "pairs (i, i + 64) turn together in place of (i, i + 256)", layer="layers.1"
    ),
    "windows dropped": Fault("gpt_oss", drop_windows, "window dropped: it sees all keys, not 16", layer="layers.0"),
    "temperature": Fault(
        "ministral3", drop_temperature, "attention temperature dropped", {"rope_parameters": MINISTRAL}
    ),
    "temperature, Llama 4": Fault("llama4_text", drop_temperature_of_llama4, "temperature dropped", layer="layers.1"),
    "scale of a layer": Fault(
        "llama", scale_one_layer, "another scale of the softmax: 0.3889, not 0.3536", layer="layers.1"
    ),
    "plain scale": Fault("gemma3_text", scale_by_the_head, "scale of a plain head in place of the layer's own: 0.3536"),
    "window and one": Fault("mistral", widen_windows, "another window: 17 keys, not 16"),
    "windows everywhere": Fault(
        "gemma3_text", put_windows_everywhere, "it sees 16 keys, as other layers do, not all", layer="layers.1"
    ),
    "chunks slide": Fault("llama4_text", slide_chunks, "a window of 16 keys in place of a chunk", layer="layers.0"),
    "a block's exponents": Fault("gemma4_text", divide_by_the_block, "exponents: 128 dimensions, not 512", layer=None),
    "1 % of a pair": Fault(
        "llama", turn_a_pair_further, "1 of 4 pairs turn by other angles: pair 2 by 1.01", layer="layers.1"
    ),
    "1 % of a frequency": Fault(
        "llama", turn_a_frequency_further, "1 of 4 pairs turn by other angles: pair 3", layer=None
    ),
    "neighbours": Fault("llama", rotate_neighbours, "pairs (2i, 2i + 1) turn together in place of (i, i + 4)"),
    "halves": Fault("glm4", rotate_halves, "pairs (i, i + 2) turn together in place of (2i, 2i + 1)"),
    "weights of neighbours": Fault(
        "deepseek_v3", put_no_neighbours_into_halves, "(i, i + 4) turn together in place of (2i"
    ),
    "index of neighbours": Fault(
        "deepseek_v32", rotate_index_of_neighbours, "(2i, 2i + 1) turn together", layer="indexer"
    ),
    "index without scaling": Fault(
        "deepseek_v32", index_without_scaling, "scaling not applied in this layer", {"rope_parameters": YARN}, "indexer"
    ),
    "yarn lost": Fault(
        "qwen3_5_text",
        lose_yarn,
        "scaling not applied: it rotates by plain RoPE",
        {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}, "head_dim": 16},
        None,
    ),
    "other kind": Fault("gemma3_text", rotate_as_windows, "rotated as sliding_attention layers are", layer="layers.1"),
    "no positions": Fault("smollm3", rotate_all_layers, "rotated as other layers are", layer="layers.1"),
    "keys": Fault("llama", rotate_no_keys, "not rotated: its positions are lost"),
    "prefix": Fault("llama", begin_anew, "positions begin at 0 again: position 3 is rotated as 0"),
    "sinks": Fault("gpt_oss", drop_sinks, "sinks dropped"),
    "sinks of others": Fault(
        "gpt_oss", change_sinks(lambda held: held.roll(1)), "sinks of other heads: head 0 has that"
    ),
    "sinks halved": Fault("gpt_oss", change_sinks(lambda held: held / 2), "other sinks: that of head"),
    "cap": Fault("gemma2", drop_cap, "cap of 0.5 on the scores dropped"),
    "keys of other heads": Fault("qwen2", tile_keys, "heads read the keys of other heads"),
}


@pytest.mark.everyday(
    *("no mscale", "pairs of a block", "windows dropped", "temperature", "1 % of a pair", "index without scaling"),
    *("window and one", "weights of neighbours", "prefix", "sinks", "cap", "a block's exponents"),
)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, monkeypatch: Patch) -> None:
    fault = FAULTS[name]
    network = tiny.network_of(fault.kind, **fault.config)
    lexbench.assert_attention(network, length=LENGTH)
    fault.plant(network, monkeypatch)
    with pytest.raises(RopeMismatch) as found:
        lexbench.assert_attention(network, length=LENGTH)
    assert fault.cause in str(found.value.cause)
    assert f"Likely cause: {found.value.cause}" in str(found.value) and "\n" not in str(found.value)
    assert found.value.layer is None if fault.layer is None else fault.layer in str(found.value.layer)


def test_what_was_read_is_said() -> None:
    said = lexbench.assert_attention(tiny.network_of("qwen3_5_text"), length=LENGTH)
    assert said == ("no attention", "1 pairs (i, i + 1), scale 0.3536, read up to 160 keys")
    said = lexbench.assert_attention(tiny.network_of("gemma2"), length=LENGTH)
    assert said[0] == "4 pairs (i, i + 4), scale 0.0625, window of 16 keys, scores capped at 0.5, read up to 160 keys"


def test_a_model_is_left_as_it_was() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}  # whose frequencies follow the longest text
    network = tiny.network_of("llama", rope_parameters=scaling, max_position_embeddings=64).train()
    from transformers import AttentionInterface
    from transformers.models.llama import modeling_llama

    kept = AttentionInterface.get_interface, modeling_llama.apply_rotary_pos_emb, network.config._attn_implementation
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        before = network(tokens).logits
        lexbench.assert_attention(network, length=LENGTH)
        scale_one_layer(network, pytest.MonkeyPatch())
        with pytest.raises(RopeMismatch):
            lexbench.assert_attention(network, length=LENGTH)
        attentions(network)[1].scaling /= 1.1
        after = network(tokens).logits
    now = AttentionInterface.get_interface, modeling_llama.apply_rotary_pos_emb, network.config._attn_implementation
    assert now == kept and network.training and torch.equal(before, after)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in network.modules())


def test_a_method_in_the_model_is_read() -> None:
    network = tiny.network_of("llama")
    with lexbench.extend(network, "yarn", factor=4):
        lexbench.assert_attention(network, "yarn", factor=4, length=LENGTH)
    with pytest.raises(RopeMismatch, match="scaling not applied"):
        lexbench.assert_attention(network, "yarn", factor=4, length=LENGTH)
    lone = tiny.network_of("llama", max_position_embeddings=LENGTH // 2)
    with lexbench.extend(lone, "ntk", length=LENGTH):  # its factor is that of the length, for shorter texts, too
        lexbench.assert_attention(lone, "ntk", length=LENGTH)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_half_precision_and_kernels_raise_no_alarm(kind: str, kernel: str) -> None:
    network = tiny.network_of(kind)
    network.set_attn_implementation(kernel)
    for weight in network.parameters():  # as from_pretrained does it: frequencies stay in float32
        weight.data = weight.data.to(torch.bfloat16)
    lexbench.assert_attention(network, length=LENGTH)


REFUSED = [
    ("gpt_neo", r"h\.0\.attn \(GPTNeoAttention\) calls no attention function of transformers' registry"),
    ("doge", r"layers\.0\.self_attn \(DogeAttention\) adds a bias of its own to the scores"),
    ("inkling_text", "gives its attention function position_bias, which is not understood here"),
    ("zaya", r"\(ZayaAttention\) mixes tokens by a convolution before its attention"),
    ("mamba", "has no layer with attention"),
    ("florence2", "is an encoder with a decoder"),
]


@pytest.mark.everyday("gpt_neo", "zaya", "mamba")
@pytest.mark.parametrize(("kind", "why"), REFUSED)
def test_what_is_not_understood_is_refused_by_name(kind: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        lexbench.assert_attention(tiny.network_of(kind), length=LENGTH, trained_length=LENGTH)


def test_bad_arguments_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="length must be a whole number of at least 2 tokens, got 1"):
        lexbench.assert_attention(tiny.network_of("llama"), length=1)
    with pytest.raises(Refused, match="assert_rope takes a rotary module or a table"):
        lexbench.assert_attention(tiny.network_of("llama").model.rotary_emb, length=LENGTH)
    with pytest.raises(Refused, match="has no rotary positions, which yarn would change"):
        lexbench.assert_attention(tiny.network_of("gpt2"), "yarn", factor=4, length=LENGTH)


# the definitions, by hand


def test_a_pair_turns_by_its_angle() -> None:
    start = np.array([[[1.0, 0.0, 0.0, 2.0]]])
    found = HeadTurning(head_pairs("half", 4, 4), np.array([np.pi / 2, np.pi]), np.array([3.0])).turn(
        start, np.array([1])
    )
    np.testing.assert_allclose(found[0, 0], [0, 0, 3, -6], atol=1e-12)  # (1, 0) by a quarter, (0, 2) by a half, times 3
    found = HeadTurning(head_pairs("interleaved", 2, 4, offset=2), np.array([np.pi / 2]), np.ones(1)).turn(
        start, np.array([1])
    )
    np.testing.assert_allclose(found[0, 0], [1, 0, -2, 0], atol=1e-12)


def test_an_error_is_a_share_of_the_pair() -> None:
    start = np.array([[[1.0, 1.0, 1.0, 1.0]]])
    found = np.array([[[1.0, 1.0, 1.0, 1.5]]])
    reading = TurnReading(np.array([0]), found, start, "float32")
    errors, _ = reading.errors(HeadTurning(head_pairs("half", 4, 4), np.array([1.0, 0.1]), np.ones(1)))
    np.testing.assert_allclose(errors, [[0, 0.5 / math.sqrt(2), 0]])


def test_scales_and_temperatures_are_those_of_the_papers() -> None:
    config = tiny.config_of("deepseek_v3", rope_parameters={**MSCALE, "factor": 40.0, "mscale_all_dim": 1.0})
    # DeepSeek-V3's modeling file: softmax_scale = softmax_scale * mscale * mscale.
    assert softmax_scale(config, 0, 192) == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert softmax_scale(tiny.config_of("gemma2", query_pre_attn_scalar=144), 0, 8) == pytest.approx(1 / 12)
    found = Temperature(0.1, 8192, ahead=1).at(np.array([0, 8190, 8191, 24575]))
    np.testing.assert_allclose(found, [1, 1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(4)])

"""Tokens that kv keeps are those that kvpress keeps, on a tiny Llama (`make test-kvpress`)."""

from typing import Any

import pytest
import torch

from lexbench.parts.kv import eviction

kvpress: Any = pytest.importorskip("kvpress")
KEEP, TOKENS = 0.4, 150


@pytest.fixture(scope="module")
def network() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16, "vocab_size": 200}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()


@pytest.mark.parametrize("by", ["norm", "snapkv"])
@torch.inference_mode()
def test_the_tokens_that_each_head_holds_are_those_of_kvpress(by: str, network: Any) -> None:
    from transformers import DynamicCache
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    ids = torch.randperm(200)[None, :TOKENS]
    asked: list[torch.Tensor] = []
    handles = [
        layer.self_attn.q_proj.register_forward_hook(lambda module, given, made: asked.append(made))
        for layer in network.model.layers
    ]
    whole = DynamicCache()
    network(ids, past_key_values=whole)
    for handle in handles:
        handle.remove()
    press = {"norm": kvpress.KnormPress, "snapkv": kvpress.SnapKVPress}[by](compression_ratio=1 - KEEP)
    pressed = DynamicCache()
    with press(network):
        network(ids, past_key_values=pressed)
    cos, sin = network.model.rotary_emb(asked[0], torch.arange(TOKENS)[None])
    for layer, queries in enumerate(asked):
        turned, _ = apply_rotary_pos_emb(*[queries.view(1, TOKENS, 4, 16).transpose(1, 2)] * 2, cos, sin)
        keys, theirs = whole.layers[layer].keys, pressed.layers[layer].keys
        scores = eviction.norm(keys) if by == "norm" else eviction.snapkv(turned[:, :, -64:], keys, 16**-0.5)
        held = eviction.best(scores, int(TOKENS * KEEP))
        assert held.sum(-1).tolist() == [[theirs.shape[2]] * 2]
        for head in range(2):
            same = (keys[0, head, :, None] == theirs[0, head]).all(-1)
            assert torch.equal(same.any(1), held[0, head]), f"layer {layer}, head {head}"

"""Tokens that kv keeps are those that kvpress keeps, on a tiny Llama (`make test-kvpress`)."""

from typing import Any

import pytest
import torch

from lexbench.parts.kv.methods.kv import Kv

kvpress: Any = pytest.importorskip("kvpress")
KEEP, TOKENS = 0.4, 150


@pytest.fixture(scope="module")
def network() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16, "vocab_size": 200}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()


@pytest.mark.parametrize("by", ["norm", "snapkv", "expected"])
@torch.inference_mode()
def test_the_tokens_that_each_head_holds_are_those_of_kvpress(by: str, network: Any) -> None:
    from transformers import DynamicCache
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    ids = torch.randperm(200)[None, :TOKENS]
    made: dict[str, list[torch.Tensor]] = {"q_proj": [], "k_proj": [], "v_proj": []}
    handles = [
        getattr(layer.self_attn, name).register_forward_hook(lambda module, given, found, of=of: of.append(found))
        for layer in network.model.layers
        for name, of in made.items()
    ]
    whole = DynamicCache()
    network(ids, past_key_values=whole)
    for handle in handles:
        handle.remove()
    press = {"norm": kvpress.KnormPress, "snapkv": kvpress.SnapKVPress, "expected": kvpress.ExpectedAttentionPress}
    pressed = DynamicCache()
    with press[by](compression_ratio=1 - KEEP)(network):
        network(ids, past_key_values=pressed)

    def rotate(vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        turned: torch.Tensor
        turned, _ = apply_rotary_pos_emb(vectors, vectors, *network.model.rotary_emb(vectors, positions[None]))
        return turned

    compression = Kv(keep=KEEP, by=by).compression()
    for layer, (queries, keys, values) in enumerate(zip(*made.values(), strict=True)):
        q, k, v = (each.view(1, TOKENS, -1, 16).transpose(1, 2) for each in (queries, keys, values))
        held = compression.held_tokens(q, k, v, rotate, 16**-0.5)
        known, theirs = whole.layers[layer].keys, pressed.layers[layer].keys
        assert held.sum(-1).tolist() == [[theirs.shape[2]] * 2]
        for head in range(2):
            same = (known[0, head, :, None] == theirs[0, head]).all(-1)
            assert torch.equal(same.any(1), held[0, head]), f"layer {layer}, head {head}"

"""Numbers in a KV cache, counted in one."""

import pytest

from lexbench.core.memory import cache_numbers_per_token


@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 8), (1, 24)])
def test_a_cache_holds_as_many_numbers_as_that_of_transformers(kv_heads: int, head_dim: int) -> None:
    """Count in a cache of 3 layers and 7 tokens; no head has 16 numbers, as a width of 32 in 2 heads would give."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": 9, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    network = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
    cache = network(torch.arange(7)[None], use_cache=True).past_key_values
    counted = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert 7 * cache_numbers_per_token(3, kv_heads, head_dim) == counted


def test_keys_at_further_positions_count_as_keys() -> None:
    # by hand: a key, a value and two keys more, of 5 heads of 4 numbers, in 3 layers
    assert cache_numbers_per_token(3, 5, 4, views=2) == 3 * 5 * (4 + 4 + 2 * 4)

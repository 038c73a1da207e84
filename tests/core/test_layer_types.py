"""Kinds of layers by their names, as transformers' cache treats them."""

from types import SimpleNamespace

from lexbench.core.layer_types import has_attention, is_chunked, is_windowed


def test_windowed_layers_are_those_of_which_transformers_drops_old_keys() -> None:
    from transformers.cache_utils import get_layer_types_and_kwargs
    from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES

    sizes = SimpleNamespace(sliding_window=16, attention_chunk_size=8)
    kinds = list(ALLOWED_ATTN_LAYER_TYPES)
    config = SimpleNamespace(layer_types=kinds, per_layer_config=[sizes] * len(kinds))
    _, options = get_layer_types_and_kwargs(config)
    dropped = {kind: each.get("sliding_window") for kind, each in zip(kinds, options, strict=True)}
    assert {kind for kind in kinds if is_windowed(kind)} == {kind for kind, size in dropped.items() if size}
    assert {kind for kind in kinds if is_chunked(kind)} == {kind for kind, size in dropped.items() if size == 8}
    assert is_windowed("local") and not is_windowed("global")  # GPT-Neo


def test_layers_without_attention_have_no_keys() -> None:
    kinds = ("linear_attention", "conv", "mamba", "recurrent", "moe", "full_attention", "chunked_attention", "hybrid")
    assert [has_attention(kind) for kind in kinds] == [False] * 5 + [True] * 3

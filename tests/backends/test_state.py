"""State of a text that a network has begun to read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from lexbench.backends.hf.exact.state import KeyValueState


def tower(input_ids: Tensor, past_key_values: Any, use_cache: bool) -> tuple[Tensor]:
    """A network whose only layer has the tokens themselves as keys and values."""
    vectors = input_ids[:, None, :, None].float()
    past_key_values.update(vectors, vectors, 0)
    return (vectors[:, 0],)


def first_tokens(layer: Any, most: int) -> None:
    """`crop` of transformers 5.5, for which a number of at least 0 says how many tokens are left."""
    size = layer.get_seq_length() + most if most < 0 else most
    if layer.get_seq_length() > size:
        layer.keys, layer.values = layer.keys[..., :size, :], layer.values[..., :size, :]


@pytest.mark.parametrize("crop", [DynamicLayer.crop, first_tokens], ids=["installed", "5.5"])
def test_to_cut_nothing_leaves_all_keys(monkeypatch: pytest.MonkeyPatch, crop: Callable[..., None]) -> None:
    """A prompt is kept by a cut behind its last token, where often nothing stands."""
    monkeypatch.setattr(DynamicLayer, "crop", crop)
    state = KeyValueState()

    def kept() -> list[float]:
        return list(state.cache.layers[0].keys.flatten().tolist())

    state.read(tower, torch.tensor([[1, 2, 3]]))
    state.cut(3)
    assert kept() == [1, 2, 3]
    state.cut(2)
    state.read(tower, torch.tensor([[4]]))
    assert kept() == [1, 2, 4]


def test_a_state_is_as_before_behind_a_second_reading_of_its_last_tokens() -> None:
    state = KeyValueState()
    state.read(tower, torch.tensor([[1, 2, 3, 4]]))
    with state.without_last(2) as shorter:
        assert shorter.tokens == 2
        shorter.read(tower, torch.tensor([[7, 8, 9]]))
        assert state.cache.layers[0].keys.flatten().tolist() == [1, 2, 7, 8, 9]
    assert state.tokens == 4
    for held in (state.cache.layers[0].keys, state.cache.layers[0].values):
        assert held.flatten().tolist() == [1, 2, 3, 4]


def test_a_branch_gives_back_what_a_window_has_dropped() -> None:
    """Three keys are seen; behind the branch the next token sees those that it would have seen without it."""
    config = transformers.MistralConfig(num_hidden_layers=1, sliding_window=3, num_attention_heads=1, hidden_size=1)
    states = [KeyValueState(config), KeyValueState(config)]
    for state in states:
        state.read(tower, torch.tensor([[1, 2, 3, 4]]))
    with states[0].branch() as other:
        other.read(tower, torch.tensor([[7, 8, 9]]))
        assert other.cache.layers[0].keys.flatten().tolist() == [8, 9]
    assert [state.tokens for state in states] == [4, 4]
    assert [state.cache.layers[0].keys.flatten().tolist() for state in states] == [[3, 4], [3, 4]]
    assert [state.cache.layers[0].get_seq_length() for state in states] == [4, 4]

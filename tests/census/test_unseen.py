"""A family that no census has seen: right, or caught before anything is measured with a cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from lexbench import run
from tests.census import asking, tiny

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH = 32


class UnseenConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "unseen"
    vocab_size: int = tiny.VOCABULARY
    hidden_size: int = WIDTH
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    forgets_after: int | None = None


class Tower(PreTrainedModel):  # type: ignore[misc]
    """States are a decaying sum of embeddings, kept on the cache beside its keys: `crop` leaves it as it is."""

    config_class = UnseenConfig
    base_model_prefix = "model"

    def __init__(self, config: UnseenConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, WIDTH)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, input_ids: Any, past_key_values: Any = None, use_cache: bool = False, **_: Any) -> Any:
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        steps = self.embeddings(input_ids)
        memory = getattr(past_key_values, "memory", torch.zeros_like(steps[:, 0]))
        limit, read = self.config.forgets_after, past_key_values.get_seq_length() if past_key_values is not None else 0
        if limit is not None and read > limit:
            memory = torch.zeros_like(memory)
        found = []
        for step in steps.unbind(1):
            memory = 0.9 * memory + step
            found.append(memory)
        if past_key_values is not None:
            past_key_values.update(steps[:, None], steps[:, None], 0)
            past_key_values.memory = memory
        return BaseModelOutputWithPast(last_hidden_state=torch.stack(found, dim=1), past_key_values=past_key_values)


class Unseen(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    config_class = UnseenConfig
    base_model_prefix = "model"

    def __init__(self, config: UnseenConfig) -> None:
        super().__init__(config)
        self.model = Tower(config)
        self.lm_head = nn.Linear(WIDTH, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: Any, past_key_values: Any = None, use_cache: bool = False, **_: Any) -> Any:
        found = self.model(input_ids, past_key_values=past_key_values, use_cache=use_cache)
        logits = self.lm_head(found.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=found.past_key_values)


AutoConfig.register("unseen", UnseenConfig)
AutoModelForCausalLM.register(UnseenConfig, Unseen)


def saved(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    network = Unseen(UnseenConfig(**settings))
    for weight in network.parameters():
        nn.init.normal_(weight)
    network.save_pretrained(folder)
    tiny.save_tokenizer(folder)
    return folder


def test_a_state_that_no_crop_takes_back_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "Unseen", Unseen, raising=False)
    found = asking.ask(saved(tmp_path / "unseen"))
    assert not found.dishonest and found.goes_on == "its own state"
    right = {kind for kind, each in found.asked.items() if each.right}
    assert right == {"score", "mark", "write", "choose", "batched", "reused"}


def test_a_cache_that_forgets_later_is_caught_by_the_preflight(tmp_path: Path) -> None:
    folder = saved(tmp_path / "unseen", forgets_after=16)
    model: dict[str, Any] = {"path": str(folder), "name": "unseen", "trained_length": 64, "head_dim": WIDTH}
    table = run(model, task=["passkey", "last_segment"], lengths=[48], n=2, results=tmp_path / "run").records()
    passkey, perplexity = (table[table.task == task] for task in ("passkey", "last_segment"))
    assert perplexity.refused.isna().all() and perplexity.value.notna().all()
    assert passkey.refused.str.startswith("none failed its self-check: cached").all()
    assert passkey.refused.str.endswith("use tasks that score").all()

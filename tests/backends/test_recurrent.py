"""Models that keep a state of what they read: scored as ever, refused where an answer goes on from a prompt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from lexbench import Chosen, Mark, Refused, Score, Write, run
from lexbench.backends.hf import Hf
from lexbench.core.checkpoint import read_model
from lexbench.core.task import Choose

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
}
MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4}
STATEFUL: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 4, "n_groups": 1},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "bamba": {"attn_layer_indices": [1], **MAMBA2},
    "falcon_h1": {"mamba_d_ssm": 64, **MAMBA2},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        **{"head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
        "shared_expert_intermediate_size": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2, "head_dim": 8},
}
KEEPING: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "mistral": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 4, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
}
TOKENS = np.random.default_rng(1).integers(2, VOCABULARY, 40)

pytestmark = pytest.mark.usefixtures("one_thread")


def save(folder: Path, kind: str, **changes: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **changes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    spoken = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    spoken.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    spoken.save(str(folder / "tokenizer.json"))
    return folder


def open_hf(folder: Path) -> Hf:
    return Hf(read_model({"path": str(folder), "name": folder.name, "trained_length": 64}))


def stock(folder: Path, tokens: np.ndarray) -> torch.Tensor:
    """[T, vocabulary] log-probabilities of a model that we never touched, without a cache."""
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        read = network(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    return read.double().log_softmax(-1)  # type: ignore[no-any-return]


def losses(folder: Path, tokens: np.ndarray, start: int) -> np.ndarray:
    chances = stock(folder, tokens).numpy()
    return np.asarray([-chances[place - 1, tokens[place]] for place in range(start, len(tokens))])


def write() -> Write:
    return Write(index=0, cluster="", prompt=TOKENS[:24], room=8)


def choose() -> Choose:
    return Choose(index=0, cluster="", prompt=TOKENS[:24], options=(TOKENS[24:27], TOKENS[30:34]), expected=0)


@pytest.mark.parametrize("kind", STATEFUL)
def test_models_with_a_state_are_scored_and_neither_write_nor_choose(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "tiny", kind, **STATEFUL[kind])
    hf = open_hf(folder)
    scored = hf.score(Score(index=0, cluster="", tokens=TOKENS, start=10, bytes=1, words=1))
    np.testing.assert_allclose(scored.nll, losses(folder, TOKENS, 10), atol=2e-4)
    options = np.array([TOKENS[20], TOKENS[21]])
    marked = hf.mark(Mark(index=0, cluster="", tokens=TOKENS, places=np.array([20]), options=options))
    np.testing.assert_allclose(marked.nll[0], -stock(folder, TOKENS)[19, options], atol=2e-4)
    said = r"hf needs a cache of keys and values to write or choose, \w+ForCausalLM has other state in some layer: use "
    for answer in (lambda: hf.write(write()), lambda: list(hf.together([write()])), lambda: hf.choose(choose())):
        with pytest.raises(Refused, match=said) as refusal:
            answer()
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", KEEPING)
def test_models_that_keep_keys_and_values_answer_as_without_a_cache(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "tiny", kind, **KEEPING[kind])
    hf = open_hf(folder)
    tokens = TOKENS[:24]
    for _ in range(8):
        tokens = np.append(tokens, int(stock(folder, tokens)[-1].argmax()))
    assert hf.write(write()).tokens.tolist() == tokens[24:].tolist()
    expected = [losses(folder, np.append(TOKENS[:24], option), 24).sum() for option in choose().options]
    given = hf.choose(choose())
    assert isinstance(given, Chosen)
    np.testing.assert_allclose(given.nll, expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["mamba", "jamba"])
def test_a_run_refuses_what_a_model_with_a_state_cannot_answer(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "tiny", kind, **STATEFUL[kind])
    model = {"path": str(folder), "name": "tiny", "trained_length": 64}
    asked = ["passkey", "last_segment"]
    table = run(model, task=asked, lengths=[48], n=2, results=tmp_path / "run").records()
    written, read = (table[table.task == task] for task in asked)
    assert written.value.isna().all() and written.refused.str.startswith("hf needs a cache of keys and values").all()
    assert read.refused.isna().all() and read.value.notna().all()

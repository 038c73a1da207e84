"""Every registered method, through transformers, against its definition in float64: at once and token by token."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from transformers import AttentionInterface

import lexbench
from lexbench import Attention, Model, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.exact.layers import IdentityRotary
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Window
from lexbench.kernels.reference import Angles, attention_weights
from lexbench.methods.composition import read_method

ROUNDING = 1e-4
"""Of logits, in units of their deviation: transformers makes cos and sin in float32, whatever the model's dtype."""
LENGTH, PROMPT = 80, 69
"""Tokens of the text, 2.5 times the trained length, and of the prompt before it is read token by token."""
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "gpt_neox": {"rotary_pct": 0.5, "num_key_value_heads": 4},
}
METHODS = registry.registered_names("method")
COMPOSED: list[list[Any]] = [
    ["yarn", "log_n"],
    ["rerope", "ntk"],
    ["bca", "self_extend"],
    ["yarn", "resonance"],
    ["log_n", "dca"],
    ["entropy_abf", "leaky_rerope"],
    ["attention_buckets", "lambda_mask"],
    [{"name": "longrope", "start_tokens": 7}, "log_n"],
    [{"name": "ms_poe", "first_layer": 0}, "rerope"],
]
FACTS = Model(name="any", trained_length=32, head_dim=8, rope_base=10_000.0, layers=3, heads=4, kv_heads=2)


def of_every_kind() -> list[str]:
    """Of the methods that fill the same slots with the same types, one."""
    found: dict[object, str] = {}
    for name in METHODS:
        with suppress(Refused):
            attention = lexbench.method(name).attention(FACTS, LENGTH)
            found.setdefault(tuple((slot, type(getattr(attention, slot))) for slot in attention.slots()), name)
    return list(found.values())


TOKENS = np.random.default_rng(3).integers(0, 64, LENGTH)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Hf]:
    """A backend for a random model of a family, made once."""
    made: dict[str, Hf] = {}

    def of(kind: str) -> Hf:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            config = transformers.AutoConfig.for_model(kind, **{**SIZES, **FAMILIES[kind]})
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            words = {f"w{number}": number for number in range(64)}
            tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(
                str(folder / "tokenizer.json")
            )
            made[kind] = Hf(read_model({"path": str(folder), "name": kind}), dtype="float64")
        return made[kind]

    return of


pytestmark = pytest.mark.usefixtures("one_thread")


def defined(folder: Path, model: Model, attention: Attention, prompt: int) -> np.ndarray:
    """[T, vocabulary] logits of a network that nobody changed but for attention by the definition, query by query."""
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    own = Angles(model.inv_freq(), 1.0, model.rotary_layout)

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **unused: Any) -> Any:
        q, k, v = (vectors[0].double().numpy() for vectors in (query, key, value))
        part, group, scaling = attention.at(module.layer_idx), len(q) // len(k), q.shape[-1] ** -0.5
        ratios = ranked(part, own, q, k, prompt, scaling)
        mixed = np.empty_like(q)
        for head, row in np.ndindex(q.shape[:2]):
            shared = head // group
            found = attention_weights(part, own, q[head, row], k[shared], row, scaling, head, ratios[shared])
            mixed[head, row] = found @ v[shared]
        return torch.from_numpy(mixed)[None].transpose(1, 2).contiguous(), None

    AttentionInterface.register("defined", attend)
    tables = network.base_model.rotary_emb(torch.zeros(1), torch.zeros(1, 1, dtype=torch.int64))
    network.base_model.rotary_emb = IdentityRotary({None: tables})
    network.set_attn_implementation("defined")
    with torch.inference_mode():
        return network(torch.from_numpy(TOKENS)[None]).logits[0].double().numpy()  # type: ignore[no-any-return]


def ranked(part: Attention, own: Angles, q: Any, k: Any, prompt: int, scaling: float) -> list[float]:
    """Ms-PoE: ratios go up as the count of keys with more than three times the mean weight goes down."""
    if part.head_ratios is None:
        return [1.0] * len(k)
    group = len(q) // len(k)
    counts = [0] * len(k)
    for head in range(len(q)):
        plain = Attention(inv_freq=part.inv_freq, scale=part.scale)
        found = attention_weights(plain, own, q[head, prompt - 1], k[head // group, :prompt], prompt - 1, scaling)
        counts[head // group] += int((found > part.head_ratios.threshold / prompt).sum())
    order = sorted(range(len(k)), key=lambda head: -counts[head])
    return [part.head_ratios.ratios[order.index(head)] for head in range(len(k))]


def mixed(passes: list[np.ndarray]) -> np.ndarray:
    """Attention Buckets: logits weighted by the softmax of each pass's largest."""
    largest = np.stack([logits.max(-1) for logits in passes])
    shares = np.exp(largest - largest.max(0))
    return np.asarray(np.einsum("pt,ptv->tv", shares / shares.sum(0), np.stack(passes)))


def assert_defined(hf: Hf, method: str | dict[str, Any]) -> None:
    try:
        attention = lexbench.method(method).attention(hf.model, LENGTH)
    except Refused as refusal:
        pytest.skip(refusal.reason)
    assert_realised(hf, attention)


def assert_realised(hf: Hf, attention: Attention) -> None:
    folder = Path(str(hf.model.path))
    expected = mixed([defined(folder, hf.model, part, PROMPT) for part in attention.mixture or (attention,)])
    hf.attend(attention)
    pieces = [PROMPT, *[1] * 5, LENGTH - PROMPT - 5]
    for got in (hf.logits(TOKENS, [LENGTH], PROMPT), hf.logits(TOKENS, pieces, PROMPT)):
        np.testing.assert_allclose(got.double().numpy(), expected, atol=ROUNDING * expected.std())


@pytest.mark.everyday("none", "yarn", "log_n", "rerope", "self_extend", "streaming_llm", "dca")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_its_definition_in_llama(method: str, opened: Callable[[str], Hf]) -> None:
    assert_defined(opened("llama"), method)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "mistral", "gpt_neox"])
@pytest.mark.parametrize("method", of_every_kind())
def test_every_kind_of_method_is_its_definition_in_other_families(
    kind: str, method: str, opened: Callable[[str], Hf]
) -> None:
    assert_defined(opened(kind), method)


@pytest.mark.slow
@pytest.mark.parametrize("methods", COMPOSED, ids=lambda methods: read_method({"compose": methods})[0])
def test_composed_methods_are_their_definition(methods: list[Any], opened: Callable[[str], Hf]) -> None:
    assert_defined(opened("gpt_neox"), {"compose": methods})


@pytest.mark.everyday("None")
@pytest.mark.parametrize("mask", [None, Window(20)])
def test_layers_may_turn_by_different_frequencies(mask: Window | None, opened: Callable[[str], Hf]) -> None:
    hf = opened("llama")
    slow = Attention(inv_freq=hf.model.inv_freq() / 4, scale=1.1, mask=mask)
    assert_realised(hf, replace(slow, layers=(1,), otherwise=Attention(inv_freq=hf.model.inv_freq() / 2)))
    assert_realised(hf, replace(slow, layers=(0, 2)))


def test_hf_dynamic_is_transformers_own_with_its_history(opened: Callable[[str], Hf]) -> None:
    hf = opened("llama")
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(hf.model.path, dtype=torch.float64, rope_parameters=rope)
    hf.attend(lexbench.method("dynamic_ntk", policy="hf_dynamic", factor=2.0).attention(hf.model, LENGTH))
    text = torch.from_numpy(TOKENS)[None]
    with torch.inference_mode():
        whole = theirs(text).logits[0]
        theirs(text[:, :8])  # a text shorter than the trained length makes it forget
        cache = transformers.DynamicCache(config=theirs.config)
        parts = [
            theirs(part, past_key_values=cache).logits[0]
            for part in torch.split(text, [PROMPT, 1, LENGTH - PROMPT - 1], 1)
        ]
    torch.testing.assert_close(hf.logits(TOKENS, [LENGTH], PROMPT), whole, atol=1e-4, rtol=1e-4)
    pieces = hf.logits(TOKENS, [PROMPT, 1, LENGTH - PROMPT - 1], PROMPT)
    torch.testing.assert_close(pieces, torch.cat(parts), atol=1e-4, rtol=1e-4)
    assert hf.difference_from_method(LENGTH) is None  # nothing to compare with: frequencies follow the text

"""`lexbench.extend`: a method on a loaded model, and the model back unchanged."""

import gc
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import lexbench
from lexbench import Refused
from lexbench.backends.hf.exact.extended import check_frequencies, model_of
from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.methods.yarn import Yarn

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "gpt_neox": {"rotary_pct": 0.5, "num_key_value_heads": 4},
}
TOKENS = torch.randint(2, 96, (1, 60), generator=torch.Generator().manual_seed(0))


pytestmark = pytest.mark.usefixtures("one_thread")


def network(kind: str = "llama") -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **FAMILIES[kind]})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@torch.inference_mode()
def logits(model: Any, tokens: torch.Tensor = TOKENS, **given: Any) -> torch.Tensor:
    return model(tokens, **given).logits  # type: ignore[no-any-return]


@pytest.mark.everyday("yarn-given0-llama", "rerope-given1-gpt_neox")
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(
    ("method", "given"), [("yarn", {"length": 64}), ("rerope", {"window": 8}), ("yarn+log_n", {"length": 64})]
)
def test_the_model_comes_back_bit_for_bit(kind: str, method: Any, given: dict[str, Any]) -> None:
    model = network(kind)
    rotary, before = model.base_model.rotary_emb, logits(model)
    with lexbench.extend(model, method, **given):
        assert not torch.allclose(logits(model), before, atol=1e-2)
    assert model.base_model.rotary_emb is rotary
    assert torch.equal(logits(model), before)


def test_it_comes_back_after_an_error_in_the_block() -> None:
    model = network()
    before = logits(model)
    with pytest.raises(KeyError), lexbench.extend(model, "rerope", window=8):
        raise KeyError
    assert torch.equal(logits(model), before)


def test_restore_ends_it_and_may_be_repeated() -> None:
    model = network()
    before = logits(model)
    extended = lexbench.extend(model, "pi", factor=4)
    extended.restore()
    extended.restore()
    assert torch.equal(logits(model), before)


def test_pi_is_transformers_linear_scaling() -> None:
    model = network()
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    theirs = type(model)(transformers.LlamaConfig(**{**model.config.to_dict(), "rope_parameters": rope})).eval()
    theirs.load_state_dict(model.state_dict())
    with lexbench.extend(model, "pi", factor=4):
        torch.testing.assert_close(logits(model), logits(theirs), atol=1e-4, rtol=1e-4)


ROUNDED = "rotary frequencies of .* must be float32, a cast has rounded them to {}: load it by from_pretrained"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("method", ["none", "yarn", "rerope"])
def test_a_cast_that_rounds_the_frequencies_is_refused(dtype: str, back: bool, method: str) -> None:
    model = network("qwen3").to(getattr(torch, dtype))
    model = model.float() if back else model
    with pytest.raises(ValueError, match=ROUNDED.format(dtype)):
        lexbench.extend(model, method, length=64)
    with pytest.raises(ValueError, match=ROUNDED.format(dtype)):
        lexbench.evaluate(model, locate_checkpoint("lexbench:lexlet"), method=method, lengths=[64], n=1)


@dataclass(frozen=True)
class Still:
    """No pair turns: 0 is exact in every dtype."""

    def attention(self, model: lexbench.Model, length: int) -> lexbench.Attention:
        return lexbench.Attention(inv_freq=np.zeros(model.rotated // 2))


def test_a_methods_frequencies_are_not_taken_for_rounded_ones() -> None:
    model = network()
    with lexbench.extend(model, Still()):
        check_frequencies(model, model_of(model, None))


def test_a_network_cast_by_transformers_keeps_its_frequencies(tmp_path: Path) -> None:
    network().save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float64):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
        exact = 10_000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        torch.testing.assert_close(model.model.rotary_emb.inv_freq.double(), exact, rtol=1e-6, atol=0)
        lexbench.extend(model, "yarn", length=64).restore()
    lexbench.extend(network().double(), "yarn", length=64).restore()  # rounds nothing


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("method", "given"), [("rerope", {"window": 8}), ("ntk", {"length": 64}), ("log_n", {})])
def test_generation_with_a_cache_is_repeated_full_forward(kind: str, method: str, given: dict[str, Any]) -> None:
    model = network(kind)
    with lexbench.extend(model, method, **given):
        written = model.generate(TOKENS[:, :40], max_new_tokens=12, do_sample=False, eos_token_id=None)
        tokens = TOKENS[:, :40]
        for _ in range(12):
            tokens = torch.cat([tokens, logits(model, tokens)[:, -1].argmax(-1)[:, None]], dim=1)
    assert written.tolist() == tokens.tolist()


@pytest.mark.everyday("yarn-given1")
@pytest.mark.parametrize(("method", "given"), [("rerope", {"window": 8}), ("yarn", {"length": 64}), ("log_n", {})])
def test_a_padded_batch_generates_what_each_text_generates_alone(method: str, given: dict[str, Any]) -> None:
    model = network()
    short, long = TOKENS[:, :21], TOKENS[:, 21:60]
    padded = torch.cat([torch.ones(1, 18, dtype=torch.int64), short], dim=1)
    mask = torch.ones(2, 39, dtype=torch.int64)
    mask[0, :18] = 0
    with lexbench.extend(model, method, **given):
        both = model.generate(
            torch.cat([padded, long]), attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        for row, text in enumerate((short, long)):
            alone = model.generate(text, max_new_tokens=8, do_sample=False, eos_token_id=None)
            assert both[row, -8:].tolist() == alone[0, -8:].tolist()


def test_padding_on_the_right_leaves_the_text_alone() -> None:
    model = network()
    with lexbench.extend(model, "rerope", window=8):
        alone = logits(model, TOKENS[:, :20])
        padded = torch.cat([TOKENS[:, :20], torch.ones(1, 9, dtype=torch.int64)], dim=1)
        mask = (torch.arange(29) < 20).long()[None]
        torch.testing.assert_close(logits(model, padded, attention_mask=mask)[:, :20], alone, atol=1e-4, rtol=1e-4)


def test_padding_inside_a_text_is_refused() -> None:
    mask = torch.ones(1, 60, dtype=torch.int64)
    mask[0, 5] = 0
    model = network()
    with lexbench.extend(model, "rerope", window=8), pytest.raises(Exception, match="pad on the left"):
        logits(model, attention_mask=mask)


def test_two_texts_packed_into_one_row_are_refused() -> None:
    places = torch.cat([torch.arange(30), torch.arange(30)])[None]
    model = network()
    with lexbench.extend(model, "rerope", window=8), pytest.raises(Exception, match="one text per row"):
        logits(model, position_ids=places)


def test_gradients_flow_through_remapped_attention() -> None:
    model = network()
    with lexbench.extend(model, "rerope", window=8):
        model(TOKENS, labels=TOKENS).loss.backward()
        grad = model.base_model.layers[0].self_attn.q_proj.weight.grad
        weight = model.base_model.layers[0].self_attn.q_proj.weight
        step = 1e-2
        place = grad.abs().flatten().argmax()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.view(-1)[place] += sign * step
                losses.append(float(model(TOKENS, labels=TOKENS).loss))
                weight.view(-1)[place] -= sign * step
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(float(grad.flatten()[place]), rel=0.05)


def test_a_method_that_depends_on_the_length_asks_for_it() -> None:
    with pytest.raises(ValueError, match="depends on the length: give length"):
        lexbench.extend(network(), "yarn")


def test_the_trained_length_may_be_stated() -> None:
    extended = lexbench.extend(network(), "yarn", length=256, trained_length=64)
    assert extended.attention.as_data() == lexbench.method("yarn", factor=4).attention(extended.model, 1).as_data()


def test_a_model_without_rope_refuses_a_remap() -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=96)
    with pytest.raises(Refused, match="no rotary positions to remap"):
        lexbench.extend(transformers.GPT2LMHeadModel(config), "rerope", window=8)


def test_unknown_names_and_parameters_are_one_line() -> None:
    with pytest.raises(ValueError, match="unknown method 'reropee': did you mean rerope"):
        lexbench.extend(network(), "reropee")
    with pytest.raises(ValueError, match=r"unknown parameter method\.windows"):
        lexbench.extend(network(), "rerope", windows=8)


def test_a_network_is_under_one_method_at_a_time() -> None:
    model = network()
    before = logits(model)
    with lexbench.extend(model, "sliding_window", window=16):
        with pytest.raises(ValueError, match=r"this one has one already: restore\(\) it first, or combine"):
            lexbench.extend(model, "log_n")
        alone = logits(model)
        assert torch.equal(logits(model), alone)
    assert torch.equal(logits(model), before)
    first = lexbench.extend(model, "rerope", window=8)
    first.restore()
    second = lexbench.extend(model, "pi", factor=4)
    under = logits(model)
    first.restore()
    assert torch.equal(logits(model), under)
    second.restore()
    assert torch.equal(logits(model), before)


def test_a_restored_network_can_be_freed() -> None:
    model = network()
    with lexbench.extend(model, "rerope", window=8):
        logits(model)
    layer = weakref.ref(model.base_model.layers[0].self_attn)
    del model
    gc.collect()
    assert layer() is None


def test_a_network_in_training_is_extended_as_it_is() -> None:
    model = network().train()
    with lexbench.extend(model, "rerope", window=8):
        assert model.training
        model(TOKENS, labels=TOKENS).loss.backward()
    model.config.attention_dropout = 0.5
    for layer in model.base_model.layers:
        layer.self_attn.attention_dropout = 0.5
    with lexbench.extend(model, "rerope", window=8), pytest.raises(Refused, match="its attention has dropout"):
        model(TOKENS)


def test_a_frozen_layer_stays_in_eval_mode_under_a_method() -> None:
    model = network().train()
    frozen = model.base_model.layers[1].eval()
    with lexbench.extend(model, "rerope", window=8):
        assert not any(part.training for part in frozen.modules())
        assert model.training and all(part.training for part in model.base_model.layers[0].modules())


def test_a_static_cache_is_refused() -> None:
    model = network()
    with lexbench.extend(model, "rerope", window=8), pytest.raises(Refused, match="use DynamicCache"):
        model.generate(TOKENS[:, :20], max_new_tokens=4, do_sample=False, cache_implementation="static")


def test_ratios_of_another_prompt_are_refused() -> None:
    model = network()
    with torch.inference_mode():
        cache = model(TOKENS[:, :20], use_cache=True).past_key_values
    with lexbench.extend(model, "ms_poe", first_layer=0), pytest.raises(Refused, match="read each prompt again"):
        logits(model, TOKENS[:, 20:21], past_key_values=cache)


def test_parameters_of_a_method_object_are_set_in_it() -> None:
    with pytest.raises(ValueError, match="parameters with a method's name only, got factor"):
        lexbench.extend(network(), lexbench.method("pi", factor=2), factor=8)


@pytest.mark.parametrize("method", [5, Yarn])
def test_what_is_no_method_is_one_line(method: Any) -> None:
    with pytest.raises(ValueError, match=r"method must be a name, or an object with attention\(...\)"):
        lexbench.extend(None, method, length=512)


@pytest.mark.parametrize("length", [0, 1.5, "512", True])
def test_a_length_that_is_none_is_one_line(length: Any) -> None:
    with pytest.raises(ValueError, match="length must be a whole number of at least 1 token, got"):
        lexbench.extend(SimpleNamespace(config=None), "yarn", length=length)


def test_what_is_no_network_is_one_line() -> None:
    with pytest.raises(ValueError, match="extend needs a loaded model of transformers, got 'lexlet'"):
        lexbench.extend("lexlet", "yarn", length=512)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_what_a_model_has_read_before_changes_nothing(kind: str) -> None:
    """A RoPE that follows the length keeps the angles of a text of 60 tokens for one of 40, beyond the trained 32."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}
    rope = {"rope_type": kind, "rope_theta": 100.0, "factor": 2.0, **(factors if kind == "longrope" else {})}
    config = transformers.LlamaConfig(**SIZES, rope_parameters=rope)
    texts = TOKENS[:, :40]

    def fresh() -> Any:
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()

    for method in ("none", "yarn"):
        model, read = fresh(), fresh()
        logits(read)
        with lexbench.extend(model, method, length=40, trained_length=32):
            expected = logits(model, texts)
        if method == "none":
            torch.testing.assert_close(expected, logits(fresh(), texts))
        with lexbench.extend(read, method, length=40, trained_length=32):
            torch.testing.assert_close(logits(read, texts), expected)


def test_a_config_that_states_no_size_of_a_head_is_told_so() -> None:
    network = SimpleNamespace(config=transformers.XLMConfig())  # of its own names, emb_dim and n_heads
    with pytest.raises(ValueError, match="does not state the size of a head: set its head_dim"):
        lexbench.extend(network, "none", trained_length=512)

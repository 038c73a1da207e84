"""The oracle agrees with transformers where nothing is changed, and with formulas where something is."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

import lexbench
from lexbench import Attention, Generate, Loglikelihood, Model, Refused
from lexbench.checkpoints.checkpoint import local_folder, read_model
from lexbench.core.attention import Dynamic, HeadRatios, PositionMap, Remap, Slopes
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.encodings.base import RotaryEncoding
from lexbench.parts.lab.native import attend

LEXLET = read_model({"path": "lexbench:lexlet"})


@pytest.fixture(scope="module")
def native() -> Native:
    return Native(LEXLET)


@pytest.fixture(scope="module")
def folder() -> Path:
    found = local_folder("lexbench:lexlet")
    assert found is not None
    return found


def question(length: int = 300, start: int = 200) -> Loglikelihood:
    tokens = np.random.default_rng(0).integers(2, 2048, length)
    return Loglikelihood(index=0, cluster="", tokens=tokens, first_target=start, bytes=1, words=1)


def test_scores_are_those_of_transformers(native: Native, folder: Path) -> None:
    native.attend(Attention())
    asked = question()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = theirs(torch.from_numpy(asked.tokens)[None]).logits[0, asked.first_target - 1 : -1]
    expected = F.cross_entropy(logits, torch.from_numpy(asked.tokens[asked.first_target :]), reduction="none")
    np.testing.assert_allclose(native.score(asked).nll, expected.numpy(), atol=2e-4)


def test_linear_frequencies_are_transformers_linear_scaling(native: Native, folder: Path) -> None:
    native.attend(lexbench.method("pi", factor=4).attention(LEXLET, 1024))
    asked = question()
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": LEXLET.rope_base}
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, rope_parameters=rope)
    with torch.inference_mode():
        logits = theirs(torch.from_numpy(asked.tokens)[None]).logits[0, asked.first_target - 1 : -1]
    expected = F.cross_entropy(logits, torch.from_numpy(asked.tokens[asked.first_target :]), reduction="none")
    np.testing.assert_allclose(native.score(asked).nll, expected.numpy(), atol=2e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ],
)
def test_a_llama_that_computes_otherwise_is_refused(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    made = shutil.copytree(folder, tmp_path / "m")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ValueError, match="native reads Llama folders with SiLU, tied embeddings and plain RoPE"):
        Native(read_model({"path": str(made), "trained_length": 256}))


SHAPED = {
    "none": Attention(),
    "yarn": lexbench.method("yarn", factor=4).attention(LEXLET, 1024),
    "rerope": lexbench.method("rerope", window=8).attention(LEXLET, 1024),
    "dpe": lexbench.method("dpe", groups=[2, 8, 1, 4], window=8).attention(LEXLET, 1024),
    "streaming_llm": lexbench.method("streaming_llm", window=16).attention(LEXLET, 1024),
    "log_n": lexbench.method("log_n").attention(LEXLET, 1024),
    "slopes": Attention(bias=Slopes((0.5,) * 8)),
    "mixture": lexbench.method("attention_buckets").attention(LEXLET, 1024),
}


@pytest.mark.everyday("none", "rerope")
@pytest.mark.parametrize("name", SHAPED)
def test_every_tensor_of_a_text_is_on_the_device(native: Native, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device without numbers, where a tensor left on the CPU would be an error."""
    meta = torch.device("meta")
    monkeypatch.setattr(native, "_decoder", copy.deepcopy(native._decoder).to(meta))
    monkeypatch.setattr(native, "_device", meta)
    native.attend(SHAPED[name])
    logits = native.logits(question(40, 30).tokens, (30, 1, 9), 30)
    assert logits.device == meta and logits.shape == (40, 2048)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("meta", "meta holds no numbers"),
        ("all", "all needs backend=hf"),
        ("tape", r"tape is not available .*: use auto or cpu"),
    ],
)
def test_a_device_that_cannot_answer_is_refused(device: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"backend.device {said}"):
        Native(LEXLET, device=device)


def test_the_processor_by_its_name_gives_the_same_numbers(native: Native) -> None:
    native.attend(Attention())
    named = Native(LEXLET, device="cpu:0")
    np.testing.assert_array_equal(named.score(question()).nll, native.score(question()).nll)


@pytest.mark.slow
def test_float64_agrees_with_float32(native: Native) -> None:
    precise = Native(LEXLET, dtype="float64")
    remap = Attention(remap=Remap(64, PositionMap(float("inf"), 64), PositionMap(float("inf"))))
    for attention in (Attention(), remap):
        native.attend(attention)
        precise.attend(attention)
        np.testing.assert_allclose(native.score(question()).nll, precise.score(question()).nll, atol=5e-4)


def test_layers_hold_where_they_are_asked(native: Native) -> None:
    scaled = LEXLET.inv_freq() / 4
    native.attend(Attention(inv_freq=scaled))
    everywhere = native.score(question()).nll
    native.attend(Attention(inv_freq=scaled, layers=tuple(range(4))))
    np.testing.assert_array_equal(native.score(question()).nll, everywhere)
    native.attend(Attention())
    plain = native.score(question()).nll
    native.attend(Attention(inv_freq=scaled, layers=()))
    np.testing.assert_array_equal(native.score(question()).nll, plain)


def test_it_writes_what_transformers_generates(native: Native, folder: Path) -> None:
    native.attend(Attention())
    prompt = np.concatenate([[0], native.tokenizer.encode("def __init__(self, ").ids])
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    generated = theirs.generate(torch.from_numpy(prompt)[None], max_new_tokens=12, do_sample=False)
    written = native.write(Generate(index=0, cluster="", prompt=prompt, max_new_tokens=12))
    new = generated[0, len(prompt) :].tolist()
    assert written.tokens.tolist() == new[: new.index(1)] if 1 in new else new
    assert written.text == native.tokenizer.decode(written.tokens)


def test_a_token_is_never_taken_from_logits_that_are_nan() -> None:
    spoilt = Native(LEXLET)
    with torch.no_grad():
        next(spoilt._decoder.parameters()).fill_(torch.nan)
    with pytest.raises(Refused, match="logits are NaN in float32: use another dtype"):
        spoilt.write(Generate(index=0, cluster="", prompt=question(20, 10).tokens, max_new_tokens=3))


def test_bad_dtypes_and_other_models_are_refused(shared: Path) -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        Native(LEXLET, dtype="bfloat16")
    learned = Model(name="gpt", trained_length=11, head_dim=16, path=str(shared / "gpt-nano-sort-hf"))
    with pytest.raises(ValueError, match="use backend=hf"):
        Native(learned)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (Attention(bias=Slopes((0.5,))), "one slope for each of 8 heads on .*, got 1"),
        (Attention(inv_freq=np.ones(1)), "inv_freq needs 16 pairs on .*lexlet, got 1"),
        (Attention(layers=(99,)), r"layers must be 0 to 3 on .*, got \(99,\)"),
        (Attention(head_ratios=HeadRatios((1.0,))), "one ratio for each of 4 key heads on .*, got 1"),
        (Attention(layers=(0,), otherwise=Attention(inv_freq=np.ones(1))), "needs 16 pairs"),
    ],
)
def test_slots_of_another_size_are_errors(native: Native, attention: Attention, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        native.attend(attention)


def test_a_history_of_frequencies_is_refused(native: Native) -> None:
    with pytest.raises(Refused, match="native cannot realise dynamic"):
        native.attend(Attention(dynamic=Dynamic(2.0, 256)))


def test_a_key_is_rotated_once_for_all_questions_behind_its_text(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four layers rotate each key that is read: 60 of the text, then 3 of the end and 7 written of each question."""
    native.attend(Attention())
    turned, own = list[int](), RotaryEncoding.rotate

    def counted(self: RotaryEncoding, vectors: Tensor, positions: Tensor) -> Tensor:
        turned.extend([vectors.shape[2]] * (vectors.shape[1] == 4))  # key heads; queries have 8
        return own(self, vectors, positions)

    monkeypatch.setattr(RotaryEncoding, "rotate", counted)
    monkeypatch.setattr(native, "reuse", True)
    text = question(60, 50).tokens
    for end in ([5, 6, 7], [8, 9, 10]):
        prompt = np.concatenate([text, end])
        written = native.write(Generate(index=0, cluster="", prompt=prompt, max_new_tokens=8))
        assert len(written.tokens) == 8, "no end of text among the answer"
    assert sum(turned) == 4 * (60 + 2 * (3 + 7))


@pytest.mark.everyday("none", "rerope", "slopes", "streaming_llm")
@pytest.mark.parametrize("name", [*SHAPED, "dca", "self_extend", "lambda_mask"])
def test_logits_from_kept_rotated_keys_are_those_of_keys_rotated_anew(
    native: Native, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    native.attend(SHAPED[name] if name in SHAPED else lexbench.method(name).attention(LEXLET, 1024))
    tokens, pieces = question(400, 200).tokens, (380, 7, 1, 1, 11)
    kept = native.logits(tokens, pieces, 380)
    monkeypatch.setattr(attend, "MAX_KEPT_REGIONS", 0)
    torch.testing.assert_close(kept, native.logits(tokens, pieces, 380), atol=1e-5, rtol=1e-5)

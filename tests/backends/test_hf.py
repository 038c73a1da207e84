"""Transformers under our Attentions: equal to stock where nothing is asked, to transformers' own where it has it."""

import functools
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from lexbench import Attention, Generate, Loglikelihood, Model, Refused
from lexbench.backends.hf.backend import MAX_POSITIONS_WITH_LOGITS, Hf
from lexbench.backends.hf.exact import layers
from lexbench.backends.hf.exact.head import LanguageModelHead
from lexbench.backends.hf.exact.network import must_shard
from lexbench.backends.hf.exact.rotary import AttentionInstaller
from lexbench.backends.hf.reading.reader import why_not_compiled
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Bands, LogScale, PositionMap, Remap, Slopes, Window
from lexbench.core.record import Deferred
from lexbench.core.task import Choose, GenerateAnswer

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": None,  # what is written fills its room
    "pad_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "gemma": {},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.5},
    "glm": {"partial_rotary_factor": 0.5},  # interleaved layout
}
TOKENS = np.random.default_rng(1).integers(2, VOCABULARY, 80)
FAR = 1 << 40


pytestmark = pytest.mark.usefixtures("one_thread")


def save(folder: Path, kind: str, **changes: Any) -> Path:
    """A random model of a family, with weights large enough for attention to matter, and a tokenizer."""
    settings = {**SIZES, **FAMILIES.get(kind, {}), **changes}
    if kind in ("phi", "gpt_neox"):
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    if kind in ("phi", "gpt_neox", "qwen2", "mistral"):
        settings["head_dim"] = settings["hidden_size"] // settings["num_attention_heads"]
    if kind in ("falcon", "bloom"):
        del settings["head_dim"]
    settings = {name: value for name, value in settings.items() if value is not ...}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    spoken = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    spoken.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    spoken.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a family's model, made once."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return folder


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, folders: Callable[[str], Path]) -> Path:
    return folders(request.param)


def open_hf(folder: Path, **options: Any) -> Hf:
    return Hf(read_model({"path": str(folder), "name": folder.name}), **options)


def test_a_checkpoint_with_weights_of_further_layers_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path / "deep", "llama") / "config.json"
    page = json.loads(file.read_text())
    file.write_text(json.dumps({**page, "num_hidden_layers": page["num_hidden_layers"] - 1, "layer_types": None}))
    with pytest.raises(ValueError, match=r"holds weights of more layers than config\.json states \(model\.layers\.\d"):
        open_hf(tmp_path / "deep")


def stock_logits(folder: Path, tokens: np.ndarray = TOKENS, **changes: Any) -> torch.Tensor:
    """[T, vocabulary] float32 logits of a model that we never touched."""
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes)
    with torch.inference_mode():
        return network(torch.from_numpy(tokens)[None]).logits[0].float()  # type: ignore[no-any-return]


def losses_of(logits: torch.Tensor, start: int, tokens: np.ndarray = TOKENS) -> np.ndarray:
    chances = logits.double().log_softmax(-1).numpy()
    return np.asarray([-chances[place - 1, tokens[place]] for place in range(start, len(tokens))])


def asked(start: int = 1, tokens: np.ndarray = TOKENS) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="", tokens=tokens, first_target=start, bytes=1, words=1)


def prompt(length: int = 40, room: int = 12) -> Generate:
    return Generate(index=0, cluster="", prompt=TOKENS[:length], max_new_tokens=room)


@pytest.fixture(scope="module")
def opened() -> Callable[[Path], Hf]:
    """A family's backend, opened once; whatever it attends by is taken away by the next `attend`."""
    return functools.cache(open_hf)


@functools.cache
def stock_losses(folder: Path) -> np.ndarray:
    return losses_of(stock_logits(folder), 1)


def assert_stock(hf: Hf, folder: Path, **changes: Any) -> None:
    expected = losses_of(stock_logits(folder, **changes), 1) if changes else stock_losses(folder)
    np.testing.assert_allclose(hf.score(asked()).nll, expected, atol=2e-4)


def pairs_of(hf: Hf) -> np.ndarray:
    return hf.model.inv_freq()


REROPE = Attention(remap=Remap(8, PositionMap(math.inf, 8), PositionMap(math.inf)))


@pytest.mark.everyday("llama", "phi")
def test_scores_are_log_softmax_of_the_models_own_logits(folder: Path) -> None:
    hf = open_hf(folder, chunk=7)
    expected = losses_of(stock_logits(folder), 50)
    np.testing.assert_allclose(hf.score(asked(50)).nll, expected, atol=2e-5)
    assert hf.score(asked(50)).nll.dtype == np.float32


@pytest.mark.everyday("llama", "gpt_neox")
def test_logits_to_compare_are_the_models_own_and_few_positions_pass_the_head_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, passed = open_hf(folder), list[int]()
    own = hf.reader.head.__call__

    def noted(head: LanguageModelHead, states: torch.Tensor) -> torch.Tensor:
        passed.append(states.shape[1])
        return own(states)

    monkeypatch.setattr(LanguageModelHead, "__call__", noted)
    found = hf.logits(TOKENS, [len(TOKENS)], len(TOKENS))
    assert passed == [MAX_POSITIONS_WITH_LOGITS, len(TOKENS) - MAX_POSITIONS_WITH_LOGITS]
    torch.testing.assert_close(found, stock_logits(folder), atol=1e-4, rtol=0)


@pytest.mark.everyday("llama", "phi")
def test_the_models_own_frequencies_change_nothing(folder: Path) -> None:
    hf = open_hf(folder)
    hf.attend(Attention(inv_freq=pairs_of(hf), scale=1.0))
    assert_stock(hf, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attention",
    [
        Attention(remap=Remap(FAR, PositionMap(math.inf), PositionMap(math.inf))),
        Attention(remap=Remap(4, PositionMap(), PositionMap())),
        Attention(query_scale=LogScale(1000.0)),
        Attention(mask=Window(FAR)),
        Attention(mask=Window(1, sinks=FAR)),
        Attention(bias=Slopes((0.0,) * 4)),
        Attention(query_scale=LogScale(7.0), mask=Window(3), layers=()),
    ],
    ids=["near_only", "far_as_near", "log_clipped", "wide_window", "all_sinks", "no_slope", "no_layer"],
)
def test_slots_that_ask_for_nothing_change_nothing(
    folder: Path, attention: Attention, opened: Callable[[Path], Hf]
) -> None:
    hf = opened(folder)
    hf.attend(attention)
    assert_stock(hf, folder)


@pytest.mark.everyday("llama", "glm")
def test_frequencies_for_no_layer_change_nothing(folder: Path) -> None:
    hf = open_hf(folder)
    hf.attend(Attention(inv_freq=pairs_of(hf) / 3, scale=1.5, layers=()))
    assert_stock(hf, folder)


@pytest.mark.slow
@pytest.mark.parametrize("slot", ["stock", "inv_freq", "remap", "mask"])
def test_writing_with_a_cache_is_writing_without(folder: Path, slot: str, opened: Callable[[Path], Hf]) -> None:
    hf = opened(folder)
    attention = {
        "stock": Attention(),
        "inv_freq": Attention(inv_freq=pairs_of(hf) / 3, scale=1.2),
        "remap": REROPE,
        "mask": Attention(mask=Window(8, sinks=2)),
    }[slot]
    hf.attend(attention)
    written = hf.write(prompt())
    tokens = torch.from_numpy(TOKENS[:40].copy())
    with torch.inference_mode():
        for _ in range(12):
            following = hf.reader.network(tokens[None], use_cache=False).logits[0, -1].argmax()
            tokens = torch.cat([tokens, following[None]])
    assert written.tokens.tolist() == tokens[40:].tolist()
    assert written.hit_room


@pytest.mark.everyday("llama", "gpt_neox")
def test_the_empty_attention_undoes_everything_bit_for_bit(folder: Path) -> None:
    hf = open_hf(folder)
    before = hf.score(asked()).nll
    attentions = [
        REROPE,
        Attention(inv_freq=pairs_of(hf) / 3, scale=1.2),
        Attention(inv_freq=pairs_of(hf) / 3, layers=(1,), bias=Slopes((0.5,) * 4)),
        Attention(mask=Window(3), query_scale=LogScale(2)),
    ]
    for attention in attentions:
        hf.attend(attention)
        assert np.abs(hf.score(asked()).nll - before).max() > 1e-3
        hf.attend(Attention())
        np.testing.assert_array_equal(hf.score(asked()).nll, before)


@pytest.mark.slow
def test_the_order_of_attentions_does_not_matter(folders: Callable[[str], Path]) -> None:
    used = open_hf(folders("phi"))
    attentions = [
        REROPE,
        Attention(inv_freq=pairs_of(used) / 2),
        Attention(scale=1.3),
        Attention(remap=Remap(4, PositionMap(2.0, 2.0), PositionMap(2.0)), scale=1.1, layers=(0, 2)),
    ]
    fresh = []
    for attention in attentions:
        new = open_hf(folders("phi"))
        new.attend(attention)
        fresh.append(new.score(asked()).nll)
    for place in (0, 1, 2, 3, 1, 0, 3, 2, 0):
        used.attend(attentions[place])
        np.testing.assert_array_equal(used.score(asked()).nll, fresh[place])


def test_two_models_at_once_keep_their_own_attentions(folders: Callable[[str], Path]) -> None:
    first, second = open_hf(folders("llama")), open_hf(folders("llama"))
    first.attend(Attention(mask=Window(FAR)))
    second.attend(Attention(mask=Window(2)))
    assert_stock(first, folders("llama"))


@pytest.mark.everyday("llama", "glm")
def test_linear_scaling_is_transformers_linear(folder: Path) -> None:
    hf = open_hf(folder)
    hf.attend(Attention(inv_freq=pairs_of(hf) / 4))
    assert_stock(hf, folder, rope_parameters=rope_parameters(folder, rope_type="linear", factor=4.0))


def test_yarn_is_transformers_yarn(folders: Callable[[str], Path]) -> None:
    folder = folders("llama")
    hf = open_hf(folder)
    theirs = rope_parameters(folder, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
    hf.attend(Attention(inv_freq=yarn_frequencies(10000.0, 16, 32, 4.0), scale=0.1 * math.log(4.0) + 1))
    assert_stock(hf, folder, rope_parameters=theirs)


def yarn_frequencies(base: float, dim: int, trained: int, factor: float) -> np.ndarray:
    """YaRN as implemented (arXiv 2309.00071, its code): a ramp over pairs between those of 32 and of 1 rotations."""
    plain = base ** (-np.arange(0, dim, 2) / dim)
    low, high = (dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    first, last = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - first) / (last - first), 0, 1)
    return np.asarray(plain / factor * ramp + plain * (1 - ramp))


def test_llama3_is_transformers_llama3(folders: Callable[[str], Path]) -> None:
    folder = folders("qwen3")
    hf = open_hf(folder)
    theirs = rope_parameters(
        folder,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    plain = hf.model.inv_freq()
    turns = 32 * plain / (2 * np.pi)
    share = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    hf.attend(Attention(inv_freq=(1 - share) * plain / 8 + share * plain))
    assert_stock(hf, folder, rope_parameters=theirs)


def rope_parameters(folder: Path, **changes: Any) -> dict[str, Any]:
    stated = transformers.AutoConfig.from_pretrained(folder).rope_parameters
    return {**stated, **changes}


def test_rerope_past_its_window_sees_one_distance_only(folders: Callable[[str], Path]) -> None:
    """In one layer, keys beyond the window that hold the same token weigh the same, wherever they stand."""
    hf = open_hf(folders("llama"))
    tokens = np.full(60, 5)
    hf.attend(Attention(remap=Remap(1, PositionMap(math.inf, 1), PositionMap(math.inf)), layers=(0, 1, 2)))
    # All keys are one key and all values one value in layer 0, so this holds in every layer after it.
    nll = hf.score(asked(2, tokens)).nll
    np.testing.assert_allclose(nll, np.full(58, nll[0]), atol=1e-4)


def test_layers_are_those_that_are_asked(folders: Callable[[str], Path]) -> None:
    """A bias in the last layer changes no state before it; all three layers are each layer's number in turn."""
    hf = open_hf(folders("llama"))
    seen: list[tuple[int, bool]] = []
    hf.attend(Attention(bias=Slopes((2.0,) * 4), layers=(2,)))
    states = hf.reader.network(torch.from_numpy(TOKENS)[None], output_hidden_states=True).hidden_states
    hf.attend(Attention())
    plain = hf.reader.network(torch.from_numpy(TOKENS)[None], output_hidden_states=True).hidden_states
    for place, (ours, theirs) in enumerate(zip(states, plain, strict=True)):
        seen.append((place, bool(torch.allclose(ours, theirs, atol=1e-4))))
    assert seen == [(0, True), (1, True), (2, True), (3, False)]


def test_lower_precision_keeps_frequencies_exact(folders: Callable[[str], Path]) -> None:
    hf = open_hf(folders("llama"), dtype="bfloat16")
    frequencies = pairs_of(hf) / 3
    hf.attend(Attention(inv_freq=frequencies))
    module = hf.reader.base.rotary_emb
    assert module.inv_freq.dtype == torch.float32
    np.testing.assert_allclose(module.inv_freq.numpy(), frequencies, rtol=1e-7)
    hf.attend(REROPE)
    assert np.isfinite(hf.score(asked()).nll).all()


def test_angles_that_follow_the_length_do_not_remember_other_questions(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    folder = save(tmp_path, "llama", rope_parameters=rope)
    hf = Hf(Model(name="dynamic", trained_length=32, head_dim=16, path=str(folder)))
    short = asked(1, TOKENS[:33])  # 32 tokens go in: transformers forgets longer inputs only below that
    before = hf.score(short).nll
    hf.score(asked())
    np.testing.assert_array_equal(hf.score(short).nll, before)
    np.testing.assert_allclose(before, losses_of(stock_logits(folder, TOKENS[:32]), 1, TOKENS[:33]), atol=2e-5)
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    hf.attend(Attention(inv_freq=plain))
    expected = stock_logits(folder, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    np.testing.assert_allclose(hf.score(asked()).nll, losses_of(expected, 1), atol=2e-4)
    with pytest.raises(Refused, match=r"remap on dynamic: its own angles change with length \(dynamic\)"):
        hf.attend(REROPE)


def rope_that_follows_the_length(kind: str) -> dict[str, Any]:
    """Settings of a RoPE whose angles change beyond 32 tokens."""
    if kind == "dynamic":
        return {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0], "original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    return {"rope_parameters": rope, "original_max_position_embeddings": 32, "max_position_embeddings": 160}


@pytest.mark.everyday("32")
@pytest.mark.parametrize("length", [24, 31, 32, 33])
def test_an_answer_that_passes_longropes_switch_is_what_transformers_generates(length: int, tmp_path: Path) -> None:
    """Phi-3's `generate` reads the text again where its factors switch: keys of the short ones are of no use."""
    folder = save(tmp_path, "phi3", head_dim=..., **rope_that_follows_the_length("longrope"))
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = prompt(length, room=20)
    expected = network.generate(torch.from_numpy(asked.prompt)[None], max_new_tokens=20, do_sample=False)[0, length:]
    hf = open_hf(folder, batch=2)
    assert hf.write(asked).tokens.tolist() == expected.tolist()
    both = hf.answer_batch([asked, replace(asked, prompt=asked.prompt[::-1].copy())])
    assert next(each.tokens.tolist() for each in both if isinstance(each, GenerateAnswer)) == expected.tolist()


@pytest.mark.parametrize(("kind", "rope"), [("llama", "dynamic"), ("phi3", "longrope")])
def test_options_under_angles_that_follow_the_length_cost_what_their_tokens_do(
    kind: str, rope: str, tmp_path: Path
) -> None:
    """The first token of an option was read under the angles of the prompt alone, the others under those of both."""
    folder = save(tmp_path, kind, **({"head_dim": ...} if kind == "phi3" else {}), **rope_that_follows_the_length(rope))
    options = (TOKENS[60:70], TOKENS[50:51], TOKENS[40:42])
    expected = []
    for option in options:
        text = np.concatenate([TOKENS[:28], option])
        expected.append(losses_of(stock_logits(folder, text[:-1]), 28, text).sum())
    given = open_hf(folder).choose(Choose(index=0, cluster="", prompt=TOKENS[:28], options=options, expected=0))
    np.testing.assert_allclose(given.nll, expected, rtol=1e-5)


# refusals and errors


def test_attention_outside_the_registry_is_refused_by_slot(tmp_path: Path) -> None:
    changes = {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}
    folder = save(tmp_path, "falcon", **changes)
    hf = Hf(Model(name="falcon", trained_length=32, head_dim=8, rope_base=10000.0, path=str(folder)))
    with pytest.raises(Refused, match="hf cannot realise remap on falcon"):
        hf.attend(REROPE)
    assert_stock(hf, folder)
    hf.attend(Attention(inv_freq=pairs_of(hf) / 4))
    assert_stock(hf, folder, rope_parameters=rope_parameters(folder, rope_type="linear", factor=4.0))


BANDED = Attention(
    remap=Remap(
        8,
        Bands((PositionMap(2.0, 4.0, floor=True), PositionMap())),
        Bands((PositionMap(2.0, floor=True), PositionMap())),
    )
)


@pytest.mark.everyday("cohere")
@pytest.mark.parametrize("kind", ["cohere", *FAMILIES])  # cohere's tables hold each number twice, side by side
def test_bands_of_pairs_are_rotated_as_the_family_does(kind: str, folders: Callable[[str], Path]) -> None:
    hf = open_hf(folders(kind))
    hf.attend(BANDED)
    whole = hf.score(asked()).nll
    assert np.isfinite(whole).all() and np.abs(whole - stock_losses(folders(kind))).max() > 1e-3
    error = hf.difference_from_method(60)
    assert error is not None and error < 1e-5


def test_bands_of_pairs_are_refused_where_the_pairs_are_not_known(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "plain_turn", lambda *given: None)  # the family's own function is all there is
    hf = open_hf(folders("llama"))
    hf.attend(REROPE)
    with pytest.raises(Refused, match=r"remap on .*: bands of pairs need to know how its layers pair dimensions"):
        hf.attend(BANDED)


def test_attention_without_a_rotary_module_is_refused_by_slot(tmp_path: Path) -> None:
    folder = save(tmp_path, "gptj", rotary_dim=4)
    hf = Hf(Model(name="gptj", trained_length=32, head_dim=8, path=str(folder)))
    for slot in (Attention(inv_freq=np.ones(2)), Attention(scale=2.0), REROPE):
        with pytest.raises(Refused, match=f"hf cannot realise {slot.slots()[0]} on gptj"):
            hf.attend(slot)


def test_a_rotary_module_that_turns_by_other_angles_is_refused(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, own = open_hf(folders("llama")), AttentionInstaller._cos_sin
    hf.attend(Attention(inv_freq=pairs_of(hf) / 4))
    monkeypatch.setattr(AttentionInstaller, "_cos_sin", lambda *given: [values * 1.01 for values in own(*given)])
    with pytest.raises(Refused, match=r"inv_freq on llama\d*: its rotary module does not rotate"):
        hf.attend(Attention(inv_freq=pairs_of(hf) / 2))


def test_attention_that_never_asks_us_is_refused_though_its_logits_are_right(tmp_path: Path) -> None:
    hf = Hf(Model(name="bloom", trained_length=32, head_dim=8, path=str(save(tmp_path, "bloom"))))
    with pytest.raises(Refused, match="mask on bloom: its attention does not use transformers' registry"):
        hf.attend(Attention(mask=Window(4)))


def test_layers_without_rotation_answer_as_the_model(tmp_path: Path) -> None:
    folder = save(tmp_path, "smollm3", no_rope_layers=[1, 0, 1], use_sliding_window=False)
    hf = open_hf(folder)
    hf.attend(Attention(remap=Remap(FAR, PositionMap(), PositionMap())))
    assert_stock(hf, folder)


def test_layers_that_see_a_window_keep_it_past_it(tmp_path: Path) -> None:
    folder = save(tmp_path, "mistral", sliding_window=16)
    hf = open_hf(folder)
    hf.attend(Attention(query_scale=LogScale(trained_length=1e6)))  # ours is installed, and scales nothing so early
    assert_stock(hf, folder)
    assert len(hf.write(prompt(10, 30)).tokens) == 30
    with pytest.raises(
        Refused, match=r"remap on .*: its layers with positions see 16 tokens at most, where it changes"
    ):
        hf.attend(Attention(remap=Remap(20, PositionMap(divisor=2.0), PositionMap(divisor=2.0))))


@pytest.mark.everyday("gemma3_text-changes1")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mistral", {"sliding_window": 16}),
        ("gemma3_text", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ],
)
def test_our_attention_function_alone_answers_as_the_model(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path, kind, num_hidden_layers=4, **changes)
    hf = open_hf(folder, attention="lexbench")
    assert_stock(hf, folder)
    assert hf.reader.passes[0].hook is not None and hf.reader.passes[0].hook.calls
    assert hf.kernel == "lexbench"
    assert len(hf.write(prompt(10, 30)).tokens) == 30


def test_a_model_whose_own_attention_keeps_all_scores_is_read_by_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers has no fused kernel for gpt-oss, whose heads have sinks; capped scores are dense in ours too."""
    from transformers.models.gpt_oss import modeling_gpt_oss

    sizes = {"num_local_experts": 2, "num_experts_per_tok": 2, "sliding_window": 16}
    folder = save(tmp_path / "gpt_oss", "gpt_oss", **sizes, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    hf, expected = open_hf(folder), stock_losses(folder)
    assert hf.kernel == "lexbench"
    hf.attend(REROPE)  # what is installed is compared with the model's own, once

    def eager(*given: Any, **named: Any) -> None:
        raise AssertionError("the scores of all pairs are kept")

    monkeypatch.setattr(modeling_gpt_oss, "eager_attention_forward", eager)
    assert len(hf.score(asked()).nll) == len(expected)
    hf.attend(Attention())
    np.testing.assert_allclose(hf.score(asked()).nll, expected, atol=2e-4)
    assert open_hf(save(tmp_path / "gemma2", "gemma2")).kernel == "eager+lexbench"


def test_our_attention_function_alone_is_refused_where_it_does_not_run(tmp_path: Path) -> None:
    save(tmp_path, "bloom")
    model = Model(name="bloom", trained_length=32, head_dim=8, path=str(tmp_path))
    with pytest.raises(
        Refused, match=r"backend\.attention=lexbench on bloom: its attention does not use transformers'"
    ):
        Hf(model, attention="lexbench")
    with pytest.raises(ValueError, match="attention must be auto, lexbench, merged or triton, got flash"):
        Hf(model, attention="flash")
    with pytest.raises(ValueError, match=r"backend\.attention=triton needs a GPU, got cpu: leave it out"):
        Hf(model, attention="triton", device="cpu")


def test_a_triton_that_makes_no_kernel_is_told_from_one_that_does() -> None:
    """Here it is missing, or has no driver for a CPU; `tests/kernels/test_triton.py` asks where it runs."""
    assert str(why_not_compiled(torch.device("cpu"))).startswith("a Triton that compiles (")


def test_capped_scores_stay_capped(tmp_path: Path) -> None:
    folder = save(tmp_path, "gemma2", final_logit_softcapping=None, attn_logit_softcapping=0.5, sliding_window=16)
    hf = open_hf(folder)
    hf.attend(Attention(mask=Window(FAR)))
    assert_stock(hf, folder)


@pytest.mark.everyday("gemma2-changes0")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma2", {"final_logit_softcapping": 1.0}),
        ("cohere", {"logit_scale": 0.3}),
        ("granite", {"logits_scaling": 4.0}),
    ],
)
def test_scaled_and_capped_logits_are_those_that_the_model_gives(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = save(tmp_path, kind, **changes)
    hf = open_hf(folder, chunk=7)
    np.testing.assert_allclose(hf.score(asked(50)).nll, losses_of(stock_logits(folder), 50), atol=2e-5)
    plain = {**changes, **dict.fromkeys(changes, None if kind == "gemma2" else 1.0)}
    assert np.abs(losses_of(stock_logits(folder, **plain), 50) - hf.score(asked(50)).nll).max() > 0.01
    with torch.inference_mode():
        expected = int(hf.reader.network(torch.from_numpy(TOKENS[:40])[None], use_cache=False).logits[0, -1].argmax())
    assert hf.write(prompt(40, 1)).tokens.tolist() == [expected]
    half = open_hf(folder, dtype="bfloat16")
    assert half.score(asked(50)).nll.dtype == np.float32 and not half.reader.head.plain


def test_a_model_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, "bert", head_dim=..., num_key_value_heads=...)
    with pytest.raises(Refused, match="BertLMHeadModel is not causal, later tokens change the logits of earlier ones"):
        Hf(Model(name="bert", trained_length=32, head_dim=8, path=str(folder)))


def test_wrong_shapes_are_errors_with_both_numbers(folders: Callable[[str], Path]) -> None:
    hf = open_hf(folders("llama"))
    for attention, words in (
        (Attention(inv_freq=np.ones(3)), "inv_freq needs 8 pairs on .*, got 3"),
        (Attention(bias=Slopes((1.0,))), "each of 4 heads on .*, got 1"),
        (Attention(scale=2.0, layers=(3,)), r"must be 0 to 2 on .*, got \(3,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            hf.attend(attention)


def no_memory_on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def no_memory_of_the_driver() -> None:
    raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")


def no_memory_for_a_library() -> None:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def no_memory_on_a_cpu() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def no_memory_for_numpy() -> None:
    np.empty(1 << 60, dtype=np.uint8)


@pytest.mark.parametrize(
    "allocate",
    [no_memory_on_a_gpu, no_memory_of_the_driver, no_memory_for_a_library, no_memory_on_a_cpu, no_memory_for_numpy],
)
def test_running_out_of_memory_is_refused_with_the_length(
    allocate: Callable[[], None], folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = open_hf(folders("llama"))
    monkeypatch.setattr(hf.reader.base, "forward", lambda *_, **__: allocate())
    for answer in (lambda: hf.score(asked()), lambda: hf.write(prompt(68))):
        with pytest.raises(Refused, match="out of memory for 80 tokens"):
            answer()


@pytest.mark.parametrize(
    ("place", "call", "said"),
    [
        (
            "exact.rotary.AttentionInstaller.prepare",
            lambda hf: hf.attend(REROPE),
            "a method on llama0 in float32 on cpu",
        ),
        (
            "exact.rotary.AttentionInstaller.difference_from_method",
            lambda hf: hf.difference_from_method(80),
            "80 tokens of llama0",
        ),
        ("reading.reader.Reader._state_of", lambda hf: Hf(hf.model), "a first text of llama0"),
    ],
)
def test_running_out_of_memory_around_answers_is_deferred(
    place: str, call: Callable[[Hf], Any], said: str, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hf = open_hf(folders("llama"))
    monkeypatch.setattr(f"lexbench.backends.hf.{place}", full)
    with pytest.raises(Deferred, match=f"out of memory for {said}"):
        call(hf)


def test_other_errors_of_torch_are_not_taken_for_memory(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = open_hf(folders("llama"))
    monkeypatch.setattr(hf.reader.base, "forward", lambda *_, **__: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        hf.score(asked())


def test_an_end_token_ends_and_is_no_part_of_the_answer(folders: Callable[[str], Path], tmp_path: Path) -> None:
    written = open_hf(folders("llama")).write(prompt())
    end = int(written.tokens[3])
    before = written.tokens.tolist().index(end)
    folder = tmp_path / "ends"
    shutil.copytree(folders("llama"), folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 95]}))
    ended = open_hf(folder).write(prompt())
    assert ended.tokens.tolist() == written.tokens.tolist()[:before]
    assert ended.text == " ".join(f"w{token}" for token in ended.tokens)
    assert not ended.hit_room


def test_nan_weights_are_refused_by_name(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "nan"
    shutil.copytree(folders("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight must be finite"):
        open_hf(folder)


def test_missing_weights_are_an_error_not_random_numbers(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    shutil.copytree(folders("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weights \(model\.layers\.1\.mlp\.up_proj\.weight"):
        open_hf(folder)


def test_folders_without_safetensors_or_none_at_all_are_errors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    model = Model(name="x", trained_length=8, head_dim=4, path=str(tmp_path))
    with pytest.raises(ValueError, match=r"no \*\.safetensors \(only pytorch_model\.bin\)"):
        Hf(model)
    with pytest.raises(ValueError, match="does not exist"):
        Hf(Model(name="x", trained_length=8, head_dim=4, path=str(tmp_path / "nowhere")))


def test_options_are_checked(folders: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="one of auto, float32, bfloat16, float16, float64, got int8"):
        open_hf(folders("llama"), dtype="int8")
    with pytest.raises(ValueError, match="chunk must be at least 1 position, got 0"):
        open_hf(folders("llama"), chunk=0)


# dtype and device by themselves


def test_without_a_gpu_a_checkpoint_of_half_precision_is_read_in_float32(tmp_path: Path) -> None:
    folder = save(tmp_path, "llama", dtype="bfloat16")
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name: weight.bfloat16() for name, weight in stored.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    hf = open_hf(folder)
    assert hf.dtype == "float32"
    assert {weight.dtype for weight in hf.reader.network.parameters()} == {torch.float32}
    assert_stock(hf, folder)


def test_layers_spread_by_a_device_map_answer_alike(
    folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here accelerate's map knows one device only: the way is the same, the crossing of devices is not shown."""
    monkeypatch.setattr("lexbench.backends.hf.backend.must_shard", lambda *_: True)
    spread = open_hf(folders("llama"))
    assert_stock(spread, folders("llama"))
    spread.attend(REROPE)
    monkeypatch.undo()
    alone = open_hf(folders("llama"))
    alone.attend(REROPE)
    np.testing.assert_array_equal(spread.score(asked()).nll, alone.score(asked()).nll)


@pytest.mark.parametrize(
    ("device", "gpus", "free", "spread"),
    [
        ("auto", 1, 0.1, False),
        ("auto", 2, 1.3, False),
        ("auto", 2, 1.2, True),
        ("cuda:0", 2, 0.1, False),
        ("cpu", 2, 0.1, False),
        ("all", 2, 9.0, True),
    ],
)
def test_layers_are_spread_where_one_gpu_cannot_hold_the_weights(
    folders: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    gpus: int,
    free: float,
    spread: bool,
) -> None:
    """By the weights' bytes, counted from the tensors: 0.8 of the free memory may be theirs."""
    weights = sum(weight.numel() for weight in load_file(folders("llama") / "model.safetensors").values())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free * 2 * weights), 0))
    assert must_shard(device, folders("llama"), "bfloat16") == spread


def test_all_gpus_need_gpus(folders: Callable[[str], Path]) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"backend\.device all needs GPUs, this machine has none: use auto or cpu"):
            open_hf(folders("llama"), device="all")


# a hub, and real data


@pytest.mark.slow
def test_a_hub_name_is_found_in_the_cache_and_its_commit_recorded(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "models--org--name"
    shutil.copytree(folders("llama"), place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hf = Hf(read_model({"path": "org/name"}))
    assert (hf.model.name, hf.revision, hf.model.head_dim) == ("name", commit, 16)


def test_stories260k_tells_its_published_story(shared: Path) -> None:
    hf = open_hf(shared / "stories260K-hf")
    written = hf.write(Generate(index=0, cluster="", prompt=np.array([1]), max_new_tokens=48))
    assert written.text.strip().startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball."
    )


def test_learned_positions_end_where_their_table_ends(shared: Path) -> None:
    hf = Hf(Model(name="sort", trained_length=11, head_dim=16, path=str(shared / "gpt-nano-sort-hf")))
    hf.write(Generate(index=0, cluster="", prompt=np.array([2, 0, 1, 2, 1, 0]), max_new_tokens=5))
    with pytest.raises(Refused, match="positions end at 11, asked for 32"):
        hf.write(Generate(index=0, cluster="", prompt=np.array([2, 0, 1, 2, 1, 0]), max_new_tokens=26))
    with pytest.raises(Refused, match="positions end at 11, asked for 32"):
        hf.score(asked(4, np.arange(32) % 3))


def test_learned_positions_sort_six_letters(shared: Path) -> None:
    hf = Hf(Model(name="sort", trained_length=11, head_dim=16, path=str(shared / "gpt-nano-sort-hf")))
    for attention in (Attention(), Attention(mask=Window(11)), Attention(bias=Slopes((0.0, 0.0, 0.0)))):
        hf.attend(attention)
        written = hf.write(Generate(index=0, cluster="", prompt=np.array([2, 0, 1, 2, 1, 0]), max_new_tokens=5))
        assert written.tokens.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta?"])
def test_a_device_that_is_not_here_is_named(device: str) -> None:
    with pytest.raises(
        ValueError, match=rf"backend\.device {re.escape(device)} is not available \(.+\): use auto or cpu"
    ):
        Hf(read_model(registry.read_named_config("model", "lexlet")), device=device)


def test_a_module_whose_angles_its_config_does_not_state_is_refused(folders: Callable[[str], Path]) -> None:
    stated = read_model({"path": str(folders("llama")), "name": "odd"})
    assert stated.rope_base == 10000.0
    hf = Hf(replace(stated, rope_base=50000.0))
    hf.attend(REROPE)  # it sets no angles
    with pytest.raises(Refused, match=r"inv_freq on odd: pair \d turns by .* by its config .*: its code does"):
        hf.attend(Attention(inv_freq=pairs_of(hf)))

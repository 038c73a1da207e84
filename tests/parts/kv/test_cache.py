"""The slot `cache` on hf: logits of a whole model are those of a dense one that rounds and drops by the definition."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama import modeling_llama

import lexbench
from lexbench import Attention, Choose, ConfigError, Generate, Loglikelihood, MeasureDivergence, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.reading.reader import Reader
from lexbench.checkpoints.checkpoint import read_model
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.attention import TopKMask
from lexbench.core.layer_cache import LayerCache
from lexbench.kernels import kept
from lexbench.methods.scaled import attention_of
from lexbench.parts.kv import eviction
from lexbench.parts.kv.compression import Compression
from lexbench.parts.kv.methods.kv import Kv
from lexbench.runner.verify import failure_of_checks, verify_attention
from tests.backends.named import backend_class
from tests.backends.test_hf import VOCABULARY, save
from tests.census import tiny as census

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = np.random.default_rng(3).permutation(np.arange(2, VOCABULARY))  # each once: equal ones have keys of one norm
START = 48
Heads = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("llama"), "llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def hf(folder: Path) -> Hf:
    return Hf(read_model({"path": str(folder)}), dtype="float64", device="cpu")


@pytest.fixture
def wholly_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers computes angles and norms in float32 whatever a network's dtype: here it does not."""

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return normed

    def turn(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq.double()
        both = torch.cat([angles, angles], dim=-1)
        return both.cos() * self.attention_scaling, both.sin() * self.attention_scaling

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", turn)


class Dense:
    """A Llama in NumPy, float64: attention query by query, over keys and values that are rounded group by group."""

    def __init__(self, hf: Hf, inv_freq: Heads | None = None, scale: float = 1.0) -> None:
        self.weights = {name: each.detach().double().numpy() for name, each in hf.reader.network.state_dict().items()}
        config = hf.reader.network.config
        self.heads, self.kv, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.layers, self.epsilon = config.num_hidden_layers, config.rms_norm_eps
        own = (
            modeling_llama.LlamaRotaryEmbedding(config).inv_freq.double().numpy()
        )  # in float32, as transformers has it
        self.inv_freq, self.scale = own if inv_freq is None else inv_freq.astype(np.float32).astype(float), scale

    def logits(self, tokens: Heads, form: Compression | None, prompt: int) -> Heads:
        w = self.weights
        stream = w["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            own = {key.partition(f"layers.{layer}.")[2]: value for key, value in w.items() if f"layers.{layer}." in key}
            x = self.norm(stream, own["input_layernorm.weight"])
            q, k, v = (self.split(x @ own[f"self_attn.{name}_proj.weight"].T) for name in "qkv")
            held = None if form is None else self.held(q, k, v, form, prompt)
            mixed = self.attended(self.turned(q), self.turned(k), v, form, prompt, held)
            stream = stream + mixed.transpose(1, 0, 2).reshape(len(tokens), -1) @ own["self_attn.o_proj.weight"].T
            x = self.norm(stream, own["post_attention_layernorm.weight"])
            gate = x @ own["mlp.gate_proj.weight"].T
            stream = (
                stream
                + (gate / (1 + np.exp(-gate)) * (x @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
            )
        head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
        return np.asarray(self.norm(stream, w["model.norm.weight"]) @ head.T)

    def attended(
        self, q: Heads, k: Heads, v: Heads, form: Compression | None, prompt: int, held: Heads | None
    ) -> Heads:
        found = np.empty_like(q)
        for i in range(q.shape[1]):
            sees_kept = form is not None and (i >= prompt or form.in_prompt)
            border = 0
            if sees_kept and form is not None and form.rounds:
                border = max(0, i + 1 - form.residual)
                if form.bits is not None and "channel" in (form.keys, form.values):
                    border = border // form.group * form.group
            old_k, old_v = (
                (k[:, :0], v[:, :0]) if not border or form is None else form.by_definition(k[:, :border], v[:, :border])
            )
            keys, values = (np.concatenate([a, b[:, border : i + 1]], axis=1) for a, b in ((old_k, k), (old_v, v)))
            for head in range(self.heads):
                mine = head * self.kv // self.heads
                scores = keys[mine] @ q[head, i] / np.sqrt(self.width)
                if i >= prompt and held is not None:
                    scores[:prompt][~held[mine]] = -np.inf
                weights = np.exp(scores - scores.max())
                found[head, i] = weights @ values[mine] / weights.sum()
        return found

    def held(self, q: Heads, k: Heads, v: Heads, form: Compression, prompt: int) -> Heads:
        """Tokens of a prompt that each head holds, one by one, from queries and keys before rotation."""
        found = np.ones((self.kv, prompt), bool)
        if form.keep < 1:
            for head in range(self.kv):
                scores = -np.linalg.norm(k[head, :prompt], axis=1)
                if form.by == "expected":
                    scores = self.expected_attention(q[:, :prompt], k[:, :prompt], v[:, :prompt], head)
                order = np.argsort(-scores)
                found[head, order[int(prompt * form.keep) :]] = False
        return found

    def expected_attention(self, q: Heads, k: Heads, v: Heads, head: int) -> Heads:
        """[P] expected attention to a key head's tokens: what normal queries at the next 512 positions would pay."""
        prompt, group = k.shape[1], self.heads // self.kv
        half, mean_rotation = self.width // 2, np.zeros((self.width, self.width))
        for place in range(prompt, prompt + 512):
            c, s = np.diag(np.cos(place * self.inv_freq)), np.diag(np.sin(place * self.inv_freq))
            mean_rotation += np.block([[c, -s], [s, c]]) * self.scale / 512
        assert half == len(self.inv_freq)
        known, shares = self.turned(k)[head, 4:], []
        for asking in q[head * group : (head + 1) * group, 4:]:
            mean = mean_rotation @ asking.mean(0)
            spread = mean_rotation @ np.cov(asking.T, bias=True) @ mean_rotation.T
            power = [np.exp(key @ mean / self.width**0.5 + key @ spread @ key / (2 * self.width)) for key in known]
            shares.append(np.array(power) / sum(power))
        found = np.mean(shares, axis=0) * np.sqrt((v[head, 4:] ** 2).sum(1))
        return np.concatenate([np.full(4, np.inf), found])

    def split(self, x: Heads) -> Heads:
        return x.reshape(len(x), -1, self.width).transpose(1, 0, 2)

    def norm(self, x: Heads, weight: Heads) -> Heads:
        return np.asarray(weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon))

    def turned(self, x: Heads) -> Heads:
        half, angles = self.width // 2, np.arange(x.shape[1])[:, None] * self.inv_freq
        spun = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles) * self.scale
        return np.concatenate([spun.real, spun.imag], axis=-1)


FORMS: dict[str, dict[str, Any]] = {
    "kivi": {"bits": 2, "group": 8, "residual": 12},
    "hadamard": {"bits": 4, "group": 16, "residual": 5, "keys": "token", "rotate": "hadamard"},
    "compressed prefill": {"bits": 3, "group": 8, "residual": 0, "prefill": "compressed"},
    "fp8": {"format": "fp8"},
    "norm": {"keep": 0.3},
    "expected": {"keep": 0.3, "by": "expected"},
    "norm and bits": {"keep": 0.5, "bits": 2, "keys": "token", "group": 8, "residual": 3, "prefill": "compressed"},
}


def nll(logits: Heads, targets: Heads) -> Heads:
    top = logits.max(-1, keepdims=True)
    normal = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return np.asarray(-normal[np.arange(len(targets)), targets])


def asked(start: int = START) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="", tokens=TOKENS, first_target=start, bytes=1, words=1)


@pytest.mark.everyday("kivi")
@pytest.mark.usefixtures("wholly_float64")
@pytest.mark.parametrize("name", FORMS)
def test_scores_are_those_of_a_dense_model_that_rounds_by_the_definition(name: str, hf: Hf) -> None:
    method = Kv(**FORMS[name])
    hf.attend(method.attention(hf.model, len(TOKENS)))
    logits = Dense(hf).logits(TOKENS, method.compression(), START)
    expected = nll(logits[START - 1 : -1], TOKENS[START:])
    np.testing.assert_allclose(hf.score(asked()).nll, expected, atol=1e-6)
    plain = nll(Dense(hf).logits(TOKENS, None, START)[START - 1 : -1], TOKENS[START:])
    assert abs(expected - plain).max() > 1e-3, "there is something to see"


@pytest.mark.slow
@pytest.mark.usefixtures("wholly_float64")
def test_yarn_and_four_bits_are_both_there(hf: Hf) -> None:
    form: dict[str, Any] = {"bits": 4, "group": 8, "residual": 4}
    method = lexbench.method({"compose": [{"name": "yarn", "factor": 4.0}, {"name": "kv", **form}]})
    attention = method.attention(hf.model, len(TOKENS))
    assert attention.slots() == ("inv_freq", "scale", "cache")
    hf.attend(attention)
    dense = Dense(hf, attention.inv_freq, attention.scale or 1.0)
    expected = nll(dense.logits(TOKENS, Kv(**form).compression(), START)[START - 1 : -1], TOKENS[START:])
    np.testing.assert_allclose(hf.score(asked()).nll, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("wholly_float64")
def test_divergence_is_that_of_the_two_models_own_distributions(hf: Hf) -> None:
    method = Kv(bits=2, group=8, residual=0)
    hf.attend(method.attention(hf.model, len(TOKENS)))
    found = hf.diverge(MeasureDivergence(index=0, cluster="", tokens=TOKENS, first_target=START))
    sides = [Dense(hf).logits(TOKENS, form, START)[START - 1 : -1] for form in (method.compression(), None)]
    ours, theirs = (
        np.exp(-np.stack([nll(side, np.full(len(side), v)) for v in range(side.shape[1])], 1)) for side in sides
    )
    np.testing.assert_allclose(found.divergence, (theirs * np.log(theirs / ours)).sum(1), atol=1e-6)
    np.testing.assert_array_equal(found.same_top, ours.argmax(1) == theirs.argmax(1))
    np.testing.assert_allclose(found.nll, nll(sides[0], TOKENS[START:]), atol=1e-6)
    np.testing.assert_allclose(found.other_nll, nll(sides[1], TOKENS[START:]), atol=1e-6)
    np.testing.assert_allclose(hf.score(asked()).nll, found.nll, atol=1e-6)  # its own method is in place again


def test_of_any_two_methods_the_divergence_is_that_of_their_scores(hf: Hf) -> None:
    hf.attend(lexbench.method("pi", factor=2.0).attention(hf.model, len(TOKENS)))
    found = hf.diverge(MeasureDivergence(index=0, cluster="", tokens=TOKENS, first_target=START, against="none"))
    hf.attend(Attention())
    np.testing.assert_allclose(found.other_nll, hf.score(asked()).nll, atol=1e-6)
    assert found.divergence.min() >= 0 and found.divergence.max() > 1e-3


@pytest.mark.everyday("kivi")
@pytest.mark.parametrize("name", FORMS)
def test_a_text_in_pieces_is_the_text_at_once(name: str, hf: Hf) -> None:
    attention = Kv(**FORMS[name]).attention(hf.model, len(TOKENS))
    hf.attend(attention)
    whole = hf.logits(TOKENS, [len(TOKENS)], START)
    pieces = hf.logits(TOKENS, [START, 1, 1, len(TOKENS) - START - 2], START)
    assert (whole - pieces).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("base", ["none", "rerope", "sliding_window", "yarn"])
@pytest.mark.parametrize("name", [*FORMS, "snapkv", "expected and bits"])
def test_kv_passes_its_self_check(base: str, name: str, hf: Hf) -> None:
    others = {"snapkv": {"keep": 0.4, "by": "snapkv"}, "expected and bits": {"keep": 0.4, "by": "expected", "bits": 2}}
    form = {**FORMS, **others}[name]
    attention = lexbench.method(base).attention(hf.model, 256).merge_with(Kv(**form).attention(hf.model, 256))
    checks = {check.name: check for check in verify_attention(hf, attention, 256)}
    assert failure_of_checks([*checks.values()]) is None, checks
    if base == "none" and form.get("prefill") == "compressed":
        assert checks["applied"].passed


@pytest.mark.everyday("bits")
@pytest.mark.parametrize("form", [{"bits": 4, "group": 8, "residual": 2}, {"keep": 0.4}], ids=["bits", "keep"])
def test_kv_passes_its_self_check_in_layers_with_a_rope_and_a_window_of_their_own(
    form: dict[str, Any], tmp_path: Path
) -> None:
    """Gemma 3 rotates its sliding layers by other angles, which changes nothing for a cache."""
    kinds = ["sliding_attention", "full_attention"]
    folder = save(tmp_path, "gemma3_text", num_hidden_layers=2, sliding_window=16, layer_types=kinds)
    model = Hf(read_model({"path": str(folder)}), dtype="float64", device="cpu")
    method = Kv(**form)
    attention = attention_of(method, model.model, 64)
    assert attention.as_data() == method.attention(model.model, 64).as_data()
    assert [attention.at(layer).cache for layer in range(2)] == [method.compression()] * 2
    assert failure_of_checks(verify_attention(model, attention, 64)) is None


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"bits": 4, "group": 8, "residual": 2}, {"keep": 0.4}], ids=["bits", "keep"])
def test_kv_passes_its_self_check_where_layers_share_keys(form: dict[str, Any], tmp_path: Path) -> None:
    model = Hf(read_model({"path": str(census.save(tmp_path, "gemma3n_text"))}), dtype="float64", device="cpu")
    assert [each is None for each in model.model.kept_by_layer() or ()] == [False, False, True, True]
    attention = attention_of(Kv(**form), model.model, 64)
    assert failure_of_checks(verify_attention(model, attention, 64)) is None


def test_with_several_ropes_a_cache_is_one_for_all_layers_and_angles_are_those_of_layers_without_windows() -> None:
    kinds = ("sliding_attention", "linear_attention", "full_attention", "sliding_attention")
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    model = lexbench.Model(
        name="m", trained_length=64, head_dim=64, kv_heads=1, layers=4, layer_types=kinds, rope_scaling=ropes
    )
    both = lexbench.method({"compose": ["yarn", {"name": "kv", "bits": 8}]})
    made = [attention_of(both, model, 256).at(layer) for layer in range(4)]
    assert [part.slots() for part in made] == [("cache",), ("cache",), ("inv_freq", "scale", "cache"), ("cache",)]
    asked = lexbench.method({"name": "kv", "bits": 8, "layers": "global"})
    only = [attention_of(asked, model, 256).at(layer).cache is not None for layer in range(4)]
    assert only == [False, False, True, False]
    buckets = lexbench.method({"compose": ["attention_buckets", {"name": "kv", "bits": 8}]})
    passes = attention_of(buckets, model, 256).mixture
    assert passes and all(each.at(0).slots() == ("cache",) for each in passes)


def test_a_window_holds_a_share_of_its_own_tokens() -> None:
    """Of 20 tokens a window of 9 keeps 8, places 12 to 19: half of these, those of least norm."""
    rng = np.random.default_rng(0)
    keys = torch.from_numpy(rng.standard_normal((1, 2, 20, 4)))
    keys[:, :, :12] *= 1e-3  # the smallest of the text, and behind the window
    cache = Kv(keep=0.5).compression()
    held = kept.held_tokens(cache, keys, keys, keys, lambda vectors, _: vectors, 1.0, 9)
    for head in range(2):
        norms = np.linalg.norm(keys[0, head].numpy(), axis=1)
        assert set(np.flatnonzero(held[0, head].numpy())) == set(12 + np.argsort(norms[12:])[:4])


def test_what_a_window_holds_is_chosen_at_the_tokens_own_places() -> None:
    """Places 12 to 19 are asked for, as a rotation sees them, though only these tokens are handed over."""
    places = list[list[int]]()

    class Watching(Compression):
        def held_tokens(self, queries: Any, keys: Any, values: Any, rotate: Any, scaling: float) -> torch.Tensor:
            rotate(keys, torch.arange(keys.shape[2]))
            assert queries.shape[2] == keys.shape[2] == values.shape[2] == 8
            return torch.ones(1, 2, 8, dtype=torch.bool)

    def rotate(vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        places.append(positions.tolist())
        return vectors

    vectors = torch.zeros(1, 2, 20, 4)
    watching = Watching(**vars(Kv(keep=0.5).compression()))
    held = kept.held_tokens(watching, vectors, vectors, vectors, rotate, 1.0, 9)
    assert places == [list(range(12, 20))]
    assert held[0, 0].tolist() == [False] * 12 + [True] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_equal_tokens_the_first_are_held_whatever_the_rounding(dtype: torch.dtype) -> None:
    """Five tokens, eight times each in a mixed order: 20 of least norm are two kinds and half of the third."""
    rng = np.random.default_rng(2)
    kinds = rng.permutation(np.repeat(np.arange(5), 8))
    by_hand = np.isin(kinds, (0, 1)) | ((kinds == 2) & ((kinds == 2).cumsum() <= 4))
    keys = torch.from_numpy((1 + kinds)[:, None] * rng.standard_normal(64))[None, None].to(dtype)
    for seed in range(8):  # some numbers of a key are the next ones, as another kernel may round them
        steps = np.random.default_rng(seed).choice([-1, *[0] * 38, 1], keys.shape)
        rounded = (keys.double() * (1 + torch.finfo(dtype).eps * torch.from_numpy(steps).double())).to(dtype)
        assert not torch.equal(rounded, keys)
        held = Kv(keep=0.5).compression().held_tokens(rounded, rounded, rounded, lambda x, _: x, 1.0)
        np.testing.assert_array_equal(held[0, 0].numpy(), by_hand)


def test_scores_apart_by_more_than_rounding_are_not_equal() -> None:
    scores = torch.tensor([[[-1.0 - 1e-4, -1.0, -2.0, -1.0 - 2e-4]]])
    assert eviction.best(scores, 2, torch.float32)[0, 0].tolist() == [True, True, False, False]
    assert eviction.best(scores, 1, torch.float32)[0, 0].tolist() == [False, True, False, False]
    assert eviction.best(scores, 0, torch.float32)[0, 0].tolist() == [False, True, False, False]


def test_the_version_of_the_choice_is_in_the_identity_of_what_drops_tokens_and_of_nothing_else(hf: Hf) -> None:
    by_method = {name: Kv(**given).attention(hf.model, 64).as_data()["cache"] for name, given in FORMS.items()}
    versions = {name: data.get("version") for name, data in by_method.items()}
    assert versions == {name: 2 if "keep" in given else None for name, given in FORMS.items()}


def test_whole_groups_are_rounded_and_the_last_tokens_are_exact() -> None:
    by_channel, by_token = Kv(bits=4, group=8, residual=10), Kv(format="q8_0")
    places = np.array([0, 8, 9, 16, 17, 18, 40])
    # floor((i + 1 - 10) / 8) 8 by hand; a format keeps no last tokens.
    np.testing.assert_array_equal(by_channel.compression().kept_before(places), [0, 0, 0, 0, 8, 8, 24])
    np.testing.assert_array_equal(by_token.compression().kept_before(places), places + 1)


def test_bytes_of_a_text_are_those_of_a_hand_calculation() -> None:
    # SmolLM2: 30 layers, 3 key heads of 64: 11,520 numbers a token. At 16 bits 23,040 bytes.
    layer, length = LayerCache(3, 64, 64), 8192

    def found(**given: Any) -> float:
        return 30 * Kv(**given).compression().bits_of_text(layer, length) / 8 / length

    assert found(keep=0.5) == found(format="fp8") == 11520
    # 34 bytes for 32 numbers, and 18.
    assert found(format="q8_0") == 11520 * 34 / 32
    assert found(format="q4_0") == 11520 * 18 / 32
    # 4 bits and 32 for each 64 numbers: 0.5625 bytes. 8,064 of 8,192 tokens are so, the last 128 have 2 bytes.
    assert found(bits=4) == pytest.approx(11520 * (8064 * 0.5625 + 128 * 2) / 8192)


def test_a_window_holds_its_tokens_and_the_last_of_them_exactly() -> None:
    """A window of 33: the next query sees 32 tokens before it, of 100. Two heads, keys of 16 numbers, values of 8."""
    layer, length = LayerCache(2, 16, 8, window=33), 100
    # Formats keep no last tokens: a byte a number. Half of the tokens: two bytes a number of half of 32.
    assert Kv(format="fp8").compression().bits_of_text(layer, length) == 32 * 2 * 24 * 8
    assert Kv(keep=0.5).compression().bits_of_text(layer, length) == 16 * 2 * 24 * 16
    # Exact: the last 20 and the rest of a group of 8, floor(80 / 8) 8 = 80 tokens are rounded, of the window 12.
    four = Kv(bits=4, group=8, residual=20).compression().bits_of_text(layer, length)
    assert four == 12 * 2 * 24 * (4 + 32 / 8) + 20 * 2 * 24 * 16
    # As many exact tokens as the window: nothing in it is rounded.
    assert Kv(bits=4, group=8, residual=40).compression().bits_of_text(layer, length) == 32 * 2 * 24 * 16


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"bits": 2, "group": 32, "rotate": "hadamard", "keys": "token", "values": "channel", "residual": 16},
            "2 bits in groups of 32, keys by token, values by channel; mixed by a Hadamard matrix before; rounded as "
            "the cache holds them; the prompt reads exact keys; the last 16 tokens exact",
        ),
        (
            {"format": "q4_0", "prefill": "compressed"},
            "format q4_0; rounded as the cache holds them; prompt and answer see rounded keys",
        ),
        ({"keep": 0.25, "by": "snapkv"}, "0.25 of the prompt's tokens held by each key head, by snapkv"),
        (
            {"bits": 8, "keep": 0.5},
            "8 bits in groups of 64, keys by channel, values by token; rounded as the cache holds them; the prompt "
            "reads exact keys; the last 128 tokens exact; 0.5 of the prompt's tokens held by each key head, by norm",
        ),
    ],
)
def test_words_say_what_is_measured(given: dict[str, Any], words: str) -> None:
    assert Kv(**given).compression().words() == words


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bits": 5}, r"method\.bits of kv must be 2 or 3 or 4 or 8, got 5"),
        ({"bits": 4, "format": "fp8"}, "takes bits or a format"),
        ({"keep": 1.0}, r"method\.keep of kv must be above 0 and below 1"),
        ({"by": "snapkv"}, r"method\.by of kv chooses tokens to keep, got snapkv without keep"),
        ({"rotate": True}, r"method\.rotate of kv must be false or hadamard, got True"),
        ({"group": 1}, r"method\.group of kv must be a whole number of at least 2"),
    ],
)
def test_wrong_parameters_are_said_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Kv(**given)


def test_a_head_that_groups_do_not_divide_is_refused(hf: Hf) -> None:
    with pytest.raises(Refused, match="groups of 32 do not divide a head of 16"):
        Kv(format="q8_0").attention(hf.model, 64)
    with pytest.raises(Refused, match="groups of 12 do not divide a head of 16"):
        Kv(bits=4, group=12).attention(hf.model, 64)


def test_a_latent_for_all_heads_is_refused() -> None:
    """The keys of a head, which kv compresses, are stored by no engine: DeepSeek-V3 stores 512 and 64 numbers."""
    latent = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "kv_lora_rank": 512}
    sizes = {"num_attention_heads": 128, "num_hidden_layers": 2, "hidden_size": 7168, "max_position_embeddings": 4096}
    model = lexbench.Model(name="m", **facts_of_config({**sizes, **latent, "rope_theta": 1e4}))
    assert model.kept_by_layer() == (LayerCache(1, 512, 64, latent=True),) * 2
    for given in ({"bits": 8}, {"keep": 0.5}, {"format": "fp8"}):
        with pytest.raises(Refused, match="m keeps one latent for all heads"):
            attention_of(Kv(**given), model, 64)


def test_tokens_chosen_by_queries_are_refused_where_layers_share_keys() -> None:
    sharing = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4}
    kinds = ["sliding_attention", "full_attention"] * 2
    more = {"max_position_embeddings": 64, "num_kv_shared_layers": 2, "sliding_window": 8, "layer_types": kinds}
    model = lexbench.Model(name="m", **facts_of_config({**sharing, **more, "rope_theta": 1e4}))
    for by in ("snapkv", "expected"):
        with pytest.raises(Refused, match=f"kv by {by} chooses tokens by each layer's queries, and layers of m share"):
            Kv(keep=0.5, by=by).attention(model, 64)
    assert Kv(keep=0.5).attention(model, 64).cache == Kv(keep=0.5).compression()


def test_each_layers_heads_are_asked_whether_groups_and_the_matrix_fit() -> None:
    caches = (LayerCache(1, 32, 32), None, LayerCache(2, 48, 32, 16))
    model = lexbench.Model(name="m", trained_length=64, head_dim=32, layer_caches=caches)
    assert Kv(bits=4, group=32).attention(model, 64).cache  # values by token have 32 numbers, keys go by channel
    for given, said in (
        ({"bits": 4, "group": 32, "keys": "token"}, "groups of 32 do not divide a head of 48"),
        ({"format": "q8_0"}, "groups of 32 do not divide a head of 48"),
        ({"bits": 4, "group": 16, "rotate": "hadamard"}, "a power of two, m has 48"),
    ):
        with pytest.raises(Refused, match=said):
            Kv(**given).attention(model, 64)


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_formats_of_llama_cpp_are_those_of_its_own_python_package(form: str) -> None:
    quants: Any = pytest.importorskip("gguf").quants
    kind: Any = pytest.importorskip("gguf").GGMLQuantizationType[form.upper()]
    numbers = np.random.default_rng(0).standard_normal((2, 40, 64)).astype(np.float32)
    expected = quants.dequantize(quants.quantize(numbers, kind), kind)
    compression = Kv(format=form).compression()
    given = torch.from_numpy(numbers)[None]
    for found in compression.kept_keys_and_values(given, given, 0):
        np.testing.assert_array_equal(found[0].numpy(), expected)
    for defined in compression.by_definition(numbers.astype(float), numbers.astype(float)):
        np.testing.assert_array_equal(defined.astype(np.float32), expected)


def test_fp8_is_torchs_own_cast_of_float32() -> None:
    rng = np.random.default_rng(0)
    numbers = torch.from_numpy(rng.standard_normal((1, 2, 400, 64)) * np.exp(3 * rng.standard_normal((1, 2, 400, 64))))
    given = numbers.float()
    expected = given.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert (given.abs() > 448).any() and (given.abs() < 2**-6).any()
    assert torch.equal(Kv(format="fp8").compression().kept_keys_and_values(given, given, 0)[0], expected)


@pytest.mark.everyday("bits")
@pytest.mark.parametrize("kind", [{"bits": 4, "group": 16}, {"format": "fp8"}], ids=["bits", "format"])
def test_a_wrong_scale_in_one_layer_fails_the_self_check(
    kind: dict[str, Any], hf: Hf, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = Kv(**kind, residual=8).attention(hf.model, 128)
    right = Compression.kept_keys_and_values
    assert failure_of_checks(verify_attention(hf, attention, 128)) is None

    def wrong(
        self: Compression, keys: torch.Tensor, values: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        old_keys, old_values = right(self, keys, values, layer)
        return (old_keys * 1.02, old_values) if layer == 1 else (old_keys, old_values)

    monkeypatch.setattr(Compression, "kept_keys_and_values", wrong)
    assert "realised" in (failure_of_checks(verify_attention(hf, attention, 128)) or "")


@pytest.mark.everyday("keep")
@pytest.mark.usefixtures("wholly_float64")
@pytest.mark.parametrize("given", [{"bits": 2, "group": 8, "residual": 4}, {"keep": 0.4}], ids=["bits", "keep"])
def test_a_question_stands_behind_a_cache_that_is_made_of_the_text_alone(given: dict[str, Any], hf: Hf) -> None:
    text, prompt = 40, TOKENS[:60]
    method = Kv(**given)
    hf.attend(method.attention(hf.model, 64))
    written = hf.write(Generate(index=0, cluster="", prompt=prompt, max_new_tokens=2, text_tokens=text)).tokens
    known = prompt
    for token in written:
        assert token == Dense(hf).logits(known, method.compression(), text)[-1].argmax()
        known = np.append(known, token)
    options = tuple(np.array([option, 7]) for option in (5, 9, 11))
    chosen = hf.choose(Choose(index=0, cluster="", prompt=prompt, options=options, expected=0, text_tokens=text))
    for option, found in zip(options, chosen.nll, strict=True):
        logits = Dense(hf).logits(np.append(prompt, option), method.compression(), text)[59:61]
        assert found == pytest.approx(nll(logits, option).sum(), abs=2e-6)


LEXLET = read_model({"path": "lexbench:lexlet"})


@pytest.mark.everyday("kivi")
@pytest.mark.usefixtures("wholly_float64")
@pytest.mark.parametrize(
    "name", ["kivi", "compressed prefill", "norm and bits", "snapkv", "expected", "rerope", "keep_first"]
)
def test_both_backends_keep_the_same(name: str) -> None:
    form = {**FORMS, "snapkv": {"keep": 0.4, "by": "snapkv"}}.get(name, FORMS["kivi"])
    attention = Kv(**form).attention(LEXLET, 150)
    if name == "rerope":
        attention = lexbench.method("rerope", window=40).attention(LEXLET, 150).merge_with(attention)
    if name == "keep_first":  # hf holds keys before rotation, and must round them behind it
        attention = replace(attention, keep_first=10, scale=1.1)
    # Frequencies that float32 can hold, as which transformers keeps them.
    inv_freq = LEXLET.inv_freq().astype(np.float32).astype(np.float64)
    tokens = np.random.default_rng(5).permutation(400)[:150]
    found = []
    for backend in (Hf(LEXLET, dtype="float64", device="cpu"), backend_class("native")(LEXLET, dtype="float64")):
        backend.attend(replace(attention, inv_freq=inv_freq))
        found.append(backend.diverge(MeasureDivergence(index=0, cluster="", tokens=tokens, first_target=100)))
        scored = backend.score(Loglikelihood(index=0, cluster="", tokens=tokens, first_target=100, bytes=1, words=1))
        np.testing.assert_allclose(scored.nll, found[-1].nll, atol=1e-6)
    for one, other in zip(vars(found[0]).values(), vars(found[1]).values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert found[0].divergence.max() > 1e-3


def test_a_prompt_is_read_once_for_all_compressed_caches(hf: Hf, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    states = Reader.states

    def counted(self: Reader, tokens: Any, *more: Any) -> Any:
        read.append(tokens.shape[1])
        return states(self, tokens, *more)

    monkeypatch.setattr(Reader, "states", counted)
    question = MeasureDivergence(index=0, cluster="", tokens=TOKENS, first_target=START)
    further = len(TOKENS) - 1 - START
    found = []
    for bits in (8, 2):
        hf.attend(Kv(bits=bits, group=8, residual=4).attention(hf.model, len(TOKENS)))
        found.append(hf.diverge(question))
    assert read == [START, further, further, further]
    hf.attend(Kv(keep=0.5).attention(hf.model, len(TOKENS)))
    dropped = hf.diverge(question)
    assert read[4:] == [further]
    np.testing.assert_array_equal(dropped.other_nll, found[0].other_nll)
    np.testing.assert_array_equal(found[0].other_nll, found[1].other_nll)
    assert found[0].divergence.mean() < found[1].divergence.mean() / 100  # steps of 1/85 of the size: squares of 1/7225


@pytest.mark.parametrize("given", [{"by": "norm"}, {"by": "snapkv"}, {"by": "snapkv", "bits": 4, "group": 8}])
@pytest.mark.parametrize("base", ["none", "rerope"])
def test_a_prompt_begun_without_a_cache_loses_the_tokens_that_it_loses_when_read_under_it(
    base: str, given: dict[str, Any], folder: Path
) -> None:
    hf = Hf(read_model({"path": str(folder)}), dtype="float64", device="cpu")
    tokens = np.random.default_rng(8).integers(2, VOCABULARY, 170)
    question = MeasureDivergence(index=0, cluster="", tokens=tokens, first_target=150)
    form = Kv(**{"residual": 4, "keep": 0.6} | given)
    positions = lexbench.method(base, **({"window": 30} if base == "rerope" else {})).attention(hf.model, 170)

    def read(method: Any) -> tuple[Any, Any]:
        hf.attend(positions.merge_with(method.attention(hf.model, 170)))
        likelihood = Loglikelihood(index=0, cluster="", tokens=tokens, first_target=150, bytes=1, words=1)
        return hf.diverge(question), hf.score(likelihood).nll  # the second reads the whole text under its cache

    exact, _ = read(Kv(bits=8, group=8, residual=4))
    for _ in range(2):  # also behind others that went on from the same prompt
        found, alone = read(form)
        np.testing.assert_allclose(found.nll, alone, atol=1e-6)
        assert found.divergence.mean() > 1e-4
        again, _ = read(Kv(bits=8, group=8, residual=4))
        np.testing.assert_array_equal(again.nll, exact.nll)


def test_the_best_keys_are_chosen_among_kept_and_computed_ones() -> None:
    cache, mask = Kv(bits=2, group=8, residual=4).compression(), TopKMask(4, 1, 6)
    queries, keys, values = torch.randn(
        3, 1, 1, 40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = kept.attend(
        queries[:, :, 20:],
        keys,
        values,
        Attention(mask=mask, cache=cache),
        lambda x, _: x,
        0.5,
        0,
        20,
        None,
        lambda *_: keys,
    )
    q, k, v = (each[0, 0].numpy() for each in (queries, keys, values))
    for place in range(20, 40):
        border = int(cache.kept_before(np.array([place]))[0])
        old_keys, old_values = (each[0] for each in cache.by_definition(k[None, :border], v[None, :border]))
        logits = 0.5 * np.concatenate([old_keys, k[border : place + 1]]) @ q[place]
        middle = np.arange(1, place - 3)
        seen = [0, *range(place - 3, place + 1), *middle[np.argsort(-logits[middle])[:6]]]
        weights = np.exp(logits[seen] - logits[seen].max())
        expected = weights @ np.concatenate([old_values, v[border : place + 1]])[seen] / weights.sum()
        np.testing.assert_allclose(found[0, 0, place - 20].numpy(), expected, atol=1e-9)

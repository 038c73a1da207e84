"""What the backends see of attention: the same numbers in both, and those of the model's own attention weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama

import lexbench
from lexbench import Attention, Loglikelihood, ProbeAttention, ProbeAttentionAnswer, Refused
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import local_folder, read_model
from lexbench.core.attention import Dynamic, Slopes, Window
from lexbench.kernels.observed import Observer
from tests.backends.named import backend_class

LEXLET = read_model({"path": "lexbench:lexlet"})
LENGTH = 301
METHODS = [
    *("none", "yarn", "rerope", "dca", "bca", "streaming_llm", "self_extend", "ms_poe", "adagrope", "sliding_window"),
    *("entropy_abf", "chunkllama", "log_n"),
]
"""Of every kind of slot one."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    [document, *_] = lexbench.corpus("synthetic").documents()
    return np.concatenate([[0], Hf(LEXLET, device="cpu").tokenizer.encode(document.text).ids])[:LENGTH]


@pytest.fixture(scope="module")
def native() -> Any:
    return backend_class("native")(LEXLET, dtype="float64")


@pytest.fixture(scope="module")
def hf() -> Hf:
    return Hf(LEXLET, dtype="float64", device="cpu")


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


def rounded(attention: Attention) -> Attention:
    """With frequencies that float32 can hold, as which transformers keeps them."""
    plain = LEXLET.inv_freq() if attention.inv_freq is None else attention.inv_freq
    others = None if attention.layers is None else rounded(attention.otherwise or Attention())
    return replace(attention, inv_freq=plain.astype(np.float32).astype(np.float64), otherwise=others)


def probe(backend: Any, tokens: np.ndarray, **more: Any) -> dict[str, np.ndarray]:
    answer = backend.probe(ProbeAttention(index=0, cluster="", tokens=tokens, **more))
    assert isinstance(answer, ProbeAttentionAnswer)
    return dict(answer.statistics)


def assert_close(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], error: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], atol=error, rtol=error, err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("wholly_float64")
@pytest.mark.parametrize("name", METHODS)
def test_both_backends_see_the_same(name: str, hf: Hf, native: Any, tokens: np.ndarray) -> None:
    attention = rounded(lexbench.method(name).attention(LEXLET, LENGTH))
    for backend in (hf, native):
        backend.attend(attention)
    assert_close(probe(hf, tokens), probe(native, tokens), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "rerope"])
def test_stock_transformers_differ_by_what_their_float32_parts_cost(
    name: str, hf: Hf, native: Any, tokens: np.ndarray
) -> None:
    attention = lexbench.method(name).attention(LEXLET, LENGTH)
    for backend in (hf, native):
        backend.attend(attention)
    assert_close(probe(hf, tokens), probe(native, tokens), 2e-3)


@pytest.mark.slow
def test_shapes_and_sums_are_those_that_are_promised(native: Any, tokens: np.ndarray) -> None:
    native.attend(Attention())
    found = probe(native, tokens)
    bins = len(found["edges"]) - 1
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes == {
        **dict.fromkeys(("resolution", "resolution_shared", "resolution_all"), (4, 8)),
        **dict.fromkeys(("distance", "entropy", "first_mass"), (4, 8)),
        **dict.fromkeys(("preference", "mass"), (4, 8, bins)),
        "curve": (LENGTH,),
        "reach": (1,),
        "shared": (1,),
        "edges": (bins + 1,),
    }
    assert found["edges"][-1] == LENGTH
    assert found["reach"].tolist() == [263]  # 7/8 of 301 is 263.4
    np.testing.assert_allclose(found["mass"].sum(2), 1, atol=1e-12)
    assert ((found["resolution"] > 0) & (found["resolution"] <= 1)).all()
    sizes = np.diff(found["edges"])
    np.testing.assert_allclose((found["preference"].mean((0, 1)) * sizes).sum(), found["curve"].sum())


def weights_of(folder: Path, tokens: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
    """[H, T, T] attention weights of each layer, as transformers' own eager attention gives them."""
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()
    with torch.inference_mode():
        read = network(torch.from_numpy(tokens)[None], output_attentions=True)
    return tuple(layer[0].double().numpy() for layer in read.attentions)


def check_weights(
    found: dict[str, np.ndarray], weights: tuple[np.ndarray, ...], error: float, last: int | None = None
) -> None:
    length = weights[0].shape[1]
    i = np.arange(length)
    asked = i if last is None else i[-last:]
    for layer, whole in enumerate(weights):
        each = whole[:, asked]
        distance = (each * (asked[:, None] - i)).sum(2).mean(1)
        entropy = -(each * np.log(np.where(each > 0, each, 1.0))).sum(2).mean(1)
        np.testing.assert_allclose(found["distance"][layer], distance, rtol=error, atol=error)
        np.testing.assert_allclose(found["entropy"][layer], entropy, rtol=error, atol=error)
        np.testing.assert_allclose(found["first_mass"][layer], each[:, :, :4].sum(2).mean(1), atol=error)


@pytest.mark.slow
def test_weights_are_those_of_transformers_own_eager_attention(tokens: np.ndarray) -> None:
    hf = Hf(LEXLET, device="cpu")
    native = backend_class("native")(LEXLET)
    folder = local_folder("lexbench:lexlet")
    assert folder is not None
    weights = weights_of(folder, tokens)
    for last in (None, 1, 64):
        check_weights(probe(hf, tokens, last=last), weights, 1e-4, last)
        check_weights(probe(native, tokens, last=last), weights, 1e-4, last)


@pytest.mark.everyday("gpt2", "glm")
@pytest.mark.parametrize("kind", ["gpt2", "phi", "glm", "qwen3"])
def test_families_with_other_positions_and_layouts(kind: str, tmp_path: Path) -> None:
    from tests.backends.test_hf import TOKENS, open_hf, save

    sizes: dict[str, Any] = {}
    if kind == "gpt2":
        sizes = {"max_position_embeddings": 64}
    folder = save(tmp_path, kind, **sizes)
    hf = open_hf(folder)
    tokens = TOKENS[:60]
    check_weights(probe(hf, tokens), weights_of(folder, tokens), 1e-4)
    if kind == "gpt2":
        with pytest.raises(Refused, match="positions end at 64, asked for 65"):
            probe(hf, np.resize(TOKENS, 65))


@pytest.mark.slow
def test_frequencies_that_follow_the_text_are_seen_as_they_are(hf: Hf, tokens: np.ndarray) -> None:
    hf.attend(Attention(dynamic=Dynamic(2.0, 256)))
    found = probe(hf, tokens)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": LEXLET.rope_base}
    folder = local_folder("lexbench:lexlet")
    assert folder is not None
    check_weights(found, weights_of(folder, tokens, rope_parameters=rope, max_position_embeddings=256), 1e-3)


@pytest.mark.slow
def test_watching_changes_nothing(hf: Hf, tokens: np.ndarray) -> None:
    asked = Loglikelihood(index=0, cluster="", tokens=tokens, first_target=200, bytes=1, words=1)
    for attention in (Attention(), lexbench.method("rerope").attention(LEXLET, LENGTH)):
        hf.attend(attention)
        before = hf.score(asked).nll
        held = hf.reader.network.config._attn_implementation
        first = probe(hf, tokens)
        assert hf.reader.network.config._attn_implementation == held
        np.testing.assert_array_equal(hf.score(asked).nll, before)
        again = probe(hf, tokens)
        for name, values in first.items():
            np.testing.assert_array_equal(values, again[name])


def test_the_first_tokens_are_as_many_as_asked(hf: Hf, native: Any, tokens: np.ndarray) -> None:
    for backend in (hf, native):
        backend.attend(Attention(mask=Window(1)))  # each token sees itself
        assert probe(backend, tokens[:100])["first_mass"] == pytest.approx(0.04)
        assert probe(backend, tokens[:100], first=25)["first_mass"] == pytest.approx(0.25)
        assert probe(backend, tokens[:100])["distance"] == pytest.approx(0)
        assert np.isnan(probe(backend, tokens[:100])["curve"][1:]).all()


def test_a_text_of_one_token(hf: Hf, native: Any) -> None:
    for backend in (hf, native):
        backend.attend(Attention())
        found = probe(backend, np.array([0]))
        assert found["resolution"] == pytest.approx(1)
        assert found["entropy"] == pytest.approx(0, abs=1e-12)


def test_biases_of_a_method_enter(hf: Hf, native: Any, tokens: np.ndarray) -> None:
    steep = Attention(bias=Slopes((1e6,) * 8))  # no weight beyond the token itself
    for backend in (hf, native):
        backend.attend(steep)
        found = probe(backend, tokens[:50])
        assert found["distance"] == pytest.approx(0, abs=1e-9)
        assert found["resolution"] == pytest.approx(1)


def test_a_mixture_is_refused(hf: Hf, native: Any, tokens: np.ndarray) -> None:
    mixture = lexbench.method("attention_buckets").attention(LEXLET, LENGTH)
    for backend in (hf, native):
        backend.attend(mixture)
        with pytest.raises(Refused, match="cannot probe a mixture"):
            probe(backend, tokens)


def test_attention_that_is_not_ours_to_compute_is_refused(tmp_path: Path) -> None:
    from tests.backends.test_hf import TOKENS, open_hf, save

    hf = open_hf(save(tmp_path, "bloom", n_layer=2, n_head=4))
    with pytest.raises(Refused, match=r"hf cannot realise probes on .*does not use"):
        probe(hf, TOKENS[:20])


def test_a_window_that_ends_while_reading_is_refused(tmp_path: Path) -> None:
    from tests.backends.test_hf import TOKENS, open_hf, save

    hf = open_hf(save(tmp_path, "mistral", sliding_window=30))
    assert probe(hf, TOKENS[:30])["entropy"].shape == (3, 4)
    with pytest.raises(Refused, match=r"hf cannot realise probes on .*layers have a window of 30 tokens, asked for 31"):
        probe(hf, TOKENS[:31])
    hf.score(
        Loglikelihood(index=0, cluster="", tokens=TOKENS, first_target=1, bytes=1, words=1)
    )  # the stock attention is back


def test_running_out_of_memory_is_a_refusal(monkeypatch: pytest.MonkeyPatch, hf: Hf, tokens: np.ndarray) -> None:
    def fail(*unused: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Observer, "__call__", fail)
    hf.attend(Attention())
    with pytest.raises(Refused, match="out of memory for 301 tokens"):
        probe(hf, tokens)

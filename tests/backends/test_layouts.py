"""Texts whose positions jump: each backend gives what a float64 forward pass by the formula gives."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

import lexbench
from lexbench import Loglikelihood
from lexbench.backends import Backend
from lexbench.backends.chance import Chance
from lexbench.checkpoints.checkpoint import folder_of, read_model
from lexbench.core import registry
from lexbench.core.attention import Attention, of_pairs, regions_of
from lexbench.core.task import Choose, Layout
from lexbench.runner.answers import answer_questions
from lexbench.taskkit.asked import question_hash
from tests.backends.named import backend_class

Floats = NDArray[np.float64]
MODEL = read_model(registry.read_named_config("model", "lexlet"))
WEIGHTS = {name: each.astype(np.float64) for name, each in load_file(folder_of(MODEL) / "model.safetensors").items()}
TOKENS = np.random.default_rng(3).integers(3, MODEL.vocabulary or 0, 50)
# Tokens 10 to 19 are read before what stands in front of them, and the last 12 do not see the first 2 tokens.
LAYOUT = Layout(starts=((0, 0), (10, 300), (20, 40), (30, 310), (38, 700)), hidden=((38, 0, 2),))
METHODS = {
    "none": {},
    "yarn": {},
    "ntk": {},
    "pi": {},
    "rerope": {"window": 16},
    "leaky_rerope": {"window": 16},
    "self_extend": {"group": 4, "window": 16},
    "string": {},
    "dca": {"chunk": 96},
    "streaming_llm": {"window": 64},
    "sliding_window": {"window": 64},
    "log_n": {},
    "attention_buckets": {},
}
FOLLOWING = {"dynamic_ntk": {"policy": "hf_dynamic", "factor": 2.0}, "ms_poe": {}}
ANGLES = {"hf": np.float32, "native": np.float64}
"""Precision of angles: transformers' rotary modules round a position times a frequency to float32."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["hf", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    built: Backend = backend_class(request.param)(MODEL, dtype="float64")
    return built


def by_definition(
    attention: Attention, tokens: NDArray[np.int64], layout: Layout, precision: type = np.float64
) -> Floats:
    """[T, vocabulary] logits of lexlet: the formula of `lexbench.core.attention` at any positions, head by head."""
    if attention.mixture:
        passes = np.stack([by_definition(part, tokens, layout, precision) for part in attention.mixture])
        weights = np.exp(passes.max(-1, keepdims=True) - passes.max(-1, keepdims=True).max(0))
        return np.asarray((weights / weights.sum(0) * passes).sum(0))
    places = np.concatenate(
        [
            np.arange(place, place + 999)[: end - first]
            for (first, place), (end, _) in zip(layout.starts, [*layout.starts[1:], (len(tokens), 0)], strict=True)
        ]
    )
    numbers = np.arange(len(tokens))
    hidden = np.zeros((len(tokens), len(tokens)), bool)
    for query, key, end in layout.hidden:
        hidden[query:, key:end] = True
    unseen = (numbers[None] > numbers[:, None]) | (places[None] > places[:, None]) | hidden
    heads, kv_heads, width = 8, 4, 32
    base = 10000.0 ** (-np.arange(0, width, 2) / width)
    inv_freq = base if attention.inv_freq is None else attention.inv_freq
    scale = 1.0 if attention.scale is None else attention.scale

    def norm(x: Floats, name: str) -> Floats:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * WEIGHTS[name])

    def turn(x: Floats, at: Floats) -> Floats:
        angles: NDArray[np.floating] = of_pairs(at, len(inv_freq)).astype(precision) * inv_freq.astype(precision)
        spun = (x[:, : width // 2] + 1j * x[:, width // 2 :]) * np.exp(1j * angles.astype(np.float64)) * scale
        return np.concatenate([spun.real, spun.imag], axis=1)

    stream = WEIGHTS["model.embed_tokens.weight"][tokens]
    for layer in range(4):
        name = f"model.layers.{layer}."
        q, k, v = (
            norm(stream, name + "input_layernorm.weight") @ WEIGHTS[f"{name}self_attn.{each}_proj.weight"].T
            for each in "qkv"
        )
        mixed = []
        for head in range(heads):
            mine = slice(width * head, width * (head + 1))
            kv = slice(width * (head * kv_heads // heads), width * (head * kv_heads // heads + 1))
            logits = np.full(unseen.shape, np.nan)
            for region in regions_of(attention.remap):
                here = region.holds(places[:, None], places[None])
                pairs = turn(q[:, mine], region.query(places)) @ turn(k[:, kv], region.key(places)).T
                logits = np.where(here, pairs, logits)
            logits /= np.sqrt(width)
            if attention.query_scale is not None:
                logits *= attention.query_scale(places)[:, None]
            blocked = unseen if attention.mask is None else unseen | ~attention.mask.allowed(places, places)
            logits = np.where(blocked, -np.inf, logits)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, kv])
        stream = stream + np.concatenate(mixed, 1) @ WEIGHTS[name + "self_attn.o_proj.weight"].T
        x = norm(stream, name + "post_attention_layernorm.weight")
        gate, up = (x @ WEIGHTS[f"{name}mlp.{each}_proj.weight"].T for each in ("gate", "up"))
        stream = stream + gate / (1 + np.exp(-gate)) * up @ WEIGHTS[name + "mlp.down_proj.weight"].T
    return np.asarray(norm(stream, "model.norm.weight") @ WEIGHTS["model.embed_tokens.weight"].T)


def nll_by_definition(attention: Attention, tokens: NDArray[np.int64], layout: Layout, precision: type) -> Floats:
    logits = by_definition(attention, tokens, layout, precision)[:-1]
    logits -= logits.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), tokens[1:]])


def score(tokens: NDArray[np.int64], layout: Layout | None, first: int = 1) -> Loglikelihood:
    return Loglikelihood(index=0, cluster="", tokens=tokens, first_target=first, bytes=1, words=1, layout=layout)


@pytest.mark.parametrize("name", METHODS)
def test_attention_with_jumps_is_that_of_the_formula(backend: Backend, name: str) -> None:
    attention = lexbench.method(name, **METHODS[name]).attention(MODEL, 1024)
    backend.attend(attention)
    found = backend.score(score(TOKENS, LAYOUT)).nll
    np.testing.assert_allclose(found, nll_by_definition(attention, TOKENS, LAYOUT, ANGLES[backend.name]), atol=1e-5)
    if name == "none":  # the formula is that of the model: without jumps its own kernel says the same
        own = backend.score(score(TOKENS, None)).nll
        np.testing.assert_allclose(own, nll_by_definition(attention, TOKENS, Layout(), ANGLES[backend.name]), atol=1e-5)
        assert abs(own - found)[10:].max() > 0.1


@pytest.mark.parametrize("reuse", [False, True])
def test_options_stand_behind_the_last_token_and_do_not_see_each_other(backend: Backend, reuse: bool) -> None:
    backend.attend(attention := lexbench.method("yarn").attention(MODEL, 1024))
    backend.reuse = reuse
    options = tuple(np.array(each) for each in ([7, 8, 9], [7, 8, 11, 12], [7], [20, 8, 9]))
    for size in (44, 50, 44):  # with reuse, from what the last text has left
        tokens = TOKENS[:size]
        answer = backend.choose(Choose(index=0, cluster="", prompt=tokens, options=options, expected=1, layout=LAYOUT))
        texts = [np.concatenate([tokens, option]) for option in options]
        expected = [
            nll_by_definition(attention, text, LAYOUT, ANGLES[backend.name])[size - 1 :].sum() for text in texts
        ]
        np.testing.assert_allclose(answer.nll, expected, atol=2e-5)
        if answer.taught_ranks is not None:
            logits = by_definition(attention, texts[1], LAYOUT)[size - 1 : -1]
            right = logits[np.arange(4), options[1]]
            assert answer.taught_ranks.tolist() == (logits > right[:, None]).sum(1).tolist()
    backend.reuse = False


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_method_that_follows_the_text_is_refused(backend: Backend, name: str) -> None:
    try:
        backend.attend(lexbench.method(name, **FOLLOWING[name]).attention(MODEL, 1024))
    except lexbench.Refused:
        return  # native has no dynamic frequencies at all
    with pytest.raises(lexbench.Refused, match="positions cannot jump"):
        backend.score(score(TOKENS, LAYOUT))


def test_a_backend_without_positions_refuses_and_a_hash_tells_them() -> None:
    asked = score(TOKENS, LAYOUT)
    with pytest.raises(lexbench.Refused, match="chance counts the positions of a text by itself"):
        next(answer_questions(Chance(MODEL), [asked]))
    hashes = {question_hash(replace(asked, layout=each)) for each in (None, LAYOUT, replace(LAYOUT, hidden=()))}
    assert len(hashes) == 3 and question_hash(replace(asked, layout=None)) == question_hash(score(TOKENS, None))
    assert asked.length == 700 + 12

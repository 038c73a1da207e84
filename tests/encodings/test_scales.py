"""At which scale positions enter an untrained model, beside its content, against closed forms.

With the initial deviation s = 0.02 of all weights, and inputs of rms 1 after a norm, queries and keys have rms
s sqrt(width), so that logits q . k / sqrt(d) have rms s^2 width: 0.051 at a width of 128.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.core import registry
from lexbench.encodings.base import Encoding
from lexbench.native import attend, build
from lexbench.native.decoder import Decoder, Shape

SHAPE = Shape(vocabulary=200, layers=4, width=128, heads=4, kv_heads=4, hidden=320)
TRAINED, CONTENT = 128, 0.02**2 * 128

pytestmark = pytest.mark.usefixtures("one_thread")


def begun(spec: str | dict[str, object], embeddings: float = 0.02) -> Decoder:
    stated = build.pinned(build.resolved(spec), TRAINED, embeddings)
    decoder = Decoder(SHAPE, build.encoding(stated, SHAPE, TRAINED))
    decoder.initialise(0, embeddings=embeddings)
    return decoder.eval()


def rms(values: Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


def biases(encoding: Encoding) -> Tensor:
    """[H, L] at distances 0 .. L - 1, from the last token."""
    places = torch.arange(TRAINED, dtype=torch.float64)
    bias = encoding.at(0).bias(places[-1:], places)
    assert bias is not None
    return bias[:, 0].flip(-1).detach().double()


def first_logits(spec: str | dict[str, object]) -> Tensor:
    """[H, T, T] of the first layer, seen ones; embeddings of rms 1 come from the norm."""
    found = []

    def seen(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        one = attend.Layer(encoding, encoding.attention, q, k, positions)
        found.append(one.logits(0, q.shape[2])[0])
        return one.attended(v)

    tokens = torch.randint(0, 200, (1, TRAINED), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        begun(spec)(tokens, seen)
    logits = found[0]
    return logits[:, torch.ones(TRAINED, TRAINED, dtype=torch.bool).tril(-1)]


def test_contents_logits_have_the_rms_of_the_closed_form() -> None:
    assert rms(first_logits("nope")) == pytest.approx(CONTENT, rel=0.1)


@pytest.mark.parametrize(
    ("name", "embeddings"), [("sinusoidal", 0.02), ("sinusoidal", 0.3), ("shape", 0.3), ("cape", 0.3)]
)
def test_waves_enter_with_about_the_rms_of_tokens(name: str, embeddings: float) -> None:
    decoder = begun(name, embeddings)
    tokens = torch.randint(0, 200, (1, TRAINED), generator=torch.Generator().manual_seed(0))
    embedded = decoder.embed_tokens(tokens)
    positions = decoder.encoding.positions(tokens, TRAINED)
    waves = decoder.encoding.embed(torch.zeros_like(embedded), tokens, positions)
    alone = decoder.encoding.embed(embedded, tokens, positions) - waves
    assert rms(waves) == pytest.approx(math.sqrt(0.5), rel=1e-6)  # sin^2 + cos^2 = 1 for each pair
    assert rms(alone) == pytest.approx(1.0, rel=0.05)


SPECS = ("learned", {"name": "bipe", "over": "rope", "separators": [3]}, {"name": "abacus", "digits": [5]}, "floater")


@pytest.mark.parametrize("embeddings", [0.02, 0.3])
@pytest.mark.parametrize("spec", SPECS)
def test_learned_positions_enter_with_the_rms_of_tokens(spec: str | dict[str, object], embeddings: float) -> None:
    decoder = begun(spec, embeddings)
    assert rms(decoder.embed_tokens.weight) == pytest.approx(embeddings, rel=0.02)  # of 25,600 numbers
    own = dict(decoder.encoding.named_parameters())
    vectors = own["start"] if "start" in own else own["table"]
    assert rms(vectors) == pytest.approx(embeddings, rel=0.1)  # of 512 numbers or more


def test_xpos_fades_by_its_zeta_over_half_the_trained_length_and_by_its_square_over_all_of_it() -> None:
    pairs = np.arange(16) / 16
    zeta = (pairs + 0.4) / 1.4
    decay = begun("xpos").encoding.at(0).decay
    assert decay is not None
    np.testing.assert_allclose((decay * TRAINED).exp(), zeta**2, rtol=1e-12)
    # Of equal pairs, the share of a logit that is left after L tokens: an integral over p.
    left = float((decay * TRAINED).exp().mean())
    assert left == pytest.approx((1.4**3 - 0.4**3) / (3 * 1.4**2), abs=0.03)  # 0.456


def test_fires_threshold_lies_inside_the_trained_length_and_its_bias_is_seen_beside_content() -> None:
    encoding = begun("fire").encoding.at(0)
    assert encoding.threshold == TRAINED / 4
    # f of 0 against f of 1: 32 terms W2 (relu(w + b) - relu(b)) with all weights uniform, their squares by a grid.
    w, b = np.meshgrid(*[(np.arange(2000) + 0.5) / 1000 - 1] * 2)
    square = ((np.maximum(w + b, 0) - np.maximum(b, 0)) ** 2).mean()
    wide = build.encoding({"name": "fire"}, Shape(vocabulary=9, layers=1, width=4096, heads=4096, kv_heads=4096), 128)
    found = []
    for seed in range(30):
        wide.initialise(torch.Generator().manual_seed(seed))
        ends = wide.at(0).function(torch.tensor([0.0, 1.0])).detach()  # type: ignore[operator]
        found.append(float((ends[:, 1] - ends[:, 0]).square().mean()))
    assert np.mean(found) == pytest.approx(square / 3, rel=0.15)  # Var W2 = 1 / (3 x 32), 32 terms
    assert 2 < math.sqrt(square / 3) / CONTENT < 10


def test_t5s_table_begins_as_t5s_and_reaches_alibis_first_slope_in_a_short_training() -> None:
    encoding = begun("t5").encoding
    assert rms(biases(encoding)) == pytest.approx(128**-0.5, rel=0.3)  # 32 x 4 draws
    assert rms(biases(encoding)) / CONTENT == pytest.approx(1.73, rel=0.3)
    # Adam moves an entry by at most the rate a step: 560 steps at a mean of 0.55 x 2.5e-3, times sqrt(128).
    reach = encoding.gain * 560 * 0.55 * 2.5e-3  # type: ignore[operator]
    alibis = -biases(begun("alibi").encoding)[1, TRAINED - 1]  # 2^-4 x 127
    assert reach == pytest.approx(8.7, rel=0.01) and reach > alibis == pytest.approx(127 / 16)


def test_sandwich_falls_over_the_trained_length_by_the_share_of_its_128_waves_that_turn() -> None:
    depth = -biases(begun("sandwich").encoding)[0, TRAINED - 1]  # 64 waves over 2, the first head's 8 / H
    theta = 10000.0 ** (-np.arange(64) / 64)
    assert float(depth) == pytest.approx((64 - np.cos(127 * theta).sum()) / 2)
    # The integral of 1 - cos over waves even in ln theta is (ln x + Euler's constant) / ln 10000.
    assert float(depth) == pytest.approx(64 * (math.log(127) + np.euler_gamma) / math.log(10000) / 2, rel=0.1)


def test_key_norms_logits_begin_at_the_rms_of_queries_and_cosines_at_4_ln_n_over_sqrt_d() -> None:
    # A key of length 1 among d = 32 dimensions: q . k / |k| has the rms of one dimension of q.
    assert rms(first_logits("key_norm")) == pytest.approx(0.02 * math.sqrt(128), rel=0.1)
    # The cosine of independent vectors has rms 1 / sqrt(d); n = 64 keys on average.
    assert rms(first_logits("cosine")) == pytest.approx(4 * math.log(64) / math.sqrt(32), rel=0.1)


def test_one_step_of_adam_changes_clexs_frequencies_little() -> None:
    encoding = begun("clex").encoding.train()
    before = encoding.stretched(16.0).log()  # type: ignore[operator]
    for sign in (1.0, -1.0):
        encoding.get_parameter("down").data.fill_(sign * 2.5e-3)  # every weight by the rate, all in one direction
        assert float((encoding.stretched(16.0).log() - before).detach().abs().max()) < 0.25  # type: ignore[operator]


def test_newer_parameters_of_old_folders_act_as_before() -> None:
    for name in registry.names("encoding"):
        cls = build.class_of(registry.read("encoding", name))
        assert set(cls.before) <= set(registry.parameters(cls)), name
    old = {"_target_": "lexbench.encodings.cape.Cape", "over": {**registry.read("encoding", "sinusoidal")}}
    spec = build.stored({**build.resolved("shape"), "over": registry.read("encoding", "sinusoidal")})
    decoder = Decoder(SHAPE, build.encoding(spec, SHAPE, TRAINED))
    ones = torch.ones(1, 1, 128)
    embedded = decoder.encoding.embed(ones, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1))
    assert float(embedded[0, 0, 0].detach()) == pytest.approx(math.sqrt(128))  # sin 0 = 0
    assert build.stored(old)["over"]["token_rms"] is None
    before = build.encoding({**build.resolved("sandwich"), "dimension": None, "first": 1}, SHAPE, TRAINED)
    kept = build.encoding(
        build.stored({"_target_": "lexbench.encodings.sandwich.Sandwich", "dimension": None}), SHAPE, 1
    )
    assert torch.equal(biases(before), biases(kept))

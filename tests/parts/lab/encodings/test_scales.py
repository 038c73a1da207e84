"""At which scale positions enter an untrained model, beside its content, against closed forms.

With the initial deviation s = 0.02 of all weights, and inputs of rms 1 after a norm, queries and keys have rms
s sqrt(width), so that logits q . k / sqrt(d) have rms s^2 width: 0.051 at a width of 128.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.core import objects, registry
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.native import attend, build, naming
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape

SHAPE = DecoderShape(vocabulary=200, layers=4, width=128, heads=4, kv_heads=4, hidden=320)
TRAINED, CONTENT = 128, 0.02**2 * 128

pytestmark = pytest.mark.usefixtures("one_thread")


def begun(spec: str | dict[str, object], embeddings: float = 0.02) -> Decoder:
    stated = build.pin_parameters(build.resolve_spec(spec), TRAINED, embeddings)
    decoder = Decoder(SHAPE, build.build_encoding(stated, SHAPE, TRAINED))
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
        one = attend.EncodingAttention(encoding, encoding.attention, q, k, positions)
        found.append(one.logits(0, q.shape[2])[0])
        return one.attention_output(v)

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


DIGITS = {"digits": [5]}
SPECS = (
    *("learned", "floater", {"name": "bipe", "over": "rope", "separators": [3]}),
    *({"name": "abacus", **DIGITS}, {"name": "coupling", **DIGITS}),
)


@pytest.mark.parametrize("embeddings", [0.02, 0.3])
@pytest.mark.parametrize("spec", SPECS)
def test_learned_positions_enter_with_the_rms_of_tokens(spec: str | dict[str, object], embeddings: float) -> None:
    decoder = begun(spec, embeddings)
    assert rms(decoder.embed_tokens.weight) == pytest.approx(embeddings, rel=0.02)  # of 25,600 numbers
    own = dict(decoder.encoding.named_parameters())
    vectors = own["start"] if "start" in own else own["table"]
    assert rms(vectors) == pytest.approx(embeddings, rel=0.1)  # of 512 numbers or more


def test_xpos_fades_by_its_zeta_over_512_tokens_or_over_half_the_trained_length() -> None:
    pairs = np.arange(16) / 16
    zeta = (pairs + 0.4) / 1.4
    decay = begun("xpos").encoding.at(0).decay
    assert decay is not None
    np.testing.assert_allclose((decay * 512).exp(), zeta, rtol=1e-12)
    half = begun({"name": "xpos", "scale_base": None}).encoding.at(0).decay
    assert half is not None
    np.testing.assert_allclose((half * TRAINED).exp(), zeta**2, rtol=1e-12)
    # Of equal pairs, the share of a logit that is left after 2 B tokens: an integral over p.
    left = float((decay * 1024).exp().mean())
    assert left == pytest.approx((1.4**3 - 0.4**3) / (3 * 1.4**2), abs=0.03)  # 0.456


def test_fires_threshold_lies_inside_the_trained_length_and_its_bias_is_seen_beside_content() -> None:
    encoding = begun("fire").encoding.at(0)
    assert encoding.threshold == TRAINED / 4
    # f of 0 against f of 1: 32 terms W2 (relu(w + b) - relu(b)) with all weights uniform, their squares by a grid.
    w, b = np.meshgrid(*[(np.arange(2000) + 0.5) / 1000 - 1] * 2)
    square = ((np.maximum(w + b, 0) - np.maximum(b, 0)) ** 2).mean()
    wide = build.build_encoding(
        {"name": "fire"}, DecoderShape(vocabulary=9, layers=1, width=4096, heads=4096, kv_heads=4096), 128
    )
    found = []
    for seed in range(30):
        wide.initialise(torch.Generator().manual_seed(seed))
        ends = wide.at(0).bias_of_share(torch.tensor([0.0, 1.0])).detach()  # type: ignore[operator]
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


@pytest.mark.parametrize(
    ("name", "still"),
    [("rope", 0), ("xpos", 0), ("coca", 0), ("clex", 0), ("p_rope", 4), ("hope", 10), ("fope", None)],
)
def test_six_of_sixteen_pairs_turn_fully_within_the_trained_length(name: str, still: int | None) -> None:
    # 10000^(-p/16) 128 >= 2 pi up to p = 16 ln(128 / 2 pi) / ln 10000 = 5.24; FoPE has no others
    frequencies = begun(name).encoding.at(0).inv_freq
    assert isinstance(frequencies, Tensor)
    assert int((frequencies * TRAINED >= 2 * math.pi).sum()) == 6
    assert len(frequencies) == (6 if still is None else 16)
    assert int((frequencies == 0).sum()) == (still or 0)


def test_complex_keeps_the_rms_of_tokens_and_turns_as_sinusoids_do() -> None:
    decoder = begun("complex", 0.3)
    tokens = torch.full((1, TRAINED), 7)
    embedded = decoder.embed_tokens(tokens)
    found = decoder.encoding.embed(embedded, tokens, torch.arange(TRAINED, dtype=torch.float64)).detach().double()
    assert rms(found) == pytest.approx(rms(embedded), rel=1e-6)
    # The embedding at place n against that at 0: pairs of random length, so the mean over pairs is of cos(n theta).
    alike = (found[0] @ found[0, 0]) / found[0, 0].square().sum()
    theta = 10000.0 ** (-np.arange(64) / 64)
    expected = np.cos(np.arange(TRAINED)[:, None] * theta).mean(1)
    np.testing.assert_allclose(alike, expected, atol=0.25)  # one token of 64 pairs: weights of relative deviation 1/8
    assert float((alike - torch.from_numpy(expected)).mean().abs()) < 0.1


def test_floaters_path_moves_over_the_trained_length_by_about_as_much_as_it_begins_with() -> None:
    decoder = begun("floater", 0.3)
    tokens = torch.zeros(1, TRAINED, dtype=torch.long)
    decoder.encoding.embed(decoder.embed_tokens(tokens), tokens, torch.arange(TRAINED, dtype=torch.float64))
    path = decoder.encoding.path
    assert isinstance(path, Tensor)
    # Glorot: variance 2 / (128 + 129). Starts of deviation 0.3 give units of mean square 128 v 0.09, a relu half of it.
    variance = 2 / 257
    speed = math.sqrt(128 * variance * (128 * variance * 0.09) / 2)  # 0.21 a unit of time, 100 tokens
    assert rms(path[1] - path[0]) == pytest.approx(0.01 * speed, rel=0.15)
    assert 0.5 < rms(path[-1] - path[0]) / (1.27 * speed) < 2
    assert 0.5 < rms(path[-1] - path[0]) / rms(path[0]) < 2


def test_shaws_keys_begin_at_a_tenth_of_content_and_its_values_at_a_tenth_of_values() -> None:
    encoding = begun("shaw").encoding.at(0)
    queries = 0.02 * math.sqrt(128) * torch.randn(1, 4, TRAINED, 32, generator=torch.Generator().manual_seed(0))
    places, seen = torch.arange(TRAINED, dtype=torch.float64), torch.ones(TRAINED, TRAINED, dtype=torch.bool).tril()
    added = encoding.rescore(torch.zeros(1, 4, TRAINED, TRAINED), seen, queries, places, places)
    # q . a / sqrt(d): s sqrt(width) times s, where content has s sqrt(width) twice.
    assert rms(added[..., 16, :17]) == pytest.approx(CONTENT / math.sqrt(128), rel=0.3)  # one query of each head
    values = 0.02 * math.sqrt(128) * torch.randn(1, 4, TRAINED, 32, generator=torch.Generator().manual_seed(1))
    logits = torch.full((1, 4, 1, TRAINED), -torch.inf)
    logits[..., -1] = 0  # all weight on the own token
    mixed = encoding.mix(logits, values, places[-1:], places)
    assert rms(mixed - values[:, :, -1:]) == pytest.approx(0.02, rel=0.4)  # b_0, 32 numbers
    assert rms(values) == pytest.approx(0.02 * math.sqrt(128), rel=0.05)


def test_kerple_and_tisa_begin_at_the_depths_of_their_drawn_weights() -> None:
    wide = DecoderShape(vocabulary=9, layers=1, width=4096, heads=4096, kv_heads=4096, hidden=8)

    def mean(name: str) -> Tensor:
        encoding = build.build_encoding(name, wide, TRAINED)
        encoding.initialise(torch.Generator().manual_seed(0))
        return biases(encoding).mean(0)

    # p of mean 1; the integral of ln(1 + a n) over a in [0, 1] is ((1 + n) ln(1 + n) - n) / n: 3.89 nats.
    assert float(mean("kerple")[-1]) == pytest.approx(-(128 * math.log(128) - 127) / 127, rel=0.05)
    # 5 Gaussians of height 0.1 at r ~ N(0, 5): E e^(-0.1 r^2) = 1 / sqrt(1 + 2 x 0.1 x 25); none near L.
    assert float(mean("tisa")[0]) == pytest.approx(0.5 / math.sqrt(6), rel=0.05)
    assert float(mean("tisa")[-1]) == pytest.approx(0, abs=1e-6)


def test_copes_gates_begin_at_a_half_so_that_its_table_covers_the_trained_length() -> None:
    encoding, seen = begun("cope").encoding.at(0), torch.ones(TRAINED, TRAINED, dtype=torch.bool).tril()
    places = encoding.gate_distances(torch.zeros(1, 1, TRAINED, TRAINED), seen)[0, 0]  # type: ignore[operator]
    # The key n tokens before the query is (n + 1) / 2 away, the first of 128 at 64: its table of 64 ends there.
    np.testing.assert_allclose(places[-1].flip(0), np.minimum((np.arange(TRAINED) + 1) / 2, 63))
    assert rms(next(encoding.parameters())) == 0  # no positions at first


@pytest.mark.slow
def test_dapes_network_changes_a_bias_by_a_sixth_at_first() -> None:
    found, shape = [], DecoderShape(vocabulary=9, layers=1, width=32, heads=1, kv_heads=1, hidden=8)
    for seed in range(200):
        encoding = build.build_encoding({"name": "dape", "over": "alibi"}, shape, TRAINED)
        encoding.initialise(torch.Generator().manual_seed(seed))
        far = torch.tensor([1e7], dtype=torch.float64)  # ALiBi's bias there, -39,062, is far above all others
        seen, zero = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, 1, 1)
        changed = encoding.at(0).rescore(zero, seen, zero, far, torch.zeros(1, dtype=torch.float64))
        found.append(float(changed.detach()) / (-1e7 / 256) - 1)
    # 32 hidden units, half of them active: 32 x (1/96) x (1/2) x (1/6), weights uniform up to 32^-0.5 and 2^-0.5.
    assert math.sqrt(np.mean(np.square(found))) == pytest.approx(1 / 6, rel=0.2)


def test_gates_begin_at_a_fixed_loss_of_weight_a_token() -> None:
    # Gates' logits z are sums over the normed input of rms 1: deviation s sqrt(width).
    normed = torch.randn(4, 4096, 128, generator=torch.Generator().manual_seed(0))
    deviation = 0.02 * math.sqrt(128)

    def mean(name: str) -> float:
        gates = begun(name).encoding.at(0).gates(normed)
        assert gates is not None
        return float(gates[..., : 1 if name != "gla" else 32].detach().mean())

    # E ln(1 + e^z) = ln 2 + var / 8 + ..; E max(0, z) = deviation / sqrt(2 pi)
    assert mean("fox") == pytest.approx(-(math.log(2) + deviation**2 / 8), rel=0.01)
    assert mean("cable") == pytest.approx(-deviation / math.sqrt(2 * math.pi), rel=0.05)
    gates = begun("cable").encoding.at(0).gates(normed)
    assert gates is not None
    assert float(gates[..., 1].detach().mean()) == pytest.approx(math.log(2) + deviation**2 / 8, rel=0.01)
    # ln alpha = ln sigmoid / 16: alpha 0.958, so that over 128 tokens e^-5.5 is left.
    assert mean("gla") == pytest.approx(-math.log(2) / 16, rel=0.05)


def test_stick_breaking_begins_by_halving_and_ssmax_by_a_mean_factor_of_1() -> None:
    seen, places = torch.ones(TRAINED, TRAINED, dtype=torch.bool).tril(), torch.arange(TRAINED, dtype=torch.float64)
    zero = torch.zeros(1, 1, TRAINED, TRAINED)
    logs = begun("stick_breaking").encoding.at(0).rescore(zero, seen, zero, places, places)[0, 0, -1]
    np.testing.assert_allclose(logs[:-1].flip(0), -math.log(2) * np.arange(1, TRAINED), rtol=1e-5)  # weights 2^-n
    queries = torch.ones(1, 4, TRAINED, 32)
    factors = begun("ssmax").encoding.at(0).prepare(queries, queries)[0][0, 0, :, 0].detach()
    assert float(factors.mean()) == pytest.approx(1, rel=1e-5)
    assert float(factors[-1]) == pytest.approx(math.log(128) / np.log(np.arange(1, 129)).mean(), rel=1e-5)  # 1.25


def test_qk_norm_begins_far_above_plain_content() -> None:
    # 32 products of two numbers of rms 1, over sqrt(32); cosines of rms 1 / sqrt(32) times log2(128^2 - 128).
    assert rms(first_logits("qk_norm")) == pytest.approx(1, rel=0.1)
    assert rms(first_logits({"name": "qk_norm", "form": "l2"})) == pytest.approx(
        math.log2(128**2 - 128) / math.sqrt(32), rel=0.1
    )


def test_drawn_positions_reach_as_far_as_longer_texts_are_asked() -> None:
    tokens, generator = torch.zeros(200, TRAINED, dtype=torch.long), torch.Generator().manual_seed(0)
    randomized = begun({"name": "randomized", "over": "rope"}).encoding
    drawn = torch.stack([randomized.positions(tokens[:1], TRAINED, generator) for _ in range(200)])
    # The largest of 128 of 2048 places: 128 x 2049 / 129 - 1; neighbours are 2049 / 129 = 15.9 apart.
    assert float(drawn.max(-1).values.mean()) == pytest.approx(128 * 2049 / 129 - 1, rel=0.01)
    assert float(drawn.diff().mean()) == pytest.approx(2049 / 129, rel=0.02)
    skipped = begun({"name": "pose", "over": "rope"}).encoding.positions(tokens, TRAINED, generator)
    assert float(skipped[:, -1].mean()) == pytest.approx(127 + (1024 - 128) / 2, rel=0.1)  # u ~ U{0 .. 896}


def test_one_step_of_adam_changes_clexs_frequencies_little() -> None:
    encoding = begun("clex").encoding.train()
    before = encoding.frequencies_at(16.0).log()  # type: ignore[operator]
    for sign in (1.0, -1.0):
        encoding.get_parameter("down").data.fill_(sign * 2.5e-3)  # every weight by the rate, all in one direction
        assert float((encoding.frequencies_at(16.0).log() - before).detach().abs().max()) < 0.25  # type: ignore[operator]


def test_a_folder_trained_with_xpos_before_keeps_half_its_trained_length() -> None:
    """Its spec has scale_base null; one from before the parameter has none. The paper's base is 4 times as far."""
    zeta = (np.arange(16) / 16 + 0.4) / 1.4
    old = {"_target_": "lexbench.parts.lab.encodings.xpos.Xpos", "base": 10000.0, "gamma": 0.4, "trained_length": 256}
    for stored in ({**old, "scale_base": None}, old):
        loaded = build.build_encoding(build.update_stored_spec(stored), SHAPE, 2 * TRAINED).decay
        assert loaded is not None
        np.testing.assert_allclose((loaded * 128).exp(), zeta, rtol=1e-12)
    going_on = naming.continue_spec("xpos", build.update_stored_spec(old))
    assert going_on["scale_base"] is None
    new = build.resolve_spec("xpos")
    assert new["scale_base"] == 512
    assert naming.continue_spec({"name": "xpos", "scale_base": None}, new)["scale_base"] is None
    # By the label that its record was hashed with, the same training is known again; the paper's base is another.
    half = build.resolve_spec({"name": "xpos", "scale_base": None})
    assert naming.encoding_label(half, former=True) == "xpos" == naming.encoding_label(new)
    assert naming.encoding_label(half) == "xpos(scale_base=None)"


def test_newer_parameters_of_old_folders_act_as_before() -> None:
    for name in registry.registered_names("encoding"):
        cls = build.encoding_class(registry.read_named_config("encoding", name))
        assert set(cls.before) <= set(objects.class_parameters(cls)), name
    old = {
        "_target_": "lexbench.parts.lab.encodings.cape.Cape",
        "over": {**registry.read_named_config("encoding", "sinusoidal")},
    }
    spec = build.update_stored_spec(
        {**build.resolve_spec("shape"), "over": registry.read_named_config("encoding", "sinusoidal")}
    )
    decoder = Decoder(SHAPE, build.build_encoding(spec, SHAPE, TRAINED))
    ones = torch.ones(1, 1, 128)
    embedded = decoder.encoding.embed(ones, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1))
    assert float(embedded[0, 0, 0].detach()) == pytest.approx(math.sqrt(128))  # sin 0 = 0
    assert build.update_stored_spec(old)["over"]["token_rms"] is None
    before = build.build_encoding({**build.resolve_spec("sandwich"), "dimension": None, "first": 1}, SHAPE, TRAINED)
    kept = build.build_encoding(
        build.update_stored_spec({"_target_": "lexbench.parts.lab.encodings.sandwich.Sandwich", "dimension": None}),
        SHAPE,
        1,
    )
    assert torch.equal(biases(before), biases(kept))

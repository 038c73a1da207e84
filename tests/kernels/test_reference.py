"""Attention weights of the definition, against transformers' rotation and hand calculations."""

import math

import numpy as np
import pytest
import torch
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as apply_interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_half

import lexbench
from lexbench import Attention, Model
from lexbench.core.attention import ConstantScale, HeadRatios, LogScale, PositionMap, Remap, Slopes, Window
from lexbench.kernels.reference import Angles, attention_weights, first_change

INV_FREQ = np.array([1.0, 0.1])
RNG = np.random.default_rng(0)
QUERY, KEYS = RNG.standard_normal(6), RNG.standard_normal((9, 6))  # two pairs, and two dimensions that stay
PLAIN = Angles(INV_FREQ)


def transformers_weights(layout: str, place: int, scale: float = 1.0) -> np.ndarray:
    """What a stock model of that layout gives one query, in float64."""
    places = torch.arange(9.0, dtype=torch.float64)
    angles = places[:, None] * torch.from_numpy(INV_FREQ)
    both = torch.cat([angles, angles], dim=-1) if layout == "half" else angles.repeat_interleave(2, dim=-1)
    if layout == "interleaved":  # glm takes the first half of cos and repeats it itself
        both = torch.cat([angles, angles], dim=-1)
    cos, sin = both.cos()[None] * scale, both.sin()[None] * scale
    apply = apply_half if layout == "half" else apply_interleaved
    vectors = torch.from_numpy(np.concatenate([KEYS, np.tile(QUERY, (9, 1))])).reshape(2, 1, 9, 6)
    turned, _ = apply(vectors[..., :4], vectors[:, :0, :, :4], cos, sin)
    turned = torch.cat([turned, vectors[..., 4:]], dim=-1)
    logits = (turned[0, 0, : place + 1] @ turned[1, 0, place]).numpy() / math.sqrt(6)
    powers = np.exp(logits - logits.max())
    return np.asarray(np.concatenate([powers / powers.sum(), np.zeros(8 - place)]))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("place", [0, 4, 8])
def test_an_empty_attention_is_the_stock_model(layout: str, place: int) -> None:
    got = attention_weights(Attention(), Angles(INV_FREQ, 1.0, layout), QUERY, KEYS, place, 6**-0.5)
    np.testing.assert_allclose(got, transformers_weights(layout, place), atol=1e-12)


def test_the_scale_of_cos_and_sin_leaves_other_dimensions_alone() -> None:
    got = attention_weights(Attention(scale=1.5), PLAIN, QUERY, KEYS, 8, 6**-0.5)
    np.testing.assert_allclose(got, transformers_weights("half", 8, scale=1.5), atol=1e-12)


def one_pair(attention: Attention, place: int, ratio: float = 1.0) -> np.ndarray:
    """Weights of unit vectors in one pair of 1 radian a token: logits are the cosine of the distance."""
    unit = np.array([1.0, 0.0])
    return attention_weights(attention, Angles(np.array([1.0])), unit, np.tile(unit, (6, 1)), place, 1.0, 0, ratio)


def softmax(logits: list[float]) -> np.ndarray:
    return np.asarray(np.exp(logits) / np.exp(logits).sum())


@pytest.mark.parametrize(
    ("attention", "logits"),
    [
        (Attention(), [math.cos(5 - j) for j in range(6)]),
        (Attention(inv_freq=np.array([0.25])), [math.cos((5 - j) / 4) for j in range(6)]),
        (
            Attention(remap=Remap(3, PositionMap(math.inf, 3), PositionMap(math.inf))),
            [math.cos(min(5 - j, 3)) for j in range(6)],
        ),
        (Attention(mask=Window(2, sinks=1)), [math.cos(5), -math.inf, -math.inf, -math.inf, math.cos(1), 1]),
        (Attention(bias=Slopes((0.5,))), [math.cos(5 - j) - (5 - j) / 2 for j in range(6)]),
        (Attention(query_scale=LogScale(3)), [math.cos(5 - j) * math.log(6) / math.log(3) for j in range(6)]),
        (Attention(query_scale=ConstantScale(1.5, begin=5)), [math.cos(5 - j) * 1.5 for j in range(6)]),
        (Attention(query_scale=ConstantScale(1.5, begin=6)), [math.cos(5 - j) for j in range(6)]),
        # Keys 0 and 1 stand at 1 radian a token, all later tokens at 2.
        (
            Attention(inv_freq=np.array([2.0]), keep_first=2),
            [math.cos(10), math.cos(10 - 1), *(math.cos(10 - 2 * j) for j in range(2, 6))],
        ),
    ],
)
def test_each_slot_is_its_term_of_the_formula(attention: Attention, logits: list[float]) -> None:
    np.testing.assert_allclose(one_pair(attention, 5), softmax(logits), atol=1e-12)


def test_a_heads_ratio_divides_its_positions() -> None:
    got = one_pair(Attention(head_ratios=HeadRatios((2.0,))), 5, ratio=2.0)
    np.testing.assert_allclose(got, softmax([math.cos((5 - j) / 2) for j in range(6)]), atol=1e-12)


MODEL = Model(name="m", trained_length=64, head_dim=8, rope_base=10_000.0)


@pytest.mark.parametrize(
    ("method", "parameters", "length", "expected"),
    [
        ("none", {}, 1000, None),
        ("pi", {}, 64, None),
        ("pi", {}, 65, 1),
        ("yarn", {"factor": 1}, 1000, None),
        ("log_n", {}, 64, None),
        ("log_n", {}, 200, 128),  # the first multiplier above 1 is the query's at 64, found at the next power of two
        ("qk_gain", {}, 64, None),
        ("qk_gain", {"gain": 1.3}, 200, 128),  # the query at 64 is the first beyond
        ("qk_gain", {"gain": 1.3, "everywhere": True}, 200, 1),
        ("qk_gain", {"gain": 1.0, "everywhere": True}, 200, None),
        ("rerope", {"window": 32}, 33, None),  # the largest distance is the window itself
        ("rerope", {"window": 32}, 34, 34),
        ("rerope", {"window": 32}, 500, 64),
    ],
)
def test_the_first_change_is_where_the_text_leaves_the_model(
    method: str, parameters: dict[str, int], length: int, expected: int | None
) -> None:
    attention = lexbench.method(method, **parameters).attention(MODEL, length)
    assert first_change(attention, MODEL, length) == expected


def test_a_change_in_some_layers_or_in_one_pass_is_a_change() -> None:
    window = Attention(mask=Window(16))
    assert first_change(Attention(mask=Window(16), layers=(1,)), MODEL, 100) == 32
    assert first_change(Attention(layers=(1,), otherwise=window), MODEL, 100) == 32
    assert first_change(Attention(mixture=(Attention(), window)), MODEL, 100) == 32
    assert first_change(Attention(mixture=(Attention(), Attention())), MODEL, 100) is None

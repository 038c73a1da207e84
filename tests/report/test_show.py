"""What `lexbench show` says of a method, against numbers worked out by hand."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from lexbench import Attention, Model, method
from lexbench.core.attention import (
    Bands,
    Blocks,
    Chunks,
    Dynamic,
    HeadRatios,
    LogScale,
    PositionMap,
    Positions,
    Region,
    Remap,
    Slopes,
    Stairs,
    Window,
    seen_distances,
)
from lexbench.methods.scaled import attention_of
from lexbench.report.show import table

TINY = Model(name="tiny", trained_length=16, head_dim=8, rope_base=10_000.0, layers=4)
LLAMA2 = Model(name="Llama-2", trained_length=4096, head_dim=128, rope_base=10_000.0)
SCALED = Model(
    name="scaled", trained_length=128, head_dim=8, rope_base=1e4, rope_scaling={"rope_type": "llama3", "factor": 8.0}
)
LAYERED = Model(name="layered", trained_length=128, head_dim=8, rope_scaling={"full_attention": {}})
LEARNED = Model(name="learned", trained_length=11, head_dim=16)
GROUPED = Remap(window=4, query=PositionMap(divisor=2, offset=2, floor=True), key=PositionMap(divisor=2, floor=True))
"""Self-Extend (arXiv 2401.01325) of window 4 and groups of 2."""
BANDED = Remap(
    4,
    Bands((PositionMap(divisor=2, offset=2, floor=True), PositionMap())),
    Bands((PositionMap(divisor=2, floor=True), PositionMap())),
)
"""The same for half of the pairs (DPE, arXiv 2504.18857)."""
EVERYTHING = Attention(
    inv_freq=np.array([0.5, 0.05, 0.005, 0.0]),
    scale=1.5,
    query_scale=LogScale(trained_length=16),
    remap=GROUPED,
    mask=Window(size=8, sinks=2),
    bias=Slopes((0.5, 0.25)),
    layers=(1, 3),
)


def test_pairs_are_those_of_the_formula() -> None:
    attention = Attention(inv_freq=np.array([1, 0.1, 0.01, 0.001]) / [1, 2, 4, 4])
    data = table.attention_data(TINY, "made up", attention, 64)
    assert data["multiple"] == 4.0
    assert [pair["pair"] for pair in data["pairs"]] == [0, 1, 2, 3]
    assert [pair["radians_per_token"] for pair in data["pairs"]] == pytest.approx([1, 0.05, 0.0025, 0.00025])
    turn = 2 * math.pi
    assert [pair["wavelength"] for pair in data["pairs"]] == pytest.approx([turn, 20 * turn, 400 * turn, 4000 * turn])
    # 16 tokens turn the first pair by 16 radians
    assert [pair["turns"] for pair in data["pairs"]] == pytest.approx(
        [16 / turn, 0.8 / turn, 0.04 / turn, 0.004 / turn]
    )
    assert [pair["slower"] for pair in data["pairs"]] == pytest.approx([1, 2, 4, 4])


def test_the_last_pair_under_yarn_is_slower_by_the_factor_and_logits_sharper_by_the_papers_temperature() -> None:
    data = table.attention_data(LLAMA2, "yarn(factor=8)", method("yarn", factor=8).attention(LLAMA2, 32768), 32768)
    assert (data["pairs"][0]["slower"], data["pairs"][63]["slower"]) == pytest.approx((1, 8))
    assert data["scale"] == pytest.approx(0.1 * math.log(8) + 1)
    # YaRN, arXiv 2309.00071, eq. 22: 1 / t = (0.1 ln s + 1)^2
    assert data["logits_factor"] == pytest.approx((0.1 * math.log(8) + 1) ** 2)


def test_without_a_method_the_pairs_are_the_models_own() -> None:
    data = table.attention_data(TINY, "none", Attention(), 16)
    assert [pair["radians_per_token"] for pair in data["pairs"]] == pytest.approx([1, 0.1, 0.01, 0.001])
    assert {pair["slower"] for pair in data["pairs"]} == {1.0}
    assert (data["scale"], data["distances"], data["query_scales"], data["attention"]) == (1.0, None, None, {})


def test_a_pair_that_never_turns_has_no_wavelength() -> None:
    still = table.attention_data(TINY, "made up", EVERYTHING, 64)["pairs"][3]
    assert still == {"pair": 3, "radians_per_token": 0.0, "wavelength": None, "turns": 0.0, "slower": None}


def test_the_last_query_sees_distances_through_the_remap() -> None:
    # Query 9 rotates at 9 // 2 + 2 = 6; keys 6, 5, 4, 3, 0 are 3 .. 9 before it and rotate at 3, 2, 2, 1, 0.
    keys = np.array([9, 6, 5, 4, 3, 0])
    np.testing.assert_array_equal(seen_distances(GROUPED, np.array([9]), keys), [[0, 3, 4, 4, 5, 6]])


def test_a_distance_of_the_window_itself_is_far() -> None:
    halved = Remap(window=4, query=PositionMap(divisor=2, offset=4), key=PositionMap(divisor=2))
    # Query 9 rotates at 8.5 and key 5 at 2.5.
    np.testing.assert_array_equal(seen_distances(halved, np.array([9]), np.array([6, 5])), [[3, 6]])


def test_rerope_never_sees_beyond_its_window() -> None:
    data = table.attention_data(LLAMA2, "rerope", method("rerope", window=1000).attention(LLAMA2, 16384), 16384)
    seen = {row["distance"]: row["seen_as"] for row in data["distances"]}
    assert {distance: min(distance, 1000) for distance in seen} == seen
    assert {0, 1, 999, 1000, 1001, 16383} <= seen.keys()


def test_query_scales_are_logarithms_to_the_base_of_the_trained_length() -> None:
    data = table.attention_data(TINY, "log_n", method("log_n").attention(TINY, 256), 256)
    scales = {row["position"]: row["factor"] for row in data["query_scales"]}
    assert (scales[0], scales[15], scales[255]) == pytest.approx((1, 1, 2))


@pytest.mark.parametrize("model", [TINY, SCALED, LAYERED, LEARNED], ids=lambda model: model.name)
@pytest.mark.parametrize("length", [1, 16, 300])
def test_everything_shown_is_json(model: Model, length: int) -> None:
    for attention in (Attention(), EVERYTHING):
        data = table.attention_data(model, "made up", attention, length)
        assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_table_has_a_row_a_pair_and_names_every_slot() -> None:
    text = table.attention_table(TINY, "made up", EVERYTHING, 64)
    assert text.startswith("**tiny** under **made up** at 64 tokens (4 times the trained 16)")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["pair", "radians per token", "wavelength (tokens)", "turns in 16", "times slower"]
    assert rows[2] == ["0", "0.5", "12.57", "1.273", "2"]  # 4 pi, 8 / 2 pi
    assert rows[5] == ["3", "0", "-", "0", "-"]
    assert len(rows) == 6
    assert "scale: cos and sin times 1.5, so logits times 2.25" in text
    assert re.search(r"query_scale: queries times 1 at 0, .* 1 at 15, .* 1\.5 at 63", text)  # ln 64 / ln 16
    # Query 63 rotates at 33; keys 59, 58, 55 at 29, 29, 27.
    assert re.search(
        r"remap: distances from 4 on .* the last query sees distances 0 as 0, .* 4 as 4, 5 as 4, 8 as 6", text
    )
    assert "mask: a query sees the last 8 keys, itself counted and the first 2" in text
    assert "bias: 2 heads lose 0.25 to 0.5 of their logits per token" in text
    assert "layers: only 1, 3 of 4" in text
    assert text.splitlines()[-1] == "- the model's own: keep_first, head_ratios, dynamic, growing, cache"


def test_slots_left_alone_are_said_to_be_the_models_own() -> None:
    text = table.attention_table(TINY, "pi", method("pi").attention(TINY, 64), 64)
    assert "Rotary pairs as the method sets them" in text
    assert text.splitlines()[-1] == (
        "- the model's own: scale, keep_first, head_ratios, dynamic, growing, query_scale, remap, mask, bias, cache"
    )
    assert "Rotary pairs of the model itself" in table.attention_table(TINY, "none", Attention(), 16)
    assert "at 16 tokens (as trained)" in table.attention_table(TINY, "none", Attention(), 16)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (Attention(keep_first=4, inv_freq=np.ones(4)), "keep_first: the first 4 tokens turn as in the model itself"),
        (Attention(head_ratios=HeadRatios((1.2, 1.8))), "head_ratios: positions divided by 1.2, 1.8, by key head"),
        (Attention(dynamic=Dynamic(2.0, 16)), "dynamic: the base follows the longest input past 16, rate 2"),
        (Attention(mask=Blocks(8)), "mask: a query sees its own block of 8 keys and the one before"),
        (Attention(remap=Chunks(12, 16)), "every 12 tokens, older chunks are seen from 16 at most"),
        (
            Attention(remap=BANDED),
            "remap: distances from 4 on are changed, in each of 2 bands of pairs; the last query",
        ),
        # Query 63 rotates at 63 // 2 + 2 = 33 and 63; keys 58 and 0 at 29 and 0, and at 58 and 0.
        (Attention(remap=BANDED), "4 as 4, 5 as 4/5, "),
        (Attention(remap=BANDED), "63 as 33/63"),
        (Attention(remap=Stairs(((8, 1), (4, 3)))), "distances grow in 8 steps of 1, 4 steps of 3 tokens"),
        (
            Attention(mask=Window(8), layers=(1,), otherwise=Attention(mask=Blocks(4))),
            "other layers: mask: a query sees",
        ),
        (Attention(mixture=(Attention(mask=Window(8)), Attention(inv_freq=np.ones(4)))), "pass 1: mask: a query sees"),
        (Attention(mixture=(Attention(mask=Window(8)), Attention(inv_freq=np.ones(4)))), "pass 2: inv_freq, 1 radians"),
    ],
)
def test_every_slot_is_told_in_a_line(attention: Attention, said: str) -> None:
    assert said in table.attention_table(TINY, "made up", attention, 64)
    json.dumps(table.attention_data(TINY, "made up", attention, 64), allow_nan=False)


def test_layers_that_a_method_changes_are_told_before_those_that_it_leaves() -> None:
    """Layers as in Gemma 3, the first with a window: the pairs of the global one, 100^(-2p/8) / 2 by hand."""
    kinds = {name: {"rope_type": "default", "rope_theta": base} for name, base in (("full", 100.0), ("sliding", 10.0))}
    model = replace(
        TINY,
        rope_base=None,
        rope_scaling={f"{name}_attention": kind for name, kind in kinds.items()},
        layer_types=("sliding_attention", "sliding_attention", "full_attention"),
        layers=3,
    )
    attention = attention_of(method("pi"), model, 32)  # twice the trained length
    data = table.attention_data(model, "pi", attention, 32)
    assert [row["radians_per_token"] for row in data["pairs"]] == pytest.approx(
        [100 ** (-2 * pair / 8) / 2 for pair in range(4)]
    )
    assert data["attention"] == attention.as_data()
    text = table.attention_table(model, "pi", attention, 32)
    assert "Rotary pairs as the method sets them" in text and "they stay so" not in text
    assert "- layers: only 2 of 3\n-   other layers: the model's own" in text
    assert "the model's own: scale" in text


@dataclass(frozen=True)
class Odd:
    """A mask of a method's own class: only keys at odd distances."""

    def allowed(self, queries: Positions, keys: Positions) -> NDArray[np.bool_]:
        return np.asarray((queries[:, None] - keys[None, :]) % 2 == 1)


@dataclass(frozen=True)
class Halved:
    """A remap of a method's own class: every distance is seen as its half."""

    def regions(self) -> Sequence[Region]:
        return (Region(PositionMap(2.0), PositionMap(2.0), lambda i, j: i >= j),)


def test_slots_of_a_methods_own_classes_are_named() -> None:
    attention = Attention(mask=Odd(), remap=Halved())  # type: ignore[arg-type]
    lines = list(table.slot_lines(TINY, attention, table.attention_data(TINY, "own", attention, 16)))
    assert lines[0].startswith("remap: Halved(); the last query sees distances 0 as 0, 1 as 0.5, 2 as 1, ")
    assert lines[1] == "mask: a query sees the keys that Odd() allows"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (SCALED, "scales its angles itself (llama3)"),
        (LAYERED, "scales its angles itself (each kind of layers its own way)"),
        (LEARNED, "has no rotary positions"),
    ],
)
def test_a_model_without_plain_frequencies_is_described_in_words(model: Model, said: str) -> None:
    assert table.attention_data(model, "none", Attention(), 64)["pairs"] is None
    text = table.attention_table(model, "none", Attention(), 64)
    assert said in text
    assert "|" not in text

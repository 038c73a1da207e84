"""The slots of an Attention against definitions computed by hand."""

import json
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from lexbench import Attention
from lexbench.core.attention import (
    Bands,
    Blocks,
    Chunks,
    Dynamic,
    Growing,
    HeadRatios,
    LogScale,
    PositionMap,
    Remap,
    Remapping,
    Slopes,
    SlotError,
    Stairs,
    StepScale,
    Window,
    seen_distances,
)

POSITIONS = np.arange(6)


def test_a_line_divides_floors_and_shifts() -> None:
    np.testing.assert_array_equal(PositionMap()(POSITIONS), [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(PositionMap(divisor=2, offset=10)(POSITIONS), [10, 10.5, 11, 11.5, 12, 12.5])
    np.testing.assert_array_equal(PositionMap(divisor=2, offset=10, floor=True)(POSITIONS), [10, 10, 11, 11, 12, 12])


def test_a_line_of_infinite_divisor_is_constant() -> None:
    for floor in (False, True):
        np.testing.assert_array_equal(PositionMap(divisor=math.inf, offset=7, floor=floor)(POSITIONS), [7] * 6)


def test_log_scale_counts_keys_in_units_of_the_trained_length() -> None:
    # Query i sees i + 1 keys: sqrt(16) = 4 keys give 1/2, 16 give 1, 16^2 give 2.
    positions = np.array([0, 3, 15, 255])
    np.testing.assert_allclose(LogScale(trained_length=16, clip=False)(positions), [0, 0.5, 1, 2], atol=1e-15)
    np.testing.assert_allclose(LogScale(trained_length=16)(positions), [1, 1, 1, 2], rtol=1e-15)


def test_a_window_holds_the_query_itself_and_the_sinks() -> None:
    allowed = Window(size=2, sinks=1).allowed(POSITIONS[:4], POSITIONS[:4]) & np.tri(4, dtype=bool)
    np.testing.assert_array_equal(allowed, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]])


def test_a_slope_takes_away_in_proportion_to_distance() -> None:
    bias = Slopes((0.5, 0.25))(np.array([3]), np.array([0, 1, 3]))
    np.testing.assert_array_equal(bias, [[[-1.5, -1.0, 0.0]], [[-0.75, -0.5, 0.0]]])


def test_an_attention_keeps_its_own_frozen_copy_of_the_frequencies() -> None:
    given = np.array([1.0, 0.5])
    attention = Attention(inv_freq=given)
    given[0] = 9
    assert attention.inv_freq is not None
    assert attention.inv_freq.tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        attention.inv_freq[0] = 2


def test_an_empty_attention_uses_no_slot() -> None:
    assert Attention().slots() == ()
    assert Attention().as_data() == {}


def test_the_last_bits_of_frequencies_which_differ_between_processors_name_no_other_cell() -> None:
    # yarn's fourth frequency on SmolLM2, from a processor with AVX-512 and from one without
    here, there = (Attention(inv_freq=np.array([1.0, each])) for each in (0.3398208328942559, 0.33982083289425596))
    assert here.as_data() == there.as_data() == {"inv_freq": [1.0, 0.339820832894]}
    assert Attention(inv_freq=np.array([1.0, 0.33982083289])).as_data() == {"inv_freq": [1.0, 0.33982083289]}


def test_an_attention_is_plain_json_that_names_the_kind_of_every_slot() -> None:
    attention = Attention(
        inv_freq=np.array([1.0, 0.1]),
        scale=1.5,
        query_scale=LogScale(trained_length=16),
        remap=Remap(window=4, query=PositionMap(divisor=math.inf, offset=4), key=PositionMap(divisor=math.inf)),
        mask=Window(size=8, sinks=2),
        bias=Slopes((0.5,)),
        layers=(0, 2),
    )
    constant = {"divisor": "inf", "floor": False, "cap": "inf"}
    assert json.loads(json.dumps(attention.as_data(), allow_nan=False)) == {
        "inv_freq": [1.0, 0.1],
        "scale": 1.5,
        "query_scale": {"kind": "LogScale", "trained_length": 16, "clip": True},
        "remap": {
            "kind": "Remap",
            "window": 4,
            "query": {**constant, "offset": 4},
            "key": {**constant, "offset": 0.0},
        },
        "mask": {"kind": "Window", "size": 8, "sinks": 2},
        "bias": {"kind": "Slopes", "slopes": [0.5]},
        "layers": [0, 2],
    }


def test_a_line_stops_at_its_cap() -> None:
    np.testing.assert_array_equal(PositionMap(cap=3)(POSITIONS), [0, 1, 2, 3, 3, 3])
    # min(t / divisor + offset, cap): the cap holds for what comes out, offset and all.
    np.testing.assert_array_equal(PositionMap(divisor=2, offset=1, cap=2)(POSITIONS), [1, 1.5, 2, 2, 2, 2])
    np.testing.assert_array_equal(PositionMap(divisor=2, floor=True, cap=1.5)(POSITIONS), [0, 0, 1, 1, 1.5, 1.5])


def seen(remap: Remapping, length: int) -> list[list[float | None]]:
    """Distances of a whole text; None if the key comes after the query."""
    positions = np.arange(length)
    found = seen_distances(remap, positions, positions)
    return [[None if np.isnan(x) else x for x in row] for row in found.tolist()]


def test_a_remap_changes_what_is_beyond_its_window() -> None:
    remap = Remap(window=2, query=PositionMap(divisor=2, offset=10, floor=True), key=PositionMap(divisor=2, floor=True))
    # i // 2 + 10 - j // 2 from distance 2 on.
    assert seen(remap, 5) == [
        [0, None, None, None, None],
        [1, 0, None, None, None],
        [11, 1, 0, None, None],
        [11, 11, 1, 0, None],
        [12, 12, 11, 1, 0],
    ]


BANDED = Remap(
    window=2,
    query=Bands((PositionMap(divisor=2, offset=1, floor=True), PositionMap(offset=3))),
    key=Bands((PositionMap(divisor=2, floor=True), PositionMap())),
)


def test_bands_of_pairs_see_distances_of_their_own() -> None:
    # From distance 2 on, band 0: i // 2 + 1 - j // 2, band 1: i + 3 - j.
    keys = np.arange(6)
    found = seen_distances(BANDED, np.array([4, 5]), keys)
    assert found.shape == (2, 6, 2)
    np.testing.assert_array_equal(found[0, :5, 0], [3, 3, 2, 1, 0])
    np.testing.assert_array_equal(found[0, :5, 1], [7, 6, 5, 1, 0])
    np.testing.assert_array_equal(found[1, :, 0], [3, 3, 2, 2, 1, 0])
    np.testing.assert_array_equal(found[1, :, 1], [8, 7, 6, 5, 1, 0])
    assert np.isnan(found[0, 5]).all()
    mixed = Remap(2, PositionMap(offset=3), BANDED.key)  # one line of queries for all bands
    np.testing.assert_array_equal(seen_distances(mixed, np.array([5]), np.array([0, 3]))[0], [[8, 8], [7, 5]])


def test_bands_are_plain_json_and_must_divide_the_pairs() -> None:
    attention = Attention(remap=BANDED)
    data = json.loads(json.dumps(attention.as_data(), allow_nan=False))["remap"]
    assert [line["divisor"] for line in data["key"]["lines"]] == [2, 1]
    assert data["query"]["lines"][1] == {"divisor": 1.0, "offset": 3, "floor": False, "cap": "inf"}
    attention.check_fits("m", pairs=8, heads=None, kv_heads=None, layers=None)
    with pytest.raises(
        SlotError, match="remap has 2 bands, which do not divide the 7 pairs of m: take as many as divid"
    ):
        attention.check_fits("m", pairs=7, heads=None, kv_heads=None, layers=None)


def test_chunks_begin_anew_and_look_back_from_further_away() -> None:
    # Size 3, limit 4. Keys at 0 1 2 0 1 2 0 1 2; the last chunk's queries at 3 4 4 for the chunk before, at 4 beyond.
    rows = seen(Chunks(size=3, limit=4), 9)
    assert [row[: number + 1] for number, row in enumerate(rows)] == [
        [0],
        [1, 0],
        [2, 1, 0],
        [3, 2, 1, 0],
        [4, 3, 2, 1, 0],
        [4, 3, 2, 2, 1, 0],
        [4, 3, 2, 3, 2, 1, 0],
        [4, 3, 2, 4, 3, 2, 1, 0],
        [4, 3, 2, 4, 3, 2, 2, 1, 0],
    ]


def test_stairs_rise_by_one_after_each_step() -> None:
    # Two steps of one token, three of two, then steps of three for ever: a place in this list for each distance.
    places = [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 8]
    rows = seen(Stairs(((2, 1), (3, 2), (1, 3))), len(places))
    for query, row in enumerate(rows):
        assert row[: query + 1] == places[query::-1]


@pytest.mark.parametrize(
    "remap",
    [
        Remap(window=3, query=PositionMap(), key=PositionMap()),
        Chunks(size=4, limit=5),
        Stairs(((2, 1), (2, 2), (1, 4))),
        BANDED,
    ],
)
def test_each_causal_pair_belongs_to_one_region(remap: Remapping) -> None:
    positions = np.arange(23)
    rows, columns = positions[:, None], positions[None, :]
    held = np.sum([region.holds(rows, columns) for region in remap.regions()], axis=0)
    assert (held[columns <= rows] == 1).all()


def test_some_distances_are_those_of_the_whole_text() -> None:
    remap = Chunks(size=3, limit=4)
    some = seen_distances(remap, np.array([7, 8]), np.array([0, 4, 8]))
    np.testing.assert_array_equal(some, [[4, 3, np.nan], [4, 3, 0]])


def test_blocks_hold_their_own_keys_and_those_of_the_block_before() -> None:
    allowed = Blocks(size=2).allowed(POSITIONS, POSITIONS) & np.tri(6, dtype=bool)
    np.testing.assert_array_equal(
        allowed,
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [0, 0, 1, 1, 1, 0],
            [0, 0, 1, 1, 1, 1],
        ],
    )


WIDE, SCALED = Attention(mask=Window(size=9)), Attention(scale=2.0)


def slots_at(attention: Attention, layers: int) -> list[tuple[str, ...]]:
    return [attention.at(layer).slots() for layer in range(layers)]


def test_a_layer_gets_what_holds_for_it() -> None:
    assert slots_at(Attention(scale=2.0), 2) == [("scale",), ("scale",)]
    assert slots_at(Attention(scale=2.0, layers=(1,)), 3) == [(), ("scale",), ()]
    nested = Attention(mask=Window(size=4), layers=(2,), otherwise=WIDE)
    whole = Attention(scale=2.0, layers=(0,), otherwise=nested)
    assert slots_at(whole, 4) == [("scale",), ("mask",), ("mask",), ("mask",)]
    assert [whole.at(layer).mask for layer in (1, 2, 3)] == [Window(size=9), Window(size=4), Window(size=9)]


def test_parts_are_those_that_hold_for_some_layer() -> None:
    assert [part.slots() for part in SCALED.parts()] == [("scale",)]
    assert [part.slots() for part in Attention(scale=2.0, layers=(1,)).parts()] == [("scale",), ()]
    nested = Attention(mask=Window(size=4), layers=(2,), otherwise=WIDE)
    parts = Attention(scale=2.0, layers=(0,), otherwise=nested).parts()
    assert [(part.scale, part.mask) for part in parts] == [(2.0, None), (None, Window(4)), (None, Window(9))]


def test_two_attentions_merge_slot_by_slot() -> None:
    both = SCALED.merge_with(WIDE)
    assert (both.scale, both.mask, both.slots()) == (2.0, Window(size=9), ("scale", "mask"))
    assert SCALED.merge_with(Attention()).slots() == ("scale",)
    with pytest.raises(ValueError, match="both set scale"):
        SCALED.merge_with(Attention(scale=3.0))


@pytest.mark.parametrize("turned", [False, True])
def test_what_holds_for_some_layers_merges_with_what_holds_for_all(turned: bool) -> None:
    some = Attention(scale=2.0, layers=(1,))
    both = WIDE.merge_with(some) if turned else some.merge_with(WIDE)
    assert slots_at(both, 3) == [("mask",), ("scale", "mask"), ("mask",)]
    other = Attention(scale=2.0, layers=(1,), otherwise=Attention(scale=3.0))
    both = WIDE.merge_with(other) if turned else other.merge_with(WIDE)
    assert [both.at(layer).scale for layer in range(3)] == [3.0, 2.0, 3.0]
    assert [both.at(layer).mask for layer in range(3)] == [Window(size=9)] * 3


@pytest.mark.parametrize("turned", [False, True])
def test_every_pass_of_a_mixture_gets_what_it_is_merged_with(turned: bool) -> None:
    several = Attention(mixture=(Attention(scale=2.0), Attention(scale=3.0)))
    both = WIDE.merge_with(several) if turned else several.merge_with(WIDE)
    assert both.slots() == ("mixture",)
    assert both.mixture is not None
    assert [(part.scale, part.mask) for part in both.mixture] == [(2.0, Window(9)), (3.0, Window(9))]


def test_parts_of_the_layers_and_of_a_mixture_are_plain_json_too() -> None:
    layered = Attention(scale=2.0, layers=(1,), otherwise=Attention(remap=Stairs(((2, 1), (1, 2)))))
    assert json.loads(json.dumps(Attention(mixture=(SCALED, layered)).as_data(), allow_nan=False)) == {
        "mixture": [
            {"scale": 2.0},
            {
                "scale": 2.0,
                "layers": [1],
                "otherwise": {"remap": {"kind": "Stairs", "steps": [[2, 1], [1, 2]]}},
            },
        ]
    }


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Attention(inv_freq=np.array([1.0, -0.1])), "at least 0"),
    (lambda: Attention(inv_freq=np.array([1.0, np.nan])), "finite"),
    (lambda: Attention(inv_freq=np.ones((2, 2))), "one dimension"),
    (lambda: Attention(scale=0.0), "scale must be above 0, and finite when squared"),
    (lambda: Attention(scale=math.inf), "scale must be above 0, and finite when squared"),
    (lambda: Attention(scale=1e200), "scale must be above 0, and finite when squared"),
    (lambda: Remap(window=0, query=PositionMap(), key=PositionMap()), "window must be at least 1"),
    (lambda: Bands(()), "bands need at least 1 line"),
    (lambda: Bands(cast(Any, (1, 2))), r"Bands.lines must be tuple\[PositionMap, ...\], got \(1, 2\)"),
    (lambda: Remap(4, Bands((PositionMap(),) * 2), Bands((PositionMap(),) * 3)), "as many bands of queries as of keys"),
    (lambda: PositionMap(divisor=0), "divisor above 0"),
    (lambda: PositionMap(offset=math.inf), "finite offset"),
    (lambda: LogScale(trained_length=1), "trained length above 1"),
    (lambda: Window(size=0), "size of at least 1"),
    (lambda: Window(size=4, sinks=-1), "Window.sinks must be int of at least 0, got -1"),
    (lambda: Window(size=cast(int, 4.5)), "Window.size must be int of at least 0, got 4.5"),
    (lambda: Window(size=cast(int, "4")), "Window.size must be int of at least 0, got '4'"),
    (lambda: PositionMap(divisor=cast(float, "2")), "PositionMap.divisor must be float, got '2'"),
    (lambda: PositionMap(cap=math.nan), "a cap, got 1.0, 0.0 and nan"),
    (lambda: LogScale(trained_length=math.inf), "finite trained length above 1, got inf"),
    (lambda: StepScale(16, math.inf), "got 16 and inf"),
    (lambda: Slopes((0.5, math.nan)), r"finite slopes, got \(0.5, nan\)"),
    (lambda: Slopes(cast(tuple[float, ...], "ab")), r"Slopes\.slopes must be tuple\[float, \.\.\.\], got 'ab'"),
    (lambda: HeadRatios((1.0,), threshold=math.nan), "threshold nan"),
    (lambda: Dynamic(0.0, 16), "a factor above 0"),
    (lambda: Growing(math.nan, 16, 1e4, 4), "growing needs a factor"),
    (lambda: Stairs(cast(Any, ((1,),))), r"Stairs.steps must be tuple\[tuple\[int"),
    (lambda: Remap(4, cast(PositionMap, 3), PositionMap()), "Remap.query must be PositionMap [|] Bands, got 3"),
    (lambda: Attention(inv_freq=cast(Any, "slow")), "inv_freq must be finite numbers .* got 'slow'"),
    (
        lambda: Attention(inv_freq=cast(Any, [[1, 2], [3]])),
        r"inv_freq must be .* got \[\[1, 2\], \[3\]\]",
    ),
    (lambda: Attention(inv_freq=cast(Any, np.ones(2) * 1j)), "inv_freq must be finite numbers"),
    (lambda: Attention(scale=cast(float, "1.2")), r"Attention.scale must be float [|] None, got '1.2'"),
    (lambda: Attention(keep_first=cast(int, 2.5)), r"Attention.keep_first must be int of at least 0 [|] None, got 2.5"),
    (lambda: Attention(layers=cast(Any, 1)), "Attention.layers must be tuple.* got 1"),
    (lambda: Attention(bias=cast(Any, 0.5)), r"Attention.bias must be Slopes [|] None, got 0.5"),
    (lambda: Attention(mask=cast(Any, 64)), r"mask must be an object with allowed\(...\), got 64"),
    (lambda: Attention(remap=cast(Any, Chunks)), r"remap must be an object with regions\(...\), got <class"),
    (
        lambda: Attention(query_scale=cast(Any, 2.0)),
        "query_scale must be an object with __call__",
    ),
    (lambda: Blocks(size=0), "blocks of at least 1 token"),
    (lambda: Chunks(size=5, limit=4), "1 <= size <= limit, got 5 and 4"),
    (lambda: Chunks(size=0, limit=4), "1 <= size <= limit, got 0 and 4"),
    (lambda: Stairs(()), "counts and repeats of at least 1"),
    (lambda: Stairs(((1, 1), (0, 2))), "counts and repeats of at least 1"),
    (lambda: Stairs(((1, 0),)), "counts and repeats of at least 1"),
    (lambda: HeadRatios(()), "above 0 and ascend"),
    (lambda: HeadRatios((0.0, 1.0)), "above 0 and ascend"),
    (lambda: HeadRatios((1.8, 1.2)), "above 0 and ascend"),
    (lambda: Attention(mixture=(SCALED,)), "needs at least 2 attentions and no other slot"),
    (lambda: Attention(mixture=(SCALED, WIDE), scale=2.0), "needs at least 2 attentions and no other slot"),
    (lambda: Attention(mixture=(SCALED, Attention(mixture=(SCALED, WIDE)))), "mixture cannot hold mixture"),
    (lambda: Attention(mixture=(SCALED, Attention(dynamic=Dynamic(2.0, 16)))), "mixture cannot hold dynamic"),
    (lambda: Attention(mixture=(WIDE, Attention(head_ratios=HeadRatios((1.0,))))), "mixture cannot hold head_ratios"),
    (lambda: Attention(layers=(0,), otherwise=Attention(mixture=(SCALED, WIDE))), "mixture must be for all layers"),
    (lambda: Attention(scale=2.0, otherwise=WIDE), "otherwise is for the other layers, got no layers: name layers"),
    (lambda: Attention(keep_first=4, head_ratios=HeadRatios((1.0,))), "keep_first cannot be combined with head_"),
    (lambda: Attention(keep_first=4, remap=Chunks(2, 3)), "keep_first cannot be combined with remap"),
    (lambda: Attention(keep_first=4, dynamic=Dynamic(2.0, 16)), "keep_first cannot be combined with dynamic"),
    (lambda: Attention(dynamic=Dynamic(2.0, 16), scale=2.0), "dynamic cannot be combined with scale"),
    (lambda: Attention(dynamic=Dynamic(2.0, 16), remap=Chunks(2, 3)), "dynamic cannot be combined with remap"),
    (lambda: Attention(dynamic=Dynamic(2.0, 16), layers=(0,)), "dynamic cannot be combined with layers"),
]


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[said for _, said in WRONG])
def test_an_impossible_slot_is_refused_where_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_slots_that_have_a_meaning_together_may_stand_together() -> None:
    kept = Attention(keep_first=4, inv_freq=np.array([1.0]), scale=2.0, mask=Window(size=4), layers=(0,))
    assert kept.slots() == ("inv_freq", "scale", "keep_first", "mask", "layers")
    growing = Attention(dynamic=Dynamic(2.0, 16), query_scale=LogScale(16), mask=Window(size=4), bias=Slopes((0.5,)))
    assert growing.slots() == ("dynamic", "query_scale", "mask", "bias")
    Attention(mixture=(Attention(keep_first=2, scale=2.0), Attention(remap=Chunks(2, 3), layers=(0,))))


def test_numbers_and_arrays_of_numpy_become_pythons() -> None:
    made = Attention(
        scale=cast(float, np.float32(1.5)),  # 1.5 is exact in float32
        keep_first=cast(int, np.int64(4)),
        mask=Window(cast(int, np.int64(8))),
        bias=Slopes(cast(Any, np.array([0.5, 0.25]))),
        layers=cast(Any, [0, 1]),
    )
    assert json.loads(json.dumps(made.as_data())) == {
        "scale": 1.5,
        "keep_first": 4,
        "mask": {"kind": "Window", "size": 8, "sinks": 0},
        "bias": {"kind": "Slopes", "slopes": [0.5, 0.25]},
        "layers": [0, 1],
    }

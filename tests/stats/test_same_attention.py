"""Two methods that compute one function at a length are one: by brute force over all pairs of positions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.core.attention import (
    Attention,
    Blocks,
    Chunks,
    ConstantScale,
    Dynamic,
    HeadRatios,
    LogScale,
    PositionMap,
    Remap,
    Segments,
    Stairs,
    StepScale,
    TopKMask,
    Window,
    seen_distances,
)
from lexbench.core.method_key import parse_label
from lexbench.core.model import Model
from lexbench.core.record import Cell
from lexbench.methods.llama3 import Llama3
from lexbench.methods.longrope import Longrope
from lexbench.methods.longrope2 import Longrope2
from lexbench.methods.ntk import Ntk
from lexbench.methods.ntk_by_parts import NtkByParts
from lexbench.methods.ntk_fixed import NtkFixed
from lexbench.methods.ntk_mixed import NtkMixed
from lexbench.methods.ntk_old import NtkOld
from lexbench.methods.pi import Pi
from lexbench.methods.scaled import attention_of
from lexbench.methods.self_extend import SelfExtend
from lexbench.methods.yarn import Yarn
from lexbench.methods.yarn_paper import YarnPaper
from lexbench.stats.pairs import PairedDifference, correct_by_holm
from lexbench.stats.same_attention import attention_forms, cell_functions, normal_form, unchanged_up_to
from tests.report.fake_run import cell

LENGTH = 24
AT = np.arange(LENGTH)
MODEL = Model(name="tiny", trained_length=LENGTH, head_dim=8, rope_base=100.0, layers=2)
OWN = [1.0, 100**-0.25, 100**-0.5, 100**-0.75]
FAR = PositionMap(divisor=2, offset=4, floor=True)


def at(length: int, method: str, given: dict[str, Any], attention: dict[str, Any]) -> Cell:
    made = cell("passkey", method, length, trained_length=LENGTH)
    stated = {"name": parse_label(method).bare, **given}
    return replace(made, identity={**made.identity, "method": stated, "attention": attention})


def test_groups_of_questions_change_nothing_up_to_the_longest_that_is_unchanged() -> None:
    slow = [each / 2 for each in OWN]
    groups = {"24": {"inv_freq": OWN}, "48": {"inv_freq": slow}, "96": {"inv_freq": slow}}
    found = at(96, "ntk", {"factor": None}, {"groups": groups})
    form = attention_forms([found])[found.id]
    assert json.loads(form) == {"groups": {**groups, "24": {}}}
    assert unchanged_up_to(form) == LENGTH
    same = at(96, "ntk", {"factor": None}, {"groups": {"24": {"inv_freq": OWN}, "48": {"inv_freq": OWN}}})
    assert attention_forms([same]) == {same.id: "{}"} and unchanged_up_to("{}") == np.inf
    assert unchanged_up_to(json.dumps({"inv_freq": slow})) == 0
    strangers: list[Any] = [{"a": {}}, {"24": 3}, [1], {}]
    for odd in strangers:
        strange = at(96, "ntk", {"factor": None}, {"groups": odd})
        assert unchanged_up_to(attention_forms([strange])[strange.id]) == 0


@pytest.mark.parametrize("window", [1, 8, LENGTH - 1, LENGTH])
@pytest.mark.parametrize(
    ("query", "key"),
    [
        (PositionMap(), PositionMap()),
        (PositionMap(divisor=1, floor=True), PositionMap(divisor=1, floor=True)),  # self_extend, group 1
        (PositionMap(offset=3), PositionMap(offset=3)),
        (PositionMap(offset=3), PositionMap()),
        (PositionMap(divisor=np.inf, offset=8), PositionMap(divisor=np.inf)),  # rerope
        (PositionMap(cap=LENGTH - 1), PositionMap()),  # streaming_llm up to its cache
        (PositionMap(cap=LENGTH - 2), PositionMap()),
        (FAR, PositionMap(divisor=2, floor=True)),
    ],
)
def test_a_remap_changes_nothing_where_every_distance_stays(window: int, query: PositionMap, key: PositionMap) -> None:
    remap = Remap(window=window, query=query, key=key)
    idle = bool(np.nanmax(np.abs(seen_distances(remap, AT, AT) - np.subtract.outer(AT, AT))) < 1e-9)
    assert (normal_form(Attention(remap=remap).as_data(), LENGTH, None) == {}) is idle


@pytest.mark.parametrize(
    "remap",
    [
        Chunks(LENGTH, LENGTH),
        Chunks(LENGTH - 1, LENGTH),
        Chunks(12, LENGTH - 1),
        Chunks(12, 22),
        Chunks(4, 8),
        Stairs(((LENGTH, 1), (4, 2))),
        Stairs(((LENGTH - 1, 1), (4, 2))),
        Stairs(((3, 1), (5, 1))),
        Stairs(((2, 2),)),
    ],
)
def test_chunks_and_stairs_change_nothing_where_every_distance_stays(remap: Any) -> None:
    idle = bool(np.nanmax(np.abs(seen_distances(remap, AT, AT) - np.subtract.outer(AT, AT))) < 1e-9)
    assert (normal_form(Attention(remap=remap).as_data(), LENGTH, None) == {}) is idle


@pytest.mark.parametrize(
    "mask",
    [
        Window(LENGTH),
        Window(LENGTH - 1),
        Window(LENGTH - 4, 4),
        Window(LENGTH - 5, 4),
        Blocks(LENGTH // 2),
        Blocks(LENGTH // 2 - 1),
        Segments(LENGTH),
        Segments(LENGTH - 1),
    ],
)
def test_a_mask_changes_nothing_where_it_hides_no_earlier_key(mask: Any) -> None:
    seen = mask.allowed(AT, AT) | (AT[None, :] > AT[:, None])
    assert (normal_form(Attention(mask=mask).as_data(), LENGTH, None) == {}) is bool(seen.all())


def test_chosen_keys_change_nothing_where_all_keys_between_are_chosen() -> None:
    for count, idle in ((LENGTH - 6, True), (LENGTH - 7, False)):  # 4 nearest, 2 first, the rest between
        assert (normal_form(Attention(mask=TopKMask(4, 2, count)).as_data(), LENGTH, None) == {}) is idle


@pytest.mark.parametrize(
    "scale",
    [
        LogScale(LENGTH),
        LogScale(LENGTH - 1),
        LogScale(LENGTH, clip=False),
        ConstantScale(1.0),
        ConstantScale(2.0),
        ConstantScale(2.0, begin=LENGTH),
        StepScale(LENGTH + 1, 0.1),
        StepScale(LENGTH, 0.1),
    ],
)
def test_a_scale_of_queries_changes_nothing_where_it_is_1_at_every_position(scale: Any) -> None:
    idle = bool(np.all(scale(AT) == 1))
    assert (normal_form(Attention(query_scale=scale).as_data(), LENGTH, None) == {}) is idle


def test_frequencies_are_the_models_own_only_where_these_are_known() -> None:
    slots = Attention(inv_freq=np.array(OWN), scale=1.0).as_data()
    assert normal_form(slots, LENGTH, OWN) == {}
    assert normal_form(slots, LENGTH, None).keys() == {"inv_freq"}
    assert normal_form(slots, LENGTH, [*OWN[:3], 0.03]).keys() == {"inv_freq"}
    # A method that takes the checkpoint's own scaling back sets a scale of 1 in place of another one.
    assert normal_form({"scale": 1.0}, LENGTH, OWN, unscaled=False) == {"scale": 1.0}
    assert normal_form({"scale": 1.1}, LENGTH, OWN) == {"scale": 1.1}


def test_slots_of_layers_passes_and_first_tokens_are_left_out_with_what_they_are_about() -> None:
    own, other = np.array(OWN), np.array(OWN) / 2
    assert normal_form(Attention(inv_freq=own, layers=(0,)).as_data(), LENGTH, OWN) == {}
    in_all = Attention(inv_freq=other, layers=(0,), otherwise=Attention(inv_freq=other)).as_data()
    assert normal_form(in_all, LENGTH, OWN) == normal_form(Attention(inv_freq=other).as_data(), LENGTH, OWN)
    first = Attention(inv_freq=other, layers=(0,)).as_data()
    assert normal_form(first, LENGTH, OWN)["layers"] == [0]
    assert normal_form(Attention(inv_freq=own, keep_first=4).as_data(), LENGTH, OWN) == {}
    assert normal_form(Attention(inv_freq=other, keep_first=LENGTH).as_data(), LENGTH, OWN) == {}
    assert "keep_first" in normal_form(Attention(inv_freq=other, keep_first=LENGTH - 1).as_data(), LENGTH, OWN)
    alike = Attention(mixture=(Attention(inv_freq=own), Attention(mask=Window(LENGTH)))).as_data()
    assert normal_form(alike, LENGTH, OWN) == {}
    assert normal_form(Attention(dynamic=Dynamic(2.0, LENGTH)).as_data(), LENGTH, OWN) == {}
    assert normal_form(Attention(dynamic=Dynamic(2.0, LENGTH - 1)).as_data(), LENGTH, OWN) != {}
    assert normal_form(Attention(head_ratios=HeadRatios((1.0, 1.0))).as_data(), LENGTH, OWN) == {}
    assert normal_form(Attention(head_ratios=HeadRatios((1.0, 1.5))).as_data(), LENGTH, OWN) != {}


FOLLOWING = (
    *(Yarn, YarnPaper, Ntk, NtkOld, NtkFixed, NtkMixed, NtkByParts, Pi, Llama3, Longrope, Longrope2),
    SelfExtend,
)


@pytest.mark.parametrize("kind", FOLLOWING)
def test_a_method_that_fits_the_length_is_the_model_itself_within_the_trained_length(kind: type) -> None:
    method = kind()
    given = json.loads(json.dumps(vars(method)))
    made = attention_of(method, MODEL, LENGTH).as_data()
    none, changed = at(LENGTH, "none", {}, {}), at(LENGTH, "other", given, made)
    assert made != {}
    assert attention_forms([none, changed]) == {none.id: "{}", changed.id: "{}"}


@pytest.mark.parametrize(
    ("length", "given"),
    [
        (LENGTH + 1, {"factor": None}),  # its factor is above 1
        (LENGTH, {"factor": 1.0}),  # a rate, of dynamic_ntk
        (LENGTH, {"factor": None, "at": 2 * LENGTH}),
        (LENGTH, {"factor": None, "trained_length": LENGTH // 2}),
        (LENGTH, {"factor": None, "profiles": [2.0, 4.0]}),
        (LENGTH, {"factor": None, "over": "plain"}),
        (LENGTH, {"factor": None, "file": "a1"}),  # of a user's code nothing is known
        (LENGTH, {}),
    ],
)
def test_no_other_cell_tells_the_models_own_frequencies(length: int, given: dict[str, Any]) -> None:
    none, changed = at(length, "none", {}, {}), at(length, "ntk", given, {"inv_freq": OWN})
    forms = attention_forms([none, changed])
    assert forms[none.id] == "{}" and forms[changed.id] != "{}"


def test_a_stated_factor_of_1_is_the_model_itself_where_another_cell_tells_its_frequencies() -> None:
    none, pi = at(LENGTH, "none", {}, {}), at(LENGTH, "pi", {"factor": None}, {"inv_freq": OWN})
    one = at(4 * LENGTH, "yarn(factor=1.0)", {"factor": 1.0}, {"inv_freq": OWN, "scale": 1.0})
    forms = attention_forms([none, pi, one])
    assert set(forms.values()) == {"{}"}
    elsewhere = replace(pi, identity={**pi.identity, "backend": {"name": "vllm"}})
    functions = cell_functions([none, pi, one, elsewhere])
    assert functions[none.id] == functions[pi.id]
    assert len(set(functions.values())) == 3  # another length, and another backend


@pytest.mark.parametrize(
    "slots",
    [
        {"remap": {"kind": "Remap"}},
        {"remap": {"kind": "Chunks", "size": "x", "limit": None}},
        {"mask": {"kind": ["Window"]}},
        {"query_scale": {"kind": "LogScale", "other": 1}},
        {"inv_freq": ["a"], "keep_first": "x"},
        {"mixture": [1, 2]},
        {"growing": {"pairs": 10**400, "base": 2, "trained_length": 1}},
    ],
)
def test_slots_that_no_attention_has_stay_as_they_are(slots: dict[str, Any]) -> None:
    odd = at(LENGTH, "odd", {"factor": None, "at": "x", "trained_length": [1]}, slots)
    assert json.loads(attention_forms([odd, at(LENGTH, "pi", {"factor": None}, {"inv_freq": OWN})])[odd.id]) == slots
    beyond = at(10**15, "rerope", {}, Attention(mask=Window(1 << 52)).as_data())
    assert "mask" in attention_forms([beyond])[beyond.id], "no array of so many positions"


def test_comparisons_of_one_function_count_once_in_a_family() -> None:
    family = {name: PairedDifference(p=p, p_flips=p) for name, p in (("yarn", 0.02), ("pi", 0.021), ("rerope", 0.03))}
    alone = {name: each.p_holm for name, each in correct_by_holm(family).items()}
    assert alone == pytest.approx({"yarn": 0.06, "pi": 0.06, "rerope": 0.06})  # 3 x 0.02, then not below it
    once = {name: each.p_holm for name, each in correct_by_holm(family, {"yarn": "a", "pi": "a"}).items()}
    assert once == pytest.approx({"yarn": 0.042, "pi": 0.042, "rerope": 0.042})  # 2 x 0.021, then not below it


def test_smollm2s_cells_at_its_trained_length_are_two_functions() -> None:
    import pyarrow.parquet as pq

    from lexbench.store.cell_rows import read_cell

    file = Path(__file__).parents[2] / "results/reference/smollm2/board.parquet"
    lines = set(pq.read_table(file, columns=["cell"])["cell"].to_pylist())
    cells = [read_cell(json.loads(line), "its identity") for line in lines]
    forms = attention_forms(cells)
    inside = {str(each.method): forms[each.id] for each in cells if each.length == 8192 and each.backend == "hf"}
    # Factor 1, group 1, 4 + 8,188 keys of 8,192, distances up to 8,191: rerope has a window of 4,096, and yarn once 2T.
    assert {name for name, form in inside.items() if form != "{}"} == {"rerope", "yarn(at=16384)"}
    beyond = {str(each.method): forms[each.id] for each in cells if each.length == 16384 and each.backend == "hf"}
    assert len(set(beyond.values())) == len(beyond)

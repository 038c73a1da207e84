"""Price cells: which methods have them, where, and with which factor."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lexbench.checkpoints.checkpoint import folder_of
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.method_key import OWN_POLICY, MethodKey, Purpose
from lexbench.core.model import Model
from lexbench.methods.composition import drop_idle_settings
from lexbench.runner.cells import BackendFacts
from lexbench.runner.job import Job
from lexbench.runner.plan import open_cell_of, plan_cells
from lexbench.stats.prices import price_rows

LENGTHS = [64, 128, 1024]  # lexlet was trained at 256


def job(*methods: Mapping[str, Any], lengths: Sequence[int] = LENGTHS, price: bool = True) -> Job:
    return Job.of(
        model=registry.read_named_config("model", "lexlet"),
        methods=[
            each if "compose" in each else {**registry.read_named_config("method", each["name"]), **each}
            for each in methods
        ],
        tasks=[{"name": "passkey", **registry.read_named_config("task", "passkey")}],
        corpus={"name": "synthetic", **registry.read_named_config("corpus", "synthetic")},
        backend={"name": "chance"},
        lengths=lengths,
        multiples=None,
        n=1,
        seeds=[0],
        results=None,
        price=price,
    )


def planned(asked: Job) -> set[tuple[str, int]]:
    tokenizer = load_tokenizer(folder_of(asked.model, weights=False))
    return {(step.method.label, step.length) for step in plan_cells(asked, tokenizer)}


def test_a_method_whose_factor_follows_the_length_has_one_price_cell_with_that_of_the_longest() -> None:
    usual = {(name, length) for name in ("none", "ntk", "sliding_window") for length in LENGTHS}
    methods = [{"name": "none"}, {"name": "ntk"}, {"name": "sliding_window"}]
    assert planned(job(*methods)) == usual | {("ntk(factor=4.0)", 128)}
    assert planned(job(*methods, price=False)) == usual


def test_the_price_cell_stretches_as_the_longest_length_does() -> None:
    asked = job({"name": "pi"})
    [fixed] = asked.deployed
    inside = fixed.obj.attention(asked.model, 128).inv_freq
    assert inside == pytest.approx(np.asarray(asked.model.inv_freq()) / 4)  # position interpolation by 1024 / 256


def test_a_composed_method_gets_the_factor_in_its_part() -> None:
    assert [each.label for each in job({"compose": ["yarn", "log_n"]}).deployed] == ["yarn(factor=4.0)+log_n"]
    assert not job({"compose": ["sliding_window", "log_n"]}).deployed


@pytest.mark.parametrize(
    ("method", "lengths"),
    [
        ({"name": "ntk", "factor": 4.0}, LENGTHS),
        ({"name": "ntk"}, [64, 256]),
        ({"name": "ntk"}, [512, 1024]),
        ({"name": "dynamic_ntk"}, LENGTHS),
        ({"compose": ["jet_long", "log_n"]}, LENGTHS),
        ({"name": "rerope"}, LENGTHS),
        ({"name": "self_extend", "at": 1024}, LENGTHS),
        ({"name": "leaky_rerope", "slowdown": 4.0}, LENGTHS),
    ],
    ids=[
        *("factor given", "nothing beyond", "nothing within", "fits each text", "a part fits each text"),
        *("the same at every length", "length given", "parameter given"),
    ],
)
def test_others_have_none(method: Mapping[str, Any], lengths: Sequence[int]) -> None:
    assert not job(method, lengths=lengths).deployed


def test_a_method_that_follows_the_length_without_a_factor_is_set_as_for_the_longest() -> None:
    names = ["self_extend", "leaky_rerope", "abf", "rerope"]
    asked = job(*({"name": name} for name in names))
    following = [f"{name}(at=1024)" for name in names[:3]]
    assert [each.label for each in asked.deployed] == following
    assert planned(asked) == {(name, at) for name in names for at in LENGTHS} | {(name, 128) for name in following}
    fixed = asked.deployed[1].obj.attention(asked.model, 128).remap
    # by hand: w = 128, k = (1024 - 1 - 128) / (256 - 1 - 128)
    assert fixed is not None and fixed.key.divisor == pytest.approx(895 / 127)
    assert [each.label for each in job({"compose": ["self_extend", "log_n"]}).deployed] == [
        "self_extend+log_n(at=1024)"
    ]


def test_a_factor_that_is_measured_anyway_is_measured_once() -> None:
    assert not job({"name": "ntk"}, {"name": "ntk", "factor": 4.0}).deployed


def test_a_price_that_is_no_switch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"price must be true or false, got 0\.02"):
        job({"name": "ntk"}, price=0.02)  # type: ignore[arg-type]


def purpose_of(method: Mapping[str, Any]) -> Purpose:
    [only] = job(method).methods
    return only.purpose


def test_a_cell_states_the_method_whose_deployed_form_it_is() -> None:
    ntk, extended = MethodKey.of_method("ntk"), MethodKey.of_method("self_extend")
    assert [each.purpose for each in job({"name": "ntk"}).deployed] == [Purpose(ntk, 4.0, price_only=True)]
    assert purpose_of({"name": "ntk", "factor": 8.0}) == Purpose(ntk, 8.0)
    assert purpose_of({"name": "self_extend", "at": 2048}) == Purpose(extended, 8.0)
    both = MethodKey((("yarn", (("beta_fast", 16.0),)), ("log_n", ())))
    parts = {"compose": [{"name": "yarn", "factor": 4.0, "beta_fast": 16.0}, "log_n"]}
    assert purpose_of(parts) == Purpose(both, 4.0)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "none"},
        {"name": "ntk"},
        {"name": "dynamic_ntk", "factor": 2.0},
        {"name": "sliding_window", "window": 64},
    ],
    ids=["nothing", "its own policy", "a factor of its own", "another parameter"],
)
def test_others_are_measured_for_themselves(method: Mapping[str, Any]) -> None:
    """`dynamic_ntk` has a factor of its own: a second one is another method, and no deployed form of the first."""
    assert purpose_of(method) == OWN_POLICY


def test_the_deployed_form_is_written_into_its_cell() -> None:
    asked = job({"name": "none"}, {"name": "ntk"})
    tokenizer = load_tokenizer(folder_of(asked.model, weights=False))
    backend = BackendFacts("chance", "1.0", "float32", "eager", "abc", tokenizer)
    cells = [open_cell_of(asked, step, backend) for step in plan_cells(asked, tokenizer)]
    found = {(str(cell.method), cell.length): cell.purpose for cell in cells}
    assert found.pop(("ntk(factor=4.0)", 128)) == Purpose(MethodKey.of_method("ntk"), 4.0, price_only=True)
    assert set(found.values()) == {OWN_POLICY}
    deployed, priced = price_rows({(cell.method, cell.length): cell for cell in cells})
    assert deployed == {MethodKey.of_method("ntk"): MethodKey.of_method("ntk", factor=4.0)}
    assert priced == {MethodKey.of_method("ntk", factor=4.0)}


def test_a_method_that_does_not_follow_the_length_has_no_length_for_which_it_is_set() -> None:
    """`-m method=none,yarn method.at=1024` measures the baseline, and no row `none(at=1024)`."""
    methods = [{"name": name, "at": 1024} for name in ("none", "yarn", "sliding_window")]
    assert [each.label for each in job(*methods).methods] == ["none", "yarn(at=1024)", "sliding_window"]
    both = {"compose": ["sliding_window", "self_extend"], "at": 1024}
    assert [each.label for each in job(both).methods] == ["sliding_window+self_extend(at=1024)"]


@pytest.mark.parametrize("setting", [{"layers": "all"}, {"over": "plain"}, {"over": "plain", "at": 512}])
def test_an_unmodified_model_does_not_state_which_of_its_ropes_is_changed(setting: dict[str, Any]) -> None:
    """`-m method=none,yarn method.layers=all` measures the baseline; identities of other methods stay as stored."""
    none, yarn = job({"name": "none", **setting}, {"name": "yarn", **setting}).methods
    assert none.label == "none" and none.key == MethodKey.of_method("none")
    assert all(repr(value) in yarn.label or str(value) in yarn.label for value in setting.values())


def test_where_it_changes_a_model_it_is_stated_which_rope_is_changed() -> None:
    """Llama 3.1 scales its RoPE, for all layers alike; without the scaling it is another model."""
    scaled = Model(**registry.read_named_config("model", "llama3_1"))
    none = {**registry.read_named_config("method", "none"), "name": "none"}
    assert drop_idle_settings({**none, "over": "plain", "at": 512}, scaled) == {**none, "over": "plain"}
    assert drop_idle_settings({**none, "over": "scaled", "layers": "all"}, scaled) == none

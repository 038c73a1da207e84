"""Composition of methods, and one-line errors for methods that do not compose."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import lexbench
from lexbench import Attention, Model, Refused
from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.attention import Floats, HeadRatios, PositionMap, Positions, Region, Slopes, Window
from lexbench.core.record import Deferred
from lexbench.methods.composition import read_method
from lexbench.methods.scaled import attention_of

LLAMA2 = Model(name="llama2", trained_length=4096, head_dim=128, rope_base=10_000.0, layers=4, heads=4, kv_heads=2)


def slots(*methods: Any, length: int = 16384) -> Attention:
    return lexbench.method({"compose": list(methods)}).attention(LLAMA2, length)


def alone(name: str, length: int = 16384, **parameters: Any) -> Attention:
    return lexbench.method(name, **parameters).attention(LLAMA2, length)


def test_methods_of_different_slots_are_the_sum_of_their_slots() -> None:
    expected = {**alone("yarn").as_data(), **alone("log_n").as_data(), **alone("rerope").as_data()}
    for order in (("yarn", "log_n", "rerope"), ("rerope", "yarn", "log_n")):
        assert slots(*order).as_data() == expected


def test_each_part_takes_its_own_parameters() -> None:
    got = slots({"name": "yarn", "factor": 2}, {"name": "rerope", "window": 100})
    assert got.scale == pytest.approx(0.1 * np.log(2) + 1)
    assert got.as_data()["remap"] == alone("rerope", window=100).as_data()["remap"]


def test_resonance_rounds_the_wavelengths_of_what_stands_before_it() -> None:
    got = slots("yarn", "resonance")
    wavelengths = 2 * np.pi / alone("yarn").inv_freq  # type: ignore[operator]
    np.testing.assert_allclose(2 * np.pi / got.inv_freq, np.round(wavelengths), rtol=1e-12)  # type: ignore[operator]
    assert got.scale == alone("yarn").scale


def test_a_method_of_several_passes_composes_with_each_pass() -> None:
    got, buckets = slots("attention_buckets", "bca"), alone("attention_buckets")
    assert got.mixture is not None and buckets.mixture is not None
    assert [part.as_data() for part in got.mixture] == [
        {**part.as_data(), **alone("bca").as_data()} for part in buckets.mixture
    ]


def test_a_method_of_some_layers_composes_with_all_of_them() -> None:
    got = slots("entropy_abf", "bca")
    for layer in range(4):
        apart = alone("entropy_abf").at(layer).as_data()
        assert got.at(layer).as_data() == {**apart, **alone("bca").as_data()}


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (("yarn", "ntk"), "yarn and ntk do not compose: both set inv_freq"),
        (("log_n", "rerope", "dca"), r"log_n\+rerope and dca do not compose: both set remap"),
        (("resonance", "yarn"), r"both set inv_freq.*modifiers \(resonance\) last"),
        (("bca", "sliding_window"), "both set mask"),
    ],
)
def test_two_methods_for_one_slot_do_not_compose(methods: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        slots(*methods)


def test_a_part_that_refuses_refuses_for_all() -> None:
    bare = Model(name="bare", trained_length=64, head_dim=8)
    with pytest.raises(Refused, match="bare has no rotary positions"):
        lexbench.method("log_n+yarn").attention(bare, 128)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"compose": []}, "compose must be a list of methods, got"),
        ({"compose": "yarn"}, "compose must be a list of methods, got 'yarn'"),
        ({"compose": ["yarn", 5]}, "compose must list methods by name, got 5"),
        (
            {"compose": ["yarn", ["log_n", "bca"]]},
            r"a list stands for several methods.* \['log_n', 'bca'\].* by log_n\+bca",
        ),
        ({"compose": [{"factor": 8}]}, "compose must list methods by name, got {"),
        ({"compose": ["yarn", "log_m"]}, "unknown method 'log_m': did you mean log_n"),
        ({"compose": [{"name": "yarn", "factr": 8}]}, "unknown parameter method.factr: did you mean factor"),
        ({"compose": ["yarn"], "factor": 8}, "a composed method has no parameters of its own, got method.factor"),
    ],
)
def test_a_wrong_list_is_one_line(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_method(config)


def test_labels_name_every_part_and_changed_parameter() -> None:
    name, _, key = read_method({"compose": [{"name": "yarn", "factor": 8.0}, "log_n"]})
    assert (name, str(key)) == ("yarn+log_n", "yarn(factor=8.0)+log_n")


@pytest.mark.parametrize("length", [64, 4096, 65536])
@pytest.mark.parametrize("over", ["scaled", "plain"])
@pytest.mark.parametrize("name", ["self_extend", "ntk", "rerope"])
def test_a_method_at_a_length_is_what_it_is_at_that_length(name: str, over: str, length: int) -> None:
    for model in (LLAMA2, replace(LLAMA2, rope_scaling={"rope_type": "linear", "factor": 2.0})):
        _, fixed, key = read_method(
            {**registry.read_named_config("method", name), "name": name, "over": over, "at": 16384}
        )
        free = read_method({**registry.read_named_config("method", name), "name": name, "over": over})[1]
        assert attention_of(fixed, model, length).as_data() == attention_of(free, model, 16384).as_data()
        assert str(key) == (f"{name}(at=16384)" if over == "scaled" else f"{name}(over='plain', at=16384)")


def test_composed_methods_are_set_for_a_length_together_or_one_by_one() -> None:
    _, both, key = read_method({"compose": ["ntk", "leaky_rerope"], "at": 16384})
    assert str(key) == "ntk+leaky_rerope(at=16384)"
    assert attention_of(both, LLAMA2, 64).as_data() == slots("ntk", "leaky_rerope", length=16384).as_data()
    _, one, key = read_method({"compose": [{"name": "ntk", "at": 16384}, "leaky_rerope"]})
    assert str(key) == "ntk(at=16384)+leaky_rerope"
    apart = {**slots("ntk", length=16384).as_data(), **slots("leaky_rerope", length=8192).as_data()}
    assert attention_of(one, LLAMA2, 8192).as_data() == apart


@pytest.mark.parametrize("at", [0, -8, 2.5, "8192", True])
def test_a_length_that_is_none_is_one_line(at: Any) -> None:
    with pytest.raises(ValueError, match=r"method\.at must be a whole number of at least 1 token, got .*: e\.g\."):
        read_method({**registry.read_named_config("method", "ntk"), "name": "ntk", "at": at})


def test_a_length_that_no_number_holds_exactly_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"method\.at must be below 2\^53 tokens, got 1000000000000000000000: e\.g\."):
        read_method({**registry.read_named_config("method", "yarn"), "name": "yarn", "at": 10**21})


def test_a_yaml_of_the_user_may_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "both.yaml").write_text("compose: [{name: yarn, factor: 4}, log_n]\n")
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    got = lexbench.method("both").attention(LLAMA2, 16384)
    assert got.as_data() == slots({"name": "yarn", "factor": 4}, "log_n").as_data()


def test_the_command_line_combines_methods_with_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["show", "model=llama2", "method.compose=[{name:yarn,factor:8},log_n]", "length=8192"]) == 0
    shown = capsys.readouterr().out
    assert "under **yarn(factor=8)+log_n** at 8192 tokens" in shown
    assert "query_scale:" in shown and "scale: cos and sin times 1.20794" in shown


@pytest.mark.slow
def test_a_run_measures_composed_methods_beside_others(tmp_path: Path) -> None:
    run = lexbench.run("lexlet", ["none", "rerope+log_n"], "passkey", lengths=[128], n=2, results=tmp_path)
    assert set(run.records()["method"]) == {"none", "rerope+log_n"}


@dataclass(frozen=True)
class Own:
    """A method that gives what it is told to."""

    gives: Callable[[], Any]

    def attention(self, model: Model, length: int) -> Attention:
        given: Attention = self.gives()
        return given


@dataclass(frozen=True)
class OwnScale:
    """A query scale of one number whatever the queries."""

    def __call__(self, positions: Positions) -> Any:
        return np.ones(3)


@dataclass(frozen=True)
class OwnShares:
    """A query scale that follows the other queries: shares of the last one, or distances to the first."""

    of_last: bool

    def __call__(self, positions: Positions) -> Any:
        return positions / positions.max() if self.of_last else 1.0 + positions - positions.min()


@dataclass(frozen=True)
class OwnMask:
    """A mask whose size is not that of queries by keys."""

    def allowed(self, queries: Positions, keys: Positions) -> Any:
        return True


@dataclass(frozen=True)
class OwnBands:
    """One region with positions [n, bands] of queries and of keys."""

    queries: int
    keys: int
    relative: bool = False

    def regions(self) -> Sequence[Region]:
        def banded(bands: int) -> Callable[[Positions], Floats]:
            return lambda i: np.repeat((i - self.relative * i[:1])[:, None] / 1.0, bands, axis=1)

        return (Region(banded(self.queries), banded(self.keys), lambda i, j: (i >= j) | (i < j)),)


@dataclass(frozen=True)
class OwnRemap:
    """Two regions: distances below `begin`, halved, and those from `end` on."""

    begin: int
    end: int
    first: float = 1.0

    def regions(self) -> Sequence[Region]:
        def halved(positions: Positions) -> Floats:
            return np.asarray(positions / 2 * self.first)

        return (
            Region(halved, halved, lambda i, j: i - j < self.begin),
            Region(PositionMap(), PositionMap(), lambda i, j: i - j >= self.end),
        )


NONSENSE: list[tuple[Callable[[], Any], str]] = [
    (lambda: None, "must return an Attention, got None"),
    (lambda: Attention, "must return an Attention, got <class 'lexbench.core.attention.Attention'>"),
    (lambda: Attention(inv_freq=np.full(64, np.nan)), "inv_freq must be finite numbers"),
    (lambda: Attention(inv_freq=np.ones(3)), "inv_freq needs 64 pairs on llama2, got 3"),
    (lambda: Attention(bias=Slopes((0.5,) * 7)), "bias needs one slope for each of 4 heads on llama2, got 7"),
    (lambda: Attention(head_ratios=HeadRatios((1.0,) * 4)), "one ratio for each of 2 key heads on llama2, got 4"),
    (lambda: Attention(scale=2.0, layers=(4,)), "layers must be 0 to 3 on llama2, got (4,)"),
    (lambda: Attention(mask=Window(cast(int, "64"))), "Window.size must be int of at least 0, got '64'"),
    (lambda: Attention(mask=cast(Any, OwnMask())), "mask.allowed must give truth values of shape (16, 16), got True"),
    (
        lambda: Attention(query_scale=cast(Any, np.log)),
        "frozen dataclasses of plain values, which can be kept: Object of",
    ),
    (lambda: Attention(query_scale=cast(Any, OwnScale())), "numbers of shape (16,), got float64 of shape (3,)"),
    # 66 / 999, and 66 / 532 beside the first nine; 533 queries from the first on, and one where 532 is the first
    (
        lambda: Attention(query_scale=cast(Any, OwnShares(True))),
        "got 0.0660661 for position 66, and 0.12406 beside fewer others",
    ),
    (lambda: Attention(query_scale=cast(Any, OwnShares(False))), "got 533 for position 532, and 1 beside fewer others"),
    (lambda: Attention(remap=OwnRemap(8, 900)), "must hold each pair once, got 0 regions of query 66 and key 0"),
    (lambda: Attention(remap=OwnRemap(900, 8)), "must hold each pair once, got 2 regions of query 66 and key 0"),
    (lambda: Attention(remap=OwnBands(2, 4)), "must have one number of bands beside 1, got [1, 2, 4]"),
    (lambda: Attention(remap=OwnBands(3, 3)), "remap has 3 bands, which do not divide the 64 pairs of llama2"),
    (lambda: Attention(remap=OwnBands(2, 2, True)), "a region's query must give each position a number of its own"),
    (lambda: Attention(remap=OwnBands(0, 0)), "a region's query must give numbers of shape (16,), got"),
    (lambda: Attention(remap=OwnRemap(8, 8, np.nan)), "a region's query must give finite numbers, got [nan"),
]


@pytest.mark.parametrize(("gives", "said"), NONSENSE, ids=[said for _, said in NONSENSE])
def test_nonsense_of_a_method_is_said_in_a_line_with_its_name(gives: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^Own\.attention: ") as error:
        attention_of(Own(gives), LLAMA2, 1000)  # the second of 16 positions over 0 to 999 is 66
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_fails_inside_a_methods_slot_is_the_methods_failure() -> None:
    with pytest.raises(Deferred) as failure:
        attention_of(Own(lambda: Attention(scale={"a": 1.0}["angles"])), LLAMA2, 1000)
    assert str(failure.value).startswith("Own.attention fails with KeyError ('angles') in test_composition.py, line ")


def test_slots_of_a_methods_own_classes_are_taken() -> None:
    for own in (OwnRemap(8, 8), OwnBands(2, 2), OwnBands(1, 4)):
        assert attention_of(Own(functools.partial(Attention, remap=own)), LLAMA2, 1000).remap is own


OWN = '''
from dataclasses import dataclass

from lexbench import Attention, Model
from lexbench.core.attention import Window


@dataclass(frozen=True)
class Mine:
    """A window of half a token."""

    def attention(self, model: Model, length: int) -> Attention:
        return Attention(mask=Window(0.5))

    def over(self, attention: Attention, model: Model, length: int) -> Attention:
        return attention.as_data()
'''


@pytest.mark.everyday("run")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "task=passkey", "lengths=[256]", "--dry-run"], "attention: Window.size must be int of"),
        (["show"], "attention: Window.size must be int of"),
        (["export", "length=512", "--to", "transformers"], "attention: Window.size must be int of"),
        (["show", "method=none+mine"], "over: must return an Attention, got {}"),
    ],
    ids=["run", "show", "export", "composed"],
)
def test_every_command_answers_nonsense_of_a_method_in_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LEXBENCH_CONFIG_PATH", str(tmp_path))
    (tmp_path / "method").mkdir()
    (tmp_path / "method/mine.yaml").write_text("file: mine.py\n")
    (tmp_path / "method/mine.py").write_text(OWN)
    command, *settings = words
    named = [] if any(word.startswith("method=") for word in settings) else ["method=mine"]
    assert main.main([command, *named, *settings]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lexbench: Mine.{said}")

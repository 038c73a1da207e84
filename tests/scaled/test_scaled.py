"""Methods on models whose RoPE is scaled, of several kinds, or missing in layers: equal to the formulas, or refused."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench import Attention, Model, Refused
from lexbench.backends.hf import Hf
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.attention import Window
from lexbench.core.method_key import MethodKey
from lexbench.methods.composition import named_method, read_method
from lexbench.methods.scaled import attention_of, join_layers, ropes_of_model
from lexbench.runner import verify
from tests.census import tiny
from tests.scaled import families
from tests.scaled import oracle as formulas
from tests.scaled.families import ASKED, FAMILIES, LENGTH, TRAINED, WINDOW
from tests.scaled.oracle import Oracle
from tools import methods_page

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Hf, Oracle]]]:
    """The backend and the oracle of a family, opened once."""
    known: dict[str, tuple[Hf, Oracle]] = {}

    def ask(family: str) -> tuple[Hf, Oracle]:
        if family not in known:
            folder = families.save(tmp_path_factory.mktemp("model") / "m", family)
            known[family] = families.opened(folder), Oracle(folder, FAMILIES[family])
        return known[family]

    yield ask
    for _, oracle in known.values():
        oracle.close()


def _ask(model: tuple[Hf, Oracle], method: str, over: str) -> methods_page.Found:
    return methods_page.ask(model[0], model[1], method, over)


@pytest.mark.everyday(
    "Llama 3.1-yarn-scaled", "gpt-oss-self_extend", "gpt-oss-streaming_llm", "Gemma 3-chunkllama-plain"
)
@pytest.mark.parametrize(
    ("family", "method", "over"),
    [
        ("Llama 3.1", "yarn", "scaled"),
        ("Qwen3.5", "rerope", "scaled"),
        ("Gemma 3", "longrope", "scaled"),
        ("Gemma 3", "chunkllama", "plain"),
        ("gpt-oss", "yarn", "plain"),
        ("gpt-oss", "self_extend", "scaled"),
        ("gpt-oss", "streaming_llm", "scaled"),
        ("SmolLM3", "ms_poe", "scaled"),
        ("DeepSeek-V3", "leaky_rerope", "scaled"),
        ("DeepSeek-V3", "ntk", "plain"),
    ],
)
def test_a_method_is_its_formula(models: Any, family: str, method: str, over: str) -> None:
    found = _ask(models(family), method, over)
    assert found.right, found


@pytest.mark.everyday("gpt-oss")
@pytest.mark.parametrize(
    "family", ["gpt-oss", "DeepSeek-V2", "DeepSeek-V3", "Gemma 3", "GLM-4.5", "Llama 4", "Qwen3.5"]
)
def test_bands_of_pairs_have_distances_of_their_own(models: Any, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hf, oracle = models(family)
    hf.attend(attention_of(named_method("dpe", groups=[2, 8]), hf.model, LENGTH))
    whole = hf.logits(methods_page.TOKENS, [LENGTH], LENGTH).double()
    pieces = hf.logits(methods_page.TOKENS, [LENGTH - 9, 7, 1, 1], LENGTH - 9).double()
    monkeypatch.setattr(formulas, "specs", lambda name, start: [formulas.in_bands(start, (2, 8))])
    oracle.set("dpe")
    expected = oracle.logits(methods_page.TOKENS)
    for given in (whole, pieces):
        assert float((given - expected).std() / expected.std()) <= methods_page.TOLERANCE
    assert hf.difference_from_method(LENGTH) < 1e-4


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("gpt-oss", {"windows": ()}),
        ("gpt-oss", {"windows": (1, 3)}),
        ("SmolLM3", {"without": ()}),
        ("DeepSeek-V3", {"offset": 0}),
        ("Gemma 3", {"by_kind": True, "windows": (1, 3)}),
    ],
)
def test_the_comparison_sees_a_wrong_layer(models: Any, family: str, wrong: dict[str, Any]) -> None:
    hf, oracle = models(family)
    right, oracle.family = oracle.family, replace(oracle.family, **wrong)
    try:
        found = methods_page.ask(hf, oracle, "rerope", "scaled")
    finally:
        oracle.family = right
    assert found.error is not None and found.error > 100 * methods_page.TOLERANCE


def test_the_comparison_sees_a_lost_sink(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lexbench.backends.hf.exact import hook

    kernel = hook.kernel
    monkeypatch.setattr(hook, "kernel", lambda *given, sinks=None, **more: kernel(*given, **more))
    error = _ask(models("gpt-oss"), "sliding_window", "scaled")
    assert "does not reproduce its logits" in error.refused or (error.error or 0) > 100 * methods_page.TOLERANCE


@pytest.mark.everyday("Gemma 3-yarn")
@pytest.mark.parametrize(("family", "method"), [("gpt-oss", "rerope"), ("Gemma 3", "yarn"), ("SmolLM3", "jet_long")])
def test_a_method_passes_its_self_check(models: Any, family: str, method: str) -> None:
    hf, _ = models(family)
    for length in (TRAINED, LENGTH):
        checks = verify.verify_attention(hf, attention_of(named_method(method), hf.model, length), length)
        assert verify.failure_of_checks(checks) is None
        assert {check.name for check in checks if check.passed} >= {"cached", "order", "finite"}


def test_all_layers_are_changed_where_that_is_asked(models: Any) -> None:
    hf, oracle = models("Gemma 3")
    hf.attend(attention_of(named_method("ntk", layers="all"), hf.model, LENGTH))
    given = hf.logits(methods_page.TOKENS, [LENGTH], LENGTH).double()
    oracle.set("ntk", everywhere=True)
    expected = oracle.logits(methods_page.TOKENS)
    assert float((given - expected).std() / expected.std()) <= methods_page.TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_is_its_formula_or_says_why_not(family: str, tmp_path: Path) -> None:
    found = methods_page.asked(family, tmp_path / "m")
    wrong = {
        (over, name): each for over in found for name, each in found[over].items() if each.error and not each.right
    }
    assert not wrong
    assert methods_page.row(family, found) == methods_page.rows()[family], (
        "the page is old: python -m tools.methods_page"
    )


def test_the_page_has_every_family() -> None:
    assert methods_page.PAGE.read_text().startswith(methods_page.HEAD)
    assert list(methods_page.rows()) == list(FAMILIES)
    for family in ASKED:
        assert min(int(cell) for cell in methods_page.rows()[family].split("|")[3:5]) >= 30


# the rule


def small(**changes: Any) -> Model:
    stated: dict[str, Any] = {"name": "small", "trained_length": 64, "head_dim": 8, "rope_base": 100.0, "layers": 4}
    return Model(**{**stated, **changes})


def assert_close(given: Any, expected: Any) -> None:
    np.testing.assert_allclose(given, expected)


LINEAR = {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 16}
PLAIN = 100.0 ** -np.array([0, 0.25, 0.5, 0.75])


def test_over_scaled_starts_from_the_scaled_frequencies_and_the_extended_length() -> None:
    made = attention_of(named_method("pi"), small(rope_scaling=LINEAR), 128)
    assert_close(made.inv_freq, PLAIN / 4 / 2)


def test_over_plain_starts_from_the_base_and_the_original_length() -> None:
    made = attention_of(named_method("pi", over="plain"), small(rope_scaling=LINEAR), 128)
    assert_close(made.inv_freq, PLAIN / 8)
    undone = attention_of(named_method("none", over="plain"), small(rope_scaling=LINEAR), 128)
    assert_close(undone.inv_freq, PLAIN)


def test_a_scale_multiplies_the_own_one_and_plain_takes_it_back() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "original_max_position_embeddings": 16}
    model = small(rope_scaling=scaling)
    yarn = 0.1 * np.log(2) + 1
    assert attention_of(named_method("yarn"), model, 128).scale == pytest.approx(1.5 * yarn)
    assert attention_of(named_method("pi"), model, 128).scale == 1.5
    assert attention_of(named_method("rerope"), model, 128).slots() == ("remap",)
    assert attention_of(named_method("pi", over="plain"), model, 128).scale == 1.0


def test_only_layers_that_see_all_keys_are_changed() -> None:
    scaling = {"full_attention": {"rope_theta": 100.0}, "sliding_attention": {"rope_theta": 10.0}}
    kinds = ("sliding_attention", "full_attention") * 2
    model = small(rope_base=None, rope_scaling=scaling, layer_types=kinds)
    made = attention_of(named_method("pi"), model, 128)
    assert made.at(0).slots() == made.at(2).slots() == ()
    assert_close(made.at(3).inv_freq, PLAIN / 2)
    everywhere = attention_of(named_method("pi", layers="all"), model, 128)
    assert_close(everywhere.at(0).inv_freq, 10.0 ** -np.array([0, 0.25, 0.5, 0.75]) / 2)
    shared = attention_of(named_method("pi", layers="global"), small(layer_types=kinds), 128)
    assert shared.at(0).slots() == () and shared.at(1).slots() == ("inv_freq",)


def test_on_a_plain_model_over_changes_nothing() -> None:
    for name in ("yarn", "rerope", "ms_poe"):
        plain = named_method(name).attention(small(kv_heads=2), 128).as_data()
        for over in ("scaled", "plain"):
            assert attention_of(named_method(name, over=over), small(kv_heads=2), 128).as_data() == plain


def test_labels_and_identities_say_what_was_chosen() -> None:
    usual = {"_target_": "lexbench.methods.yarn.Yarn", "name": "yarn", "over": "scaled"}
    assert read_method(usual)[2] == MethodKey.of_method("yarn")
    config = {"_target_": "lexbench.methods.yarn.Yarn", "name": "yarn", "factor": 4.0, "over": "plain"}
    assert str(read_method(config)[2]) == "yarn(factor=4.0, over='plain')"
    listed = {"compose": [{"name": "yarn", "over": "plain"}, "log_n"]}
    assert str(read_method(listed)[2]) == "yarn+log_n(over='plain')"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"over": "both"}, "method.over must be scaled or plain, got 'both'"),
        ({"layers": "few"}, "method.layers must be"),
    ],
)
def test_unknown_choices_are_one_line(parameters: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        named_method("yarn", **parameters)


def test_composed_methods_start_from_one() -> None:
    listed = [{"name": "yarn", "over": "plain"}, {"name": "log_n", "over": "scaled"}]
    with pytest.raises(ValueError, match=r"method\.over must be one for all composed methods"):
        named_method({"compose": listed})


def test_layers_that_cannot_be_told_are_refused() -> None:
    model = small(rope_base=None, rope_scaling={"main": {"rope_theta": 100.0}, "compress": {"rope_theta": 10.0}})
    with pytest.raises(Refused, match="a RoPE for each of main, compress, and its config does not say which layers"):
        attention_of(named_method("pi"), model, 128)


@pytest.mark.parametrize("family", FAMILIES)
def test_own_frequencies_are_those_of_transformers(family: str) -> None:
    """Ours, from config.json in float64, beside the tables of transformers' module, in float32."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = tiny.config_of(FAMILIES[family].kind, **families.SHARED, **copy.deepcopy(FAMILIES[family].changes))
    model = Model(name=family, **{**facts_of_config(config.to_dict()), "trained_length": TRAINED})
    for rope in ropes_of_model(model):
        kind = rope.parameters["rope_type"]
        inv_freq, scale = rope.own(LENGTH)
        if kind == "default":
            dims = 2 * len(inv_freq)
            np.testing.assert_allclose(inv_freq, rope.parameters["rope_theta"] ** (-np.arange(0, dims, 2) / dims))
            continue
        per_layer = config.per_layer_config[rope.kind] if family == "Gemma 4" else config
        theirs, their_scale = ROPE_INIT_FUNCTIONS[kind](per_layer, torch.device("cpu"), LENGTH, layer_type=rope.kind)
        np.testing.assert_allclose(inv_freq, theirs.double().numpy(), rtol=2e-6)
        assert scale == pytest.approx(their_scale)
    assert WINDOW < TRAINED


def test_layers_without_passes_of_their_own_keep_what_they_have_in_every_pass() -> None:
    plain, one, two = Attention(mask=Window(5)), Attention(scale=1.5), Attention(scale=2.0)
    made = join_layers([Attention(mixture=(one, two)), plain])
    found = [[part.at(layer).as_data() for layer in (0, 1)] for part in made.mixture or ()]
    assert found == [[one.as_data(), plain.as_data()], [two.as_data(), plain.as_data()]]

"""What a user of the harness writes, as a model under a method."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.core.attention import Floats
from lexbench.core.record import Refused
from lexbench.parts.exchange.lm_eval import arguments
from lexbench.parts.exchange.lm_eval.arguments import greedy_settings, load_backend, read_model_arguments

LEXLET = Path(__file__).parents[4] / "lexbench" / "lexlet"


def test_what_is_not_said_is_the_models_and_the_methods_own() -> None:
    setting = read_model_arguments(
        {"model": "lexlet", "method": None, "batch": None}
    )  # the harness reads `none` as None
    assert (setting.method.label, setting.max_length, setting.attention.slots()) == ("none", 256, ())
    assert setting.backend["name"] == "hf"
    assert read_model_arguments({"path": str(LEXLET)}).model.trained_length == 256


def frequencies(**given: Any) -> Floats:
    found = read_model_arguments({"model": "lexlet", **given}).attention.inv_freq
    assert found is not None
    return found


def test_a_method_is_resolved_once_at_the_longest_text() -> None:
    assert read_model_arguments({"model": "lexlet", "method": "yarn", "factor": 4}).max_length == 1024
    pairs = np.arange(0, 32, 2) / 32
    stretched = frequencies(method="ntk", max_length=512)  # no factor: 512 / 256
    np.testing.assert_allclose(stretched, (10000.0 * 2.0 ** (32 / 30)) ** -pairs, rtol=1e-12)
    stretched = frequencies(method="pi", max_length=512, trained_length=128)
    np.testing.assert_allclose(stretched, 10000.0**-pairs / 4, rtol=1e-12)


def test_combined_methods_are_one_and_their_largest_factor_counts() -> None:
    setting = read_model_arguments({"model": "lexlet", "method": {"compose": [{"name": "yarn", "factor": 3}, "log_n"]}})
    assert setting.method.label == "yarn(factor=3)+log_n"
    assert setting.max_length == 768


def test_parameters_reach_their_noun() -> None:
    setting = read_model_arguments(
        {
            "model": "lexlet",
            "model.bos": False,
            "method": "yarn",
            "method.factor": 2,
            "beta_fast": 16,
            "dtype": "float64",
            "device": "cpu",
            "backend.chunk": 64,
        }
    )
    assert setting.model.bos is False
    assert setting.method.label == "yarn(factor=2, beta_fast=16)"
    assert dict(setting.backend).items() >= {"dtype": "float64", "device": "cpu", "chunk": 64}.items()


def test_the_harness_own_device_is_no_wish() -> None:
    assert "device" not in read_model_arguments({"model": "lexlet", "device": "cuda:0"}).backend
    assert read_model_arguments({"model": "lexlet", "device": "cuda:1"}).backend["device"] == "cuda:1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "model_args name no model: give model=NAME"),
        ({"model": "lexlett"}, "unknown model 'lexlett': did you mean lexlet"),
        ({"model": "lexlet", "method": "yarm"}, "unknown method 'yarm': did you mean yarn"),
        ({"model": "lexlet", "method": "yarn", "fctor": 4}, "unknown argument fctor: did you mean factor"),
        (
            {"model": "lexlet", "method": "yarn", "max_lenght": 512},
            "unknown argument max_lenght: did you mean max_length",
        ),
        ({"model": "lexlet", "factor": 4}, "unknown argument factor: .*; none: has no parameters"),
        ({"model": "lexlet", "max_length": "4k"}, "max_length must be a whole number of at least 2, got '4k'"),
        ({"model": "lexlet", "max_length": 1}, "max_length must be a whole number of at least 2, got 1"),
        ({"model": "lexlet", "backend": "hff"}, "unknown backend 'hff': did you mean hf"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_model_arguments(given)


def test_an_unknown_parameter_of_the_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown parameter backend.at_once"):
        load_backend(read_model_arguments({"model": "lexlet", "backend": "chance", "backend.at_once": 8}))


@pytest.mark.slow
def test_a_method_that_fails_its_check_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "failure_of_checks", lambda checks: "failed its self-check: applied (never)")
    with pytest.raises(Refused, match="pi failed its self-check"):
        load_backend(read_model_arguments({"model": "lexlet", "method": "pi", "max_length": 64, "trained_length": 32}))


@pytest.mark.parametrize(
    ("settings", "room", "until"),
    [
        ({}, 256, ()),
        ({"until": "\n\n", "max_gen_toks": 8}, 8, ("\n\n",)),
        ({"until": ["</s>", ""], "max_new_tokens": 9, "do_sample": False, "temperature": 1}, 9, ("</s>",)),
        ({"until": None, "do_sample": True, "temperature": 0.0, "top_p": 0.9}, 256, ()),
        ({"max_gen_toks": 3, "max_tokens": 7, "num_beams": 1, "temperature": None}, 3, ()),
    ],
)
def test_what_is_written_greedily(settings: dict[str, Any], room: int, until: tuple[str, ...]) -> None:
    assert greedy_settings(settings) == (room, until)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"do_sample": True}, "decodes greedily, the task samples"),
        ({"temperature": 0.7}, "the task samples .*temperature=0.7.*do_sample=False"),
        ({"num_beams": 4}, "cannot use num_beams=4"),
        ({"max_length": 100}, "cannot use max_length=100"),
    ],
)
def test_what_is_not_greedy_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        greedy_settings(settings)

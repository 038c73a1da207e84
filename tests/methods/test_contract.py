"""What every method in configs/method keeps to."""

import importlib
import inspect
import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from lexbench import Model, Refused
from lexbench.core import registry
from lexbench.methods.composition import Method

ROOT = Path(__file__).parents[2]
NAMES = registry.registered_names("method")
NEED_PLAIN_ROPE = (
    *("abf", "attention_buckets", "chunkllama", "clex", "clipped_rope", "critical_base", "dynamic_ntk", "entropy_abf"),
    *("hope", "llama3", "longrope", "longrope2", "ms_poe", "ntk", "ntk_by_parts", "ntk_fixed", "ntk_mixed", "ntk_old"),
    *("p_rope", "pi", "power_basis", "resonance", "truncated_basis", "yarn", "yarn_paper"),
)
"""They compute frequencies, or need a number that only the model's own file has."""
REMAP = (
    *("adagrope", "dca", "dpe", "jet_long", "lambda_mask", "leaky_rerope", "rerope", "self_extend", "streaming_llm"),
    "string",
)
NEED_NOTHING = ("bca", "kv", "log_n", "none", "qk_gain", "sliding_window")


def build(name: str) -> Method:
    config = registry.read_named_config("method", name)
    module, _, kind = config.pop("_target_").rpartition(".")
    method: Method = getattr(importlib.import_module(module), kind)(**config)
    return method


@pytest.mark.parametrize("name", NAMES)
def test_file_yaml_and_test_share_the_name(name: str) -> None:
    method: Any = build(name)
    assert type(method).__module__ in (f"lexbench.methods.{name}", f"lexbench.parts.{name}.methods.{name}")
    assert is_dataclass(method) and type(method).__hash__ is not None  # frozen: hashable by value
    assert (ROOT / "tests" / "methods" / f"test_{name}.py").exists() or (ROOT / "tests" / "parts" / name).is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_imported_without_torch_and_without_other_methods(name: str) -> None:
    source = inspect.getsource(inspect.getmodule(type(build(name))))  # type: ignore[arg-type]
    imported = [line for line in source.splitlines() if line.lstrip().startswith(("import ", "from "))]
    assert not [line for line in imported if "torch" in line]
    shared = ("lexbench.methods.rotary", "lexbench.methods.distances")
    assert not [line for line in imported if "lexbench.methods" in line and not any(part in line for part in shared)]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_cell_always_has_the_same_attention(name: str, llama2: Model) -> None:
    method = build(name)
    first = json.dumps(method.attention(llama2, 16384).as_data())
    method.attention(llama2, 65536)
    method.attention(llama2, 100)
    assert json.dumps(method.attention(llama2, 16384).as_data()) == first


@pytest.mark.parametrize("name", NAMES)
def test_frequencies_are_one_for_each_rotated_pair(name: str, partial: Model) -> None:
    inv_freq = build(name).attention(partial, 8192).inv_freq
    assert inv_freq is None or inv_freq.shape == (8,)


@pytest.mark.parts
def test_each_method_says_what_it_needs() -> None:
    assert sorted([*NEED_PLAIN_ROPE, *REMAP, *NEED_NOTHING]) == NAMES


@pytest.mark.parametrize("name", NEED_PLAIN_ROPE)
def test_models_without_plain_rope_are_refused(name: str, nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        with pytest.raises(Refused, match=model.name):
            build(name).attention(model, 8192)


@pytest.mark.parametrize("name", REMAP)
def test_distances_change_under_scaled_angles_and_need_rotary_positions(name: str, nope: Model, scaled: Model) -> None:
    with pytest.raises(Refused, match=r"nope has no rotary positions"):
        build(name).attention(nope, 8192)
    made = build(name).attention(scaled, 8192)
    assert made.inv_freq is None and "remap" in made.slots()


@pytest.mark.parts("kv")
@pytest.mark.parametrize("name", NEED_NOTHING)
def test_no_frequencies_are_set_where_none_are_needed(name: str, nope: Model, scaled: Model) -> None:
    for model in (nope, scaled):
        assert build(name).attention(model, 8192).inv_freq is None

"""What is printed is loaded, and turns the pairs as the method does."""

import json
import math
import shlex
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lexbench import Attention, Model, Refused
from lexbench.core import registry
from lexbench.core.attention import Blocks, Dynamic, Floats, HeadRatios, LogScale, PositionMap, Remap, Slopes, Window
from lexbench.methods.composition import Method, read_method
from lexbench.methods.dynamic_ntk import DynamicNtk
from lexbench.methods.export import EXPORT_TARGETS, as_data, export_text
from lexbench.methods.none import NoMethod
from lexbench.methods.ntk import Ntk
from lexbench.methods.pi import Pi
from lexbench.methods.rerope import Rerope
from lexbench.methods.yarn import Yarn

FULL = Model(name="full", path="org/full", trained_length=256, head_dim=64, rope_base=10_000.0)
WIDE = Model(name="wide", trained_length=256, head_dim=128, rope_base=500_000.0)
QUARTER = Model(name="quarter", trained_length=256, head_dim=64, rotary_dim=16, rope_base=10_000.0)
ODD = Model(name="odd", trained_length=256, head_dim=44, rotary_dim=30, rope_base=10_000.0)
MODELS = [FULL, WIDE, QUARTER, ODD]
NOPE = Model(name="nope", trained_length=256, head_dim=64)
LENGTHS = [100, 256, 300, 1024]
NAMES = registry.registered_names("method")


@dataclass(frozen=True)
class Fixed:
    """A method that asks for this."""

    asked: Attention

    def attention(self, model: Model, length: int) -> Attention:
        return self.asked


@dataclass(frozen=True)
class Stated:
    """A method that knows its name in transformers."""

    asked: Attention
    name: dict[str, Any] | None

    def attention(self, model: Model, length: int) -> Attention:
        return self.asked

    def rope_parameters(self, model: Model, length: int) -> dict[str, Any]:
        if self.name is None:
            raise Refused("no name here")
        return self.name


def build(name: str) -> Method:
    return read_method({**registry.read_named_config("method", name), "name": name})[1]


def ladder(model: Model, base: float | None = None) -> Floats:
    dims = model.rotary_dim or model.head_dim
    return np.array([(base or model.rope_base or 0) ** (-2 * pair / dims) for pair in range(dims // 2)])


def yarn(model: Model, factor: float, **more: Any) -> Stated:
    """Yarn beside its name."""
    asked = Yarn(factor=factor, **more).attention(model, 1)
    name = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": model.trained_length, **more}
    return Stated(asked, name)


# transformers


def rotary(model: Model, changes: dict[str, Any]) -> Any:
    """The rotary module that transformers builds from a config with these changes, two heads of the model's."""
    from transformers import GPTNeoXConfig, LlamaConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 2 * model.head_dim, "num_attention_heads": 2, **changes}
    if model.rotary_dim is None:
        return LlamaRotaryEmbedding(LlamaConfig(**sizes))
    return GPTNeoXRotaryEmbedding(GPTNeoXConfig(**sizes))


def assert_turns_as(attention: Attention, model: Model, changes: dict[str, Any], positions: list[int]) -> None:
    """transformers' frequencies, cos and sin, for a text with these positions, are the method's own in float64."""
    import torch

    module = rotary(model, changes)
    cos, sin = module(torch.zeros(1), torch.tensor([positions]))
    expected = ladder(model) if attention.inv_freq is None else attention.inv_freq
    np.testing.assert_allclose(module.inv_freq.double().numpy(), expected, rtol=1e-6, atol=0)
    angles = np.outer(positions, expected)
    for theirs, turn in ((cos, np.cos), (sin, np.sin)):
        error = np.abs(theirs[0, :, : len(expected)].double().numpy() - (attention.scale or 1.0) * turn(angles))
        assert (error <= 1e-6 + 1e-6 * angles).all()  # a few roundings of the angle in float32


def places(text: int) -> list[int]:
    return sorted({place for place in (0, 1, 256, 1023, text - 1) if place < text})


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_what_is_printed_and_turns_alike(name: str, model: Model) -> None:
    method = build(name)
    for length in LENGTHS:
        attention = reachable(method, name, model, length, "transformers")
        if attention is None:
            continue
        changes = json.loads(export_text(method, name, model, length, "transformers"))
        assert changes["max_position_embeddings"] == length and "rope_theta" in changes["rope_parameters"]
        assert changes["rope_parameters"]["rope_type"] != "dynamic"
        assert_turns_as(attention, model, changes, places(length))
        rope = changes["rope_parameters"]
        if length > model.trained_length and rope.get("short_factor") == rope.get("long_factor"):
            assert_turns_as(attention, model, changes, places(200))  # a short text in the same deployment


def reachable(method: Method, name: str, model: Model, length: int, target: str) -> Attention | None:
    """What the method asks for where it is only frequencies and scale, else None once the refusal is checked."""
    try:
        attention = method.attention(model, length)
    except Refused as refused:
        reason = refused.reason
    else:
        beyond = [slot for slot in attention.slots() if slot not in ("inv_freq", "scale")]
        beyond = ["remapped distances" if slot == "remap" else slot for slot in beyond]
        if not beyond:
            return attention
        reason = f"{target} cannot express {', '.join(beyond)} ({name}): "
    with pytest.raises(Refused) as why:
        export_text(method, name, model, length, target)
    assert why.value.reason.startswith(reason)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_transformers_finds_nothing_to_warn_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import modeling_rope_utils

    method = build(name)
    if reachable(method, name, FULL, 1024, "transformers") is None:
        return
    said: list[str] = []
    for level in ("warning", "warning_once"):
        monkeypatch.setattr(modeling_rope_utils.logger, level, lambda text, *rest: said.append(text))
    rotary(FULL, json.loads(export_text(method, name, FULL, 1024, "transformers")))
    assert not said


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("scale", [None, 1.25])
def test_any_table_is_said_pair_by_pair(model: Model, scale: float | None) -> None:
    wanted = ladder(model) * np.linspace(1.5, 0.01, len(ladder(model)))
    method = Fixed(Attention(inv_freq=wanted, scale=scale))
    for length in (100, 1024):
        changes = json.loads(export_text(method, "table", model, length, "transformers"))
        assert changes["rope_parameters"]["original_max_position_embeddings"] == 256
        assert changes["rope_parameters"]["factor"] == max(1, length / 256)
        assert_turns_as(method.asked, model, changes, places(length))
        assert_turns_as(method.asked, model, changes, [0, 1, 99])
        assert_table(method.asked, model, as_data(method, "table", model, length, "vllm")["hf_overrides"], length)


def test_a_scale_alone_leaves_the_frequencies() -> None:
    method = Fixed(Attention(scale=1.25))
    assert_turns_as(method.asked, FULL, as_data(method, "warm", FULL, 1024, "transformers"), [0, 1, 1023])


def test_a_pair_that_does_not_turn_has_an_angle_of_zero() -> None:
    for lowest in (0.0, 1e-310):
        wanted = ladder(FULL)
        wanted[0] = wanted[20:] = lowest
        with np.errstate(all="raise"):
            changes = json.loads(export_text(Fixed(Attention(inv_freq=wanted)), "still", FULL, 1 << 20, "transformers"))
        assert max(changes["rope_parameters"]["long_factor"]) == pytest.approx(1e39)
        theirs = rotary(FULL, changes).inv_freq
        assert theirs[0] == 0 and (theirs[20:] == 0).all() and (theirs[1:20] > 0).all()


def test_a_name_in_transformers_is_taken_as_it_is() -> None:
    data = as_data(yarn(QUARTER, 4.0), "yarn", QUARTER, 1024, "transformers")
    assert data == {
        "rope_scaling": None,
        "rope_parameters": {
            "rope_theta": 10_000.0,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "partial_rotary_factor": 0.25,
        },
        "max_position_embeddings": 1024,
    }
    # A share that the name states is no share of the model.
    own = Stated(Attention(), {"rope_type": "proportional", "rope_theta": 7.0, "partial_rotary_factor": 0.5})
    assert as_data(own, "own", QUARTER, 9, "transformers")["rope_parameters"] == own.name


def test_a_method_without_a_name_for_this_model_is_said_in_numbers() -> None:
    nameless = Stated(Attention(inv_freq=ladder(FULL) / 2), None)
    assert as_data(nameless, "half", FULL, 512, "transformers")["rope_parameters"]["factor"] == 2.0


def test_a_base_or_a_factor_is_said_in_one_number() -> None:
    # 256 to 1024 tokens is a factor of 4; 4^(64/62) is 4.18291.
    rope = as_data(Fixed(Ntk(factor=4).attention(FULL, 1)), "ntk", FULL, 1024, "transformers")["rope_parameters"]
    assert rope == {"rope_type": "default", "rope_theta": pytest.approx(10_000 * 4 ** (64 / 62), rel=1e-11)}
    rope = as_data(Fixed(Attention(inv_freq=ladder(WIDE) / 3)), "pi", WIDE, 9, "transformers")["rope_parameters"]
    assert rope == {"rope_type": "linear", "factor": 3.0, "rope_theta": 500_000.0}
    rope = as_data(Fixed(Attention(inv_freq=ladder(FULL) / 49)), "pi", FULL, 9, "transformers")["rope_parameters"]
    assert rope["factor"] == 49.0 and rope["rope_theta"] == 10_000.0
    rope = as_data(Fixed(Attention(inv_freq=ladder(FULL, 500_000.0))), "abf", FULL, 9, "transformers")
    assert rope["rope_parameters"] == {"rope_type": "default", "rope_theta": 500_000.0}
    one = Model(name="one", trained_length=256, head_dim=2, rope_base=10_000.0)
    rope = as_data(Fixed(Attention(inv_freq=np.array([0.5]))), "pi", one, 9, "transformers")["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("linear", 2.0, 10_000.0)


def test_a_method_set_for_another_length_is_said_as_it_is_there() -> None:
    _, method, key = read_method({**registry.read_named_config("method", "ntk"), "name": "ntk", "at": 1024})
    for target in ("transformers", "vllm"):
        said = as_data(method, str(key), FULL, 4096, target)
        rope = said.get("hf_overrides", said)["rope_parameters"]
        assert rope == {"rope_type": "default", "rope_theta": pytest.approx(10_000 * 4 ** (64 / 62), rel=1e-11)}


def test_frequencies_that_are_nearly_a_ladder_are_said_pair_by_pair() -> None:
    wanted = ladder(FULL)
    wanted[7] *= 1 + 1e-7
    rope = as_data(Fixed(Attention(inv_freq=wanted)), "bent", FULL, 9, "transformers")["rope_parameters"]
    assert rope["rope_type"] == "longrope"
    faster = as_data(Fixed(Attention(inv_freq=2 * ladder(FULL))), "fast", FULL, 9, "transformers")["rope_parameters"]
    assert faster["long_factor"] == pytest.approx([0.5] * 32)  # transformers takes no linear factor below 1


def test_transformers_own_dynamic_is_said_with_the_trained_length() -> None:
    changes = as_data(DynamicNtk(factor=2.0, policy="hf_dynamic"), "hf", FULL, 1024, "transformers")
    assert changes == {
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 256,
    }
    grown = 10_000 * (2 * 1024 / 256 - 1) ** (64 / 62)
    assert_turns_as(Attention(inv_freq=ladder(FULL, grown)), FULL, changes, places(1024))
    assert_turns_as(Attention(inv_freq=ladder(FULL)), FULL, changes, places(256))


def test_dynamic_ntk_at_one_length_is_a_base_of_its_own() -> None:
    rope = as_data(DynamicNtk(factor=2), "dynamic_ntk", FULL, 1024, "transformers")["rope_parameters"]
    assert rope == {"rope_type": "default", "rope_theta": pytest.approx(10_000 * 7 ** (64 / 62), rel=1e-11)}


# vLLM


def table(model: Model, overrides: dict[str, Any]) -> tuple[Floats, float, float]:
    """Frequencies, scale and rows of vLLM's table of cos and sin, as all its releases read them."""
    rope = overrides["rope_parameters"]
    dims = int(model.head_dim * rope.get("partial_rotary_factor", 1.0))
    kind, rows, pairs = rope["rope_type"], overrides["max_position_embeddings"], np.arange(dims // 2)
    plain = rope["rope_theta"] ** (-2 * pairs / dims)
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        which = "long" if rows > original else "short"
        return plain / np.array(rope[f"{which}_factor"]), rope[f"{which}_mscale"], rows
    if kind == "linear":
        return plain / rope["factor"], 1.0, rows * rope["factor"]
    if kind == "proportional":
        turning = np.arange(model.head_dim // 2) < dims // 2
        return turning * rope["rope_theta"] ** (-2 * np.arange(model.head_dim // 2) / model.head_dim), 1.0, rows
    if kind == "default":
        return plain, 1.0, rows
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.clip((original * plain / (2 * math.pi) - low) / (high - low), 0, 1)
        return plain * (kept + (1 - kept) / factor), 1.0, rows
    ends = [
        dims * math.log(original / (2 * math.pi * turns)) / (2 * math.log(rope["rope_theta"]))
        for turns in (rope.get("beta_fast", 32), rope.get("beta_slow", 1))
    ]
    if rope.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dims - 1)
    slowed = np.clip((pairs - low) / max(high - low, 1e-3), 0, 1)
    return plain * (1 - slowed + slowed / factor), 0.1 * math.log(factor) + 1, original * factor


@pytest.mark.everyday("none-full", "yarn-wide", "dynamic_ntk-quarter", "longrope-odd", "rerope-full", "pi-wide")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("name", NAMES)
def test_vllm_gets_the_same_frequencies_and_rows_for_every_position(name: str, model: Model) -> None:
    method = build(name)
    for length in LENGTHS:
        attention = reachable(method, name, model, length, "vllm")
        if attention is None:
            continue
        words = shlex.split(export_text(method, name, model, length, "vllm"))
        assert words[:5] == ["vllm", "serve", model.path or model.name, "--max-model-len", str(length)]
        assert words[5] == "--hf-overrides" and len(words) == 7
        overrides = json.loads(words[6])
        assert as_data(method, name, model, length, "vllm") == {"hf_overrides": overrides, "max_model_len": length}
        assert overrides["max_position_embeddings"] == length
        assert_table(attention, model, overrides, length)


def assert_table(attention: Attention, model: Model, overrides: dict[str, Any], length: int) -> None:
    frequencies, scale, rows = table(model, overrides)
    expected = ladder(model) if attention.inv_freq is None else attention.inv_freq
    np.testing.assert_allclose(frequencies, expected, rtol=1e-10, atol=1e-38)
    assert scale == pytest.approx(attention.scale or 1.0, rel=1e-12)
    assert rows >= length


@pytest.mark.parametrize(
    ("factor", "length", "more", "kind"),
    [
        (4.0, 1024, {}, "yarn"),
        (4.0, 1025, {}, "longrope"),  # vLLM's table for yarn ends at factor times 256
        (4.0, 1024, {"attention_factor": 1.0}, "longrope"),  # which some releases do not read
        (4.0, 1024, {"attention_factor": 0.1 * math.log(4) + 1}, "yarn"),
        (4.0, 1024, {"truncate": False}, "yarn"),
    ],
)
def test_vllm_gets_yarn_by_name_only_where_all_releases_agree(
    factor: float, length: int, more: dict[str, Any], kind: str
) -> None:
    method = yarn(FULL, factor, **more)
    overrides = as_data(method, "yarn", FULL, length, "vllm")["hf_overrides"]
    assert overrides["rope_parameters"]["rope_type"] == kind
    assert_table(method.asked, FULL, overrides, length)
    named = as_data(method, "yarn", FULL, length, "transformers")["rope_parameters"]
    assert named["rope_type"] == "yarn"


@pytest.mark.parametrize("name", ["dynamic", "ntk", "proportional"])
def test_vllm_gets_what_it_reads_otherwise_as_numbers(name: str) -> None:
    method = Stated(Attention(inv_freq=ladder(FULL) / 2), {"rope_type": name, "factor": 2.0})
    rope = as_data(method, name, FULL, 512, "vllm")["hf_overrides"]["rope_parameters"]
    assert rope == {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


def test_vllm_gets_proportional_by_name_where_there_is_no_factor() -> None:
    asked = Attention(inv_freq=np.where(np.arange(32) < 16, ladder(FULL), 0.0))
    for more, kind in (({}, "proportional"), ({"factor": 1.0}, "proportional"), ({"factor": 2.0}, "longrope")):
        method = Stated(asked, {"rope_type": "proportional", "partial_rotary_factor": 0.5, **more})
        overrides = as_data(method, "p_rope", FULL, 512, "vllm")["hf_overrides"]
        assert overrides["rope_parameters"]["rope_type"] == kind
        assert_table(asked, FULL, overrides, 512)


def test_vllm_takes_tables_only_where_halves_of_the_head_are_turned() -> None:
    model = Model(name="glm", trained_length=256, head_dim=64, rope_base=1e4, rotary_layout="interleaved")
    reason = (
        "vllm cannot express inv_freq (ntk_by_parts): its longrope rotates halves of the head, glm rotates neighbours: "
        "run it with backend=hf"
    )
    with pytest.raises(Refused) as refused:
        export_text(build("ntk_by_parts"), "ntk_by_parts", model, 1024, "vllm")
    assert refused.value.reason == reason
    assert "linear" in export_text(Pi(), "pi", model, 1024, "vllm")
    assert "longrope" in export_text(build("ntk_by_parts"), "ntk_by_parts", model, 1024, "transformers")


def test_the_shell_keeps_a_path_with_spaces_in_one_word() -> None:
    model = Model(name="here", path="/my models/it's", trained_length=256, head_dim=64, rope_base=1e4)
    assert shlex.split(export_text(Pi(), "pi", model, 512, "vllm"))[2] == "/my models/it's"


def test_our_own_model_is_served_from_its_folder() -> None:
    model = Model(name="lexlet", path="lexbench:lexlet", trained_length=256, head_dim=64, rope_base=1e4)
    assert shlex.split(export_text(Pi(), "pi", model, 512, "vllm"))[2] == str(registry.PACKAGE_FOLDER / "lexlet")


# llama.cpp


def turned_by_flags(model: Model, flags: dict[str, str]) -> tuple[Floats, float]:
    """Frequencies and the scale of cos and sin as llama.cpp computes them: ggml's rope, and what is fed to it."""
    dims = model.rotary_dim or model.head_dim
    base = float(flags.get("--rope-freq-base", model.rope_base or 0))
    shrink = 1 / float(flags.get("--rope-scale", 1))
    extrapolated = np.array([base ** (-2 * pair / dims) for pair in range(dims // 2)])
    if flags.get("--rope-scaling", "linear") == "linear":
        return extrapolated * shrink, 1.0
    assert flags["--rope-scaling"] == "yarn" and float(flags["--yarn-ext-factor"]) == 1
    original = int(flags["--yarn-orig-ctx"])

    def end(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    start, stop = end(float(flags["--yarn-beta-fast"])), end(float(flags["--yarn-beta-slow"]))
    start, stop = max(0, math.floor(start)), min(dims - 1, math.ceil(stop))
    mix = np.array([1 - min(1, max(0, (pair - start) / max(0.001, stop - start))) for pair in range(dims // 2)])
    # Newer releases set the attention factor themselves, older ones multiply by it: 1 is the same in both.
    return extrapolated * (shrink * (1 - mix) + mix), float(flags["--yarn-attn-factor"]) * (1 - 0.1 * math.log(shrink))


def read_flags(text: str) -> dict[str, str]:
    words = shlex.split(text)
    assert all(word.startswith("--") for word in words[::2]) and len(words) % 2 == 0
    return dict(zip(words[::2], words[1::2], strict=True))


def assert_flags(attention: Attention, model: Model, flags: dict[str, str]) -> None:
    frequencies, scale = turned_by_flags(model, flags)
    expected = ladder(model) if attention.inv_freq is None else attention.inv_freq
    np.testing.assert_allclose(frequencies, expected, rtol=1e-9, atol=0)
    assert scale == pytest.approx(attention.scale or 1.0, rel=1e-9)


@pytest.mark.everyday("none-full", "yarn-wide", "dynamic_ntk-quarter", "longrope-odd", "rerope-full", "pi-wide")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_gets_the_same_frequencies_or_a_reason(name: str, model: Model) -> None:
    method = build(name)
    for length in LENGTHS:
        attention = reachable(method, name, model, length, "llama.cpp")
        if attention is None:
            continue
        sayable = geometric(attention, model) and attention.scale in (None, 1.0)
        if not sayable and name != "yarn":
            slot = "scale" if geometric(attention, model) else "inv_freq"
            with pytest.raises(Refused, match=rf"^llama\.cpp cannot express {slot} \({name}\): its flags are a base"):
                export_text(method, name, model, length, "llama.cpp")
            continue
        flags = read_flags(export_text(method, name, model, length, "llama.cpp"))
        assert flags["--ctx-size"] == str(length)
        assert_flags(attention, model, flags)


def geometric(attention: Attention, model: Model) -> bool:
    """Whether neighbouring pairs all have the same ratio of frequencies."""
    frequencies = ladder(model) if attention.inv_freq is None else attention.inv_freq
    if (frequencies == 0).any():
        return False
    return float(np.ptp(np.diff(np.log(frequencies)))) < 1e-9


def test_llama_cpp_is_told_no_more_than_what_changes() -> None:
    assert export_text(NoMethod(), "none", FULL, 512, "llama.cpp") == "--ctx-size 512"
    linear = "--ctx-size 512 --rope-scaling linear --rope-scale 2.0"
    assert export_text(Pi(factor=2), "pi", FULL, 512, "llama.cpp") == linear
    abf = Fixed(Attention(inv_freq=ladder(FULL, 5e5)))
    assert export_text(abf, "abf", FULL, 512, "llama.cpp") == "--ctx-size 512 --rope-freq-base 500000.0"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(("factor", "betas"), [(4.0, (32.0, 1.0)), (2.5, (16.0, 2.0)), (32.0, (400.0, 300.0))])
def test_llama_cpp_gets_yarn_with_its_ramp(model: Model, factor: float, betas: tuple[float, float]) -> None:
    method = yarn(model, factor, beta_fast=betas[0], beta_slow=betas[1])
    flags = read_flags(export_text(method, "yarn", model, 1024, "llama.cpp"))
    assert flags["--rope-scaling"] == "yarn"
    assert_flags(method.asked, model, flags)
    plain = yarn(model, factor)
    assert_flags(plain.asked, model, read_flags(export_text(plain, "yarn", model, 1024, "llama.cpp")))


def test_llama_cpp_is_refused_a_yarn_that_it_reads_otherwise() -> None:
    for more, slot in (({"attention_factor": 1.1}, "scale"), ({"truncate": False}, "inv_freq")):
        with pytest.raises(Refused, match=rf"^llama\.cpp cannot express {slot} \(yarn\): .*backend=hf$"):
            export_text(yarn(FULL, 4.0, **more), "yarn", FULL, 1024, "llama.cpp")
    with pytest.raises(Refused, match=r"^llama\.cpp cannot express scale \(warm\): its flags"):
        export_text(Fixed(Attention(scale=1.1)), "warm", FULL, 1024, "llama.cpp")


def test_llama_cpp_knows_no_name_but_yarns() -> None:
    method = Stated(build("llama3").attention(FULL, 1024), {"rope_type": "llama3", "factor": 4.0, **ORIGINAL})
    with pytest.raises(Refused, match=r"^llama\.cpp cannot express inv_freq \(llama3\)"):
        export_text(method, "llama3", FULL, 1024, "llama.cpp")


def test_llama_cpp_is_refused_self_extend_which_it_only_approximates() -> None:
    grouped = Remap(64, PositionMap(divisor=4, offset=48, floor=True), PositionMap(divisor=4, floor=True))
    with pytest.raises(Refused) as refused:
        export_text(Fixed(Attention(remap=grouped)), "self_extend", FULL, 1024, "llama.cpp")
    assert refused.value.reason == (
        "llama.cpp cannot express remapped distances (self_extend): its --grp-attn-n moves cached positions block by "
        "block, which only approximates it: run it with backend=hf"
    )
    for method, label, target in (
        (Rerope(), "rerope", "llama.cpp"),
        (Rerope(), "rerope", "vllm"),
        (Fixed(Attention(remap=grouped)), "self_extend", "vllm"),
    ):
        with pytest.raises(Refused) as refused:
            export_text(method, label, FULL, 1024, target)
        assert refused.value.reason == f"{target} cannot express remapped distances ({label}): run it with backend=hf"


# what no target has words for


PARTS = (Attention(scale=1.1), Attention(scale=1.2))
UNSAYABLE = {
    "keep_first": Attention(keep_first=4),
    "head_ratios": Attention(head_ratios=HeadRatios((1.0, 2.0))),
    "query_scale": Attention(query_scale=LogScale(256)),
    "remapped distances": Attention(remap=Remap(8, PositionMap(), PositionMap())),
    "mask": Attention(mask=Window(64)),
    "bias": Attention(bias=Slopes((0.5,))),
    "layers": Attention(inv_freq=ladder(FULL), layers=(0, 1)),
    "layers, otherwise": Attention(scale=1.1, layers=(0,), otherwise=PARTS[0]),
    "mixture": Attention(mixture=PARTS),
    "query_scale, remapped distances": Attention(
        query_scale=LogScale(256), remap=Remap(8, PositionMap(), PositionMap())
    ),
}


@pytest.mark.parametrize("target", EXPORT_TARGETS)
@pytest.mark.parametrize("slots", UNSAYABLE)
def test_a_slot_without_words_is_named_with_the_target(slots: str, target: str) -> None:
    for model in (FULL, NOPE):
        with pytest.raises(Refused) as refused:
            export_text(Fixed(UNSAYABLE[slots]), "mine", model, 1024, target)
        assert refused.value.reason == f"{target} cannot express {slots} (mine): run it with backend=hf"


def test_blocks_are_no_words_either() -> None:
    with pytest.raises(Refused, match=r"^vllm cannot express mask \(blocks\)"):
        export_text(Fixed(Attention(mask=Blocks(64))), "blocks", FULL, 1024, "vllm")


@pytest.mark.parametrize("target", ["vllm", "llama.cpp"])
def test_only_transformers_has_its_own_dynamic(target: str) -> None:
    with pytest.raises(Refused, match=r"cannot express dynamic \(hf\): run it with backend=hf"):
        export_text(Fixed(Attention(dynamic=Dynamic(2.0, 256))), "hf", FULL, 1024, target)


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_a_model_without_rotary_positions_has_nothing_to_export(target: str) -> None:
    with pytest.raises(Refused, match="nope has no rotary positions"):
        export_text(NoMethod(), "none", NOPE, 512, target)


def test_wrong_input_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"knows transformers, vllm, llama\.cpp, got tgi"):
        export_text(NoMethod(), "none", FULL, 512, "tgi")
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        export_text(NoMethod(), "none", FULL, 0, "vllm")


# models that scale their angles themselves


def scaled(rope: dict[str, Any]) -> Model:
    return Model(name="own", trained_length=4096, head_dim=64, rope_base=5e5, rope_scaling=rope)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
ORIGINAL = {"original_max_position_embeddings": 1024}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [4.0] * 32}


def test_a_models_own_parameters_stay_as_they_are() -> None:
    model = scaled({"rope_type": "llama3", **LLAMA3})
    own = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}
    for length in (512, 8192):
        data = {"rope_parameters": own, "max_position_embeddings": length}
        assert json.loads(export_text(NoMethod(), "none", model, length, "transformers")) == {
            "rope_scaling": None,
            **data,
        }
        assert as_data(NoMethod(), "none", model, length, "vllm") == {"hf_overrides": data, "max_model_len": length}
        assert export_text(NoMethod(), "none", model, length, "llama.cpp") == f"--ctx-size {length}"


def test_each_kind_of_layers_keeps_its_own() -> None:
    kinds = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    model = Model(name="gemma3", trained_length=4096, head_dim=64, rope_scaling=kinds)
    for length in (64, 8192):
        data = {"rope_parameters": kinds, "max_position_embeddings": length}
        assert as_data(NoMethod(), "none", model, length, "transformers") == {"rope_scaling": None, **data}
        assert as_data(NoMethod(), "none", model, length, "vllm")["hf_overrides"] == data


TIED_IN_BOTH = [
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": None, **ORIGINAL},
    LONG,
    {**LONG, "factor": 4.0},
    {**LONG, **ORIGINAL},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]


@pytest.mark.parametrize("rope", TIED_IN_BOTH, ids=lambda rope: "+".join(rope)[:60])
def test_angles_that_follow_max_position_embeddings_keep_it(rope: dict[str, Any]) -> None:
    model = scaled(rope)
    own = {"rope_theta": 5e5, **rope}
    entries = as_data(NoMethod(), "none", model, 8192, "transformers")
    assert entries == {"rope_scaling": None, "rope_parameters": own}
    assert export_text(NoMethod(), "none", model, 4096, "vllm") == "vllm serve own --max-model-len 4096"
    with pytest.raises(Refused, match=r"^vllm cannot take own to 4097 tokens: its own angles .* beyond 4096: lower"):
        export_text(NoMethod(), "none", model, 4097, "vllm")


def test_vllm_alone_reads_some_of_them_from_max_position_embeddings() -> None:
    for rope, reach in (
        ({"rope_type": "yarn", "factor": 4.0, **ORIGINAL}, 4096),
        ({**LONG, **ORIGINAL, "factor": 4.0}, 0),
    ):
        model = scaled(rope)
        assert as_data(NoMethod(), "none", model, 8192, "transformers")["max_position_embeddings"] == 8192
        overrides = as_data(NoMethod(), "none", model, 4096, "vllm")["hf_overrides"]
        assert overrides.get("max_position_embeddings", 0) == reach
        with pytest.raises(Refused, match="vllm cannot take own to 4097"):
            export_text(NoMethod(), "none", model, 4097, "vllm")
    whole = scaled({**LONG, **ORIGINAL, "short_mscale": 1.0, "long_mscale": 1.1})
    assert as_data(NoMethod(), "none", whole, 8192, "vllm")["hf_overrides"]["max_position_embeddings"] == 8192


YARN = {"rope_type": "yarn", "factor": 4.0, **ORIGINAL}


@pytest.mark.parametrize(
    ("more", "scale"),
    [
        ({"attention_factor": 1.0}, 1.0),
        ({"attention_factor": 1.3}, 1.3),
        ({"mscale": 0.5, "mscale_all_dim": 1.0}, (0.05 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
    ],
)
def test_vllm_gets_a_models_own_scale_where_it_reads_it(more: dict[str, Any], scale: float) -> None:
    """Releases up to 0.25 take 0.1 ln 4 + 1 whatever a yarn states, and a scale of their own of a longrope."""
    plain, own = scaled(YARN), scaled({**YARN, **more})
    frequencies = table(plain, {"max_position_embeddings": 4096, **rope_of(plain, 4096)})[0]
    for length in (2048, 8192):  # within and beyond factor times the original length
        found, theirs, rows = table(own, {"max_position_embeddings": length, **rope_of(own, length)})
        np.testing.assert_allclose(found, frequencies, rtol=1e-10)
        assert theirs == pytest.approx(scale, rel=1e-12) and rows >= length


def rope_of(model: Model, length: int) -> dict[str, Any]:
    overrides: dict[str, Any] = as_data(NoMethod(), "none", model, length, "vllm")["hf_overrides"]
    return overrides


def test_vllm_gets_the_scale_of_a_models_own_longrope() -> None:
    model = scaled({**LONG, **ORIGINAL, "attention_factor": 1.1})
    for length in (4096, 8192):
        found, scale, rows = table(model, rope_of(model, length))
        np.testing.assert_allclose(found, ladder(model) / 4, rtol=1e-10)
        assert (scale, rows) == (1.1, length)


def test_a_models_own_scale_that_vllm_reads_stays_as_it_is() -> None:
    usual = scaled({**YARN, "attention_factor": 0.1 * math.log(4) + 1})
    latent = replace(scaled({**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}), decoupled=True, rotary_dim=32)
    for model in (usual, latent):
        assert rope_of(model, 4096)["rope_parameters"] == {"rope_theta": 5e5, **(model.rope_scaling or {})}
    unread = replace(latent, rope_scaling={**YARN, "attention_factor": 1.0})
    with pytest.raises(Refused, match="its multi-head latent attention takes any scaling for yarn"):
        rope_of(unread, 4096)


def test_each_kind_of_layers_keeps_its_own_scale() -> None:
    kinds = {"full_attention": {**YARN, "rope_theta": 5e5, "attention_factor": 1.0}, "sliding_attention": PLAIN}
    layers = ("sliding_attention", "full_attention")
    model = Model(name="own", trained_length=4096, head_dim=64, rope_scaling=kinds, layer_types=layers, layers=2)
    rope = rope_of(model, 4096)["rope_parameters"]
    assert rope["sliding_attention"] == PLAIN
    assert rope["full_attention"]["short_mscale"] == rope["full_attention"]["long_mscale"] == 1.0


PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def test_llama_cpp_has_no_flags_for_angles_that_are_scaled_already() -> None:
    model = scaled({"rope_type": "llama3", **LLAMA3})
    with pytest.raises(Refused) as refused:
        export_text(Fixed(Attention(scale=1.1)), "warm", model, 8192, "llama.cpp")
    assert refused.value.reason == (
        "llama.cpp cannot express scale (warm): its flags keep the scaling in the file of own: run it with backend=hf"
    )

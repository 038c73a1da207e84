"""`lexbench.assert_rope`: healthy modules pass, each planted fault is named, what is not understood is refused.

All wanted angles are derived here anew, in float64, or are transformers' own.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

import lexbench
from lexbench import Model, Refused, RopeMismatch
from lexbench.backends.rope_reading import as_bfloat16, places_up_to
from lexbench.methods.composition import named_method
from lexbench.methods.export import as_data
from lexbench.methods.yarn import Yarn

ROOT = Path(__file__).parents[2]
DIMS, BASE, TRAINED, FACTOR, LENGTH = 64, 1e6, 2048, 4.0, 8192
FACTS = Model(name="mine", trained_length=TRAINED, head_dim=DIMS, rope_base=BASE)
MSCALE = 0.1 * math.log(FACTOR) + 1
Floats = NDArray[np.float64]


def plain(base: float = BASE) -> Floats:
    return np.array([base ** (-2 * pair / DIMS) for pair in range(DIMS // 2)])


def yarn_kept(base: float = BASE, original: float = TRAINED) -> Floats:
    """Share of its own frequency that a pair keeps, by the authors' code: a ramp from 32 turns to 1."""
    low, high = (DIMS * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), DIMS - 1)
    return np.array([1 - min(max((pair - low) / (high - low), 0), 1) for pair in range(DIMS // 2)])


def yarn(base: float = BASE, factor: float = FACTOR, original: float = TRAINED) -> Floats:
    kept = yarn_kept(base, original)
    return plain(base) * kept + plain(base) / factor * (1 - kept)


def llama3(base: float = BASE, factor: float = FACTOR, original: float = TRAINED) -> Floats:
    """Meta's code: by wavelength, with a smooth part from original / 4 to original tokens."""
    made = []
    for frequency in plain(base):
        wavelength = 2 * math.pi / frequency
        smooth = (original / wavelength - 1) / (4 - 1)
        between = (1 - smooth) * frequency / factor + smooth * frequency
        made.append(
            frequency if wavelength < original / 4 else frequency / factor if wavelength > original else between
        )
    return np.array(made)


def angles(inv_freq: Floats, rows: int = LENGTH) -> Floats:
    return np.arange(rows, dtype=np.float64)[:, None] * inv_freq


class VllmLike(nn.Module):
    """The public layout of vLLM's RotaryEmbedding: all cos, then all sin."""

    def __init__(self, turned: Floats, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        table = scale * np.concatenate([np.cos(turned), np.sin(turned)], axis=-1)
        self.register_buffer("cos_sin_cache", torch.from_numpy(table).to(dtype), persistent=False)


def half(values: Floats, dtype: torch.dtype) -> Floats:
    """Rounded by torch, which is another route than numpy's."""
    return np.asarray(torch.from_numpy(values).to(dtype).double().numpy())


def positions(dtype: torch.dtype) -> Floats:
    return half(np.arange(LENGTH, dtype=np.float64), dtype)[:, None] * yarn()


BF16, FP16 = torch.bfloat16, torch.float16
OF_YARN: dict[str, tuple[Floats, float, str]] = {
    "not applied": (angles(plain()), 1, r"^scaling not applied: it rotates by plain RoPE of base 1,000,000$"),
    "base": (angles(yarn(1e4)), MSCALE, r"^base fallen back to 10,000, not 1,000,000$"),
    "base of plain": (angles(plain(1e4)), 1, r"^scaling not applied, and base fallen back to 10,000"),
    "another base": (angles(yarn(5e5)), MSCALE, r"^another base: 500,000, not 1,000,000$"),
    "factor": (angles(yarn(factor=8)), 0.1 * math.log(8) + 1, r"^another factor: 8, not 4$"),
    "odd factor": (angles(yarn(factor=2.7)), 0.1 * math.log(2.7) + 1, r"^another factor: 2\.7, not 4$"),
    "linear": (angles(plain() / FACTOR), 1, r"^linear scaling in place of yarn\(factor=4\)$"),
    "llama3": (angles(llama3()), 1, r"^llama3's scaling in place of yarn\(factor=4\)$"),
    "original": (angles(yarn(original=8192)), MSCALE, r"^original length dropped: 8,192 tokens, not 2,048$"),
    "no mscale": (angles(yarn()), 1, r"^attention factor \(mscale\) missing: cos and sin are times 1, not 1\.139$"),
    "mscale twice": (
        angles(yarn()),
        MSCALE**2,
        r"^attention factor \(mscale\) applied twice: .* 1\.29[67], not 1\.139$",
    ),
    "other mscale": (angles(yarn()), 1.5, r"^another attention factor \(mscale\): cos and sin are times 1\.5"),
    "factor, no mscale": (angles(yarn(factor=8)), 1, r"^another factor: 8, not 4; attention factor \(mscale\) missing"),
    "twice": (angles(yarn() * yarn() / plain()), MSCALE**2, r"^scaling applied twice$"),
    # As litgpt 0.5.13 has it.
    "inverted ramp": (
        angles(plain() / FACTOR * yarn_kept() + plain() * (1 - yarn_kept())),
        MSCALE,
        r"^ramp inverted: fast pairs are slowed and slow ones kept$",
    ),
    "positions in bf16": (positions(BF16), MSCALE, r"^positions computed in bfloat16$"),
    "positions in fp16": (positions(FP16), MSCALE, r"^positions computed in float16$"),
    "frequencies in bf16": (angles(half(yarn(), BF16)), MSCALE, r"^frequencies computed in bfloat16$"),
    "frequencies in fp16": (angles(half(yarn(), FP16)), MSCALE, r"^frequencies computed in float16$"),
    "angles in bf16": (half(angles(yarn()), BF16), MSCALE, r"^angles computed in bfloat16$"),
    "angles in fp16": (half(angles(yarn()), FP16), MSCALE, r"^angles computed in float16$"),
    "plain angles in bf16": (
        half(angles(plain()), BF16),
        1,
        r"^angles computed in bfloat16; scaling not applied, too$",
    ),
}


@pytest.mark.everyday(
    *("factor, no mscale-dtype0", "not applied-dtype1", "base-dtype0", "twice-dtype1", "inverted ramp-dtype0"),
    *("llama3-dtype1", "positions in bf16-dtype0", "frequencies in fp16-dtype1", "plain angles in bf16-dtype0"),
)
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("fault", OF_YARN)
def test_a_fault_is_named(fault: str, dtype: torch.dtype) -> None:
    turned, scale, cause = OF_YARN[fault]
    with pytest.raises(RopeMismatch, match=r"VllmLike does not rotate by yarn\(factor=4\)") as found:
        lexbench.assert_rope(VllmLike(turned, scale, dtype), "yarn", factor=4, length=LENGTH, facts=FACTS)
    assert re.search(cause, str(found.value.cause)), found.value.cause


@pytest.mark.parametrize(
    ("turned", "cause"),
    [
        (angles(plain()), "scaling not applied"),
        (angles(plain() / FACTOR), r"linear scaling in place of llama3\(factor=4\)"),
        (angles(llama3(original=8192)), "original length dropped: 8,192 tokens, not 2,048"),
        (angles(llama3(factor=8)), "another factor: 8, not 4"),
        (angles(llama3(1e4)), "base fallen back to 10,000"),
    ],
)
def test_a_fault_of_llama3_is_named(turned: Floats, cause: str) -> None:
    with pytest.raises(RopeMismatch, match=rf"Likely cause: {cause}"):
        lexbench.assert_rope(VllmLike(turned), "llama3", factor=4, length=LENGTH, facts=FACTS)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, FP16, torch.float64])
def test_healthy_tables_of_any_dtype_pass(dtype: torch.dtype) -> None:
    given: dict[str, Any] = {"length": LENGTH, "facts": FACTS}
    lexbench.assert_rope(VllmLike(angles(yarn()), MSCALE, dtype), "yarn", factor=4, **given)
    lexbench.assert_rope(VllmLike(angles(llama3()), 1, dtype), "llama3", factor=4, **given)
    lexbench.assert_rope(VllmLike(angles(plain() / 4), 1, dtype), "pi", factor=4, **given)
    lexbench.assert_rope(VllmLike(angles(plain()), 1, dtype), **given)
    lexbench.assert_rope(VllmLike(angles(plain()), 1, dtype), "none", **given)


def test_the_message_has_pair_position_and_difference_as_they_are() -> None:
    with pytest.raises(RopeMismatch) as found:
        lexbench.assert_rope(VllmLike(angles(plain())), "yarn", factor=4, length=LENGTH, facts=FACTS)
    pair, position, said = found.value.pair, found.value.position, str(found.value)
    assert pair is not None and position is not None and found.value.difference is not None
    wanted, runs = position * yarn()[pair], position * plain()[pair]
    off = max(abs(MSCALE * math.cos(wanted) - math.cos(runs)), abs(MSCALE * math.sin(wanted) - math.sin(runs)))
    assert found.value.difference == pytest.approx(off, abs=1e-3)
    # At position 0 cos is 1 in place of 1.139.
    assert f"pair {pair} at position {position:,} are off by {off:.2g} " in said
    assert "the first wrong position is 0." in said and "\n" not in said


def test_positions_are_few_and_odd_ones_reach_to_the_end() -> None:
    for length in (1, 2, 65, 4097, 8193, 131072, 1 << 20):
        places = places_up_to(length)
        assert 1 <= len(places) <= 65 and places[0] == 0 and places[-1] == length - 1
        assert (np.diff(places) > 0).all()
    # At even distances of a power of two, bfloat16 would hold all positions.
    assert (as_bfloat16(places_up_to(8193).astype(np.float64)) != places_up_to(8193)).sum() > 40


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_table_built_anew_after_a_cast_is_named(dtype: str) -> None:
    """As torchtune's code does it: torch counts positions in the half precision of the frequencies, by vectors."""
    kind = getattr(torch, dtype)
    made = torch.einsum("i,j->ij", torch.arange(LENGTH, dtype=kind), torch.tensor(yarn()).to(kind)).float()
    with pytest.raises(RopeMismatch, match=rf"computed in (half precision, as in )?{dtype}$"):
        lexbench.assert_rope(VllmLike(made.double().numpy(), MSCALE), "yarn", factor=4, length=LENGTH, facts=FACTS)


# modules of trainers and engines, rebuilt in their public layouts


class TuneLike(nn.Module):
    """torchtune's RotaryPositionalEmbeddings: [rows, pairs, 2]."""

    def __init__(self, turned: Tensor) -> None:
        super().__init__()
        self.register_buffer("theta", turned[1], persistent=False)
        self.register_buffer("cache", torch.stack([turned.cos(), turned.sin()], dim=-1), persistent=False)


class TitanLike(nn.Module):
    """torchtitan's Transformer or ComplexRoPE: [rows, pairs] complex."""

    def __init__(self, turned: Tensor, name: str = "freqs_cis") -> None:
        super().__init__()
        self.register_buffer(name, torch.polar(torch.ones_like(turned), turned), persistent=False)


class TitanCosSinLike(nn.Module):
    """torchtitan's CosSinRoPE: cos of all pairs twice, then sin twice."""

    def __init__(self, turned: Tensor) -> None:
        super().__init__()
        twice = torch.cat([turned, turned], dim=-1)
        self.register_buffer("cache", torch.cat([twice.cos(), twice.sin()], dim=-1), persistent=False)


class LitLike(nn.Module):
    """LitGPT's GPT: cos and sin of all pairs twice."""

    def __init__(self, turned: Tensor) -> None:
        super().__init__()
        self.lm_head = nn.Linear(2, 2, dtype=torch.bfloat16)
        for name, values in (("cos", turned.cos()), ("sin", turned.sin())):
            self.register_buffer(name, values.repeat(1, 2), persistent=False)


class NeighboursLike(LitLike):
    """The same with each pair's numbers side by side."""

    def __init__(self, turned: Tensor) -> None:
        super().__init__(turned)
        for name, values in (("cos", turned.cos()), ("sin", turned.sin())):
            self.register_buffer(name, values.repeat_interleave(2, 1), persistent=False)


LAYOUTS = [TuneLike, TitanLike, lambda turned: TitanLike(turned, "cache"), TitanCosSinLike, LitLike, NeighboursLike]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_of_trainers_are_read(layout: Callable[[Tensor], nn.Module]) -> None:
    given: dict[str, Any] = {"factor": 4, "length": LENGTH, "facts": FACTS}
    # As these trainers do: frequencies and angles in float32.
    healthy, wrong = (
        layout(torch.outer(torch.arange(LENGTH).float(), torch.from_numpy(each).float()))
        for each in (llama3(), plain())
    )
    lexbench.assert_rope(healthy, "llama3", **given)
    lexbench.assert_rope(nn.Sequential(nn.Linear(2, 2), healthy), "llama3", **given)
    with pytest.raises(RopeMismatch, match="scaling not applied"):
        lexbench.assert_rope(wrong, "llama3", **given)


def test_the_longrope_table_in_use_is_read() -> None:
    """vLLM holds the short table and the long one in one buffer."""
    module: Any = VllmLike(angles(plain(), TRAINED))
    long: Any = VllmLike(angles(plain() / 2), 1.25)
    module.long_short_cos_sin_cache = torch.cat([module.cos_sin_cache, long.cos_sin_cache])
    module.original_max_position_embeddings, module.use_long_rope = TRAINED, True
    given: dict[str, Any] = {"facts": FACTS, "long_factors": [2.0] * 32, "factor": 4, "attention_factor": 1.25}
    lexbench.assert_rope(module, "longrope", length=LENGTH, **given)
    module.use_long_rope = False
    with pytest.raises(RopeMismatch, match="has a table of 2,048 positions, asked for 8,192"):
        lexbench.assert_rope(module, "longrope", length=LENGTH, **given)


KINDS = Model(
    name="kinds",
    trained_length=TRAINED,
    head_dim=DIMS,
    layer_types=("sliding_attention", "full_attention"),
    rope_scaling={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": BASE},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
)


def test_each_kind_of_layers_has_its_own_module() -> None:
    full, sliding = VllmLike(angles(plain() / 8)), VllmLike(angles(plain(1e4)))
    lexbench.assert_rope({"full_attention": full, "sliding_attention": sliding}, length=LENGTH, facts=KINDS)
    layers = nn.ModuleDict({"layers": nn.ModuleList([sliding, full])})
    lexbench.assert_rope(nn.Sequential(layers), length=LENGTH, facts=KINDS)
    with pytest.raises(RopeMismatch, match="sliding_attention layers rotate as full_attention layers do"):
        lexbench.assert_rope({"full_attention": full, "sliding_attention": full}, length=LENGTH, facts=KINDS)
    lost = nn.ModuleDict({"layers": nn.ModuleList([sliding, VllmLike(angles(plain(1e4)))])})
    with pytest.raises(RopeMismatch, match=r"of its full_attention layers: .* scaling of one kind of layers lost"):
        lexbench.assert_rope(nn.Sequential(lost), length=LENGTH, facts=KINDS)
    with pytest.raises(RopeMismatch, match="no rotary module of kinds rotates by the model's own RoPE of its full"):
        lexbench.assert_rope(sliding, length=LENGTH, facts=KINDS)


def test_tables_of_two_kinds_in_one_buffer_are_told_apart() -> None:
    """LitGPT's Gemma 3: [rows, 2 pairs, 2]."""
    both = torch.from_numpy(np.stack([angles(plain() / 8), angles(plain(1e4))], axis=-1)).float()
    module: Any = nn.Module()
    module.cos, module.sin = (each.repeat(1, 2, 1) for each in (both.cos(), both.sin()))
    lexbench.assert_rope(module, length=LENGTH, facts=KINDS)
    with pytest.raises(
        RopeMismatch, match=r"of its full_attention layers: .* linear scaling with factor 8 in place of"
    ):
        lexbench.assert_rope(module, "yarn", factor=4, length=LENGTH, facts=KINDS)


# transformers


def llama(dtype: torch.dtype = torch.float32, **rope: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=2 * DIMS,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": "default", "rope_theta": BASE, **rope},
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(
    ("method", "rope"), [("yarn", YARN), ("llama3", LLAMA3), ("pi", {"rope_type": "linear", "factor": 4.0})]
)
def test_a_model_of_transformers_passes_as_its_config_scales_it(
    method: str, rope: dict[str, Any], dtype: torch.dtype
) -> None:
    model = llama(dtype, **rope, original_max_position_embeddings=TRAINED)
    before = model.model.rotary_emb.inv_freq.clone()
    for given in (model, model.model.rotary_emb):
        lexbench.assert_rope(given, method, factor=4, length=LENGTH)
        lexbench.assert_rope(given, length=LENGTH)
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    with pytest.raises(RopeMismatch, match="scaling not applied"):
        lexbench.assert_rope(llama(dtype), method, factor=4, length=LENGTH)


def exported(method: str, **parameters: Any) -> Any:
    """A model of transformers with the export of a method, as `lexbench export` prints it."""
    found = as_data(named_method(method, **parameters), method, FACTS, LENGTH, "transformers")
    model = llama(**{key: value for key, value in found["rope_parameters"].items() if key != "rope_type"})
    assert found["rope_parameters"]["rope_type"] == "default" and found["max_position_embeddings"] == LENGTH
    model.config.max_position_embeddings = LENGTH
    return model


BASED = {
    # b s^(d / (d - 2)), b s, 2 T / pi
    "ntk": BASE * FACTOR ** (DIMS / (DIMS - 2)),
    "ntk_old": BASE * FACTOR,
    "critical_base": 2 * TRAINED / math.pi,
}


@pytest.mark.parametrize("method", BASED)
def test_an_export_stated_as_a_base_is_told_by_facts_and_refused_without(method: str) -> None:
    """The config of an export holds the scaled base and the new length: it cannot say what they were before."""
    model = exported(method)
    assert model.config.rope_parameters["rope_theta"] == pytest.approx(BASED[method], rel=1e-9)
    factor: dict[str, Any] = {} if method == "critical_base" else {"factor": FACTOR}
    given: dict[str, Any]
    for given in (factor, {}):
        lexbench.assert_rope(model, method, length=LENGTH, facts=FACTS, **given)
        with pytest.raises(Refused, match=r"is stated as a base|cannot tell .* from no method"):
            lexbench.assert_rope(model, method, length=LENGTH, **given)
    with pytest.raises(RopeMismatch, match="scaling not applied"):  # the facts tell it
        lexbench.assert_rope(llama(), method, length=LENGTH, facts=FACTS, **factor)
    if method == "critical_base":  # its base follows from the trained length alone
        lexbench.assert_rope(model, method, length=LENGTH, trained_length=TRAINED)
    else:
        with pytest.raises(Refused, match=rf"{method}.* is stated as a base: .* give facts="):
            lexbench.assert_rope(model, method, length=LENGTH, trained_length=TRAINED, **factor)


@pytest.mark.parametrize("method", ["ntk", "yarn", "pi", "ntk_old"])
def test_a_factor_of_one_is_no_pass(method: str) -> None:
    """Any unscaled model would pass."""
    said = f"cannot tell {method}.* from no method: at 2,048 tokens and a trained length of 2,048"
    with pytest.raises(Refused, match=said):
        lexbench.assert_rope(VllmLike(angles(plain())), method, length=TRAINED, facts=FACTS)
    with pytest.raises(Refused, match="cannot tell"):
        lexbench.assert_rope(VllmLike(angles(plain())), method, factor=1, length=LENGTH, facts=FACTS)
    lexbench.assert_rope(VllmLike(angles(plain())), "none", length=TRAINED, facts=FACTS)
    with pytest.raises(RopeMismatch):  # but what is wrong is said
        lexbench.assert_rope(VllmLike(angles(plain() / 4)), method, length=TRAINED, facts=FACTS)


def test_what_rotates_neither_by_the_base_of_its_config_nor_by_the_method_is_wrong() -> None:
    model = llama()
    model.model.rotary_emb = llama(rope_theta=1e4).model.rotary_emb
    with pytest.raises(RopeMismatch, match="scaling not applied, and base fallen back to 10,000"):
        lexbench.assert_rope(model, "ntk", factor=4, length=LENGTH)
    with lexbench.extend(unscaled := llama(), "ntk", factor=4):  # rotates by the method on the base of its config
        lexbench.assert_rope(unscaled, "ntk", factor=4, length=LENGTH)


def test_a_config_that_lost_its_original_length_is_told_it() -> None:
    model = llama(**YARN, original_max_position_embeddings=LENGTH)
    with pytest.raises(RopeMismatch, match="original length dropped: 8,192 tokens, not 2,048"):
        lexbench.assert_rope(model, "yarn", factor=4, length=LENGTH, trained_length=TRAINED)


def test_a_model_cast_to_half_precision_with_its_buffers_is_found() -> None:
    model = llama(**YARN, original_max_position_embeddings=TRAINED).to(BF16)
    with pytest.raises(RopeMismatch, match="frequencies computed in bfloat16"):
        lexbench.assert_rope(model, "yarn", factor=4, length=LENGTH)


def test_a_module_of_another_base_than_the_config_is_found() -> None:
    model = llama(**YARN, original_max_position_embeddings=TRAINED)
    model.model.rotary_emb = llama(**{**YARN, "rope_theta": 1e4}).model.rotary_emb
    with pytest.raises(RopeMismatch, match="base fallen back to 10,000"):
        lexbench.assert_rope(model, "yarn", factor=4, length=LENGTH, trained_length=TRAINED)


def test_angles_that_follow_the_text_are_those_of_the_length() -> None:
    model = llama(rope_type="dynamic", factor=2.0)
    lexbench.assert_rope(model, length=LENGTH)
    lexbench.assert_rope(model, "dynamic_ntk", factor=2, length=LENGTH)
    assert torch.equal(model.model.rotary_emb.inv_freq, model.model.rotary_emb.original_inv_freq)


def test_what_extend_installs_is_what_is_asserted() -> None:
    model = llama()
    with lexbench.extend(model, "yarn", factor=4):
        lexbench.assert_rope(model, "yarn", factor=4, length=LENGTH)
    with pytest.raises(RopeMismatch, match="scaling not applied"):
        lexbench.assert_rope(model, "yarn", factor=4, length=LENGTH)


def test_a_method_on_top_of_a_trained_scaling_starts_from_it() -> None:
    model = llama(**{**LLAMA3, "original_max_position_embeddings": 512})
    with lexbench.extend(model, "pi", factor=4):
        lexbench.assert_rope(model, "pi", factor=4, over="scaled", length=LENGTH)
        with pytest.raises(RopeMismatch, match="does not rotate by pi"):
            lexbench.assert_rope(model, "pi", factor=4, length=LENGTH)
    lexbench.assert_rope(model, "llama3", factor=4, length=LENGTH)
    lexbench.assert_rope(model, "llama3", at=4 * 512, length=LENGTH)
    # YaRN's ramp is for the trained length, not for the original one.
    with lexbench.extend(model, "yarn", factor=4):
        lexbench.assert_rope(model, "yarn", factor=4, over="scaled", length=LENGTH)


def test_the_kinds_of_gemma_3_are_read_by_their_names() -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,
        head_dim=DIMS,
        layer_types=list(KINDS.layer_types or ()),
        rope_parameters={kind: dict(rope) for kind, rope in (KINDS.rope_scaling or {}).items()},
    )
    model = transformers.Gemma3ForCausalLM(config)
    lexbench.assert_rope(model, length=LENGTH)
    lexbench.assert_rope(model, "pi", factor=8, length=LENGTH)
    rotary: Any = model.model.rotary_emb
    rotary.full_attention_inv_freq = rotary.full_attention_inv_freq * 8
    with pytest.raises(RopeMismatch, match=r"pi.* of its full_attention layers: .* scaling not applied"):
        lexbench.assert_rope(model, "pi", factor=8, length=LENGTH)


# refused


@pytest.mark.parametrize(
    ("given", "method", "why"),
    [
        (nn.Linear(2, 2), "yarn", "Linear holds no rotary module that is known here"),
        (VllmLike(angles(plain(), 64)).to("meta"), "yarn", "is on the meta device: load its weights first"),
        (VllmLike(angles(plain(), 64)).to(torch.float8_e4m3fn), "yarn", "holds cos and sin in float8_e4m3fn"),
        (VllmLike(angles(plain())), "rerope", "do not show remap of rerope"),
        (VllmLike(angles(plain())), "attention_buckets", r"attention_buckets has several \(mixture\)"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(given: Any, method: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        lexbench.assert_rope(given, method, length=64, facts=FACTS)


def test_a_module_that_is_called_otherwise_is_refused() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", torch.from_numpy(plain()).float())

        def forward(self, length: int) -> Tensor:
            return torch.zeros(length)

    with pytest.raises(Refused, match=r"Other cannot be called with \(x, positions\): TypeError"):
        lexbench.assert_rope(Other(), length=64, facts=FACTS)


def test_other_mistakes_are_said_in_one_line() -> None:
    module = VllmLike(angles(plain(), 64))
    with pytest.raises(ValueError, match=r"VllmLike has no config of transformers: give facts=lexbench\.Model"):
        lexbench.assert_rope(module, "yarn", factor=4, length=64)
    with pytest.raises(ValueError, match="length must be a whole number"):
        lexbench.assert_rope(module, length=0, facts=FACTS)
    with pytest.raises(ValueError, match="takes factor with a method's name only"):
        lexbench.assert_rope(module, length=64, facts=FACTS, factor=4)
    with pytest.raises(ValueError, match="method must be a name, or an object with attention"):
        lexbench.assert_rope(module, Yarn, length=64, facts=FACTS)  # type: ignore[arg-type]
    with pytest.raises(RopeMismatch, match="has a table of 64 positions, asked for 65"):
        lexbench.assert_rope(module, length=65, facts=FACTS)
    with pytest.raises(RopeMismatch, match="for 16 or 32 pairs; the model's own RoPE has 20 pairs"):
        lexbench.assert_rope(module, length=64, facts=Model(name="m", trained_length=64, head_dim=40, rope_base=1e4))
    with pytest.raises(Refused, match="has no rotary positions"):
        lexbench.assert_rope(module, length=64, facts=Model(name="m", trained_length=64, head_dim=DIMS))


# pytest's fixture


@pytest.mark.slow
def test_the_fixture_loads_no_torch_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['lexbench.pytest_plugin']\n")
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        "early = 'torch' in sys.modules or 'transformers' in sys.modules\n"
        "def test_rope(assert_rope):\n"
        "    import lexbench, torch\n"
        "    facts = lexbench.Model(name='m', trained_length=8, head_dim=4, rope_base=1e4)\n"
        "    rope = torch.nn.Module()\n"
        "    angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.01]))\n"
        "    rope.freqs_cis = torch.polar(torch.ones_like(angles), angles)\n"
        "    assert_rope(rope, length=8, facts=facts)\n"
        "    assert not early\n"
        "    assert_rope(rope, 'pi', factor=2, length=8, facts=facts)\n"
        "def test_attention(assert_attention):\n"
        "    assert_attention(object(), length=8)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "RopeMismatch: Module does not rotate by pi(factor=2)" in done.stdout, done.stdout + done.stderr
    assert "Likely cause: scaling not applied" in done.stdout and done.returncode == 1
    assert "Refused: assert_attention reads a loaded model of transformers, got object" in done.stdout

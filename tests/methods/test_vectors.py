"""Numbers that reference implementations gave when they were executed."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench import Model
from lexbench.core.attention import Remap
from lexbench.methods.abf import Abf
from lexbench.methods.clex import Clex
from lexbench.methods.critical_base import CriticalBase
from lexbench.methods.dynamic_ntk import DynamicNtk
from lexbench.methods.hope import Hope
from lexbench.methods.llama3 import Llama3
from lexbench.methods.log_n import LogN
from lexbench.methods.longrope import Longrope
from lexbench.methods.ntk import Ntk
from lexbench.methods.ntk_by_parts import NtkByParts
from lexbench.methods.ntk_fixed import NtkFixed
from lexbench.methods.ntk_mixed import NtkMixed
from lexbench.methods.ntk_old import NtkOld
from lexbench.methods.p_rope import PRope
from lexbench.methods.pi import Pi
from lexbench.methods.power_basis import PowerBasis
from lexbench.methods.rerope import Rerope
from lexbench.methods.resonance import Resonance
from lexbench.methods.rotary import critical_dimension, resolve_factor
from lexbench.methods.truncated_basis import TruncatedBasis
from lexbench.methods.yarn import Yarn
from lexbench.methods.yarn_paper import YarnPaper

FILE = Path(__file__).with_name("vectors.json")

Parameters = dict[str, Any]


def frequencies(method: Any, given: Parameters) -> Any:
    model = Model(name="A", trained_length=given.get("L_train", 16), head_dim=given["d"], rope_base=10_000.0)
    return method.attention(model, given.get("L_prime", 1)).inv_freq


def scale(factor: float) -> float | None:
    return Yarn(factor=factor).attention(Model(name="A", trained_length=16, head_dim=8, rope_base=10_000.0), 1).scale


def longrope_scale(given: Parameters) -> float | None:
    model = Model(name="A", trained_length=given["L_train"], head_dim=given["d"], rope_base=given["base"])
    return Longrope(factor=given["factor"]).attention(model, 1).scale


def rounded_yarn(given: Parameters) -> Any:
    model = Model(name="A", trained_length=given["L_train"], head_dim=given["d"], rope_base=given["base"])
    yarn = Yarn(factor=given["factor"], beta_fast=given["beta_fast"]).attention(model, 1)
    return Resonance().over(yarn, model, 1).inv_freq


def truncated(given: Parameters) -> Any:
    a, b, rho = given["a"], given["b"], given["rho"]
    return frequencies(TruncatedBasis(cutoff=2 * math.pi / b, stop=b / a, slow=b / rho), given)


def critical_dim(given: Parameters) -> int:
    return critical_dimension(
        Model(name="A", trained_length=given["L_train"], head_dim=given["d"], rope_base=given["base"])
    )


def critical_bases(given: Parameters) -> list[float]:
    model = Model(name="A", trained_length=given["L_train"], head_dim=128, rope_base=10_000.0)
    return [CriticalBase(divisor=divisor).rope_parameters(model, 1)["rope_theta"] for divisor in (1, 2, 4)]


def base_of_the_law(given: Parameters) -> Any:
    model = Model(name="A", trained_length=given["L_train"], head_dim=128, rope_base=given["base"])
    return Abf().rope_parameters(model, given["L_target"])["rope_theta"]


def rectified(given: Parameters) -> Any:
    model = Model(name="A", trained_length=16, head_dim=8, rope_base=10_000.0)
    remap = Rerope(window=given["w"]).attention(model, given["n"]).remap
    assert isinstance(remap, Remap)
    positions = np.arange(given["n"])
    rel = positions[:, None] - positions[None, :]
    far = remap.query(positions)[:, None] - remap.key(positions)[None, :]
    return np.where(rel < 0, -1, np.where(rel < remap.window, rel, far))


def log_n(given: Parameters, asked: Parameters) -> Any:
    model = Model(name="A", trained_length=given["L_train"], head_dim=8)
    query_scale = LogN(clip=given["clip"]).attention(model, 256).query_scale
    assert query_scale is not None
    return query_scale(np.asarray(asked["n"]) - 1)


def local_static(given: Parameters, asked: Parameters) -> float:
    model = Model(name="A", trained_length=given["L"], head_dim=8)
    return resolve_factor(None, model, asked["prompt"] + asked["max_new"])


OURS: dict[str, Callable[[Parameters, Any], Any]] = {
    "linear_pi/inv_freq": lambda p, _: frequencies(Pi(factor=p["factor"]), p),
    "ntk_aware/inv_freq": lambda p, _: frequencies(Ntk(factor=p["factor"]), p),
    "ntk_old/inv_freq": lambda p, _: frequencies(NtkOld(factor=p["factor"]), p),
    "ntk_fixed/inv_freq": lambda p, _: frequencies(NtkFixed(factor=p["factor"]), p),
    "ntk_mixed/inv_freq": lambda p, _: frequencies(NtkMixed(factor=p["factor"], exponent=p["b"]), p),
    # An untrained CLEX integrates to the NTK-aware form, numerically: its own tolerance is wider.
    "clex_zero_init/inv_freq": lambda p, _: frequencies(Clex(t=p["t"]), p),
    "dynamic_ntk/inv_freq": lambda p, _: frequencies(DynamicNtk(factor=p["factor"]), p),
    "ntk_by_parts/inv_freq": lambda p, _: frequencies(NtkByParts(p["factor"], p["alpha"], p["beta"]), p),
    "yarn_paper/inv_freq": lambda p, _: frequencies(YarnPaper(p["factor"], p["alpha"], p["beta"]), p),
    "yarn/inv_freq": lambda p, _: frequencies(
        Yarn(p["factor"], beta_fast=p["beta_fast"], beta_slow=p["beta_slow"], truncate=p["truncate"]), p
    ),
    "yarn/attention_factor": lambda p, _: scale(p["factor"]),
    "yarn/mscale_table": lambda _, asked: [scale(factor) for factor in asked["s"]],
    "llama3/inv_freq": lambda p, _: frequencies(
        Llama3(p["factor"], low_freq_factor=p["low_freq_factor"], high_freq_factor=p["high_freq_factor"]), p
    ),
    "abf/inv_freq": lambda p, _: frequencies(Abf(base=p["base"]), p),
    "ntk_critical/base": lambda p, _: base_of_the_law(p),
    "rope_base_scaling_law/critical_dim": lambda p, _: critical_dim(p),
    "rope_base_scaling_law/critical_bases": lambda p, _: critical_bases(p),
    "longrope/inv_freq": lambda p, asked: frequencies(
        Longrope(p["long_factor"], factor=p["factor"]), {**p, "L_prime": asked["seq_len"]}
    ),
    "longrope/attention_factor": lambda p, _: longrope_scale(p),
    "p_rope/inv_freq": lambda p, _: frequencies(PRope(fraction=p["p"]), p),
    "hope_2410/inv_freq": lambda p, _: frequencies(Hope(), p),
    "truncated_basis_repo/inv_freq": lambda p, _: frequencies(TruncatedBasis(cutoff=p["T"]), p),
    "giraffe_truncated_paper_form/inv_freq": lambda p, _: truncated(p),
    "power_basis/inv_freq": lambda p, _: frequencies(PowerBasis(power=p["p"]), p),
    "resonance_rope/inv_freq": lambda p, _: frequencies(Resonance(), p),
    "resonance_yarn/inv_freq": lambda p, _: rounded_yarn(p),
    "logn/q_scale": log_n,
    "rerope/rel_matrix": lambda p, _: rectified(p),
    "dynamic_policy/local_static_scale": local_static,
}


SAME_AS = {"yarn_paper/inv_freq": "ntk_by_parts/inv_freq"}


@pytest.mark.parametrize("quantity", OURS)
def test_reference_implementations_have_the_same_numbers(quantity: str) -> None:
    stated = SAME_AS.get(quantity, quantity)
    vectors = [v for v in json.loads(FILE.read_text())["vectors"] if f"{v['method']}/{v['quantity']}" == stated]
    assert vectors, f"no vector for {quantity}"
    for vector in vectors:
        ours = OURS[quantity](vector["params"], vector["input"])
        np.testing.assert_allclose(ours, vector["expected"], rtol=vector["rtol"], err_msg=vector["id"])

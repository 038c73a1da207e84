"""Numbers that reference implementations gave when they were executed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench import Model
from lexbench.methods.abf import Abf
from lexbench.methods.dynamic_ntk import DynamicNtk
from lexbench.methods.llama3 import Llama3
from lexbench.methods.log_n import LogN
from lexbench.methods.ntk import Ntk
from lexbench.methods.ntk_by_parts import NtkByParts
from lexbench.methods.pi import Pi
from lexbench.methods.rerope import Rerope
from lexbench.methods.rotary import resolve_factor
from lexbench.methods.yarn import Yarn

SHARED = Path(os.environ.get("LEXBENCH_SHARED") or Path(__file__).parents[3] / "shared" / "data")
FILE = SHARED.parent / "reference" / "vectors.json"

Parameters = dict[str, Any]


def frequencies(method: Any, given: Parameters) -> Any:
    model = Model(name="A", trained_length=given.get("L_train", 16), head_dim=given["d"], rope_base=10_000.0)
    return method.attention(model, given.get("L_prime", 1)).inv_freq


def scale(factor: float) -> float | None:
    return Yarn(factor=factor).attention(Model(name="A", trained_length=16, head_dim=8, rope_base=10_000.0), 1).scale


def rectified(given: Parameters) -> Any:
    model = Model(name="A", trained_length=16, head_dim=8, rope_base=10_000.0)
    remap = Rerope(window=given["w"]).attention(model, given["n"]).remap
    assert remap is not None
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
    # An untrained CLEX integrates to the NTK-aware form, numerically: its own tolerance is wider.
    "clex_zero_init/inv_freq": lambda p, _: frequencies(Ntk(factor=2 * p["t"] - 1), p),
    "dynamic_ntk/inv_freq": lambda p, _: frequencies(DynamicNtk(factor=p["factor"]), p),
    "ntk_by_parts/inv_freq": lambda p, _: frequencies(NtkByParts(p["factor"], p["alpha"], p["beta"]), p),
    "yarn/inv_freq": lambda p, _: frequencies(
        Yarn(p["factor"], beta_fast=p["beta_fast"], beta_slow=p["beta_slow"], truncate=p["truncate"]), p
    ),
    "yarn/attention_factor": lambda p, _: scale(p["factor"]),
    "yarn/mscale_table": lambda _, asked: [scale(factor) for factor in asked["s"]],
    "llama3/inv_freq": lambda p, _: frequencies(
        Llama3(p["factor"], low_freq_factor=p["low_freq_factor"], high_freq_factor=p["high_freq_factor"]), p
    ),
    "abf/inv_freq": lambda p, _: frequencies(Abf(base=p["base"]), p),
    "logn/q_scale": log_n,
    "rerope/rel_matrix": lambda p, _: rectified(p),
    "dynamic_policy/local_static_scale": local_static,
}


@pytest.mark.parametrize("quantity", OURS)
def test_reference_implementations_have_the_same_numbers(quantity: str) -> None:
    if not FILE.exists():
        pytest.skip("reference vectors are not here")
    vectors = [v for v in json.loads(FILE.read_text())["vectors"] if f"{v['method']}/{v['quantity']}" == quantity]
    assert vectors, f"no vector for {quantity}"
    for vector in vectors:
        ours = OURS[quantity](vector["params"], vector["input"])
        np.testing.assert_allclose(ours, vector["expected"], rtol=vector["rtol"], err_msg=vector["id"])

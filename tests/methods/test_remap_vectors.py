"""Distances, masks and ratios that reference implementations gave when they were executed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench import Attention
from lexbench.core.attention import seen_distances
from lexbench.methods.adagrope import Adagrope
from lexbench.methods.bca import Bca
from lexbench.methods.chunkllama import Chunkllama
from lexbench.methods.dca import Dca
from lexbench.methods.jet_long import JetLong
from lexbench.methods.lambda_mask import LambdaMask
from lexbench.methods.leaky_rerope import LeakyRerope
from lexbench.methods.ms_poe import MsPoe
from lexbench.methods.rerope import Rerope
from lexbench.methods.self_extend import SelfExtend
from lexbench.methods.sliding_window import SlidingWindow
from lexbench.methods.streaming_llm import StreamingLlm
from lexbench.methods.string import String
from tests.methods.remaps import distances, trained_on

FILE = Path(__file__).with_name("vectors.json")

Parameters = dict[str, Any]


def matrix(method: Any, given: Parameters, trained_length: int = 16) -> Any:
    return distances(method, trained_on(trained_length), given["n"])


def grouped(given: Parameters, floor_shift: bool | None = None) -> Any:
    return matrix(SelfExtend(group=given["G"], window=given["W"], floor_shift=floor_shift), given)


def longest(given: Parameters, _: Any) -> int:
    """Tokens up to which no distance reaches the trained length."""
    method = SelfExtend(group=given["G"], window=given["W"])

    def largest(length: int) -> float:
        remap = method.attention(trained_on(given["L"]), length).remap
        assert remap is not None
        return float(seen_distances(remap, np.array([length - 1]), np.array([0]))[0, 0])

    return next(length for length in range(given["L"], 50_000) if largest(length + 1) > given["L"] - 1)


def reused(given: Parameters, asked: Parameters) -> Any:
    remap = Adagrope(reuse=given["r"]).attention(trained_on(given["P"]), given["L"]).remap
    assert remap is not None
    return seen_distances(remap, np.asarray([given["L"] - 1]), given["L"] - 1 - np.asarray(asked["rel"]))[0]


def ratios(given: Parameters, _: Any) -> Any:
    attention = MsPoe().attention(trained_on(16, heads=given["n_heads"], layers=4), 16)
    assert attention.head_ratios is not None
    return attention.head_ratios.ratios


def scales(_: Parameters, asked: Parameters) -> list[float]:
    attentions: list[Attention] = [Chunkllama().attention(trained_on(16), 16 * factor) for factor in asked["s"]]
    return [attention.scale or 1.0 for attention in attentions]


OURS: dict[str, Callable[[Parameters, Any], Any]] = {
    "rerope/rel_matrix": lambda p, _: matrix(Rerope(window=p["w"]), p),
    "leaky_rerope/rel_matrix": lambda p, _: matrix(LeakyRerope(p["w"], p["k"]), p),
    "invleaky_rerope_train/rel_matrix": lambda p, _: matrix(LeakyRerope(p["w"], p["k"]), p),
    "self_extend/rel_matrix": lambda p, _: grouped(p),
    "self_extend/rel_matrix_float_shift": lambda p, _: grouped(p, floor_shift=False),
    "self_extend/rel_matrix_int_shift": lambda p, _: grouped(p, floor_shift=True),
    "self_extend/max_length": longest,
    "dca/rel_matrix": lambda p, _: matrix(Dca(chunk=p["s"]), p, p["c"]),
    "dca_repo/rel_matrix": lambda p, _: matrix(Chunkllama(), p, p["L_train"]),
    "chunkllama/mscale_table": scales,
    "string/rel_matrix": lambda p, _: matrix(String(shift=p["S"], window=p["W"]), p),
    "jet_long/rel_matrix": lambda p, _: matrix(JetLong(window=p["w0"]), p, p["L_train"]),
    "lm_infinite/rel_matrix": lambda p, _: matrix(LambdaMask(sinks=p["n_global"]), p, p["L_train"]),
    "streaming_llm/rel_matrix": lambda p, _: matrix(StreamingLlm(sinks=p["n_sink"], window=p["W"]), p),
    "sliding_window/rel_matrix": lambda p, _: matrix(SlidingWindow(window=p["W"]), p),
    "bca/rel_matrix": lambda p, _: matrix(Bca(), p, 2 * p["block"]),
    "adagrope/rel_map": reused,
    "ms_poe/head_ratios": ratios,
}


def vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text())["vectors"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("quantity", OURS)
def test_reference_implementations_have_the_same_distances(quantity: str) -> None:
    mine = [v for v in vectors() if f"{v['method']}/{v['quantity']}" == quantity]
    assert mine, f"no vector for {quantity}"
    for vector in mine:
        ours = OURS[quantity](vector["params"], vector["input"])
        np.testing.assert_allclose(ours, vector["expected"], rtol=vector["rtol"], err_msg=vector["id"])


def test_no_matrix_of_distances_is_left_out() -> None:
    known = {f"{v['method']}/{v['quantity']}" for v in vectors() if v["quantity"].startswith("rel_matrix")}
    assert known <= set(OURS)

"""What a plan promises is what the formulas say."""

import re
from pathlib import Path

import numpy as np
import pytest

from lexbench import Model, Score, Write
from lexbench.runner.cells import Named, Step, Workload
from lexbench.runner.forecast import duration, parameters, workload
from lexbench.runner.plan import describe, peak_memory

MODEL = Model(
    name="m", trained_length=64, head_dim=8, layers=2, width=32, heads=4, kv_heads=2, vocabulary=100, rope_base=1e4
)


def test_parameters_are_close_to_those_of_a_real_decoder() -> None:
    llama2 = Model(name="llama2", trained_length=4096, head_dim=128, layers=32, width=4096, heads=32, vocabulary=32000)
    assert parameters(llama2) == pytest.approx(6.74e9, rel=0.06)  # the published count


def test_flops_grow_linearly_and_then_with_the_square() -> None:
    def score(length: int) -> float:
        tokens = np.zeros(length, np.int64)
        return workload(MODEL, [Score(index=0, cluster="", tokens=tokens, start=1, bytes=1, words=1)]).flops

    # by hand: P = 12 * 2 * 32^2 + 100 * 32 = 27776; 2 P n + 2 * 2 * 32 n^2
    assert score(10) == 2 * 27776 * 10 + 128 * 100
    assert score(1000) == 2 * 27776 * 1000 + 128 * 1000**2


def test_writing_counts_every_new_token_over_the_whole_context() -> None:
    write = Write(index=0, cluster="", prompt=np.zeros(90, np.int64), room=10)
    assert workload(MODEL, [write]).tokens == 100
    assert workload(MODEL, [write]).flops == 2 * 27776 * 100 + 128 * 100**2 + 2 * 128 * 10 * 100


def test_memory_holds_weights_and_cache() -> None:
    # float32: weights, keys and values of 2 layers with half the heads, a dozen activations
    assert peak_memory(MODEL, 1000) == 4 * (27776 + 1000 * 32 * (2 * 2 * 0.5 + 12))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "1 seconds"), (59, "59 seconds"), (600, "10 minutes"), (9000, "2 hours"), (1e6, "12 days")],
)
def test_durations_read_well(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def part(label: str) -> Named:
    return Named(label, None, label)


def test_the_plan_names_everything_and_what_is_refused() -> None:
    steps = [
        Step(part("none"), part("passkey"), 64, 0, None, None, Workload(4, 1000, 1e6)),
        Step(part("none"), part("passkey"), 16, 0, None, "needs 55 tokens", Workload()),
    ]
    text = describe(MODEL, steps, Path("runs/m"))
    assert "1 cells, 1,000 tokens" in text
    assert "lengths  16, 64" in text
    assert "refused  none passkey 16: needs 55 tokens" in text
    assert re.search(r"about \d+ \w+", text)

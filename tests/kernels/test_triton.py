"""The Triton kernel against the dense one, in Triton's interpreter, which needs no GPU; `gpu.py` checks it compiled."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lexbench.core.attention import Attention
from tests.kernels.test_fast import SCALING, attentions, expected, rotate, vectors

ROOT = Path(__file__).parents[2]
SHAPES = ((5, 40, 40, 2), (64, 150, 300, 1), (128, 16, 257, 1), (200, 20, 150, 1))
"""Windows, queries, keys and texts: windows below a block, inside one, at its end, and behind the text."""
KINDS = ("near_far", "lambda", "banded")


def errors() -> dict[str, float]:
    """Largest error of each structure and shape; the interpreter is chosen when triton is imported."""
    from lexbench.kernels import fast

    sinks, found = torch.tensor([0.5, -1.0, 2.0, 0.0]), dict[str, float]()
    for window, asked, total, batch in SHAPES:
        for name, attention in attentions(window, 3).items():
            if name.startswith(KINDS):
                x = vectors(asked, total, batch=batch, dtype=torch.float32)
                found[f"{name}, {window}"] = error(fast.attend, x, attention, None)
    x, leaky = vectors(40, 60, dtype=torch.float32), attentions(9, 3)["near_far leaky"]
    found["sinks"] = error(fast.attend, x, leaky, sinks)
    low = vectors(40, 60, kv_heads=1, dtype=torch.float16)
    found["half precision"] = error(fast.attend, low, leaky, sinks)
    return found


def error(attend: Any, x: Any, attention: Attention, sinks: Any) -> float:
    from lexbench.kernels import dense

    total = x[1].shape[2]
    places = torch.arange(total - x[0].shape[2], total)
    got = attend(*x, places, attention, rotate, SCALING, sinks=sinks, form="triton")
    if sinks is None:
        return float((got - expected(x, attention)).abs().max())
    q, k, v = (each.double() for each in x)
    exact = dense.attend(q, k, v, places, attention, rotate, SCALING, sinks=sinks.double())
    assert got.dtype == x[0].dtype and got.shape == exact.shape
    return float((got - exact).abs().max())


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton")
def test_the_triton_kernel_sees_the_same_keys_at_the_same_positions() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.test_triton"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 2 + len(SHAPES) * sum(name.startswith(KINDS) for name in attentions(5, 3))
    low = found.pop("half precision")
    assert low < 5e-3 and {name: wrong for name, wrong in found.items() if not wrong < 5e-6} == {}


if __name__ == "__main__":
    print(json.dumps(errors()))

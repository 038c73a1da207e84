"""Steps that a graph could record, against the dense kernel on each text alone."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.backends.hf.exact.state import KeptLayer
from lexbench.core.attention import LogScale
from lexbench.kernels import decode, dense, looped
from lexbench.kernels.looped import Loop
from tests.kernels.on_device import on_device
from tests.kernels.test_decode import ATTENTIONS, LENGTHS, drawn, padded
from tests.kernels.test_fast import SCALING, rotate

pytestmark = pytest.mark.usefixtures("one_thread")


def begun(keys: list[Tensor], values: list[Tensor], count: int) -> tuple[KeptLayer, Loop]:
    layer = KeptLayer(room=2)
    layer.update(padded(keys, 0), padded(values, 0))
    loop = Loop(np.array(LENGTHS) + 1, total=max(LENGTHS) + 1, count=count)
    layer.begin_loop(loop)
    return layer, loop


@pytest.mark.everyday(
    "sdpa-None",
    "near_far rerope-sinks1",
    "near_far self_extend-None",
    "lambda streaming-sinks1",
    "banded sinks-None",
    "blocks-sinks1",
    "chunks paper-None",
    "segments-sinks1",
    "query scale-None",
)
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_each_step_is_that_of_each_text_alone_and_all_but_the_first_can_be_recorded(
    name: str, sinks: Tensor | None
) -> None:
    attention = ATTENTIONS[name]
    attention = attention if attention.query_scale else replace(attention, query_scale=LogScale(5))
    queries, keys, values = drawn()
    layer, loop = begun(keys, values, 4)
    for step in range(1, 5):
        new = [
            torch.cat([text[:, :, size + step - 1, None] for text, size in zip(part, LENGTHS, strict=True)])
            for part in (queries, keys, values)
        ]
        with on_device() if step > 1 else nullcontext():
            loop.begin()
            layer.update(*new[1:])
            got = looped.attend(new[0], layer, loop, attention, rotate, SCALING, sinks)
            loop.end()
        for row, size in enumerate(LENGTHS):
            end = size + step
            q, k, v = queries[row][:, :, end - 1 : end], keys[row][:, :, :end], values[row][:, :, :end]
            exact = dense.attend(q, k, v, torch.tensor([end - 1]), attention, rotate, SCALING, sinks=sinks)
            torch.testing.assert_close(got[row : row + 1], exact, atol=1e-12, rtol=0)
    layer.end_loop(max(LENGTHS) + 4)
    assert layer.get_seq_length() == max(LENGTHS) + 4


def test_a_layer_goes_on_as_before_behind_a_loop() -> None:
    _, keys, values = drawn()
    attention = ATTENTIONS["near_far leaky"]
    layer, loop = begun(keys, values, 3)
    new = [torch.cat([text[:, :, size, None] for text, size in zip(part, LENGTHS, strict=True)]) for part in drawn()]
    loop.begin()
    layer.update(*new[1:])
    expected = looped.attend(new[0], layer, loop, attention, rotate, SCALING)
    layer.end_loop(max(LENGTHS))  # the token is taken back, and read once more
    layer.update(*new[1:])
    got = decode.attend(new[0], layer, decode.DecodeStep(np.array(LENGTHS) + 1), attention, rotate, SCALING)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(layer.keys, padded(keys, 1), atol=0, rtol=0)

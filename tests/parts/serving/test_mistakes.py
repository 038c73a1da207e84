"""Angles that are computed as mistaken servers do."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lexbench.parts.serving.mistakes import change_angles
from tools.engine_rope import DIMS, PLAIN, model_with


@pytest.mark.parametrize("kind", ["llama", "cohere"])
def test_changed_angles_are_those_of_torch(kind: str) -> None:
    """Cos and sin in halves and side by side, of products that are computed in float64 and rounded by torch."""
    rotary = model_with(PLAIN, kind).model.rotary_emb
    hf: Any = SimpleNamespace(reader=SimpleNamespace(network=rotary))
    places = torch.arange(900)
    with change_angles(hf, "bfloat16"):
        cos, sin = rotary(torch.zeros(1), position_ids=places[None])
    frequencies_in_float64 = 1e6 ** (-torch.arange(0, DIMS, 2) / DIMS)
    half = [each.to(torch.bfloat16).double() for each in (places, frequencies_in_float64)]
    angles = torch.outer(*half).to(torch.bfloat16).double()
    angles = angles.repeat_interleave(2, -1) if kind == "cohere" else angles.repeat(1, 2)
    for found, wanted in ((cos, angles.cos()), (sin, angles.sin())):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found[0].double(), wanted, atol=2**-8, rtol=0)
    with change_angles(hf):
        exact, _ = rotary(torch.zeros(1), position_ids=places[None])
    with change_angles(hf, chunk=512):
        again, _ = rotary(torch.zeros(1), position_ids=places[None])
    torch.testing.assert_close(again, torch.cat([exact[:, :512], exact[:, : 900 - 512]], dim=1))
    assert (exact - cos).abs().max() > 1  # position 899 is 896 or 900

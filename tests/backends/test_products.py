"""Products of half precision in float32, on processors without instructions for halves."""

import pytest
import torch
from torch import Tensor, nn

from lexbench import Model
from lexbench.backends.hf.backend import Hf
from lexbench.backends.hf.fast import products
from lexbench.kernels import halves, likelihood

HALVES = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half of the distance between neighbouring numbers, as a share of them."""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the instructions for halves that the processor may have."""
    for dtype in ("bf16", "fp16"):
        monkeypatch.setattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported", lambda: False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_is_the_exact_one_rounded_once(dtype: torch.dtype, bias: bool, without: None) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(48, 40, bias=bias).to(dtype)
    states = torch.randn(2, products.MIN_WIDENED_ROWS, 48).to(dtype)
    exact = nn.functional.linear(states.double(), layer.weight.double(), layer.bias.double() if bias else None)
    products.widen_half_products(layer)
    got = layer(states)
    assert got.dtype == dtype
    # Rounded once from a sum in float32, whose own error is 2^-24 of the sum of all 48 sizes.
    sizes = states.double().abs() @ layer.weight.double().abs().T + 1
    assert ((got.double() - exact).abs() <= HALVES[dtype] * exact.abs() + 48 * 2**-24 * sizes).all()


def test_only_slow_products_of_many_rows_are_widened(without: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [halves.half_matmul_is_slow(each) for each in (torch.bfloat16, torch.float16, torch.float32)] == [
        True,
        True,
        False,
    ]
    wide: list[tuple[int, ...]] = []
    linear = likelihood.linear_head

    def counted(weight: Tensor, bias: Tensor | None) -> likelihood.ToLogits:
        wide.append(tuple(weight.shape))
        return linear(weight, bias)

    monkeypatch.setattr(likelihood, "linear_head", counted)
    network = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).bfloat16()
    network[0].float()
    products.widen_half_products(network)
    for rows in (products.MIN_WIDENED_ROWS - 1, products.MIN_WIDENED_ROWS):
        network[1](torch.zeros(rows, 5, dtype=torch.bfloat16))
        network[0](torch.zeros(rows, 6))
    assert wide == [(4, 5)]


def test_a_model_is_loaded_with_wide_products(without: None) -> None:
    model = Model(name="lexlet", trained_length=256, head_dim=64, path="lexbench:lexlet")
    network = Hf(model, dtype="bfloat16", device="cpu").reader.network
    layers = [each for each in network.modules() if isinstance(each, nn.Linear)]
    assert layers and all("forward" in vars(each) for each in layers)
    assert not any("forward" in vars(each) for each in Hf(model, device="cpu").reader.network.modules())

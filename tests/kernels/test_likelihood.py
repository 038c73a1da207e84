"""Likelihood by chunks against the definition in float64."""

import math

import numpy as np
import pytest
import torch

from lexbench.kernels import likelihood


def losses(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, bias: torch.Tensor | None) -> np.ndarray:
    logits = hidden.double().numpy() @ weight.double().numpy().T
    if bias is not None:
        logits = logits + bias.double().numpy()
    top = logits.max(axis=1)
    normaliser = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return np.asarray(normaliser - logits[np.arange(len(targets)), targets.numpy()])


@pytest.mark.parametrize("chunk", [1, 7, 20, 1000])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_it_is_minus_the_log_of_softmax(
    dtype: torch.dtype, biased: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        likelihood, "WEIGHT_BLOCK_NUMBERS", 7 * 16
    )  # halves: seven rows of the weight at a time, and one at the end
    generator = torch.Generator().manual_seed(0)
    hidden = (5 * torch.randn(20, 16, generator=generator)).to(dtype)
    weight = torch.randn(50, 16, generator=generator).to(dtype)
    bias = torch.randn(50, generator=generator).to(dtype) if biased else None
    targets = torch.randint(50, (20,), generator=generator)
    got = likelihood.token_nll(hidden[None], likelihood.linear_head(weight, bias), targets, chunk)
    assert got.dtype == torch.float32
    # Whatever the dtype of the inputs, the error is that of float32: the products themselves are exact enough.
    np.testing.assert_allclose(got.numpy(), losses(hidden, weight, targets, bias), rtol=2e-6, atol=2e-5)


def test_huge_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[1e4], [-1e4]])
    got = likelihood.token_nll(hidden[None], likelihood.linear_head(torch.tensor([[1.0], [0.0]])), torch.tensor([1, 1]))
    np.testing.assert_allclose(got.numpy(), [1e4, 0.0])


def test_equal_logits_give_the_logarithm_of_the_vocabulary() -> None:
    got = likelihood.token_nll(
        torch.ones(1, 3, 4), likelihood.linear_head(torch.ones(100, 4)), torch.tensor([0, 50, 99]), chunk=2
    )
    np.testing.assert_allclose(got.numpy(), np.full(3, np.log(100.0)), rtol=1e-6)


def test_a_chunk_below_one_is_refused_with_its_value() -> None:
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        likelihood.token_nll(
            torch.ones(1, 1, 2), likelihood.linear_head(torch.ones(3, 2)), torch.zeros(1, dtype=torch.int64), chunk=0
        )


def test_passes_are_weighted_by_their_largest_logit() -> None:
    # Largest logits ln 1, ln 2 and ln 1 weigh 1/4, 1/2 and 1/4.
    passes = torch.tensor([[[0.0, -4.0]], [[-8.0, math.log(2)]], [[-8.0, 0.0]]], dtype=torch.float64)
    expected = torch.tensor([[-8 / 2 - 8 / 4, -4 / 4 + math.log(2) / 2]], dtype=torch.float64)
    torch.testing.assert_close(likelihood.mix_passes(passes), expected)

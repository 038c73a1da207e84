"""Parts of attention against softmax over the keys that they see."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lexbench.kernels import flash

Seen = Callable[[Tensor, Tensor, int], Tensor]
SEEN: dict[str, Seen] = {
    "full": lambda r, c, past: torch.ones_like(r * c, dtype=torch.bool),
    "causal": lambda r, c, past: c - r <= past,
    "anticausal": lambda r, c, past: c >= r,
}


def definition(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    weights = torch.where(seen, (0.4 * torch.einsum("bhqd,bhkd->bhqk", q, k)).exp(), 0.0)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v) / weights.sum(-1, keepdim=True), weights.sum(-1).log()


@pytest.mark.parametrize(("asked", "total"), [(9, 9), (1, 9), (4, 9), (1, 1)])
@pytest.mark.parametrize("shape", SEEN)
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_each_shape_gives_softmax_and_its_normaliser(
    shape: str, asked: int, total: int, device: str, dtype: torch.dtype, error: float
) -> None:
    if shape == "anticausal":
        total = asked
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, rows, 12, generator=generator, dtype=torch.float64).to(dtype)
        for heads, rows in ((4, asked), (2, total), (2, total))
    )
    r, c = torch.arange(asked)[:, None], torch.arange(total)[None, :]
    out, lse = definition(q.double(), k.double(), v.double(), SEEN[shape](r, c, total - asked))
    attend = {"full": flash.attend_to_all, "causal": flash.attend_causally, "anticausal": flash.attend_anticausally}[
        shape
    ]
    got = attend(q.to(device), k.to(device), v.to(device), 0.4)
    assert got.out.dtype == got.lse.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(got.out.cpu().double(), out, atol=error, rtol=0)
    torch.testing.assert_close(got.lse.cpu().double(), lse, atol=error, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_without_a_fused_kernel_the_definition_answers_alike(is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 7, 12, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    seen = torch.ones(7, 7, dtype=torch.bool).tril() if is_causal else torch.ones(7, 7, dtype=torch.bool)
    for got, expected in zip(flash._by_definition(q, k, v, is_causal, 0.4), definition(q, k, v, seen), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-13, rtol=0)


def test_merging_parts_of_huge_logits_does_not_overflow() -> None:
    one = flash.PartialAttention(torch.full((1, 1, 2, 1), 1.0), torch.full((1, 1, 2), 900.0))
    one.add(slice(1, 2), flash.PartialAttention(torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1), 900.0)))
    torch.testing.assert_close(one.out[0, 0, :, 0], torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(one.lse[0, 0], torch.tensor([900.0, 900.0 + 0.6931472]))


def test_a_part_is_merged_in_float32() -> None:
    """Weights of 1/3 and 2/3, which bfloat16 rounds by 1e-3."""
    q, k = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16), torch.zeros(1, 1, 3, 8, dtype=torch.bfloat16)
    v = torch.tensor([1.0, 0.0, 0.0], dtype=torch.bfloat16)[None, None, :, None].expand(1, 1, 3, 8).contiguous()
    part = flash.attend_to_all(q, k[:, :, :1], v[:, :, :1], 1.0)
    part.add(slice(None), flash.attend_to_all(q, k[:, :, 1:], v[:, :, 1:], 1.0))
    torch.testing.assert_close(part.out, torch.full((1, 1, 1, 8), 1 / 3), atol=1e-6, rtol=0)


def test_more_queries_than_keys_are_our_bug() -> None:
    q, k = torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 2, 8)
    with pytest.raises(AssertionError, match="3 queries cannot be the last of 2 keys"):
        flash.attend_causally(q, k, k, 1.0)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("tokens_first", [True, False])
def test_strides_of_a_triangle_are_those_of_its_own_size(tokens_first: bool, heads: int) -> None:
    # cuDNN plans 0.4 s for each new size and set of strides.
    found = set()
    for total in (700, 900):
        vectors = torch.randn(1, total, heads, 8).transpose(1, 2) if tokens_first else torch.randn(1, heads, total, 8)
        triangle = vectors[:, :, :512]
        dense = flash._dense_text(triangle)
        assert torch.equal(dense, triangle)
        found.add(dense.stride())
        assert flash.attend_by_cudnn(triangle, triangle, triangle, 1.0) is None  # not on a CPU
    assert len(found) == 1

"""xPos against numbers of its authors' code, and its decay wherever logits are made."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lexbench import Attention
from lexbench.core.attention import Blocks
from lexbench.kernels import dense
from lexbench.kernels.logits import Logits
from lexbench.kernels.resolution import mean_logits
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.xpos import Xpos
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape, attend_by_encoding

TINY = DecoderShape(vocabulary=97, layers=2, width=32, heads=4, kv_heads=2, hidden=48)

pytestmark = pytest.mark.usefixtures("one_thread")


def vectors(tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, tokens, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def together(encoding: Encoding, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    positions = torch.arange(q.shape[2])
    return encoding.qk(q, k, positions, positions, encoding.rotate)


def logits(encoding: Xpos, q: Tensor, k: Tensor) -> Tensor:
    """[H, T, T] sum_p zeta_p^((i - j) / B) Re(q_p conj(k_p) e^(i (i - j) theta_p)), one pair of positions at a time."""
    zeta = (np.arange(4) / 4 + 0.4) / 1.4
    theta = 10000.0 ** (-np.arange(4) / 4)
    i = np.arange(q.shape[2])
    rel = (i[:, None] - i)[..., None]
    kernel = zeta ** (rel / 512) * np.exp(1j * rel * theta)
    one = (q[0, ..., :4] + 1j * q[0, ..., 4:]).numpy()
    two = (k[0, ..., :4] + 1j * k[0, ..., 4:]).numpy().repeat(2, axis=0)
    return torch.from_numpy(np.einsum("hip,hjp,ijp->hij", one, two.conj(), kernel).real)


def test_it_fades_as_in_the_paper() -> None:
    zeta = (Xpos(8, 1024).decay * 512).exp()
    np.testing.assert_allclose(zeta, [0.2857142857, 0.4642857143, 0.6428571429, 0.8214285714], rtol=1e-9)
    mean = [float((Xpos(64, 1024).decay * rel).exp().mean()) for rel in (0, 64, 512, 1024, 2048, 4096)]
    np.testing.assert_allclose(mean, [1.0, 0.9381473588, 0.6316964286, 0.4415158642, 0.2641730956, 0.1403940714])


@pytest.mark.parametrize(
    ("query", "key", "expected"),
    [
        (0, 0, 120.0),
        (5, 0, 102.7604671),
        (5, 5, 120.0),
        (100, 0, 27.27627226),
        (100, 95, 102.7604671),
        (1000, 0, 0.3179604678),
    ],
)
def test_scores_are_those_of_torchscale(query: int, key: int, expected: float) -> None:
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # theirs are interleaved
    q, k = torch.zeros(1, 1, 1001, 8, dtype=torch.float64), torch.zeros(1, 1, 1001, 8, dtype=torch.float64)
    q[0, 0, query], k[0, 0, key] = torch.arange(1.0, 9)[order].double(), torch.arange(8.0, 0, -1)[order].double()
    met = together(Xpos(8, 1024), q, k)
    assert float((met[0][0, 0, query] * met[1][0, 0, key]).sum()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tokens", [1, 2, 300])
def test_the_plain_dot_product_of_what_meets_decays(tokens: int) -> None:
    q, k, _ = vectors(tokens)
    met = together(Xpos(8, 1024), q, k)
    got = met[0][0] @ met[1][0].repeat_interleave(2, dim=0).mT
    torch.testing.assert_close(got, logits(Xpos(8, 1024), q, k), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("dtype", "tokens"), [(torch.float32, 30000), (torch.bfloat16, 30000), (torch.float16, 4500)])
def test_long_texts_keep_their_precision_and_stay_finite(dtype: torch.dtype, tokens: int) -> None:
    some = torch.tensor([0, 1, tokens // 2, tokens - 2, tokens - 1])
    q, k, _ = vectors(tokens, dtype)
    met = [x[0][:, some].double() for x in together(Xpos(8, 1024), q, k)]
    got = (met[0] @ met[1].repeat_interleave(2, dim=0).mT).tril()
    rel = (some[:, None] - some)[..., None]
    kernel = torch.polar((rel.clamp_min(0) * Xpos(8, 1024).decay).exp(), rel * Xpos(8, 1024).inv_freq)
    one, two = (torch.complex(x[0][:, some, :4].double(), x[0][:, some, 4:].double()) for x in (q, k))
    two = two.repeat_interleave(2, dim=0)
    expected = torch.einsum("hip,hjp,ijp->hij", one, two.conj(), kernel).real.tril()
    assert got.isfinite().all()
    torch.testing.assert_close(got, expected, atol=60 * torch.finfo(dtype).eps, rtol=0)


def test_texts_too_long_for_the_dtype_are_errors() -> None:
    q, k, _ = vectors(4600, torch.float16)
    with pytest.raises(ValueError, match=r"xpos over 4600 tokens needs factors of e\^6, the largest in torch.float16"):
        together(Xpos(8, 1024), q, k)


def test_without_a_decay_queries_and_keys_are_rotated_and_nothing_else() -> None:
    q, k, _ = vectors(30)
    positions = torch.arange(30)
    rope, faint = Rope(8), Xpos(8, 1024, gamma=1e12)  # zeta 1
    for ours, theirs in zip(together(faint, q, k), together(rope, q, k), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)
    for got, given in zip(together(rope, q, k), (q, k), strict=True):
        assert torch.equal(got, rope.rotate(given, positions))
    assert together(Encoding(), q, k) == (q, k)


def meeting(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    q, k = encoding.qk(q, k, positions, positions, encoding.rotate)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def slowly(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    assert isinstance(encoding, Xpos)
    unseen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    weights = (logits(encoding, q, k) / 8**0.5).masked_fill(unseen, -torch.inf).softmax(-1)
    return weights @ v.repeat_interleave(2, dim=1)


def test_a_decoder_with_xpos_follows_the_formula() -> None:
    decoder = Decoder(TINY, Xpos(TINY.head_dim, 1024))
    decoder.initialise(0)
    for weight in decoder.parameters():
        weight.data = weight.data.double() * 5
    tokens = torch.randint(0, 97, (1, 200), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        for attend in (meeting, attend_by_encoding):
            torch.testing.assert_close(decoder(tokens, attend), decoder(tokens, slowly), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("trained", [128, 1024, 2048])
def test_b_is_512_at_every_trained_length_unless_it_is_half_of_it(trained: int) -> None:
    zeta = [0.2857142857, 0.4642857143, 0.6428571429, 0.8214285714]
    np.testing.assert_allclose((Xpos(8, trained).decay * 512).exp(), zeta, rtol=1e-9)
    np.testing.assert_allclose((Xpos(8, trained, scale_base=None).decay * trained / 2).exp(), zeta, rtol=1e-9)


def test_lex_is_xpos_under_blockwise_causal_attention() -> None:
    q, k, v = vectors(100)
    positions, lex = torch.arange(100), Attention(mask=Blocks(30))
    met = together(Xpos(8, 1024), q, k)
    got = dense.attend(*met, v, positions, lex, lambda x, _: x, 1.0)
    i = np.arange(100)
    seen = torch.from_numpy((i[:, None] >= i) & (i[:, None] // 30 - i // 30 <= 1))
    made = logits(Xpos(8, 1024), q, k)
    weights = made.masked_fill(~seen, -torch.inf).softmax(-1)
    torch.testing.assert_close(got[0], weights @ v[0].repeat_interleave(2, dim=0))

    encoding = Xpos(8, 1024)
    rule = Logits(rotate=encoding.rotate, scaling=1.0, attention=lex, decay=encoding.decay, bias=encoding.bias)
    means = [torch.diagonal(made.where(seen, torch.nan), -n, 1, 2).nanmean(1) for n in range(100)]
    torch.testing.assert_close(mean_logits(q, k, rule), torch.stack(means, 1), atol=1e-10, rtol=0, equal_nan=True)


def test_the_rows_of_table_4_without_rotation_and_with_one_zeta_for_all_pairs() -> None:
    q, k, _ = vectors(60)
    i = np.arange(60)
    rel = (i[:, None] - i)[..., None]
    theta, zeta = 10000.0 ** (-np.arange(4) / 4), (np.arange(4) / 4 + 0.4) / 1.4
    one = (q[0, ..., :4] + 1j * q[0, ..., 4:]).numpy()
    two = (k[0, ..., :4] + 1j * k[0, ..., 4:]).numpy().repeat(2, axis=0)
    for encoding, fades, turns in (
        (Xpos(8, 1024, rotated=False), zeta, 0 * theta),
        (Xpos(8, 1024, scalar=True), np.full(4, 2 / 7), theta),  # 0.4 / 1.4
    ):
        expected = np.einsum("hip,hjp,ijp->hij", one, two.conj(), fades ** (rel / 512) * np.exp(1j * rel * turns)).real
        met = together(encoding, q, k)
        got = met[0][0] @ met[1][0].repeat_interleave(2, dim=0).mT
        torch.testing.assert_close(got, torch.from_numpy(expected), atol=1e-10, rtol=1e-10)
    # A method that stretches RoPE's angles must not find RoPE where nothing rotates.
    assert Xpos(8, 1024, rotated=False).facts == {"rope_parameters": {"rope_type": "xpos"}}


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="gamma and scale_base above 0, got 0 and 512"):
        Xpos(8, 1024, gamma=0)


def test_scores_are_those_of_x_transformers() -> None:
    theirs = pytest.importorskip("x_transformers.x_transformers")
    turn = theirs.RotaryEmbedding(8, use_xpos=True)
    q, k, _ = vectors(300, torch.float32)
    freqs, scale = turn.forward_from_seq_len(300)
    asking, known = theirs.apply_rotary_pos_emb(q, freqs, scale), theirs.apply_rotary_pos_emb(k, freqs, scale**-1.0)
    expected = asking[0] @ known[0].repeat_interleave(2, dim=0).mT
    halves = [0, 2, 4, 6, 1, 3, 5, 7]  # their pairs are neighbours
    met = together(Xpos(8, 1024), q[..., halves], k[..., halves])
    got = met[0][0] @ met[1][0].repeat_interleave(2, dim=0).mT
    torch.testing.assert_close(got.tril(), expected.tril(), atol=1e-4, rtol=1e-5)
    other = together(Xpos(8, 1024), q, k)  # in the wrong order of dimensions
    assert (other[0][0] @ other[1][0].repeat_interleave(2, dim=0).mT - expected).tril().abs().max() > 1

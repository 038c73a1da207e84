"""QK norm: cosines times a learned number, and Qwen3's form against transformers'."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.parts.lab.encodings.qk_norm import QkNorm
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape, attend_by_encoding

SHAPE = DecoderShape(vocabulary=97, layers=3, width=32, heads=4, kv_heads=2, hidden=48)

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(tokens: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, tokens, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    return q * 3, k * 5


def test_l2_logits_are_cosines_times_the_gain() -> None:
    (q, k), places, rope = drawn(), torch.arange(7), Rope(8, 100.0)
    encoding = QkNorm(rope, 8, 512, form="l2")
    assert float(encoding.gain) == pytest.approx(17.997180, rel=1e-6)  # log2(512^2 - 512) = 9 + log2(511)
    got = EncodingAttention(encoding, Attention(), q, k, places).logits(0, 7)[0].detach()
    turned, known = rope.rotate(q, places)[0].numpy(), rope.rotate(k, places)[0].numpy()
    for head in range(4):
        for i in range(7):
            for j in range(i + 1):
                query, key = turned[head, i], known[head // 2, j]
                cosine = query @ key / np.sqrt((query**2).sum() * (key**2).sum())
                assert float(got[head, i, j]) == pytest.approx(17.997180 * cosine, rel=1e-6, abs=1e-9)


def test_rms_vectors_have_the_length_of_their_gains() -> None:
    q, k = drawn()
    encoding = QkNorm(Rope(8), 8, 512)
    encoding.query_gain.data = torch.arange(1.0, 9)
    asking, known = (x.detach() for x in encoding.prepare(q, k))
    np.testing.assert_allclose(known.norm(dim=-1), 8**0.5, rtol=1e-6)
    even = q.numpy() / np.sqrt((q.numpy() ** 2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(asking, even * np.arange(1.0, 9), rtol=1e-12)
    assert encoding.scaling(8) == 8**-0.5


def test_rms_is_qwen3s_attention() -> None:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    config = Qwen3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    theirs = Qwen3Attention(config, 0).eval()
    for norm in (theirs.q_norm, theirs.k_norm):
        norm.weight.data = torch.rand(8) + 0.5
    ours = QkNorm(Rope(8, 500.0), 8, 64)
    ours.load_state_dict({"query_gain": theirs.q_norm.weight.data, "key_gain": theirs.k_norm.weight.data})
    stream, places = torch.randn(2, 11, 32), torch.arange(11)
    with torch.inference_mode():
        angles = Qwen3RotaryEmbedding(config)(stream, places[None])
        expected = theirs(stream, angles, None)[0]
        q, k, v = (
            project(stream).unflatten(-1, (-1, 8)).transpose(1, 2)
            for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
        )
        got = theirs.o_proj(attend_by_encoding(0, ours, q, k, v, places).transpose(1, 2).flatten(2))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("form", "each"), [("l2", 1), ("rms", 16)])
def test_every_layer_has_weights_of_its_own(form: str, each: int) -> None:
    decoder = Decoder(SHAPE, build.build_encoding({"name": "qk_norm", "form": form}, SHAPE, 64))
    assert sum(weight.numel() for weight in decoder.encoding.parameters()) == 3 * each
    assert decoder.encoding.facts == Rope(8).facts and decoder.encoding.remaps


@pytest.mark.parametrize("form", ["l2", "rms"])
def test_vectors_keep_their_dtype(form: str) -> None:
    q, k = (x.bfloat16() for x in drawn())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {x.dtype for x in QkNorm(Rope(8), 8, 64, form).prepare(q, k)} == {torch.bfloat16}


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="qk_norm's form must be l2 or rms, got 'layer': Qwen3 has rms"):
        QkNorm(Rope(8), 8, 64, form="layer")
    with pytest.raises(ValueError, match="trained length of at least 2, got 1: take rms"):
        QkNorm(Rope(8), 8, 1, form="l2")

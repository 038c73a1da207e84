"""The decoder is a Llama: the same logits, the same files."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.decoder import Decoder, DecoderCache, DecoderShape, attend_by_encoding
from lexbench.parts.lab.native.folder import load_model, save_model

TINY = DecoderShape(vocabulary=97, layers=2, width=32, heads=4, kv_heads=2, hidden=48)


def stock(folder: Path, **changed: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        **changed,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("length", [1, 7, 64])
def test_logits_are_those_of_transformers_llama(tmp_path: Path, length: int) -> None:
    theirs = stock(tmp_path)
    tokens = torch.randint(0, 97, (2, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(load_model(tmp_path)(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def test_what_it_saves_transformers_loads(tmp_path: Path) -> None:
    ours = Decoder(TINY, Rope(TINY.head_dim, 500.0))
    ours.initialise(0)
    save_model(ours, tmp_path, 64, bos=0, eos=1, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.max_position_embeddings == 64
    tokens = torch.arange(50)[None]
    with torch.inference_mode():
        torch.testing.assert_close(ours.eval()(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def test_the_same_seed_makes_the_same_weights() -> None:
    first, second = Decoder(TINY, Rope(8)), Decoder(TINY, Rope(8))
    for decoder in (first, second):
        decoder.initialise(3)
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(("rule", "matrices", "outputs"), [("gpt2", 0.02, 0.01), ("fan_in", 48**-0.5, 0.0)])
def test_initial_weights_have_the_deviations_of_their_rule(rule: str, matrices: float, outputs: float) -> None:
    shape = DecoderShape(vocabulary=500, layers=2, width=48, heads=6, kv_heads=6, hidden=48)
    decoder = Decoder(shape, Rope(8))
    decoder.initialise(0, rule)
    for name, weight in decoder.named_parameters():
        if weight.dim() == 2:
            expected = outputs if "o_proj" in name or "down_proj" in name else 0.02 if "embed" in name else matrices
            assert float(weight.detach().std()) == pytest.approx(expected, rel=0.06), name  # of 2304 numbers or more


class Distance(Encoding):
    """Bias -|i - j| / 2, the same on all heads: a stand-in for any bias encoding."""

    def bias(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        return -(query_positions[:, None] - key_positions[None, :]).abs().float().expand(TINY.heads, -1, -1) / 2


@pytest.mark.parametrize("encoding", [Encoding(), Rope(8), Distance()], ids=lambda e: type(e).__name__)
def test_any_encoding_leaves_the_decoder_causal(encoding: Encoding) -> None:
    decoder = Decoder(TINY, encoding)
    decoder.initialise(0)
    tokens = torch.arange(20)[None]
    changed = tokens.clone()
    changed[0, 12:] = 3
    with torch.inference_mode():
        torch.testing.assert_close(decoder(tokens)[0, :12], decoder(changed)[0, :12])


def test_a_bias_encoding_follows_the_softmax_by_hand() -> None:
    q, k = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    v = torch.tensor([1.0, 10.0, 100.0])[None, None, :, None].expand(1, 2, 3, 8)
    weights = torch.tensor([-1.0, -0.5, 0.0]).softmax(0)  # the last query, distances 2, 1, 0
    expected = (weights * torch.tensor([1.0, 10.0, 100.0])).sum()
    torch.testing.assert_close(
        attend_by_encoding(0, Distance(), q, k, v, torch.arange(3))[0, :, 2, 0], expected.expand(4)
    )


def test_rotation_at_fractional_positions_is_the_complex_product() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 2, 3, 8, generator=generator, dtype=torch.float64)
    positions = torch.tensor([0.0, 2.5, 1e5], dtype=torch.float64)
    turned = Rope(8, 100.0).rotate(vectors, positions)
    frequencies = torch.tensor([100.0 ** (-p / 4) for p in range(4)], dtype=torch.float64)
    as_complex = torch.complex(vectors[..., :4], vectors[..., 4:])
    expected = as_complex * torch.exp(1j * positions[:, None] * frequencies)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], dim=-1))


@pytest.mark.parametrize(
    "changed",
    [{"tie_word_embeddings": False}, {"rope_scaling": {"type": "linear", "factor": 2}}, {"model_type": "qwen2"}],
    ids=str,
)
def test_other_checkpoints_are_turned_away(tmp_path: Path, changed: dict[str, object]) -> None:
    stock(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="use backend=hf"):
        load_model(tmp_path)


def test_heads_must_divide() -> None:
    with pytest.raises(ValueError, match="heads must divide"):
        DecoderShape(vocabulary=10, width=30, heads=4)


@torch.inference_mode()
def test_a_fork_and_its_text_go_on_apart_and_a_text_begins_in_the_room_of_another() -> None:
    decoder, tokens = Decoder(TINY, Rope(8)), torch.arange(20)[None]
    decoder.initialise(0)
    others, text, again = tokens + 40, DecoderCache(20), DecoderCache(20)
    decoder(tokens[:, :8], cache=text)
    decoder(tokens[:, 8:9], cache=text)
    fork = text.fork()
    forked, own = decoder(others[:, 9:12], cache=fork), decoder(tokens[:, 9:12], cache=text)
    torch.testing.assert_close(own, decoder(tokens[:, :12])[:, 9:])
    mixed = torch.cat([tokens[:, :9], others[:, 9:]], dim=1)
    torch.testing.assert_close(forked, decoder(mixed[:, :12])[:, 9:])
    torch.testing.assert_close(decoder(others[:, 12:14], cache=fork), decoder(mixed[:, :14])[:, 12:])
    rooms = [rows.room.data_ptr() for rows in text._layers[0]]
    again.take_over_prefix(text, 9)
    torch.testing.assert_close(decoder(others[:, 9:], cache=again), decoder(mixed)[:, 9:])
    assert [rows.room.data_ptr() for rows in again._layers[0]] == rooms, "nothing is copied"

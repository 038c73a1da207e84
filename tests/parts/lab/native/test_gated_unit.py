"""A decoder of gated attention units, by its formula, and what it is refused with."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.shaw import Shaw
from lexbench.parts.lab.native.build import resolve_spec
from lexbench.parts.lab.native.decoder import GAU_KEY_DIMENSIONS, Decoder, DecoderCache, DecoderShape
from lexbench.parts.lab.native.folder import load_model, save_model

TINY = DecoderShape(vocabulary=31, layers=2, width=16, heads=1, kv_heads=1, hidden=24, block="gau")

pytestmark = pytest.mark.usefixtures("one_thread")


def made() -> Decoder:
    decoder = Decoder(TINY, Rope(GAU_KEY_DIMENSIONS)).double()
    generator = torch.Generator().manual_seed(0)
    for weight in decoder.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) / 3
    return decoder.eval()


def by_formula(decoder: Decoder, tokens: Tensor) -> Tensor:
    def rms(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain

    own = {name: weight.detach() for name, weight in decoder.named_parameters()}
    angles = torch.arange(len(tokens))[:, None] * 10000 ** (-torch.arange(64, dtype=torch.float64) / 64)
    turn = torch.polar(torch.ones_like(angles), angles)
    x = own["embed_tokens.weight"][tokens]
    for layer in range(2):
        at = f"layers.{layer}."
        u, v, z = (x @ own[f"{at}self_attn.{name}_proj.weight"].T for name in "uvz")
        u, v, z = (each * each.sigmoid() for each in (u, v, z))
        q, k = (z * own[f"{at}{name}_gain"] + own[f"{at}{name}_shift"] for name in ("query", "key"))
        q, k = (torch.complex(*each.chunk(2, -1)) * turn for each in (q, k))
        logits = (q @ k.conj().T).real / 128**0.5
        weights = logits.masked_fill(torch.ones_like(logits).triu(1) > 0, -torch.inf).softmax(-1)
        x = rms(x + (u * (weights @ v)) @ own[f"{at}self_attn.o_proj.weight"].T, own[f"{at}output_layernorm.weight"])
    return rms(x, own["norm.weight"]) @ own["embed_tokens.weight"].T


def test_logits_are_those_of_the_formula_in_one_pass_and_by_pieces() -> None:
    decoder, tokens = made(), torch.arange(11)
    with torch.inference_mode():
        expected, cache = by_formula(decoder, tokens), DecoderCache(11)
        torch.testing.assert_close(decoder(tokens[None])[0], expected)
        parts = [decoder(piece[None], cache=cache)[0] for piece in torch.split(tokens, [6, 1, 4])]
        torch.testing.assert_close(torch.cat(parts), expected)


def test_a_folder_gives_the_same_model_back_and_every_weight_learns(tmp_path: Path) -> None:
    decoder, tokens = made(), torch.arange(11)[None]
    save_model(decoder, tmp_path, 16, bos=0, eos=1, dtype=torch.float64, encoding=resolve_spec("rope"))
    torch.testing.assert_close(load_model(tmp_path, torch.float64)(tokens), decoder(tokens))
    decoder.train()(tokens).logsumexp(-1).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in decoder.parameters())


def test_several_heads_and_encodings_of_values_are_refused() -> None:
    with pytest.raises(ValueError, match="gau has 1 head, got 4: give heads=1 and kv_heads=1"):
        DecoderShape(vocabulary=31, width=16, heads=4, kv_heads=4, block="gau")
    with pytest.raises(ValueError, match="gau's values have no heads, shaw has its own mix"):
        Decoder(TINY, Shaw(GAU_KEY_DIMENSIONS))

"""What every encoding of the registry must hold, ours and a plug-in's alike."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexbench.core import registry
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder, DecoderCache, DecoderShape
from lexbench.parts.lab.native.folder import load_model, save_model

NAMES = registry.registered_names("encoding")
GIVEN: dict[str, dict[str, Any]] = {
    "bipe": {"separators": [3, 5]},
    "abacus": {"digits": list(range(20))},
    "coupling": {"digits": list(range(20))},
    "irope": {"every": 2},
}
"""Parameters without which an encoding is none."""
TINY = DecoderShape(vocabulary=97, layers=3, width=32, heads=4, kv_heads=2, hidden=48)
TRAINED, TOKENS = 24, 20

pytestmark = pytest.mark.usefixtures("one_thread")


def made(name: str, shape: DecoderShape = TINY) -> Decoder:
    """A decoder in float64 whose weights, the encoding's too, are large enough that everything matters."""
    decoder = Decoder(shape, build.build_encoding({"name": name, **GIVEN.get(name, {})}, shape, TRAINED))
    decoder.initialise(0)
    generator = torch.Generator().manual_seed(1)
    for key, weight in decoder.named_parameters():
        noise = torch.rand(weight.shape, generator=generator, dtype=torch.float64) - 0.5
        own = key.startswith("encoding.")
        weight.data = weight.data.double() * (1.0 if own or weight.dim() < 2 else 8.0) + (0.05 * noise if own else 0.0)
    return decoder.eval()


def tokens(batch: int = 2, length: int = TOKENS) -> Tensor:
    return torch.randint(0, TINY.vocabulary, (batch, length), generator=torch.Generator().manual_seed(2))


EVERYDAY = pytest.mark.everyday(
    *("rope", "fope", "alibi", "t5", "nope", "learned", "randomized", "shaw", "cope", "dape"),
    *("fox", "gla", "hwfa", "stick_breaking"),
)
"""One of each place in the network where encodings act."""


@EVERYDAY
@pytest.mark.parametrize("name", NAMES)
def test_later_tokens_change_nothing_before_them(name: str) -> None:
    decoder, text = made(name), tokens()
    changed = text.clone()
    changed[:, 12:] = (changed[:, 12:] + 41) % TINY.vocabulary
    with torch.inference_mode():
        before, after = decoder(text), decoder(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12], atol=1e-10, rtol=1e-10)
    assert (before[:, 12:] - after[:, 12:]).abs().max() > 1e-3  # the change is seen at all


@EVERYDAY
@pytest.mark.parametrize("name", NAMES)
def test_earlier_tokens_are_seen(name: str) -> None:
    decoder, text = made(name), tokens(1)
    changed = text.clone()
    changed[:, 10] = (changed[:, 10] + 41) % TINY.vocabulary
    with torch.inference_mode():
        assert (decoder(text)[0, -1] - decoder(changed)[0, -1]).abs().max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pieces", [[1] * TOKENS, [11, 1, 1, 7]], ids=["one by one", "pieces"])
def test_cached_decoding_equals_the_full_forward(name: str, pieces: list[int]) -> None:
    decoder, text = made(name), tokens()
    cache = DecoderCache(TOKENS)
    with torch.inference_mode():
        parts = [decoder(piece, cache=cache) for piece in torch.split(text, pieces, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), decoder(text), atol=1e-9, rtol=1e-9)


@EVERYDAY
@pytest.mark.parametrize("name", NAMES)
def test_texts_of_a_batch_do_not_know_one_another(name: str) -> None:
    decoder, text = made(name), tokens(3)
    with torch.inference_mode():
        torch.testing.assert_close(decoder(text)[1:2], decoder(text[1:2]), atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_shared_weights_begin_the_same_under_every_encoding(name: str) -> None:
    plain, other = Decoder(TINY, Encoding()), Decoder(TINY, build.build_encoding(_spec(name), TINY, TRAINED))
    for decoder in (plain, other):
        decoder.initialise(7)
    theirs = dict(other.named_parameters())
    for key, weight in plain.named_parameters():
        assert torch.equal(weight, theirs[key]), key
    again = Decoder(TINY, build.build_encoding(_spec(name), TINY, TRAINED))
    again.initialise(7)
    for key, weight in again.named_parameters():
        assert torch.equal(weight, theirs[key]), key


@EVERYDAY
@pytest.mark.parametrize("name", NAMES)
def test_every_weight_learns(name: str) -> None:
    decoder = made(name).train()
    loss = decoder(tokens(), generator=torch.Generator().manual_seed(0)).logsumexp(-1).sum()
    loss.backward()
    for key, weight in decoder.named_parameters():
        if not weight.requires_grad:  # drawn once
            continue
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all(), key
        assert weight.grad.abs().max() > 0, key


@EVERYDAY
@pytest.mark.parametrize("name", NAMES)
def test_positions_of_use_are_not_random_and_those_of_training_follow_the_generator(name: str) -> None:
    encoding, text = made(name).encoding, tokens()
    assert torch.equal(encoding.positions(text, TOKENS), encoding.positions(text, TOKENS))
    encoding.train()
    first, second = (encoding.positions(text, TOKENS, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == torch.float64
    assert first.shape in ((TOKENS,), (2, TOKENS))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_gives_the_same_model_back(name: str, tmp_path: Path) -> None:
    decoder, spec = made(name), build.resolve_spec(_spec(name))
    json.dumps(spec)
    save_model(decoder, tmp_path, TRAINED, bos=0, eos=1, dtype=torch.float64, encoding=spec)
    with torch.inference_mode():
        torch.testing.assert_close(
            load_model(tmp_path, torch.float64)(tokens()), decoder(tokens()), atol=1e-12, rtol=1e-12
        )


@pytest.mark.parametrize("name", NAMES)
def test_file_yaml_and_class_have_one_name(name: str) -> None:
    config = registry.read_named_config("encoding", name)
    assert config["_target_"].startswith(f"lexbench.parts.lab.encodings.{name}.")
    assert (Path(__file__).parent / f"test_{name}.py").exists(), f"tests/parts/lab/encodings/test_{name}.py is missing"


def _spec(name: str) -> dict[str, Any]:
    return {"name": name, **GIVEN.get(name, {})}

"""What `convert_folder` writes is the same model in transformers: logits, batches, cached writing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape
from lexbench.parts.lab.native.folder import load_model, save_model
from lexbench.parts.lab.native.foreign import convert_folder

TRAINED = 24
SIZES: dict[str, Any] = {"vocabulary": 97, "layers": 5, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48}
LLAMA = DecoderShape(**SIZES)
GPT = DecoderShape(**{**SIZES, "hidden": 128, "kv_heads": 4}, block="gpt")
KINDS: dict[str, tuple[str | dict[str, Any], DecoderShape, str]] = {
    "rope": ({"name": "rope", "base": 500.0}, LLAMA, "llama"),
    "pose": ("pose", LLAMA, "llama"),
    "nope": ("nope", LLAMA, "smollm3"),
    "interleave": ({"name": "interleave", "every": 2, "over": {"name": "rope", "base": 500.0}}, LLAMA, "smollm3"),
    "alibi": ("alibi", GPT, "mpt"),
    "alibi of 6 heads": (
        "alibi",
        DecoderShape(**{**SIZES, "width": 48, "heads": 6, "hidden": 192}, block="gpt"),
        "mpt",
    ),
    "randomized, plain": ({"name": "randomized", "over": "alibi", "use": "plain"}, GPT, "mpt"),
    "learned": ({"name": "learned", "size": 100}, GPT, "gpt2"),
    "learned, shared keys": ({"name": "learned", "size": 100}, DecoderShape(**SIZES, block="gpt"), "gpt2"),
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Path]:
    """A folder with an encoding, with weights large enough that everything matters."""

    def made(spec: str | dict[str, Any], shape: DecoderShape, dtype: torch.dtype = torch.float32) -> Path:
        folder = tmp_path / "trained"
        folder.mkdir()
        config = build.resolve_spec(spec)
        decoder = Decoder(shape, build.build_encoding(config, shape, TRAINED))
        decoder.initialise(0)
        for weight in decoder.parameters():
            weight.data = weight.data * (8.0 if weight.dim() > 1 else torch.linspace(0.5, 1.5, len(weight)))
        save_model(decoder, folder, TRAINED, bos=0, eos=1, dtype=dtype, encoding=config)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "training.json"):
            (folder / name).write_text(json.dumps({"file": name} if name.startswith("token") else {}))
        return folder

    return made


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(2, 97, (batch, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.everyday("rope", "alibi", "learned")
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, trained: Callable[..., Path], tmp_path: Path) -> None:
    spec, shape, expected = KINDS[kind]
    folder = trained(spec, shape)
    assert convert_folder(folder, tmp_path / "into") == expected
    ours = load_model(folder)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "into", output_loading_info=True)
    assert theirs.config.model_type == expected
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.inference_mode():
        for batch, length in ((1, 1), (3, 7), (2, TRAINED), (1, 4 * TRAINED)):
            text = tokens(batch, length)
            torch.testing.assert_close(theirs.eval()(text).logits, ours(text), atol=1e-5, rtol=1e-5)


@pytest.mark.everyday("alibi")
@pytest.mark.parametrize("kind", ["interleave", "alibi", "learned, shared keys"])
def test_cached_writing_is_the_same(kind: str, trained: Callable[..., Path], tmp_path: Path) -> None:
    spec, shape, _ = KINDS[kind]
    folder = trained(spec, shape)
    convert_folder(folder, tmp_path / "into")
    ours, theirs = load_model(folder), AutoModelForCausalLM.from_pretrained(tmp_path / "into").eval()
    text = prompt = tokens(2, 20)
    with torch.inference_mode():
        for _ in range(30):
            text = torch.cat([text, ours(text)[:, -1:].argmax(-1)], dim=1)
        ends = theirs.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=30,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            use_cache=True,
        )
    assert torch.equal(ends, text)


def test_everything_beside_the_weights_goes_along(trained: Callable[..., Path], tmp_path: Path) -> None:
    folder = trained("nope", LLAMA, torch.float16)
    convert_folder(folder, tmp_path / "into")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "training.json"):
        assert (tmp_path / "into" / name).read_text() == (folder / name).read_text()
    config = AutoConfig.from_pretrained(tmp_path / "into")
    assert (config.max_position_embeddings, config.bos_token_id, config.eos_token_id) == (TRAINED, 0, 1)
    assert config.dtype == torch.float16
    assert (tmp_path / "into" / "model.safetensors").stat().st_size < 1.1 * 2 * sum(
        weight.numel() for weight in load_model(folder).parameters()
    )


def test_layers_without_rotation_are_named(trained: Callable[..., Path], tmp_path: Path) -> None:
    folder = trained(KINDS["interleave"][0], LLAMA)
    convert_folder(folder, tmp_path / "into")
    assert json.loads((tmp_path / "into" / "config.json").read_text())["no_rope_layers"] == [1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("alibi", LLAMA, r"MPT has no SwiGLU: train with recipe.shape.block=gpt$"),
        ("learned", LLAMA, r"GPT-2 has no SwiGLU: train with recipe.shape.block=gpt$"),
        ("nope", GPT, r"SmolLM3 has no LayerNorm: train with recipe.shape.block=llama$"),
        ("alibi", DecoderShape(**SIZES, block="gpt"), r"4 times 32, got 48: train with recipe.shape.hidden=128$"),
        ("xpos", LLAMA, r"no model with xpos: use backend=native$"),
        ("sinusoidal", GPT, r"no model with sinusoidal: use backend=native$"),
        ({"name": "randomized", "over": "alibi"}, GPT, r"no model with randomized: use backend=native$"),
    ],
)
def test_what_transformers_lacks_is_refused(
    spec: str, shape: DecoderShape, message: str, trained: Callable[..., Path], tmp_path: Path
) -> None:
    folder = trained(spec, shape)
    with pytest.raises(ValueError, match=message):
        convert_folder(folder, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_folder_with_files_is_left_alone(trained: Callable[..., Path]) -> None:
    folder = trained("nope", LLAMA)
    with pytest.raises(ValueError, match=r"an empty folder, .* holds files: give another"):
        convert_folder(folder, folder)

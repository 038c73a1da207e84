"""HWFA's windows, its last layer, and the methods that it leaves no room for."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lexbench
from lexbench import Attention, Model, Refused
from lexbench.checkpoints.checkpoint import local_folder, read_model
from lexbench.parts.lab.backend import Native
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.cosine import Cosine
from lexbench.parts.lab.encodings.hwfa import Hwfa
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.attend import EncodingAttention
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape
from lexbench.parts.lab.native.folder import save_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("trained", "layers", "window"),
    [(512, 24, 17), (512, 2, 384), (8, 6, 2), (100, 4, 25), (4096, 32, 100)],  # 16 * 23 + 1 = 369 <= 384 < 392
)
def test_windows_together_reach_three_quarters_of_the_trained_length(trained: int, layers: int, window: int) -> None:
    assert Hwfa(Rope(8), layers, trained).window.size == window
    assert (window - 1) * (layers - 1) + 1 <= 0.75 * trained < window * (layers - 1) + 1


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 9, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    return q, k


def logits(encoding: Encoding, method: Attention | None = None) -> np.ndarray:
    rotate = encoding.rotation(method or Attention())
    return EncodingAttention(encoding, encoding.attention, *drawn(), torch.arange(9), rotate).logits(0, 9)[0].numpy()


def by_hand(window: int | None, base: float = 10000.0) -> np.ndarray:
    """[4, 9, 9]; without a window there are no positions, and a scale of ln(i + 1) / ln 64."""
    (q, k), out = drawn(), np.full((4, 9, 9), -np.inf)
    theta = base ** (-np.arange(4) / 4)
    for head in range(4):
        for i in range(9):
            for j in range(max(0, i + 1 - (window or 9)), i + 1):
                one, two = q[0, head, i].numpy(), k[0, head // 2, j].numpy()
                turn = np.exp(1j * (i - j) * theta) if window else 1
                product = ((one[:4] + 1j * one[4:]) * (two[:4] - 1j * two[4:]) * turn).sum().real / 8**0.5
                out[head, i, j] = product * (1 if window else np.log(i + 1) / np.log(64))
    return out


def test_layers_follow_the_formula() -> None:
    encoding = Hwfa(Rope(8), 3, 64, window=4)
    for layer in (0, 1):
        np.testing.assert_allclose(logits(encoding.at(layer)), by_hand(4), atol=1e-12)
    np.testing.assert_allclose(logits(encoding.at(2)), by_hand(None), atol=1e-12)


def test_methods_change_the_angles_of_window_layers_alone() -> None:
    encoding = Hwfa(Rope(8), 3, 64, window=4)
    slow = Attention(inv_freq=100.0 ** (-np.arange(4) / 4))
    np.testing.assert_allclose(logits(encoding.at(0), slow), by_hand(4, base=100.0), atol=1e-12)
    np.testing.assert_allclose(logits(encoding.at(2), slow), by_hand(None), atol=1e-12)


@pytest.fixture
def trained(tmp_path: Path) -> Model:
    """A folder of two layers, weights at random."""
    lexlet = local_folder("lexbench:lexlet")
    assert lexlet is not None
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(lexlet / file, tmp_path)
    shape, spec = (
        DecoderShape(vocabulary=2048, layers=2, width=32, heads=4, kv_heads=2, hidden=48),
        build.resolve_spec("hwfa"),
    )
    decoder = Decoder(shape, build.build_encoding(spec, shape, 32))
    decoder.initialise(0)
    save_model(decoder, tmp_path, 32, bos=0, eos=1, dtype=torch.float32, encoding=spec)
    return read_model({"path": str(tmp_path)})


@pytest.mark.parametrize(("method", "slot"), [("bca", "mask"), ("sliding_window", "mask"), ("log_n", "query_scale")])
def test_a_method_that_sets_the_same_is_refused(trained: Model, method: str, slot: str) -> None:
    native = Native(trained)
    with pytest.raises(Refused, match=rf"^hwfa and the method exclude each other \(both set {slot}\): use another"):
        native.attend(lexbench.method(method).attention(trained, 64))
    native.attend(lexbench.method("yarn").attention(trained, 64))


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="hwfa needs a layer with a window before the last one, got 1 in all"):
        Hwfa(Rope(8), 1, 64)
    with pytest.raises(ValueError, match=r"2 tokens in 6 layers reach more than 0.75 of 7 trained tokens: give window"):
        Hwfa(Rope(8), 6, 7)
    with pytest.raises(ValueError, match="size of at least 1"):
        Hwfa(Rope(8), 3, 64, window=0)
    with pytest.raises(ValueError, match="hwfa and cosine both set query_scale: use another inner encoding"):
        Hwfa(Cosine(Rope(8), 64, "position"), 2, 64).at(1)

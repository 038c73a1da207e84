"""FoPE's mixes of frequencies, one position at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.parts.lab.encodings.fope import Fope
from lexbench.parts.lab.encodings.hope import Hope
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Decoder, DecoderShape
from lexbench.parts.lab.native.folder import load_model, save_model

TRAINED = 100  # keeps 1 and 0.1 of 1, 0.1, 0.01, 0.001


def mixed(gain: float = 0.3) -> Fope:
    encoding = Fope(8, 2, TRAINED, gain=gain)
    encoding.initialise(torch.Generator().manual_seed(0))
    return encoding


def vectors(heads: int, tokens: int, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, heads, tokens, 8, generator=generator, dtype=torch.float64)


def by_hand(encoding: Fope, x: Tensor, positions: list[float]) -> Tensor:
    """[heads, T, 8] of [heads, T, 8]."""
    cos_mix, sin_mix = encoding.cos_mix.detach().double().numpy(), encoding.sin_mix.detach().double().numpy()
    theta, out = [1.0, 0.1], x.clone()
    for head in range(x.shape[0]):
        group = head * 2 // x.shape[0]
        for token, n in enumerate(positions):
            for pair in range(2):
                cos = sum(np.cos(n * theta[f]) * cos_mix[group, f, pair] for f in range(2))
                sin = sum(np.sin(n * theta[f]) * sin_mix[group, f, pair] for f in range(2))
                one, two = float(x[head, token, pair]), float(x[head, token, pair + 4])
                out[head, token, pair], out[head, token, pair + 4] = one * cos - two * sin, two * cos + one * sin
    return out


@pytest.mark.parametrize("heads", [2, 4, 6])
def test_it_follows_the_formula_for_key_heads_and_the_query_heads_that_share_them(heads: int) -> None:
    x, places = vectors(heads, 5), [0.0, 1.0, 2.5, 40.0, 900.0]
    got = mixed().rotate(x, torch.tensor(places, dtype=torch.float64))
    torch.testing.assert_close(got[0], by_hand(mixed(), x[0], places))


def test_texts_may_have_positions_of_their_own() -> None:
    x, places = vectors(4, 3, batch=2), [[0.0, 1.0, 2.0], [7.0, 70.0, 71.0]]
    got = mixed().rotate(x, torch.tensor(places, dtype=torch.float64))
    for row in range(2):
        torch.testing.assert_close(got[row], by_hand(mixed(), x[row], places[row]))


def test_without_noise_it_begins_as_rope_without_its_slow_pairs() -> None:
    x, places = vectors(4, 30), torch.arange(30)
    torch.testing.assert_close(mixed(gain=0.0).rotate(x, places), Hope(8, TRAINED).rotate(x, places))
    torch.testing.assert_close(Fope(8, 2, TRAINED).rotate(x, places), Hope(8, TRAINED).rotate(x, places))


def test_the_noise_has_the_deviation_of_the_papers_listing() -> None:
    encoding = Fope(128, 32, 4096, gain=0.5)
    encoding.initialise(torch.Generator().manual_seed(0))
    kept = len(encoding.inv_freq)
    assert kept == 46  # 10000^(-2p/128) >= 2 pi / 4096 up to p = 45
    # The listing applies PyTorch's rule to the coefficients of all heads at once.
    theirs = torch.empty(32, kept, kept)
    torch.nn.init.xavier_normal_(theirs, gain=0.5, generator=torch.Generator().manual_seed(1))
    for mix in (encoding.cos_mix, encoding.sin_mix):
        noise = mix.detach() - torch.eye(kept)
        assert float(noise.std()) == pytest.approx(float(theirs.std()), rel=0.01)
        assert abs(float(noise.mean())) < 0.001
    assert not torch.equal(encoding.cos_mix, encoding.sin_mix)


def test_mixes_are_drawn_once_and_stored_but_not_trained_unless_asked(tmp_path: Path) -> None:
    shape = DecoderShape(vocabulary=11, layers=2, width=16, heads=2, kv_heads=2, hidden=8)
    for learned in (False, True):
        spec = build.resolve_spec({"name": "fope", "learned": learned})
        decoder = Decoder(shape, build.build_encoding(spec, shape, TRAINED))
        decoder.initialise(0)
        mixes = {name for name, weight in decoder.named_parameters() if "_mix" in name and weight.requires_grad}
        assert len(mixes) == (2 if learned else 0)
        folder = tmp_path / str(learned)
        folder.mkdir()
        save_model(decoder, folder, TRAINED, bos=0, eos=1, dtype=torch.float32, encoding=spec)
        for mine, its in zip(decoder.encoding.parameters(), load_model(folder).encoding.parameters(), strict=True):
            assert torch.equal(mine, its) and its.requires_grad is learned
    assert not Fope(8, 2, TRAINED).cos_mix.requires_grad  # appendix B of the paper
    assert build.update_stored_spec({"_target_": "lexbench.parts.lab.encodings.fope.Fope"})["learned"] is True


def test_a_pair_on_the_threshold_stands_still() -> None:
    assert Fope(4, 1, 7).inv_freq.tolist() == [1.0]
    assert len(Fope(8, 1, 62).inv_freq) == 1 and len(Fope(8, 1, 63).inv_freq) == 2  # 20 pi = 62.8


def test_methods_cannot_change_it() -> None:
    for asked in (Attention(inv_freq=np.ones(4)), Attention(scale=1.1)):
        with pytest.raises(ValueError, match="fope has no angles to change: use a method that changes none"):
            mixed().rotation(asked)
    assert not mixed().remaps and mixed().facts == {}


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="none does in 6: raise it to 7"):
        Fope(8, 2, 6)
    with pytest.raises(ValueError, match=r"gain must be finite and at least 0, got -0.1: the paper takes 0.3"):
        Fope(8, 2, TRAINED, gain=-0.1)


def test_heads_of_an_odd_size_are_one_line() -> None:
    with pytest.raises(ValueError, match="fope needs heads of an even size, got 5: change width or heads"):
        Fope(5, 1, 32)

"""CAPE's draws keep to the paper's ranges."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench.parts.lab.encodings.cape import Cape
from lexbench.parts.lab.encodings.learned import Learned
from lexbench.parts.lab.encodings.sinusoidal import Sinusoidal

TOKENS = torch.zeros(4000, 8, dtype=torch.long)


def drawn(**ranges: float) -> Tensor:
    return Cape(Sinusoidal(8), **ranges, centred=False).positions(TOKENS, 8, torch.Generator().manual_seed(0))


def test_the_global_shift_is_one_for_a_text() -> None:
    shift = drawn(global_shift=5, local_shift=0, global_scale=1) - torch.arange(8)
    torch.testing.assert_close(shift, shift[:, :1].expand(-1, 8))
    assert 4.99 < float(shift.max()) <= 5 and -5 <= float(shift.min()) < -4.99
    assert float(shift[:, 0].var()) == pytest.approx(25 / 3, rel=0.05)  # of a uniform one, (2 * 5)^2 / 12


def test_the_local_shift_reaches_its_whole_range_on_each_side_and_keeps_the_order() -> None:
    places = drawn(global_shift=0, local_shift=0.5, global_scale=1)
    jitter = places - torch.arange(8)
    assert 0.499 < float(jitter.max()) <= 0.5 and -0.5 <= float(jitter.min()) < -0.499
    assert float(jitter.var()) == pytest.approx(1 / 12, rel=0.05)
    assert bool((places.diff(dim=1) >= 0).all())
    assert abs(np.corrcoef(jitter[:, 0], jitter[:, 1])[0, 1]) < 0.06  # apart for each token


def test_the_stretch_is_even_in_its_logarithm_and_comes_last() -> None:
    stretch = drawn(global_shift=0, local_shift=0, global_scale=2)[:, 1:] / torch.arange(1, 8)
    torch.testing.assert_close(stretch, stretch[:, :1].expand(-1, 7))
    logs = stretch[:, 0].log() / math.log(2)
    assert 0.99 < float(logs.max()) <= 1 and -1 <= float(logs.min()) < -0.99
    assert abs(float(logs.mean())) < 0.05
    both = drawn(global_shift=5, local_shift=0, global_scale=2)
    shifts = both[:, 0] / both.diff(dim=1)[:, 0]  # (0 + Delta) lambda / lambda
    assert float(shifts.abs().max()) <= 5 + 1e-9


def test_at_use_positions_are_plain() -> None:
    encoding = Cape(Sinusoidal(8), centred=False)
    assert torch.equal(encoding.positions(TOKENS, 8), torch.arange(8.0, dtype=torch.float64))
    assert encoding.used is encoding.over


def test_the_middle_of_a_text_is_at_0() -> None:
    encoding = Cape(Sinusoidal(8), global_shift=0, local_shift=0, global_scale=1.5)
    assert encoding.positions(TOKENS[:1], 8).tolist() == [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]
    assert encoding.positions(TOKENS[:1, :3], 11).tolist() == [-5.0, -4.0, -3.0]  # the first of 11, as with a cache
    assert encoding.used is encoding
    places = encoding.positions(TOKENS[:100], 8, torch.Generator().manual_seed(0))
    torch.testing.assert_close(places, -places.flip(1))  # a stretch moves both ends alike


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="fractional positions, learned takes whole ones"):
        Cape(Learned(8, 4))
    with pytest.raises(ValueError, match=r"local_shift from 0 to 0\.5, got 0\.6"):
        Cape(Sinusoidal(8), local_shift=0.6)
    with pytest.raises(ValueError, match="global_shift from 0, got -1"):
        Cape(Sinusoidal(8), global_shift=-1)
    with pytest.raises(ValueError, match=r"global_scale from 1, got 0\.5"):
        Cape(Sinusoidal(8), global_scale=0.5)

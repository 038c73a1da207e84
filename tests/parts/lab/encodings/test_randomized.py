"""Randomized positions: samples in training, an even spread at use."""

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.learned import Learned
from lexbench.parts.lab.encodings.randomized import Randomized
from lexbench.parts.lab.encodings.rope import Rope

TOKENS = torch.zeros(3, 40, dtype=torch.long)


def test_training_takes_an_ordered_sample_without_repetition_one_for_a_batch() -> None:
    encoding, seen = Randomized(Alibi(4), 40, places=100), np.zeros(100)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        places = encoding.positions(TOKENS, 40, generator)
        assert places.shape == (40,)
        assert bool((places.diff() >= 1).all())
        seen[places.long().numpy()] += 1
    # each of 0 .. 99 is in 40 of 100 samples
    assert np.abs(seen - 800).max() < 5 * (2000 * 0.4 * 0.6) ** 0.5


def test_a_whole_sample_is_everything() -> None:
    places = Randomized(Alibi(4), 40, places=40).positions(TOKENS, 40, torch.Generator().manual_seed(0))
    assert places.tolist() == list(range(40))


@pytest.mark.parametrize(("length", "places"), [(1, 7), (2, 7), (5, 7), (7, 7), (40, 2048), (40, 41)])
def test_spread_is_even_from_first_to_last(length: int, places: int) -> None:
    spread = Randomized(Alibi(4), 1, places=places).positions(TOKENS[:, :length], length).tolist()
    assert spread == [k * (places - 1) // max(1, length - 1) for k in range(length)]
    assert len(set(spread)) == length


def test_spread_follows_the_final_length_and_not_what_is_there() -> None:
    encoding = Randomized(Alibi(4), 20, places=2048)
    assert torch.equal(encoding.positions(TOKENS[:, :11], 40), encoding.positions(TOKENS, 40)[:11])


def test_plain_is_plain() -> None:
    encoding = Randomized(Rope(8), 20, use="plain")
    assert torch.equal(encoding.positions(TOKENS, 40), torch.arange(40.0, dtype=torch.float64))
    assert encoding.remaps and encoding.longest is None and encoding.used is encoding.over


def test_methods_that_count_distances_need_plain_positions() -> None:
    encoding = Randomized(Rope(8), 20)
    assert not encoding.remaps and encoding.used is encoding


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="at least 40 places, one for each trained token, got 30"):
        Randomized(Alibi(4), 40, places=30)
    with pytest.raises(ValueError, match="use must be spread or plain, got 'random'"):
        Randomized(Alibi(4), 40, use="random")
    with pytest.raises(ValueError, match=r"draws from 2048 positions, learned has 40: give over=\{name: learned"):
        Randomized(Learned(8, 40), 40)
    encoding = Randomized(Learned(8, 20, size=50), 20, places=30)
    assert encoding.longest == 30
    with pytest.raises(ValueError, match="30 positions for 40 tokens: raise places or use=plain"):
        encoding.positions(TOKENS, 40)
    with pytest.raises(ValueError, match="30 positions for 40 tokens: raise places"):
        encoding.positions(TOKENS, 40, torch.Generator())

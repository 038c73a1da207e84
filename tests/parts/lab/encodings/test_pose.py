"""PoSE's chunks: lengths and skips of the released code."""

import numpy as np
import pytest
import torch

from lexbench.parts.lab.encodings.alibi import Alibi
from lexbench.parts.lab.encodings.pose import Pose
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.encodings.xpos import Xpos

TOKENS = torch.zeros(6000, 7, dtype=torch.long)


def test_two_chunks_the_second_further_on() -> None:
    places = Pose(Rope(8), 7, reach=12).positions(TOKENS, 7, torch.Generator().manual_seed(0)).numpy()
    extra = places - np.arange(7)
    skips, cuts = extra[:, -1], (extra == 0).sum(1)
    assert set(skips) == {0, 1, 2, 3, 4, 5}  # U{0 .. 12 - 7}
    assert np.abs(np.bincount(skips.astype(int)) - 1000).max() < 5 * (6000 * 5 / 36) ** 0.5
    skipped = skips > 0
    assert set(cuts[skipped]) == {1, 2, 3, 4}  # U{1 .. (7 + 1) / 2}
    share = np.bincount(cuts[skipped])[1:] / skipped.sum()
    np.testing.assert_allclose(share, 0.25, atol=0.03)
    for row, cut, skip in zip(extra, cuts, skips, strict=True):
        assert skip == 0 or (row == [0] * cut + [skip] * (7 - cut)).all()
    assert places.max() == 11  # reach - 1
    assert abs(np.corrcoef(cuts[skipped], skips[skipped])[0, 1]) < 0.06


def test_even_lengths_and_single_tokens() -> None:
    encoding, generator = Pose(Rope(8), 4, reach=1000), torch.Generator().manual_seed(0)
    extra = encoding.positions(TOKENS[:, :4], 4, generator) - torch.arange(4)
    assert set((extra == 0).sum(1)[extra[:, -1] > 0].tolist()) == {1, 2}  # (4 + 1) // 2
    assert not encoding.positions(TOKENS[:, :1], 1, generator).any()


def test_at_use_it_is_what_it_is_over() -> None:
    encoding = Pose(rope := Rope(8), 7)
    assert torch.equal(encoding.positions(TOKENS, 7), torch.arange(7.0, dtype=torch.float64))
    assert encoding.used is rope
    assert encoding.reach == 56
    assert encoding.longest is None and encoding.facts == rope.facts


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="pose needs an encoding that rotates, alibi does not: over=rope"):
        Pose(Alibi(4), 7)
    assert Pose(Xpos(8, 7), 7).reach == 56
    with pytest.raises(ValueError, match="reach of at least 7 trained tokens, got 5"):
        Pose(Rope(8), 7, reach=5)
    with pytest.raises(ValueError, match="pose reaches 7 tokens, a text has 9"):
        Pose(Rope(8), 7, reach=7).positions(torch.zeros(1, 9, dtype=torch.long), 9, torch.Generator())

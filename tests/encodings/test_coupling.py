"""Position coupling: places of a sum counted by hand."""

import torch

from lexbench.encodings.base import Encoding
from lexbench.encodings.coupling import Coupling


def test_coupled_digits_of_one_power_share_a_position_and_a_sign_has_the_next() -> None:
    """012 + 305 = 317 of the task `addition`, units first: positions written out by hand, the paper's mirrored."""
    plus, equals = 10, 11
    text = torch.tensor([[12, 2, 1, 0, plus, 5, 0, 3, equals, 7, 1, 3]]).expand(300, -1)
    expected = [None, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    encoding = Coupling(Encoding(), 1, list(range(10)), size=8, offsets=3)
    encoding.table.data = torch.arange(100.0, 108.0)[:, None]
    zero = torch.zeros(300, 12, 1)
    places = encoding.positions(text, 12)
    assert encoding.embed(zero, text, places)[0, :, 0].tolist() == [0 if p is None else 100 + p for p in expected]
    places = encoding.positions(text, 12, torch.Generator().manual_seed(0))
    moved = encoding.embed(zero, text, places)[..., 0] - torch.tensor([0 if p is None else 100 + p for p in expected])
    assert not moved[:, 0].any() and (moved[:, 1:] == moved[:, 1:2]).all()  # one delta for all tokens of a text
    assert set(moved[:, 1].tolist()) == {0, 1, 2}  # but not for all texts

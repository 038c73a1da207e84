"""Position coupling: places of a sum counted by hand."""

import torch

from lexbench.encodings.base import Encoding
from lexbench.encodings.coupling import Coupling


def test_coupled_digits_of_one_power_share_a_position_and_a_sign_has_the_next() -> None:
    """012 + 305 = 317 of the task `addition`, units first: positions written out by hand, the paper's mirrored."""
    plus, equals = 10, 11
    text = torch.tensor([[12, 2, 1, 0, plus, 5, 0, 3, equals, 7, 1, 3]])
    expected = torch.tensor([-100.0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]) + 100
    encoding = Coupling(Encoding(), 1, list(range(10)), size=8, offsets=3)
    encoding.table.data = torch.arange(100.0, 108.0)[:, None]

    def added(generator: torch.Generator | None = None) -> torch.Tensor:
        places = encoding.positions(text, 12, generator)
        return encoding.embed(torch.zeros(1, 12, 1), text, places)[0, :, 0].detach()

    assert added().tolist() == expected.tolist()
    moved = [added(torch.Generator().manual_seed(seed)) - expected for seed in range(20)]
    assert all(not each[0] and (each[1:] == each[1]).all() for each in moved)  # one delta for all tokens
    assert {float(each[1]) for each in moved} == {0, 1, 2}

"""Position coupling: places of a sum counted by hand."""

import torch

from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.coupling import Coupling


def test_coupled_digits_of_one_power_share_a_position_and_a_sign_has_that_below_the_units() -> None:
    """012 + 305 = 317 of the task `addition`, units first: positions written out by hand, as in the paper.

    There 653 + 049 = 207, the result reversed, has 8 7 6 5, 8 7 6 5 and 6 7 8: signs stand one below the units, and
    each token of the result, its sign first, one below the next.
    """
    plus, equals = 10, 11
    text = torch.tensor([[12, 2, 1, 0, plus, 5, 0, 3, equals, 7, 1, 3]])
    expected = torch.tensor([-100.0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]) + 100
    encoding = Coupling(Encoding(), 1, list(range(10)), size=8, offsets=3)
    encoding.table.data = torch.arange(100.0, 108.0)[:, None]

    def added(tokens: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        places = encoding.positions(tokens, 12, generator)
        return encoding.embed(torch.zeros(*tokens.shape, 1), tokens, places)[..., 0].detach()

    assert added(text)[0].tolist() == expected.tolist()
    # Texts that differ in a digit have different deltas under one draw, and each text has all of them.
    texts = text.repeat(10, 1)
    texts[:, 1] = torch.arange(10)
    moved = torch.stack([added(texts, torch.Generator().manual_seed(seed)) for seed in range(300)]) - expected
    assert not moved[..., 0].any()
    assert (moved[..., 1:] == moved[..., 1:2]).all()  # one delta for all tokens of a text
    deltas = moved[..., 1]
    shares = torch.stack([(deltas == delta).float().mean(0) for delta in range(3)])
    assert (shares - 1 / 3).abs().max() < 4 * (2 / 9 / 300) ** 0.5  # four deviations of a uniform draw
    assert {float(each) for each in deltas[0]} == {0, 1, 2}

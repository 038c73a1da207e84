"""CLEX: untrained its closed form, trained the authors' equation, and what is drawn in training."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lexbench import Attention
from lexbench.parts.lab.encodings.clex import Clex
from lexbench.parts.lab.encodings.rope import Rope
from lexbench.parts.lab.native.decoder import Decoder, DecoderCache, DecoderShape

TINY = DecoderShape(vocabulary=97, layers=2, width=32, heads=4, kv_heads=2, hidden=48)

pytestmark = pytest.mark.usefixtures("one_thread")


def learned(head_dim: int = 8, trained: int = 16, deviation: float = 0.05) -> Clex:
    """As if psi had learnt something."""
    encoding = Clex(head_dim, trained, gain=1.0)
    encoding.initialise(generator := torch.Generator().manual_seed(0))
    encoding.down.data = torch.randn(encoding.down.shape, generator=generator) * deviation
    return encoding.eval()


def text(tokens: int) -> Tensor:
    return torch.randint(0, 97, (2, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (1, [1, 0.1, 0.01, 0.001]),
        (2, [1, 0.06933612744, 0.004807498568, 0.0003333333333]),
        (3, [1, 0.05848035476, 0.003419951893, 0.0002]),
        (4, [1, 0.05227579586, 0.002732758833, 0.0001428571429]),
    ],
)
def test_untrained_it_is_ntk_aware_by_2t_minus_1(t: float, expected: list[float]) -> None:
    encoding = Clex(8, 16)
    encoding.initialise(torch.Generator().manual_seed(0))
    np.testing.assert_allclose(encoding.frequencies_at(t).detach(), expected, rtol=1e-9)


@pytest.mark.everyday("8-2.0")
@pytest.mark.parametrize("t", [1.3, 2.0, 7.9, 16.0])
@pytest.mark.parametrize("head_dim", [8, 64])
def test_trained_it_solves_the_authors_equation(head_dim: int, t: float) -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq")
    encoding = learned(head_dim)
    index = torch.arange(0, head_dim, 2, dtype=torch.float64)
    start = -index / head_dim * np.log(10000)

    def slope(t: Tensor, z: Tensor) -> Tensor:  # of ln theta itself, as the authors write it
        alpha = 2 * t - 1
        ntk = start - index / (head_dim - 2) * alpha.log()
        grown = torch.nn.functional.silu((z + ntk) @ encoding.up.detach().double()) @ encoding.down.detach().double()
        return grown - index / (head_dim - 2) * 2 / alpha

    times = torch.tensor([1.0, t], dtype=torch.float64)
    expected = torchdiffeq.odeint(slope, start, times, method="dopri5", rtol=1e-10, atol=1e-10)[-1]
    got = encoding.frequencies_at(t).detach().log()
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    ntk = start - index / (head_dim - 2) * np.log(2 * t - 1)
    assert (got - ntk).abs().max() > 0.005  # psi matters


@pytest.mark.parametrize(
    ("length", "t"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3), (256, 16), (257, 16), (9999, 16)]
)
def test_at_use_t_follows_the_final_length(length: int, t: int) -> None:
    encoding = learned()
    assert encoding.positions(torch.zeros(1, 5), length).tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(encoding.current_frequencies, encoding.frequencies_at(t).detach())
    assert not encoding.current_frequencies.requires_grad


def test_a_text_has_the_frequencies_of_its_end_from_the_beginning() -> None:
    decoder = Decoder(TINY, encoding := learned()).eval()
    decoder.initialise(0)
    encoding.down.data.normal_(0, 0.05, generator=torch.Generator().manual_seed(0))
    decoder.double()
    tokens, cache = text(40), DecoderCache(40)
    with torch.inference_mode():
        whole = decoder(tokens)
        parts = [decoder(piece, cache=cache) for piece in torch.split(tokens, [10, 20, 10], dim=1)]
        assert (decoder(tokens[:, :10]) - whole[:, :10]).abs().max() > 1e-6  # another text
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-9, rtol=1e-9)


def test_within_the_trained_length_it_is_rope() -> None:
    encoding, vectors = learned(), torch.randn(1, 2, 16, 8, dtype=torch.float64)
    places = encoding.positions(torch.zeros(1, 16), 16)
    torch.testing.assert_close(encoding.rotate(vectors, places), Rope(8).rotate(vectors, places))


@pytest.mark.slow
def test_training_draws_t_and_places() -> None:
    encoding = Clex(8, 16, max_factor=5, gain=1.0).train()
    stretches, last, inside = [], [], []
    for seed in range(2000):
        places = encoding.positions(torch.zeros(3, 12), 12, torch.Generator().manual_seed(seed))
        t = 1 + 4 * float(torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        assert places.shape == (12,) and (places.diff() >= 1).all() and places[0] == 0
        assert torch.equal(places, places.round())
        assert places[-1] == int(16 * t) - 1
        stretches.append(t)
        last.append(float(places[-1]))
        inside.append(float(places[1:-1].mean() / places[-1]))
    np.testing.assert_allclose(np.quantile(last, [0.25, 0.5, 0.75]), np.array([2, 3, 4]) * 16 - 1, rtol=0.05)
    assert np.mean(inside) == pytest.approx(0.5, abs=0.005)  # uniform between the ends
    first = encoding.positions(torch.zeros(3, 12), 12, torch.Generator().manual_seed(3))
    assert torch.equal(first, encoding.positions(torch.zeros(3, 12), 12, torch.Generator().manual_seed(3)))


def test_short_and_long_rows() -> None:
    encoding, generator = Clex(8, 16).train(), torch.Generator().manual_seed(0)
    assert encoding.positions(torch.zeros(1, 1), 1, generator).tolist() == [0]
    assert encoding.positions(torch.zeros(1, 2), 2, generator).tolist() == [0, 1]
    assert Clex(8, 16, max_factor=1).positions(torch.zeros(1, 30), 30, generator).tolist() == list(range(30))


def test_gradients_reach_psi_in_each_pass_over_places_that_were_drawn_once() -> None:
    decoder = Decoder(TINY, encoding := Clex(8, 16)).train()
    decoder.initialise(0)
    tokens = text(12)
    places = encoding.positions(tokens, 12, torch.Generator().manual_seed(0))
    gradients = []
    for row in tokens[:, None]:
        decoder(row, positions=places).logsumexp(-1).sum().backward()
        assert encoding.down.grad is not None
        gradients.append(encoding.down.grad.clone())
    assert gradients[0].abs().max() > 0 and not torch.allclose(gradients[0], gradients[1])


def test_weights_that_changed_change_the_frequencies() -> None:
    encoding = learned()
    encoding.positions(torch.zeros(1, 5), 32)
    before = encoding.current_frequencies
    encoding.train()
    encoding.down.data *= 2
    encoding.eval()
    encoding.positions(torch.zeros(1, 5), 32)
    assert (encoding.current_frequencies - before).abs().max() > 1e-4
    torch.testing.assert_close(encoding.current_frequencies, encoding.frequencies_at(2).detach())


def test_methods_change_no_frequencies() -> None:
    encoding, vectors, places = learned(), torch.randn(1, 2, 3, 8), torch.arange(3)
    with pytest.raises(ValueError, match="clex's frequencies follow the length already: use a method that changes"):
        encoding.rotation(Attention(inv_freq=np.ones(4)))
    torch.testing.assert_close(
        encoding.rotation(Attention(scale=2.0))(vectors, places), 2 * encoding.rotate(vectors, places)
    )
    assert encoding.facts == {"rope_parameters": {"rope_type": "clex"}}


def test_bad_parameters_are_errors() -> None:
    with pytest.raises(ValueError, match="clex needs heads of at least 4 dimensions, got 2: lower heads"):
        Clex(2, 16)
    with pytest.raises(ValueError, match=r"max_factor must be finite and at least 1, got 0.5: the paper takes 16"):
        Clex(8, 16, max_factor=0.5)
    with pytest.raises(ValueError, match="clex's hidden must be at least 1, got 0"):
        Clex(8, 16, hidden=0)

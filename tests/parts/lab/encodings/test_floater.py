"""FLOATER's paths against SciPy's solver, and what is kept of them."""

import sys

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from lexbench.parts.lab.encodings.floater import Floater

pytest.importorskip("torchdiffeq")
pytestmark = pytest.mark.usefixtures("one_thread")


def made(**parameters: object) -> Floater:
    encoding = Floater(width=6, layers=2, hidden=5, **parameters)  # type: ignore[arg-type]
    encoding.initialise(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    for weight in encoding.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = weight.data.double() + 0.3 * noise
    return encoding.eval()


def walked(encoding: Floater, tokens: int) -> Tensor:
    """[tokens, layers, width] what each layer adds to a stream of zeros."""
    stream = torch.zeros(1, tokens, 6, dtype=torch.float64)
    places = torch.arange(tokens, dtype=torch.float64)
    assert torch.equal(encoding.embed(stream, torch.zeros(1, tokens, dtype=torch.long), places), stream)
    return torch.stack([encoding.at(layer).layer_input(stream, places)[0] for layer in range(2)], dim=1)


@pytest.mark.parametrize(("solver", "error"), [("rk4", 1e-8), ("midpoint", 1e-4), ("euler", 0.03)])
def test_the_path_solves_the_papers_equation(solver: str, error: float) -> None:
    encoding = made(spacing=0.02, solver=solver)
    w1, b1, w2, b2 = (
        weight.detach().numpy() for weight in (encoding.inner, encoding.inner_bias, encoding.outer, encoding.outer_bias)
    )

    def speed(t: float, p: np.ndarray) -> np.ndarray:
        inside = np.maximum(w1 @ np.append(p, t) + b1, 0)
        return np.asarray(w2 @ np.append(inside, t) + b2)

    with torch.no_grad():
        ours = walked(encoding, 60).numpy()
    for layer in range(2):
        start, times = encoding.start[layer].detach().numpy(), np.arange(60) * 0.02
        theirs = solve_ivp(speed, (0, times[-1]), start, t_eval=times, rtol=1e-10, atol=1e-12, max_step=0.01).y.T
        kinks = 20 if solver == "rk4" else 1  # where a unit turns on, no solver keeps its order
        np.testing.assert_allclose(ours[:, layer], theirs, atol=error * kinks**3)


def test_a_position_does_not_depend_on_how_far_the_path_goes() -> None:
    with torch.no_grad():
        whole = walked(made(), 50)
        for tokens in (1, 2, 49):
            assert torch.equal(walked(made(), tokens), whole[:tokens])
        grown = made()
        parts = [walked(grown, tokens) for tokens in (1, 3, 20, 50)]
        for part in parts:
            assert torch.equal(part, whole[: len(part)])


def test_the_path_is_kept_at_use_until_weights_change() -> None:
    encoding, calls = made(), []
    speed = encoding.path_derivative
    encoding.path_derivative = lambda time, place: calls.append(1) or speed(time, place)  # type: ignore[func-returns-value,method-assign]
    with torch.inference_mode():
        first = walked(encoding, 30)
        used = len(calls)
        assert torch.equal(walked(encoding, 30), first) and len(calls) == used
    before = walked(encoding.train(), 30)  # the graph of a training step, from outside inference mode
    torch.testing.assert_close(before, first.clone())
    before.sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        encoding.start.add_(1.0)
        assert not torch.allclose(walked(encoding.eval(), 30), first)


def test_bad_parameters_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="solver must be euler, midpoint or rk4, got 'dopri5'"):
        made(solver="dopri5")
    with pytest.raises(ValueError, match="spacing above 0, got 0"):
        made(spacing=0.0)
    with pytest.raises(ValueError, match="hidden width of at least 1, got 0"):
        Floater(width=6, layers=2, hidden=0)
    with pytest.raises(ValueError, match="floater needs whole positions from 0 on"):
        made().embed(torch.zeros(1, 1, 6), torch.zeros(1, 1, dtype=torch.long), torch.tensor([0.5]))
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ValueError, match=r"floater needs torchdiffeq, which is not installed: .*'\.\[floater\]'"):
        made()

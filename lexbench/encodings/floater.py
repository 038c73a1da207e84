"""FLOATER: positions as the path of a learned dynamical system (Liu et al. 2020, arXiv 2003.09229)."""

import importlib
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.encodings.base import Encoding, rows, weight_versions

SOLVERS = ("euler", "midpoint", "rk4")


class Floater(Encoding):
    """Adds to what enters layer l at position n a vector p_l on a learned path.

        p_l(0) = start of layer l,  dp_l / dt = h(t, p_l),  read at t = n spacing
        h(t, p) = W2 [relu(W1 [p, t] + b1), t] + b2,  the same network for all layers

    The equation is solved by torchdiffeq in equal steps, one a token, once a forward pass: so p(n) depends on n alone,
    whatever follows. At use the path is kept, and goes on from its end where a longer one is asked for. In training it
    costs the same for any number of texts: some tenths of a second for 128 tokens on one core.

    Released code, in its version for RoBERTa: this network, starts from Normal(0, 1) for queries, keys and values
    apart, added behind their projections and not to the stream, spacing 0.01, the midpoint rule in five steps a token;
    the path is solved every 400 batches only and held in between. Its translation model has convolutions over a row of
    all layers in the place of the network. Here starts are drawn from Normal(0, 0.02^2), as token embeddings are.

    Args:
        width: of the stream.
        layers: of the decoder.
        hidden: width inside the network; None: width.
        spacing: of tokens in t.
        solver: euler, midpoint or rk4: 1, 2 or 4 uses of the network a token.
    """

    counts = True

    def __init__(
        self, width: int, layers: int, hidden: int | None = None, spacing: float = 0.01, solver: str = "midpoint"
    ) -> None:
        super().__init__()
        _odeint()
        if solver not in SOLVERS:
            raise ValueError(f"floater solver must be euler, midpoint or rk4, got {solver!r}: choose one")
        if spacing <= 0:
            raise ValueError(f"floater needs a spacing above 0, got {spacing}: 0.01 is the authors'")
        hidden = width if hidden is None else hidden
        if hidden < 1:
            raise ValueError(f"floater needs a hidden width of 1 at least, got {hidden}: leave it out for {width}")
        self.spacing, self.solver = spacing, solver
        self.start = nn.Parameter(torch.zeros(layers, width))
        self.inner = nn.Parameter(torch.zeros(hidden, width + 1))
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.zeros(width, hidden + 1))
        self.outer_bias = nn.Parameter(torch.zeros(width))
        self.path = self.start[None].detach()
        self._solved_with: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Without the path of the moment, whose gradients no copy can have."""
        return {**self.__dict__, "path": self.start[None].detach(), "_solved_with": ()}

    def initialise(self, generator: Generator) -> None:
        """The network's weights are Glorot's, its biases 0."""
        nn.init.normal_(self.start, std=0.02, generator=generator)
        nn.init.xavier_normal_(self.inner, generator=generator)
        nn.init.xavier_normal_(self.outer, generator=generator)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """The embeddings as they are; here the path is solved, for all layers at once."""
        needed = int(rows(positions, self.name).max()) + 1 if positions.numel() else 1
        if self.training or torch.is_grad_enabled():
            self.path, self._solved_with = self._solved(self.start, 0, needed), ()
            return embedded
        weights = weight_versions(self)
        with torch.inference_mode(False), torch.no_grad():
            if weights != self._solved_with:
                self.path, self._solved_with = self.start[None], weights
            if (known := len(self.path)) < needed:
                more = self._solved(self.path[-1], known - 1, max(needed, 2 * known))
                self.path = torch.cat([self.path[:-1], more])
        return embedded

    def _solved(self, start: Tensor, first: int, needed: int) -> Tensor:
        """[tokens, layers, width] the path at positions first to needed - 1, at least two."""
        places = torch.arange(first, max(needed, first + 2), device=start.device, dtype=torch.float64)
        times = (places * self.spacing).to(start.dtype)
        with torch.autocast(start.device.type, enabled=False):  # small errors of each step would add up
            path: Tensor = _odeint()(self.speed, start, times, method=self.solver)
        return path

    def speed(self, time: Tensor, place: Tensor) -> Tensor:
        """[layers, width] h(t, p)."""
        times = time.to(place.dtype).expand(*place.shape[:-1], 1)
        inside = F.linear(torch.cat([place, times], dim=-1), self.inner, self.inner_bias).relu()
        return F.linear(torch.cat([inside, times], dim=-1), self.outer, self.outer_bias)

    def at(self, layer: int) -> Encoding:
        """That layer's path."""
        return _Path(self, layer)


class _Path(Encoding):
    """One layer of a Floater."""

    def __init__(self, whole: Floater, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self._whole = (whole,)  # no module of this one: its weights are the whole's

    def layer_input(self, stream: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width]."""
        path = self._whole[0].path[:, self.layer]
        return stream + path[positions.long()].to(stream.dtype)


def _odeint() -> Any:
    try:
        return importlib.import_module("torchdiffeq").odeint
    except ImportError:
        raise ValueError('floater needs torchdiffeq: pip install "lexbench[floater]"') from None

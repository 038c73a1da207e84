"""FLOATER: positions as the path of a learned dynamical system (Liu et al. 2020, arXiv 2003.09229)."""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding, table_rows, weight_versions

SOLVER_NAMES = ("euler", "midpoint", "rk4")


class Floater(Encoding):
    """Add a vector p_l on a learned path to the input of layer l at position n.

        p_l(0) = start of layer l,  dp_l / dt = h(t, p_l),  read at t = n spacing
        h(t, p) = W2 [relu(W1 [p, t] + b1), t] + b2,  the same network for all layers

    torchdiffeq solves the equation once for each forward pass, in equal steps of one token: so p(n) depends on n alone,
    not on later tokens. At use the path is kept, and continued from its end for a longer text. In training the cost
    does not depend on the number of texts: some tenths of a second for 128 tokens on one core.

    The released code for RoBERTa has this network, a spacing of 0.01, and the midpoint rule with five steps per token;
    but separate starts from Normal(0, 1) for queries, keys and values, which are added to their projections instead of
    the stream; and it solves the path only once in 400 batches. Its translation model replaces the network by
    convolutions over all layers. Here starts are drawn like token embeddings.

    Args:
        width: of the stream.
        layers: of the decoder.
        hidden: width inside the network; None: width.
        spacing: difference in t between neighbouring tokens.
        solver: euler, midpoint or rk4: 1, 2 or 4 evaluations of the network per token.
        deviation: of the initial token embeddings, and so of the starts; a training states its own.
    """

    counts = True

    def __init__(
        self,
        width: int,
        layers: int,
        hidden: int | None = None,
        spacing: float = 0.01,
        solver: str = "midpoint",
        deviation: float = WEIGHT_DEVIATION,
    ) -> None:
        super().__init__()
        _import_odeint()
        if solver not in SOLVER_NAMES:
            raise ConfigError(f"floater solver must be euler, midpoint or rk4, got {solver!r}: choose one")
        if spacing <= 0:
            raise ConfigError(f"floater needs a spacing above 0, got {spacing}: 0.01 is the authors'")
        hidden = width if hidden is None else hidden
        if hidden < 1:
            raise ConfigError(f"floater needs a hidden width of at least 1, got {hidden}: leave it out for {width}")
        self.spacing, self.solver, self.deviation = spacing, solver, deviation
        self.start = nn.Parameter(torch.zeros(layers, width))
        self.inner = nn.Parameter(torch.zeros(hidden, width + 1))
        self.inner_bias = nn.Parameter(torch.zeros(hidden))
        self.outer = nn.Parameter(torch.zeros(width, hidden + 1))
        self.outer_bias = nn.Parameter(torch.zeros(width))
        self.path = self.start[None].detach()
        self._solved_with: tuple[Any, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the computed path: a tensor with a gradient history cannot be copied."""
        return {**self.__dict__, "path": self.start[None].detach(), "_solved_with": ()}

    def initialise(self, generator: Generator) -> None:
        """Draw starts from a normal distribution and the network's weights by Glorot's rule; biases are 0."""
        nn.init.normal_(self.start, std=self.deviation, generator=generator)
        nn.init.xavier_normal_(self.inner, generator=generator)
        nn.init.xavier_normal_(self.outer, generator=generator)

    def embed(self, embedded: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Unchanged; solves the path for all layers of this forward pass."""
        needed = int(table_rows(positions, self.name).max()) + 1 if positions.numel() else 1
        if self.training or torch.is_grad_enabled():
            self.path, self._solved_with = self._solve_path(self.start, 0, needed), ()
            return embedded
        weights = weight_versions(self)
        with torch.inference_mode(False), torch.no_grad():
            if weights != self._solved_with:
                self.path, self._solved_with = self.start[None], weights
            # At least twice as far each time: a text that is written token by token is solved a few times only.
            if (known := len(self.path)) < needed:
                more = self._solve_path(self.path[-1], known - 1, max(needed, 2 * known))
                # The first of `more` is the last known place once more.
                self.path = torch.cat([self.path[:-1], more])
        return embedded

    def _solve_path(self, start: Tensor, first: int, needed: int) -> Tensor:
        """[tokens, layers, width] the path at positions first to needed - 1, at least two."""
        # odeint wants two times at least.
        places = torch.arange(first, max(needed, first + 2), device=start.device, dtype=torch.float64)
        times = (places * self.spacing).to(start.dtype)
        with torch.autocast(start.device.type, enabled=False):  # small errors of each step would add up
            path: Tensor = _import_odeint()(self.path_derivative, start, times, method=self.solver)
        return path

    def path_derivative(self, time: Tensor, place: Tensor) -> Tensor:
        """[layers, width] h(t, p)."""
        times = time.to(place.dtype).expand(*place.shape[:-1], 1)
        inside = F.linear(torch.cat([place, times], dim=-1), self.inner, self.inner_bias).relu()
        return F.linear(torch.cat([inside, times], dim=-1), self.outer, self.outer_bias)

    def at(self, layer: int) -> Encoding:
        """The path of one layer."""
        return _LayerPath(self, layer)


class _LayerPath(Encoding):
    """Path of a Floater in one layer."""

    def __init__(self, whole: Floater, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self._whole = (whole,)  # in a tuple, so that its weights are not registered once more for each layer

    def layer_input(self, stream: Tensor, positions: Tensor) -> Tensor:
        """[B, T, width] with the path added."""
        path = self._whole[0].path[:, self.layer]
        return stream + path[positions.long()].to(stream.dtype)


def _import_odeint() -> Any:
    return import_optional("torchdiffeq", "floater", "floater").odeint

"""A registered method on a loaded model of transformers, without the harness."""

import weakref
from types import TracebackType
from typing import Any

from lexbench.backends.hf.rotary import Placed
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import facts
from lexbench.core.method import Method
from lexbench.core.model import Model
from lexbench.core.record import Refused

_held: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Networks that are under a method now."""


class Extended:
    """A network under a method, until `restore()` or the end of the `with` block gives it back unchanged.

    The network stays the one that the caller holds: `generate()`, caching, and batches padded on the left work.
    Out of reach are mixtures of several passes, static caches, and attention dropout; a method with a ratio a head
    (`ms_poe`) goes by the prompt that was read last, so it takes one prompt at a time, read at once. A copy of the
    network that is made meanwhile stays under the method.

    Args:
        network: a causal language model of transformers.
        method: with its parameters.
        length: tokens in use, prompt and answer; None where the method does not depend on it.
        trained_length: of the model, where its config does not say or lies.

    Raises:
        ValueError: the network is under a method already, length is needed, or a parameter does not fit.
        Refused: the model's code does not allow the method; said by slot.
    """

    def __init__(self, network: Any, method: Method, length: int | None, trained_length: int | None) -> None:
        if network in _held:
            raise ValueError(
                "extend needs a network without a method, this one is under another: "
                "restore() it first, or compose: extend(network, [...])"
            )
        self.model = known(network, trained_length)
        self.attention = _at(method, self.model, length)
        if self.attention.mixture is not None:
            raise Refused("extend cannot realise mixture: it takes several passes, run it with backend=hf")
        self._placed = Placed(network, self.model.name, self.model.trained_length)
        self._placed.put(self._placed.prepare(self.attention))
        self._network = network
        _held.add(network)

    def restore(self) -> None:
        """Give the network back as it came; again does nothing."""
        if self._network is not None:
            self._placed.remove()
            _held.discard(self._network)
            self._network = None

    def __enter__(self) -> "Extended":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()


def known(network: Any, trained_length: int | None) -> Model:
    """A loaded network's facts, from its own config."""
    found = facts(network.config.to_dict())
    if trained_length is not None:
        found["trained_length"] = trained_length
    if "trained_length" not in found:
        raise ValueError("the model's config does not say what it was trained on: give trained_length=...")
    name = getattr(network.config, "_name_or_path", "") or type(network).__name__
    return Model(name=name, **found)


def _at(method: Method, model: Model, length: int | None) -> Attention:
    """The Attention at a length; without one, that which holds at every length."""
    if length is not None:
        return method.attention(model, length)
    near, far = (method.attention(model, times * model.trained_length) for times in (1, 4))
    if near.as_data() != far.as_data():
        raise ValueError("the method depends on the tokens in use: give length=..., prompt and answer together")
    return near

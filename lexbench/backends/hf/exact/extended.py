"""Apply a method to a loaded transformers model, outside of a benchmark run."""

import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexbench.backends.hf.exact.layers import rotary_frequencies, rotary_kinds
from lexbench.backends.hf.exact.network import tower_candidates
from lexbench.backends.hf.exact.rotary import AttentionInstaller
from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.attention import Attention, Floats
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.composition import Method
from lexbench.methods.scaled import attention_of, ropes_of_model

_extended: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Networks with a method applied now."""


def is_extended(network: Any) -> bool:
    """Whether a method is applied to a network now; of anything else False."""
    return any(network is each for each in _extended)


class Extended:
    """A network with a method applied, until `restore()` or the end of the `with` block.

    The network is changed in place: `generate()`, caching, and batches padded on the left work. Not supported: mixtures
    of several passes, static caches, attention dropout. A method with a ratio per head (`ms_poe`) uses the last prompt,
    so read one prompt at a time, in one forward pass. A copy of the network made inside the block keeps the method.

    Args:
        network: a causal language model of transformers.
        method: with its parameters.
        length: tokens in use, prompt and answer; None if the method does not depend on it.
        trained_length: of the model, if its config lacks it or is wrong.

    Raises:
        ConfigError: a method is already applied, length is needed, a parameter does not fit, or a cast has rounded the
            network's rotary frequencies.
        Refused: the model's code does not allow the method; names the slot.
    """

    def __init__(self, network: Any, method: Method, length: int | None, trained_length: int | None) -> None:
        if is_extended(network):
            raise ConfigError(
                "extend needs a network without a method, this one has one already: "
                'restore() it first, or combine them: extend(network, "yarn+log_n")'
            )
        if not hasattr(network, "config"):
            raise ConfigError(f"extend needs a loaded model of transformers, got {network!r}")
        if length is not None and not is_whole(length, 1):
            raise ConfigError(f"length must be a whole number of at least 1 token, got {length!r}: prompt and answer")
        self.model = model_of(network, trained_length)
        check_frequencies(network, self.model)
        self.attention = _attention_at(method, self.model, length)
        if self.attention.mixture is not None:
            raise Refused("extend cannot realise mixture: it needs several passes, use backend=hf")
        self._installer = AttentionInstaller(network, self.model.name, self.model.trained_length)
        self._installer.check_rope(self.model, self.attention)
        self._installer.put(self._installer.prepare(self.attention))
        self._network = network
        _extended.add(network)

    def restore(self) -> None:
        """Undo the method; a second call does nothing."""
        if self._network is not None:
            self._installer.remove()
            _extended.discard(self._network)
            self._network = None

    def __enter__(self) -> "Extended":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()


def model_of(network: Any, trained_length: int | None, name: str | None = None) -> Model:
    """The Model of a loaded network, read from its config."""
    found = facts_of_config(network.config.to_dict())
    if trained_length is not None:
        found["trained_length"] = trained_length
    if "trained_length" not in found:
        raise ConfigError("the model's config does not state its trained length: give trained_length=...")
    if "head_dim" not in found:
        raise ConfigError(
            f"the config of {type(network).__name__} does not state the size of a head: set its head_dim, "
            "or hidden_size and num_attention_heads"
        )
    own = str(getattr(network.config, "_name_or_path", "")) or type(network).__name__
    return Model(name=name or (Path(own).name if Path(own).is_dir() else own), **found)


def check_frequencies(network: Any, model: Model) -> None:
    """ConfigError where a cast has rounded a network's rotary frequencies, as `.to(torch.bfloat16)` does.

    A frequency in bfloat16 is off by up to 1/512: at position 8192 by 16 radians in a pair that turns by 1 a token.
    """
    try:
        known = {rope.kind: rope.own(1)[0] for rope in ropes_of_model(model)}
    except Refused:
        known = {}
    for module in tower_candidates(network)[0].modules():
        for kind in rotary_kinds(module):
            expected = known.get(kind, next(iter(known.values())) if len(known) == 1 else None)
            if (dtype := _rounding_dtype(rotary_frequencies(module, kind), expected)) is not None:
                name = str(dtype).removeprefix("torch.")
                raise ConfigError(
                    f"the rotary frequencies of {model.name} must be float32, a cast has rounded them to {name}: "
                    f"load it by from_pretrained(..., dtype=torch.{name}), which keeps them"
                )


def _rounding_dtype(found: Tensor, expected: Floats | None) -> torch.dtype | None:
    """The dtype to which frequencies were rounded, once or now; None: they were not."""
    for dtype in (torch.bfloat16, torch.float16):
        if expected is None or len(expected) != len(found):
            rounded = found.dtype == dtype
        else:
            values = found.double().cpu().numpy()
            exact, near = (np.allclose(values, expected, rtol, atol) for rtol, atol in ((1e-6, 0), (2**-8, 2**-24)))
            rounded = near and not exact and torch.equal(found, found.to(dtype).to(found.dtype))
        if rounded:
            return dtype
    return None


def _attention_at(method: Method, model: Model, length: int | None) -> Attention:
    """The Attention at a length; without a length, ConfigError if it is not the same at all lengths."""
    if length is not None:
        return attention_of(method, model, length)
    # Within the trained length and far beyond it: a method that follows the length differs in these.
    near, far = (attention_of(method, model, times * model.trained_length) for times in (1, 4))
    if near.as_data() != far.as_data():
        raise ConfigError("the method depends on the length: give length=..., the tokens of prompt and answer")
    return near

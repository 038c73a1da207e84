"""The base class of the files of `compressors/`, which choose the tokens that a cache keeps; and these files by name.

A file there, in this part or in a package of yours, is a value of the parameter `by` of the method kv if it holds one
frozen dataclass of that name with `score`; so is a file of `compressor/` in a folder of `--config-dir`. Ours load torch
in `score` alone: a plan needs none.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from lexbench.core import objects, registry

if TYPE_CHECKING:
    from torch import Tensor

    from lexbench.kernels.heads import Rotate

PLUG_IN = "compressor"
USUAL_COMPRESSOR = "norm"
"""The compressor where none is named."""


class Compressor(ABC):
    """A rule by which each key head holds a share of a prompt's tokens: those of the largest scores."""

    choosing_queries: ClassVar[int | None] = None
    """Number of the prompt's last queries that `score` needs; None: all."""
    needs_rotation: ClassVar[bool] = False
    """Whether `score` needs queries before their rotation, to rotate them to later positions."""

    @abstractmethod
    def score(self, keys: "Tensor", values: "Tensor", queries: "Tensor", rotate: "Rotate", scaling: float) -> "Tensor":
        """[B, KV, P] scores of a prompt's tokens in each key head; Refused for a prompt that is too short.

        Args:
            keys: [B, KV, P, D], before `rotate`.
            values: [B, KV, P, D].
            queries: [B, H, Q, D] of the last Q <= P tokens, `choosing_queries` at least, before `rotate`.
            rotate: (vectors [B, H, T, D], positions [T]) -> vectors there; where `needs_rotation` is false queries and
                keys may be rotated already, and it leaves them.
            scaling: factor on the logits.
        """


def compressor_names() -> list[str]:
    """All names, the usual one first, then sorted."""
    return sorted(registry.registered_names(PLUG_IN), key=lambda name: (name != USUAL_COMPRESSOR, name))


def compressor_named(name: str) -> Compressor:
    """The compressor of a name; ConfigError with the choices for an unknown one."""
    found: Compressor = objects.build_object({"name": name, **registry.read_named_config(PLUG_IN, name)}, PLUG_IN)
    return found

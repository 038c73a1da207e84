"""Settings of `lexbench trace`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder, check_writable

AS_GIVEN = "given"
"""Value of `order` by which checkpoints stay in the order of the command line."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of `trace`.

    Args:
        lengths: tokens; of each length a curve.
        n: questions of a checkpoint at each length, and as many fresh ones of the finalists.
        seed: of the questions; the fresh ones have the next.
        trained_length: tokens, the same for all checkpoints; None: each one's own.
        order: names of the checkpoints, the oldest first, or [given]: in the order of the command line; None: by what
            they store, else by their names.
        out: folder of the results.
    """

    lengths: Sequence[int] | None = None
    n: int = 32
    seed: int = 0
    trained_length: int | None = None
    order: Sequence[str] | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        if self.order is not None and (not self.order or isinstance(self.order, str)):
            raise ConfigError(f"order must list checkpoints, got {self.order!r}: e.g. order=[base,checkpoint-20]")

    @property
    def folder(self) -> Path:
        """The folder of the results; ConfigError where none is given, or it cannot be written."""
        if not self.out:
            raise ConfigError("trace needs a folder for its results: give out=runs/trace")
        folder = Path(self.out)
        check_folder("out", folder, "out=DIR")
        check_writable("out", folder, "give another out=DIR")
        return folder

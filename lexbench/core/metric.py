"""What one number of a sample means: name, unit, better side, and how it follows from what a sample stores."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lexbench.core.errors import ConfigError
from lexbench.core.record import Sample

SIGN_OF_SIDE = {"higher": 1, "lower": -1, "neither": 0}
SHARE_RANGE = (0.0, 1.0)
"""Range of a score: a share, shown in points (hundredths)."""
SampleScore = Callable[[Sample, Sequence[Sample]], float | None]
"""A score from what a sample stores, and from the samples of its cluster in its cell; None: they do not tell."""
SamplesGuess = Callable[[Sequence[Sample]], float | None]
"""Score of a guess that knows nothing of the text, from all samples of a cell; None: not known."""


@dataclass(frozen=True)
class Metric:
    """A metric of samples. A task states its own:

        metrics = (Metric("regret", unit="nats", better="lower"),)

    and puts the values into `Sample.scores` under the metric's name.
    """

    name: str
    label: str = ""
    """Name in tables and plots, with its unit; empty: the name in words."""
    unit: str = "points"
    """Unit of its values. `points`: a share in [0, 1], shown in hundredths."""
    better: str = "higher"
    """higher, lower or neither."""
    digits: int | None = None
    """Decimals of a shown value; None: those of its unit."""
    range: tuple[float, float] | None = None
    """Least and greatest possible value; None: of points [0, 1], else any finite number."""
    failed_as: float | None = None
    """Value of a sample that failed; None: of points 0, else it is left out and counted."""
    of: SampleScore | None = field(default=None, compare=False, repr=False)
    """Derives the value from a stored sample; None: only the task's `score` gives it."""
    guess: SamplesGuess | None = field(default=None, compare=False, repr=False)
    """Value of a guess, which is the metric's chance."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ConfigError(f"a metric's name must be lower-case letters, digits and _, got {self.name!r}: rename it")
        if self.better not in SIGN_OF_SIDE:
            raise ConfigError(
                f"metric {self.name}'s better must be one of {', '.join(SIGN_OF_SIDE)}, got {self.better}"
            )

    @property
    def words(self) -> str:
        """Label, or the name in words; with a unit of its own."""
        unit = "" if self.unit == "points" else f" ({self.unit})"
        return self.label or self.name.replace("_", " ") + unit

    @property
    def direction(self) -> int:
        """1 where higher is better, -1 where lower is, 0 where neither."""
        return SIGN_OF_SIDE[self.better]

    @property
    def limits(self) -> tuple[float, float] | None:
        """Least and greatest possible value; None: any finite number."""
        return SHARE_RANGE if self.range is None and self.unit == "points" else self.range

    @property
    def is_score(self) -> bool:
        """Whether values are shares, higher being better: a failed sample then scores 0."""
        return self.limits == SHARE_RANGE and self.better == "higher"

"""What one number of a sample or a cell means: name, unit, better side, and how it follows from what is stored."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.record import Sample
from lexbench.core.values import checked_field_values

SIGN_OF_SIDE = {"higher": 1, "lower": -1, "neither": 0}
SHARE_RANGE = (0.0, 1.0)
"""Range of a score: a share, shown in points (hundredths)."""
SampleScore = Callable[[Sample, Sequence[Sample]], float | None]
"""A score from what a sample stores, and from the samples of its cluster in its cell; None: they do not tell."""
SamplesGuess = Callable[[Sequence[Sample]], float | None]
"""Score of a guess that knows nothing of the text, from all samples of a cell; None: not known."""


@dataclass(frozen=True)
class Metric:
    """A metric of samples, or of a cell. A task states its own:

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
    headline: bool = False
    """Whether reports show it before the other metrics of its task."""
    per: str = ""
    """Of a likelihood: what its nats are divided by, `tokens`, `bytes` or `words`."""
    follows: str = ""
    """Name of the metric of which it is another form; the two are compared once, by that one."""
    logarithmic: bool = False
    """Whether its values are powers: shown on a logarithmic axis, with few digits where they are large."""
    measure: bool = False
    """Whether it measures a text or an attention, and judges no answer: shown with four digits, on its own axis."""
    of_cell: bool = False
    """Whether it is of all samples of a cell together; failed ones are counted by its own rule."""
    of_some: bool = False
    """Of a cell: whether only some of the samples enter by its definition, such as questions with an answer."""

    @classmethod
    def from_data(cls, facts: Mapping[str, Any]) -> "Metric":
        """The metric of stored facts; ConfigError for wrong ones."""
        ends = facts.get("range")
        values = {**facts, **({"range": tuple(ends)} if isinstance(ends, list) else {})}
        return cls(**checked_field_values(cls, values, "a metric"))

    def as_data(self) -> dict[str, Any]:
        """Its facts as JSON values, without those that are the default."""
        stated = [(each, getattr(self, each.name)) for each in fields(self) if each.compare]
        return {each.name: value for each, value in stated if value != each.default}

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
        """Whether values are shares in points, and of samples higher is better: a failed sample then scores 0."""
        return self.limits == SHARE_RANGE and (self.of_cell or self.better == "higher")

    @property
    def is_token_loss(self) -> bool:
        """Whether it is the mean loss per target token; samples store the loss of each."""
        return bool(self.per) and not self.follows

    @property
    def failed_value(self) -> float | None:
        """Value of a sample that failed; None: it is left out and counted."""
        return 0.0 if self.failed_as is None and self.is_score else self.failed_as

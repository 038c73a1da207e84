"""The rule by which the comparisons of a run stop: `n=auto`, with `n_max` and `until`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.values import is_whole
from lexbench.stats.metrics import display_factor
from lexbench.stats.stopping import ROUND_ENDS

AUTO_COUNT = "auto"
"""Value of `n` that asks as many questions as decide."""
DEFAULT_BUDGET = 256
"""Questions of a cell, at most, where `n_max` is not given."""


@dataclass(frozen=True)
class StoppingRule:
    """How small a difference does not matter."""

    until: float | None = None
    """Margin in the metric's own unit, nats per token or a share of right answers; None: the tolerance of `check`."""

    def margin(self, metric: str, length: int) -> float:
        """Margin of a metric, in its own unit."""
        from lexbench.stats.regressions import tolerance_of

        return tolerance_of({}, metric, length) / display_factor(metric) if self.until is None else self.until


def stopping_of(n: Any, n_max: Any, until: Any) -> tuple[Any, StoppingRule | None]:
    """The number of questions, and the rule where `n` is auto; ConfigError for a wrong one, or one beside another n."""
    if n != AUTO_COUNT:
        for name, given in {"n_max": n_max, "until": until}.items():
            if given is not None:
                raise ConfigError(f"{name} is for n=auto, got it with n={n}: leave it out, or give n=auto")
        return n, None
    most = DEFAULT_BUDGET if n_max is None else n_max
    if not is_whole(most) or most not in ROUND_ENDS:
        raise ConfigError(f"n_max must be 8, 12, 16, 24, 32, 48, ..., the end of a round, got {most!r}: e.g. n_max=256")
    number = isinstance(until, int | float) and not isinstance(until, bool)
    if until is not None and not (number and 0 < until < 1):
        raise ConfigError(
            f"until must be above 0 and below 1, nats per token or a share of right answers, got {until!r}: e.g. "
            "until=0.02"
        )
    return most, StoppingRule(None if until is None else float(until))


def check_stopping(methods: Sequence[MethodKey], executor: str, stop_after_collapse: bool) -> None:
    """ConfigError for a job whose comparisons cannot stop."""
    if BASELINE_METHOD not in methods or len(methods) < 2:
        raise ConfigError("n=auto compares each method with none, and needs both: e.g. method=none,yarn")
    if executor != "here":
        raise ConfigError(
            f"n=auto looks at all cells after each round, got executor={executor}: give n, or leave it out"
        )
    if stop_after_collapse:
        raise ConfigError("n=auto stops by itself, got stop_after_collapse=true: leave one of them out")

"""What a tune is asked, checked before anything is loaded."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `lexbench tune` is asked.

    Args:
        length: tokens in use, prompt and answer, above the trained length.
        budget: time, as 30min, 2h or 90s, that of earlier commands counted; or a number of candidates.
        out: folder.
        price: nats per token that a candidate may lose inside the trained length, against none.
        worth: nats per token that finding all needles is worth against finding none; 0: only the text counts.
        methods: names, or names with parameters; None: all that change frequencies or distances and hide no key.
        n: questions of the last rung, and fresh ones of each finalist.
        first: questions of the first rung, at least.
        eta: one in eta goes on to the next rung, which asks eta times as many questions.
        seed: of draws and questions; the fresh questions have the next one.
        nll: task whose likelihoods count.
        needles: tasks of which the first counts that the model can do inside its trained length.
        space: by method and parameter, what is drawn: choices, or {low, high, log, of, least}.
        common: the same for all methods that have such a parameter.
    """

    length: int | None = None
    budget: str | int | None = None
    out: str | None = None
    price: float = 0.02
    worth: float = 1.0
    methods: Sequence[Any] | None = None
    n: int = 32
    first: int = 4
    eta: int = 2
    seed: int = 0
    nll: str | Mapping[str, Any] = "last_segment"
    needles: Sequence[Any] = ("needle", "passkey", {"name": "needle", "options": 4})
    space: Mapping[str, Any] = field(default_factory=dict)
    common: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("n", 2), ("first", 1), ("eta", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"tune's {name} must be at least {least}, got {getattr(self, name)}")
        for name in ("price", "worth"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"tune's {name} must be finite and at least 0 nats, got {getattr(self, name)}")
        for name, usual in (("methods", "yarn"), ("needles", "needle")):
            value = getattr(self, name)
            lacks = value is None if name == "needles" else value is not None and not value
            if isinstance(value, str) or not isinstance(value, Sequence | None) or lacks:
                said = value if isinstance(value, str) and value else usual
                raise ValueError(f"tune's {name} must be a list, got {value!r}: e.g. {name}=[{said}]")
        if not isinstance(self.space, Mapping):
            raise ValueError(
                f"tune's space must be methods with what is drawn, got {self.space!r}: see configs/tune.yaml"
            )
        for method, entry in {**self.space, "common": self.common}.items():
            if not isinstance(entry, Mapping):
                raise ValueError(f"tune's space of {method} must be parameters with their ranges, got {entry!r}")

    @property
    def seconds(self) -> float | None:
        """The budget, where it is a time."""
        return self._read()[0]

    @property
    def candidates(self) -> int | None:
        """The budget, where it is a number of candidates."""
        return self._read()[1]

    def _read(self) -> tuple[float | None, int | None]:
        text = str(self.budget).strip()
        if not isinstance(self.budget, bool) and text.isdecimal() and int(text) > 0:
            return None, int(text)
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text)
        if not found or not float(found[1]) > 0:
            raise ValueError(
                f"tune's budget must be a time or a number of candidates, got {self.budget}: "
                "give budget=30min, 2h, 90s, or budget=40"
            )
        return float(found[1]) * UNITS[found[2]], None

"""Configuration of a tune, checked before anything is loaded."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.methods.export import EXPORT_TARGETS

SECONDS_OF_UNIT = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Configuration of `lexbench tune`.

    Args:
        length: tokens in use, prompt and answer, above the trained length.
        budget: time, such as 30min, 2h or 90s, including earlier commands; or a number of candidates.
        out: folder.
        price: largest loss inside the trained length against `none`, in nats per token.
        worth: value of finding all needles, in nats per token; 0: only the text counts.
        methods: names, or names with parameters; None: all that change frequencies or distances and mask no key.
        n: questions of the last rung, and least fresh questions of each finalist.
        first: least number of questions of the first rung.
        eta: one in eta candidates goes on to the next rung, which has eta times as many questions.
        seed: of draws and questions; the fresh questions have the next seed.
        nll: task of the text, which must give likelihoods.
        needles: tasks of needles; the first one counts that the model can do inside its trained length.
        to: target of the deployment (transformers, vllm, llama.cpp): only what it can express is tried; None: any.
        space: by method and parameter, what to draw: choices, or {low, high, log, of, least}.
        common: the same for every method with such a parameter.
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
    to: str | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    common: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least, usual in (("n", 2, 32), ("first", 1, 4), ("eta", 2, 2), ("seed", 0, 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"tune's {name} must be at least {least}, got {value}: e.g. {name}={usual}")
        if self.to is not None and self.to not in EXPORT_TARGETS:
            raise ConfigError(f"tune's to must be one of {', '.join(EXPORT_TARGETS)}, got {self.to!r}")
        for name in ("price", "worth"):
            if not 0 <= getattr(self, name) < math.inf:
                usual_nats = {"price": 0.02, "worth": 1}[name]
                raise ConfigError(
                    f"tune's {name} must be finite and at least 0 nats, got {getattr(self, name)}: "
                    f"e.g. {name}={usual_nats}"
                )
        for name, example in (("methods", "yarn"), ("needles", "needle")):
            value = getattr(self, name)
            lacks = value is None if name == "needles" else value is not None and not value
            if isinstance(value, str) or not isinstance(value, Sequence | None) or lacks:
                said = value if isinstance(value, str) and value else example
                raise ConfigError(f"tune's {name} must be a list, got {value!r}: e.g. {name}=[{said}]")
        if not isinstance(self.space, Mapping):
            raise ConfigError(
                f"tune's space must be a mapping of methods to parameters, got {self.space!r}: see configs/tune.yaml"
            )
        for method, entry in {**self.space, "common": self.common}.items():
            if not isinstance(entry, Mapping):
                raise ConfigError(f"tune's space of {method} must be a mapping of parameters to ranges, got {entry!r}")

    @property
    def seconds(self) -> float | None:
        """The budget if it is a time, in seconds."""
        return self._read_budget()[0]

    @property
    def candidates(self) -> int | None:
        """The budget if it is a number of candidates."""
        return self._read_budget()[1]

    def _read_budget(self) -> tuple[float | None, int | None]:
        text = str(self.budget).strip()
        if not isinstance(self.budget, bool) and text.isdecimal() and int(text) > 0:
            return None, int(text)
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text)
        if not found or not float(found[1]) > 0:
            raise ConfigError(
                f"tune's budget must be a time or a number of candidates, got {self.budget}: "
                "give budget=30min, 2h, 90s, or budget=40"
            )
        return float(found[1]) * SECONDS_OF_UNIT[found[2]], None

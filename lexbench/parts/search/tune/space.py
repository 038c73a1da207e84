"""Candidates of a tune: methods, the ranges of their parameters, and draws from these."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from lexbench.core import objects, registry
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.core.method_key import MethodKey, plain_parameter
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.methods import export
from lexbench.methods.composition import Method, method_config, read_method
from lexbench.methods.scaled import attention_of

RANGE_KEYS = ("low", "high", "log", "of", "least")
SIGNIFICANT_DIGITS = 3
"""Significant digits of a drawn number: more make no difference, and are awkward to paste."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with parameters, and its Attention at the length of the tune."""

    config: Mapping[str, Any]
    """Config as in `method=`: name and parameters, or methods to compose."""
    key: MethodKey
    method: Method | None
    attention: Attention | None
    reason: str | None = None
    """Why it cannot be measured."""

    @classmethod
    def of(cls, config: Mapping[str, Any], model: Model, length: int) -> "Candidate":
        """Build the method and its Attention; with a reason if that fails."""
        try:
            _, method, key = read_method(config)
        except ValueError as error:
            given = {name: value for name, value in config.items() if name not in ("name", "_target_", "file")}
            stated = tuple((name, plain_parameter(value)) for name, value in given.items())
            return cls(config, MethodKey(((str(config["name"]), stated),)), None, None, f"invalid: {error}")
        try:
            return cls(config, key, method, attention_of(method, model, length))
        except Refused as refusal:
            return cls(config, key, method, None, f"refused: {refusal.reason}")
        except ValueError as error:
            return cls(config, key, method, None, f"invalid: {error}")

    @property
    def label(self) -> str:
        """The text of its key."""
        return str(self.key)

    def export_text(self, target: str, model: Model, length: int) -> tuple[str | None, str]:
        """Text to paste for an export target; or None, and the reason why the target cannot serve this candidate."""
        assert self.method is not None, "what was measured can be built"
        try:
            return export.export_text(self.method, self.label, model, length, target), ""
        except Refused as refusal:
            return None, refusal.reason

    def export_targets(self, model: Model, length: int) -> list[str]:
        """Names of the export targets (vllm, ...) that can serve the model with this candidate."""
        return [target for target in export.EXPORT_TARGETS if self.export_text(target, model, length)[0] is not None]

    @property
    def changes_positions(self) -> bool:
        """Whether the candidate changes frequencies or distances, and masks no key."""
        used = {slot for part in self.attention.parts() for slot in part.slots()} if self.attention else set[str]()
        return bool(used & {"inv_freq", "remap"}) and "mask" not in used


@dataclass(frozen=True)
class ParameterRange:
    """Numbers from low to high, inclusive."""

    low: float
    high: float
    log: bool
    whole: bool


Choices = tuple[Any, ...]
Parameters = Mapping[str, ParameterRange | Choices]
"""Range or choices to draw a value from, by parameter of a method."""


def default_configs(model: Model, length: int, first: Sequence[str]) -> list[dict[str, Any]]:
    """Configs of all registered methods that change frequencies or distances; those in `first` come first."""
    names = [
        *(name for name in first if name in registry.registered_names("method")),
        *registry.registered_names("method"),
    ]
    configs = [method_config(name) for name in dict.fromkeys(names)]
    return [config for config in configs if Candidate.of(config, model, length).changes_positions]


def parameters_of(
    config: Mapping[str, Any],
    space: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any],
    model: Model,
    length: int,
) -> Parameters:
    """Ranges to draw from for a method: its entry in `space`, and its parameters in `common`.

    Parameters given in the config stay fixed; for composed methods nothing is drawn.
    """
    if "compose" in config:
        return {}
    cls = objects.class_of(config, "method")
    known = objects.class_parameters(cls)
    entry = space.get(str(config["name"]), {})
    if unknown := [name for name in entry if name not in known]:
        choices = f"choose from {', '.join(known)}" if known else f"{config['name']} has no parameters"
        raise ConfigError(f"unknown parameter space.{config['name']}.{unknown[0]}: {choices}")
    ranges = {**{name: value for name, value in common.items() if name in known}, **entry}
    hints = get_type_hints(cls)
    read = {
        name: _read_range(f"space.{config['name']}.{name}", value, _is_whole_number(hints.get(name)), model, length)
        for name, value in ranges.items()
        if name not in config
    }
    return {name: drawn for name, drawn in read.items() if drawn is not None}


def _is_whole_number(hint: Any) -> bool:
    # `int | None` takes whole numbers; `float | int` any.
    kinds = {hint, *get_args(hint)}
    return int in kinds and float not in kinds


def _read_range(name: str, given: Any, whole: bool, model: Model, length: int) -> ParameterRange | Choices | None:
    """A range or choices; None if the model leaves nothing to choose."""
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        return tuple(given)
    if not isinstance(given, Mapping) or not {"low", "high"} <= set(given) <= set(RANGE_KEYS):
        raise ConfigError(
            f"{name} must be a list of choices or {{low: .., high: ..}} with {RANGE_KEYS[2:]}, got {given!r}"
        )
    unit = _unit_of_range(name, given.get("of"), model, length)
    if unit is None:
        return None
    numbers = [given["low"], given["high"], given.get("least", given["low"])]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ConfigError(f"{name} must have finite numbers as low, high and least, got {given!r}")
    if not given["low"] < given["high"] or (given.get("log") and given["low"] <= 0):
        raise ConfigError(f"{name} must have low below high, and above 0 with log, got {given!r}")
    low, high = (max(given[end] * unit, given.get("least", -math.inf)) for end in ("low", "high"))
    if whole:
        low, high = math.ceil(low), math.floor(high)
    return ParameterRange(low, high, bool(given.get("log")), whole) if low < high else None


def _unit_of_range(name: str, of: Any, model: Model, length: int) -> float | None:
    """The unit of a range, as a number; None if the model does not have it."""
    units = {
        None: 1.0,
        "stretch": length / model.trained_length,
        "trained_length": model.trained_length,
        "length": length,
        "rope_base": model.rope_base,
    }
    if of not in units:
        raise ConfigError(f"{name} must be of {', '.join(unit for unit in units if unit)}, got {of!r}")
    return units[of]


class CandidateDraws:
    """Draws methods and parameters by Optuna's tree of Parzen estimators, more often near good results.

    The same seed and results give the same draws.

    Args:
        configs: of the methods, each with its parameters to draw; methods without such are not drawn.
        seed: of all draws.
    """

    def __init__(self, configs: Sequence[tuple[Mapping[str, Any], Parameters]], seed: int) -> None:
        optuna = import_optional("optuna", "search", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._open = {str(place): each for place, each in enumerate(configs) if each[1]}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def draw_config(self) -> tuple[dict[str, Any], Any] | None:
        """A config, and the trial to report results to; None if there is nothing to draw."""
        if not self._open:
            return None
        trial = self._study.ask()
        place = trial.suggest_categorical("method", list(self._open))
        config, parameters = self._open[place]
        drawn = {name: _suggest_value(trial, f"{place}.{name}", each) for name, each in parameters.items()}
        return {**config, **drawn}, trial

    def report_draw(self, trial: Any, curve: Sequence[tuple[int, float]], through: bool) -> None:
        """Report the result of a draw.

        Args:
            trial: of the draw.
            curve: (cumulative questions, loss) at each rung; empty if it was dropped.
            through: whether it finished the last rung.
        """
        for count, loss in curve:
            trial.report(loss, count)
        state = self._optuna.trial.TrialState
        # A pruned trial counts for the estimator by its last report, behind all complete ones.
        if curve and through:
            self._study.tell(trial, curve[-1][1], state=state.COMPLETE)
        else:
            self._study.tell(trial, state=state.PRUNED)

    def report_default(self, place: int, curve: Sequence[tuple[int, float]], through: bool) -> None:
        """Report the result of a method with its defaults, which may lie outside the ranges: only its name counts."""
        if str(place) in self._open:
            state = self._optuna.trial.TrialState
            trial = self._optuna.trial.create_trial(
                state=state.COMPLETE if curve and through else state.PRUNED,
                value=curve[-1][1] if curve else None,
                params={"method": str(place)},
                distributions={"method": self._optuna.distributions.CategoricalDistribution(list(self._open))},
                intermediate_values=dict(curve),
            )
            self._study.add_trial(trial)


def _suggest_value(trial: Any, name: str, values: ParameterRange | Choices) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_categorical(name, values)
    if values.whole:
        return int(trial.suggest_int(name, int(values.low), int(values.high), log=values.log))
    return float(f"{trial.suggest_float(name, values.low, values.high, log=values.log):.{SIGNIFICANT_DIGITS}g}")

"""Reads the harness's `model_args` and generation settings into our model, method, backend and greedy writing."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lexbench.backends import Backend, capabilities
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import objects, registry
from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.methods.composition import Composed, Method, method_config, read_method
from lexbench.methods.scaled import attention_of
from lexbench.parts.exchange.lm_eval import DEFAULT_MAX_NEW_TOKENS, MAX_NEW_TOKENS_SETTINGS
from lexbench.runner.backend_pool import open_backend
from lexbench.runner.cells import MethodComponent
from lexbench.runner.verify import CHECK_TEXT_TOKENS, failure_of_checks, verify_attention

OWN_ARGUMENTS = ("model", "path", "method", "backend", "dtype", "device", "max_length", "trained_length")
PREFIX_NOUNS = ("model", "method", "backend")
"""Nouns with parameters of their own, as on our command line: `backend.at_once=8`."""
NEUTRAL_SETTING_VALUES: Mapping[str, Any] = {"num_beams": 1, "repetition_penalty": 1.0, "use_cache": True}
"""Generation settings that have no effect at these values."""
SAMPLING_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "seed")
"""Generation settings without effect on greedy writing."""


@dataclass(frozen=True)
class CheckedArguments:
    """A model and a method, checked before anything is loaded."""

    model: Model
    method: MethodComponent
    backend: Mapping[str, Any]
    max_length: int
    """Most tokens that the model reads; the last token of an answer is scored, not read."""
    attention: Attention
    """The method's Attention at `max_length`."""


def read_model_arguments(arguments: Mapping[str, Any]) -> CheckedArguments:
    """Read the harness's `model_args`: `OWN_ARGUMENTS`, `PREFIX_NOUNS`, and the method's own parameters.

    Raises ConfigError for wrong arguments, Refused if the model does not allow the method.
    """
    # The harness reads `none` as None, and passes `cuda:0` even if the user gave no device and the machine has no GPU.
    given = {key: value for key, value in arguments.items() if value is not None}
    if given.get("device") == "cuda:0":
        del given["device"]
    of = {noun: _parameters_of_noun(noun, given) for noun in PREFIX_NOUNS}
    own = {key: given[key] for key in given if key not in OWN_ARGUMENTS and key.partition(".")[0] not in PREFIX_NOUNS}
    model = _read_model(given, of["model"])
    method = _read_method(given.get("method", "none"), {**own, **of["method"]})
    name = str(given.get("backend", "hf"))
    shortcuts: dict[str, Any] = {key: given[key] for key in ("dtype", "device") if key in given}
    backend = {**registry.read_named_config("backend", name), **shortcuts, **of["backend"], "name": name}
    max_length = given.get("max_length", _default_max_length(model, method.obj))
    if not is_whole(max_length, 2):
        raise ConfigError(f"max_length must be a whole number of at least 2, got {max_length!r}: e.g. max_length=4096")
    return CheckedArguments(model, method, backend, max_length, attention_of(method.obj, model, max_length))


def load_backend(setting: CheckedArguments) -> Backend:
    """Load the backend and apply the method; Refused if the backend cannot realise it or the self-check fails."""
    # One more than max_length: the last token is scored, not read.
    backend = open_backend(setting.model, setting.backend, setting.max_length + 1)
    if capabilities(backend).verifiable and setting.attention.slots():
        if failed := failure_of_checks(
            verify_attention(backend, setting.attention, min(setting.max_length, CHECK_TEXT_TOKENS))
        ):
            raise Refused(f"{setting.method.label} {failed}")
    else:
        backend.attend(setting.attention)
    return backend


def _parameters_of_noun(noun: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{noun}.")}


def _read_model(given: Mapping[str, Any], stated: Mapping[str, Any]) -> Model:
    """The registry's model, or a folder or hub name; the user's own values win."""
    if "model" not in given and "path" not in given:
        raise ConfigError("model_args name no model: give model=NAME (lexbench list model) or path=DIR or a hub name")
    known = registry.read_named_config("model", str(given["model"])) if "model" in given else {}
    over = {key: given[key] for key in ("path", "trained_length") if key in given}
    return read_model({**known, **over, **stated})


def _read_method(given: Any, parameters: Mapping[str, Any]) -> MethodComponent:
    """A method, by name and parameters, or several combined."""
    config = {**method_config(given), **parameters}
    if "compose" not in config:
        takes = [*objects.class_parameters(objects.class_of(config, "method"))]
        for key in parameters:
            if key not in takes:
                close = difflib.get_close_matches(key, [*takes, *OWN_ARGUMENTS], n=1)
                hint = f"did you mean {close[0]}? " if close else ""
                own = ", ".join(takes) or "has no parameters"
                raise ConfigError(
                    f"unknown argument {key}: {hint}choose from {', '.join(OWN_ARGUMENTS)}; {config['name']}: {own}"
                )
    return MethodComponent.of(*read_method(config))


def _default_max_length(model: Model, method: Method) -> int:
    """The default max_length: trained length times the largest factor of the method or its parts."""
    parts = method.parts if isinstance(method, Composed) else (method,)
    factors = [getattr(part, "factor", None) or 1.0 for part in parts]
    return round(model.trained_length * max(factors))


def model_identity(setting: CheckedArguments, backend: Backend) -> dict[str, Any]:
    """Everything that results depend on, as plain JSON with the keys of a cell's identity.

    And what was said of two files of the model's folder that begin texts with other tokens.
    """
    said = getattr(backend.tokenizer, "disagreement", None)
    return {
        **({"tokenizer": said} if said else {}),
        "model": {
            "name": setting.model.name,
            "revision": backend.revision,
            "trained_length": setting.model.trained_length,
            "begins_with": list(backend.tokenizer.prefix),
        },
        "method": setting.method.identity,
        "label": setting.method.label,
        "method_key": setting.method.key.as_data(),
        "length": setting.max_length,
        "attention": setting.attention.as_data(),
        "backend": {"name": backend.name, "version": backend.version, "dtype": backend.dtype, "kernel": backend.kernel},
    }


def greedy_settings(settings: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Most tokens to write, and the stop strings, from a task's generation settings.

    Raises ConfigError for settings that are not greedy decoding.
    """
    sampled, temperature = settings.get("do_sample"), settings.get("temperature")
    warm = bool(sampled) if temperature is None else float(temperature) > 0
    if warm and sampled is not False:
        raise ConfigError(
            f"lexbench decodes greedily, the task samples (do_sample={sampled}, temperature={temperature}): "
            "give --gen_kwargs do_sample=False"
        )
    for key, value in settings.items():
        known = key in (*SAMPLING_SETTINGS, *MAX_NEW_TOKENS_SETTINGS, "until", "do_sample")
        if (
            not known
            and value is not None
            and not (key in NEUTRAL_SETTING_VALUES and value == NEUTRAL_SETTING_VALUES[key])
        ):
            raise ConfigError(f"lexbench decodes greedily and cannot use {key}={value!r}: leave it out of gen_kwargs")
    until = settings.get("until") or ()
    ends = (until,) if isinstance(until, str) else tuple(until)
    room = next(
        (settings[name] for name in MAX_NEW_TOKENS_SETTINGS if settings.get(name) is not None), DEFAULT_MAX_NEW_TOKENS
    )
    return int(room), tuple(end for end in ends if end)

"""Model, method, backend and lengths of a results file of lm-evaluation-harness."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.method_key import BASELINE_METHOD, MethodKey
from lexbench.core.text import plain_text
from lexbench.core.version import full_version
from lexbench.parts.exchange.lm_eval.results.files import HarnessResults, mapping_or_empty, whole_number_or_none
from lexbench.store.cell_rows import read_key

MODEL_NAME_ARGUMENTS = ("peft", "delta", "pretrained", "model", "path", "engine")
"""Arguments that name a model, in the harness's order."""
ROTARY_ARGUMENTS = ("rope_parameters", "rope_scaling", "rope_theta")
"""Arguments of other models that change rotary angles."""
MAX_NAME_CHARACTERS = 120
"""Most characters of a name."""
SECRET_ARGUMENT_PATTERN = re.compile(
    r"(^|_)(api_?key|key|token|secret|password|auth\w*|credentials?|headers?)$", re.IGNORECASE
)
"""Arguments that may hold secrets: never stored."""


@dataclass(frozen=True, kw_only=True)
class LoggedSetup:
    """Model, method and backend of one results file."""

    model: Mapping[str, Any]
    """Name, revision, trained_length, as in a cell's identity."""
    method: Mapping[str, Any]
    """Name and parameters, as in a cell's identity."""
    key: MethodKey
    """The method's key in tables."""
    attention: Mapping[str, Any] | None
    """The method's Attention as data; empty: no change; None: unknown."""
    backend: Mapping[str, Any]
    """Name, version, dtype, kernel, and other arguments."""
    length: int | None
    """Length that the method was set to, in tokens; None: unknown."""
    limit: int | None
    """Longer prompts lost their first tokens; None: unknown."""
    version: str
    """Version of lexbench: of our own model that measured, else of this import."""
    cut: Mapping[str, int]
    """Number of requests that lost their first tokens, by task, if counted."""


def read_setup(results: HarnessResults, trained_length: int | None) -> LoggedSetup:
    """Read model, method and backend of the results.

    Args:
        results: of one evaluation.
        trained_length: tokens; required unless our own model measured, whose results contain it.

    Raises ConfigError if the trained length is unknown.
    """
    config = results.section("config")
    if isinstance(config.get("lexbench"), Mapping):
        return _own_model_setup(config["lexbench"], results)
    if trained_length is None:
        raise ConfigError(f"results {results.file} do not state the model's trained length: give --trained-length N")
    arguments = arguments_of(config.get("model_args"))
    named_by = next((name for name in MODEL_NAME_ARGUMENTS if arguments.get(name)), None)
    stretched = dict(_rotary_arguments(arguments))
    dtype = one_line_value(config.get("model_dtype") or arguments.get("dtype"), "dtype")
    version = {"lm_eval": one_line_value(results.content.get("lm_eval_version"))}
    if config.get("model") == "hf":
        version["transformers"] = one_line_value(results.content.get("transformers_version"))
    beside = {key: value for key, value in _other_arguments(arguments).items() if key not in (named_by, "dtype")}
    return LoggedSetup(
        model={
            "name": one_line_model_name(arguments[named_by] if named_by else config.get("model")),
            "revision": one_line_value(
                config.get("model_sha") or config.get("model_revision") or arguments.get("revision")
            ),
            "trained_length": trained_length,
        },
        method={"name": "rope" if stretched else "none", **stretched},
        key=_method_key(stretched),
        attention=None if stretched else {},
        backend={
            "name": f"lm_eval {one_line_value(config.get('model'))}",
            "version": version,
            "dtype": dtype.removeprefix("torch."),
            "kernel": one_line_value(arguments.get("attn_implementation"), "kernel"),
            "arguments": {
                key: _without_secrets(value) for key, value in beside.items() if not SECRET_ARGUMENT_PATTERN.search(key)
            },
        },
        length=None,
        limit=whole_number_or_none(results.content.get("max_length")),
        version=full_version(),
        cut={},
    )


def _own_model_setup(about: Mapping[str, Any], results: HarnessResults) -> LoggedSetup:
    """The setup of our own model, from its `lexbench` entry; ConfigError if that is malformed."""
    model, method, backend = (mapping_or_empty(about.get(name)) for name in ("model", "method", "backend"))
    length, trained = whole_number_or_none(about.get("length")), whole_number_or_none(model.get("trained_length"))
    names = [about.get("label"), model.get("name"), *(backend.get(name) for name in ("name", "dtype", "kernel"))]
    attention = mapping_or_empty(about.get("attention"))
    known = length is not None and trained is not None and all(isinstance(name, str) for name in names)
    if not known or not _has_sound_frequencies(attention):
        raise ConfigError(f"results {results.file} have a malformed lexbench entry: run lm_eval again")
    cut: dict[str, int] = {}
    for tasks in mapping_or_empty(about.get("truncated")).values():
        for task, count in mapping_or_empty(tasks).items():
            cut[task] = cut.get(task, 0) + (whole_number_or_none(count) or 0)
    return LoggedSetup(
        model={**model, "name": one_line_model_name(model["name"])},
        method=method,
        key=_own_method_key(about, results),
        attention=attention,
        backend={**backend, **{name: plain_text(backend[name]) for name in ("name", "dtype", "kernel")}},
        length=length,
        limit=length,
        version=one_line_value(about.get("version")),
        cut=cut,
    )


def _has_sound_frequencies(attention: Any) -> bool:
    """Whether frequencies, at any depth, are non-empty lists of numbers: tables read them."""
    parts = attention.items() if isinstance(attention, Mapping) else enumerate(attention)
    return all(
        isinstance(part, list) and len(part) > 0 and all(isinstance(each, int | float) for each in part)
        if name == "inv_freq"
        else not isinstance(part, Mapping | list) or _has_sound_frequencies(part)
        for name, part in parts
    )


def arguments_of(stated: Any) -> Mapping[str, Any]:
    """The model's arguments; older versions write them as one string, `pretrained=gpt2,dtype=float32`."""
    if isinstance(stated, str):
        pairs = [part.partition("=") for part in stated.split(",")]
        return {key.strip(): value for key, equals, value in pairs if equals}
    return mapping_or_empty(stated)


def _without_secrets(value: Any) -> Any:
    """A value to store; a hash of nested values and URLs, which may contain secrets."""
    if isinstance(value, Mapping | list) or "://" in str(value):
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
    return value


def _rotary_arguments(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments that change rotary angles, also those nested in config overrides."""
    for key, value in arguments.items():
        inner = _parse_if_json(value)
        if key in ROTARY_ARGUMENTS and inner:
            yield key, inner
        elif isinstance(inner, Mapping):
            yield from _rotary_arguments(inner)


def _other_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All other arguments, nested ones too."""
    plain_ones = {key: value for key, value in arguments.items() if key not in ROTARY_ARGUMENTS}
    inner = {
        key: _other_arguments(nested) if isinstance(nested := _parse_if_json(value), Mapping) else value
        for key, value in plain_ones.items()
    }
    return {key: value for key, value in inner.items() if value != {}}


def _parse_if_json(value: Any) -> Any:
    """The value, parsed if it is a JSON string."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _method_key(stretched: Mapping[str, Any]) -> MethodKey:
    """`rope(rope_type='yarn', factor=4.0)`; `none` without such arguments."""
    if not stretched:
        return BASELINE_METHOD
    parts: dict[str, Any] = {}
    for key, value in stretched.items():
        parts.update(value if isinstance(value, Mapping) else {key: value})
    shown = {
        plain_text(key): plain_text(value)[:MAX_NAME_CHARACTERS] if isinstance(value, str) else _without_secrets(value)
        for key, value in parts.items()
    }
    return MethodKey.of_method("rope", **shown) if shown else BASELINE_METHOD


def _own_method_key(about: Mapping[str, Any], results: HarnessResults) -> MethodKey:
    """The key of our own model's method; older results hold its label alone."""
    try:
        return read_key(plain_text(about["label"]), about.get("method_key"), about.get("method"))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"results {results.file} have a malformed lexbench entry: run lm_eval again") from None


def one_line_model_name(name: Any) -> str:
    """A model's name in one line: the hub name, or the last part of a folder's path."""
    text = plain_text(name)
    path = text.startswith((".", "/", "~")) or text.count("/") > 1
    return (text.rstrip("/").split("/")[-1] if path else text)[:MAX_NAME_CHARACTERS]


def one_line_value(value: Any, noun: str = "") -> str:
    """A value in one line of at most 80 characters; `not said` if it is empty."""
    return plain_text(value)[:80] if value not in (None, "", "N/A") else f"{noun} not said".strip()

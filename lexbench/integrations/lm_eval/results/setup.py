"""What measured: model, method, backend and lengths, as a results file of lm-evaluation-harness says it."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lexbench.core.version import __version__
from lexbench.integrations.lm_eval.results.files import Results, mapping, whole
from lexbench.stats.wording import plain

NAMES = ("peft", "delta", "pretrained", "model", "path", "engine")
"""Arguments that name a model, in the harness's own order."""
STRETCHES = ("rope_parameters", "rope_scaling", "rope_theta")
"""Arguments by which a model of other backends may be told to rotate otherwise than its config says."""
MOST = 120
"""Characters of a name."""
SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|password|auth\w*|credentials?|headers?)$", re.IGNORECASE)
"""Arguments that are kept nowhere."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What measured all tasks of one results file."""

    model: Mapping[str, Any]
    """Name, revision, trained_length: as in a cell's identity."""
    method: Mapping[str, Any]
    """Name and parameters; the same."""
    label: str
    """Of the method, as tables show it."""
    attention: Mapping[str, Any] | None
    """What the method came to; empty: nothing is changed; None: not said."""
    backend: Mapping[str, Any]
    """Name, version, dtype, kernel, and arguments that may matter."""
    length: int | None
    """Tokens that the method was set to; None: not said."""
    limit: int | None
    """Tokens beyond which prompts lose their first ones; None: not said."""
    version: str
    """Of lexbench: that measured, or of other backends that reads."""
    cut: Mapping[str, int]
    """Requests that lost their first tokens, by task, where that was counted."""


def setup(results: Results, trained_length: int | None) -> Setup:
    """What measured the results.

    Args:
        results: of one evaluation.
        trained_length: tokens; needed where the file does not say it, which only our own model does.

    Raises ValueError where nobody says the trained length.
    """
    config = results.section("config")
    if isinstance(config.get("lexbench"), Mapping):
        return _ours(config["lexbench"], results)
    if trained_length is None:
        raise ValueError(f"results {results.file} do not say the model's trained length: give --trained-length N")
    arguments = arguments_of(config.get("model_args"))
    named_by = next((name for name in NAMES if arguments.get(name)), None)
    stretched = dict(_stretched(arguments))
    dtype = said(config.get("model_dtype") or arguments.get("dtype"), "dtype")
    version = {"lm_eval": said(results.content.get("lm_eval_version"))}
    if config.get("model") == "hf":
        version["transformers"] = said(results.content.get("transformers_version"))
    beside = {key: value for key, value in _rest(arguments).items() if key not in (named_by, "dtype")}
    return Setup(
        model={
            "name": named(arguments[named_by] if named_by else config.get("model")),
            "revision": said(config.get("model_sha") or config.get("model_revision") or arguments.get("revision")),
            "trained_length": trained_length,
        },
        method={"name": "rope" if stretched else "none", **stretched},
        label=_label(stretched),
        attention=None if stretched else {},
        backend={
            "name": f"lm_eval {said(config.get('model'))}",
            "version": version,
            "dtype": dtype.removeprefix("torch."),
            "kernel": said(arguments.get("attn_implementation"), "kernel"),
            "arguments": {key: _public(value) for key, value in beside.items() if not SECRET.search(key)},
        },
        length=None,
        limit=whole(results.content.get("max_length")),
        version=__version__,
        cut={},
    )


def _ours(about: Mapping[str, Any], results: Results) -> Setup:
    """What our own model says of itself; ValueError where it is not what our model writes."""
    model, method, backend = (mapping(about.get(name)) for name in ("model", "method", "backend"))
    length, trained = whole(about.get("length")), whole(model.get("trained_length"))
    names = [about.get("label"), model.get("name"), *(backend.get(name) for name in ("name", "dtype", "kernel"))]
    attention = mapping(about.get("attention"))
    known = length is not None and trained is not None and all(isinstance(name, str) for name in names)
    if not known or not _sound(attention):
        raise ValueError(f"results {results.file} do not say what lexbench measured: run lm_eval again")
    cut: dict[str, int] = {}
    for tasks in mapping(about.get("truncated")).values():
        for task, count in mapping(tasks).items():
            cut[task] = cut.get(task, 0) + (whole(count) or 0)
    return Setup(
        model={**model, "name": named(model["name"])},
        method=method,
        label=plain(about["label"]),
        attention=attention,
        backend={**backend, **{name: plain(backend[name]) for name in ("name", "dtype", "kernel")}},
        length=length,
        limit=length,
        version=said(about.get("version")),
        cut=cut,
    )


def _sound(attention: Any) -> bool:
    """Whether frequencies, at any depth, are lists of numbers: tables show their ends."""
    parts = attention.items() if isinstance(attention, Mapping) else enumerate(attention)
    return all(
        isinstance(part, list) and len(part) > 0 and all(isinstance(each, int | float) for each in part)
        if name == "inv_freq"
        else not isinstance(part, Mapping | list) or _sound(part)
        for name, part in parts
    )


def arguments_of(stated: Any) -> Mapping[str, Any]:
    """The model's arguments, which older versions write as one text, `pretrained=gpt2,dtype=float32`."""
    if isinstance(stated, str):
        pairs = [part.partition("=") for part in stated.split(",")]
        return {key.strip(): value for key, equals, value in pairs if equals}
    return mapping(stated)


def _public(value: Any) -> Any:
    """A plain value; of an address and of what is nested, where keys may stand, a hash."""
    if isinstance(value, Mapping | list) or "://" in str(value):
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
    return value


def _stretched(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the arguments say of rotary angles, also inside overrides of a config."""
    for key, value in arguments.items():
        inner = _decoded(value)
        if key in STRETCHES and inner:
            yield key, inner
        elif isinstance(inner, Mapping):
            yield from _stretched(inner)


def _rest(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without what they say of rotary angles, also inside overrides."""
    plain_ones = {key: value for key, value in arguments.items() if key not in STRETCHES}
    inner = {
        key: _rest(nested) if isinstance(nested := _decoded(value), Mapping) else value
        for key, value in plain_ones.items()
    }
    return {key: value for key, value in inner.items() if value != {}}


def _decoded(value: Any) -> Any:
    """A value that is written as JSON text, as what it says."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _label(stretched: Mapping[str, Any]) -> str:
    """`rope(rope_type=yarn, factor=4.0)`; none where nothing is said."""
    parts: dict[str, Any] = {}
    for key, value in stretched.items():
        parts.update(value if isinstance(value, Mapping) else {key: value})
    return plain(f"rope({', '.join(f'{key}={value}' for key, value in parts.items())})")[:MOST] if parts else "none"


def named(name: Any) -> str:
    """A model's name in one line: as on the hub, or of a folder its last part."""
    text = plain(name)
    path = text.startswith((".", "/", "~")) or text.count("/") > 1
    return (text.rstrip("/").split("/")[-1] if path else text)[:MOST]


def said(value: Any, noun: str = "") -> str:
    """A value in one line of at most 80 characters; of an empty one, that it is not said."""
    return plain(value)[:80] if value not in (None, "", "N/A") else f"{noun} not said".strip()

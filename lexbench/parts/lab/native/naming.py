"""Names of encodings: labels, parts of folder names, and names relative to the folder that a training starts from."""

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.core import objects, registry
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, RotaryEncoding
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import DecoderShape

Spec = Mapping[str, Any]
CLASS_KEYS = ("_target_", "file")
"""Keys of a spec that name its class."""


def encoding_label(spec: Spec, former: bool = False) -> str:
    """`name(parameter=value, ...)` of a resolved spec, with the parameters that differ from the registry's.

    Args:
        spec: resolved.
        former: the label of a time when newer parameters acted as `Encoding.before` says.
    """
    name = _encoding_name(spec)
    usual = build.resolve_spec(name) if name in registry.registered_names("encoding") else {}
    usual |= build.encoding_class(spec).before if former and usual else {}
    changed = []
    for key, value in spec.items():
        if key in CLASS_KEYS or usual.get(key) == value:
            continue
        changed.append(f"{key}={encoding_label(value, former) if key == build.INNER_PARAMETER else value}")
    return f"{name}({', '.join(changed)})" if changed else name


def folder_slug(said: str) -> str:
    """A label as part of a folder name: `kerple(form=power)` becomes kerple-form-power; long ones end in a hash."""
    plain = re.sub(r"[^\w.]+", "-", said).strip("-")
    # File systems end names at 255 bytes, and folders of studies join several.
    return plain if len(plain) <= 80 else f"{plain[:70]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _encoding_name(spec: Spec) -> str:
    return Path(spec["file"]).stem if "file" in spec else str(spec["_target_"]).split(".")[-2]


def continue_spec(given: str | Spec, before: Spec) -> dict[str, Any]:
    """The given encoding, with the parameters of the start's encoding of the same class where none are given.

    After a start trained with base 500000, `rope` keeps that base, also inside `pose`; base=10000 changes it.

    Args:
        given: a name, or `name` and parameters.
        before: resolved spec of the start's encoding.
    """
    config = {"name": given} if isinstance(given, str) else dict(given)
    stated = registry.read_named_config("encoding", config["name"])
    whole = {**stated, **config}
    if kept := _same_class(whole, before):
        return {
            **kept,
            **{
                key: value
                for key, value in config.items()
                if key not in CLASS_KEYS and (key not in stated or value != stated[key])
            },
        }
    if whole.get(build.INNER_PARAMETER) is not None:
        whole[build.INNER_PARAMETER] = continue_spec(whole[build.INNER_PARAMETER], before)
    return whole


def _same_class(config: Spec, before: Spec | None) -> Spec | None:
    """The first spec of the same class, of the start's encoding and the ones inside it."""
    while before is not None:
        if all(config.get(key) == before.get(key) for key in CLASS_KEYS):
            return before
        before = before.get(build.INNER_PARAMETER)
    return None


def check_spec(spec: Spec, setting: str = "encoding") -> None:
    """Check parameters before anything is built: ConfigError for one that an encoding, or an inner one, does not have.

    Also for a rotary base of at most 1, with which all pairs are equally fast.
    """
    cls = build.encoding_class(spec)
    known = [name for name in objects.class_parameters(cls) if name not in build.NETWORK_PARAMETERS]
    for key in spec:
        if key not in known and key not in CLASS_KEYS:
            raise ConfigError(
                f"unknown parameter {setting}.{key}: {_encoding_name(spec)} knows {', '.join(known) or 'none'}"
            )
    base = spec.get("base")
    if issubclass(cls, RotaryEncoding) and isinstance(base, int | float) and not 1 < base < math.inf:
        raise ConfigError(f"{setting}.base must be above 1, got {base:g}: RoPE's is 10000")
    if spec.get(build.INNER_PARAMETER) is not None:
        check_spec(spec[build.INNER_PARAMETER], f"{setting}.{build.INNER_PARAMETER}")


def check_head_size(spec: Spec, shape: DecoderShape) -> None:
    """ConfigError where an encoding, or an inner one, rotates pairs of a head of odd size."""
    if issubclass(build.encoding_class(spec), RotaryEncoding) and shape.head_dim % 2:
        raise ConfigError(
            f"recipe.shape must give {_encoding_name(spec)} heads of an even size, got width={shape.width} of "
            f"heads={shape.heads}, {shape.head_dim} each: change one of the two"
        )
    if spec.get(build.INNER_PARAMETER) is not None:
        check_head_size(spec[build.INNER_PARAMETER], shape)


def depends_on_tokenizer(spec: Spec) -> bool:
    """Whether parameters of an encoding, or of an inner one, depend on the tokenizer."""
    cls = objects.class_of(spec, "encoding")
    assert issubclass(cls, Encoding)
    inner = spec.get(build.INNER_PARAMETER)
    own = cls.resolve_texts.__func__ is not Encoding.resolve_texts.__func__  # type: ignore[attr-defined]
    return own or (inner is not None and depends_on_tokenizer(inner))

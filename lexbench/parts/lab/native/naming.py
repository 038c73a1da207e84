"""Names of encodings: labels, parts of folder names, and names relative to the folder that a training starts from."""

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.core import registry
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding, Rotary
from lexbench.parts.lab.native import build
from lexbench.parts.lab.native.decoder import Shape

Spec = Mapping[str, Any]
CLASS = ("_target_", "file")
"""Keys of a spec that name its class."""


def label(spec: Spec) -> str:
    """`name(parameter=value, ...)` of a resolved spec, with the parameters that differ from the registry's."""
    name = _name(spec)
    usual = build.resolved(name) if name in registry.names("encoding") else {}
    changed = []
    for key, value in spec.items():
        if key in CLASS or usual.get(key) == value:
            continue
        changed.append(f"{key}={label(value) if key == build.INNER else value}")
    return f"{name}({', '.join(changed)})" if changed else name


def slug(said: str) -> str:
    """A label as part of a folder name: `kerple(form=power)` becomes kerple-form-power; long ones end in a hash."""
    plain = re.sub(r"[^\w.]+", "-", said).strip("-")
    # File systems end names at 255 bytes, and folders of studies join several.
    return plain if len(plain) <= 80 else f"{plain[:70]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _name(spec: Spec) -> str:
    return Path(spec["file"]).stem if "file" in spec else str(spec["_target_"]).split(".")[-2]


def continued(given: str | Spec, before: Spec) -> dict[str, Any]:
    """The given encoding, with the parameters of the start's encoding of the same class where none are given.

    After a start trained with base 500000, `rope` keeps that base, also inside `pose`; base=10000 changes it.

    Args:
        given: a name, or `name` and parameters.
        before: resolved spec of the start's encoding.
    """
    config = {"name": given} if isinstance(given, str) else dict(given)
    stated = registry.read("encoding", config["name"])
    whole = {**stated, **config}
    if kept := _same_class(whole, before):
        return {
            **kept,
            **{key: value for key, value in config.items() if key not in CLASS and value != stated.get(key)},
        }
    if whole.get(build.INNER) is not None:
        whole[build.INNER] = continued(whole[build.INNER], before)
    return whole


def _same_class(config: Spec, before: Spec | None) -> Spec | None:
    """The first spec of the same class, of the start's encoding and the ones inside it."""
    while before is not None:
        if all(config.get(key) == before.get(key) for key in CLASS):
            return before
        before = before.get(build.INNER)
    return None


def check(spec: Spec, setting: str = "encoding") -> None:
    """Check parameters before anything is built: ConfigError for one that an encoding, or an inner one, does not have.

    Also for a rotary base of at most 1, with which all pairs are equally fast.
    """
    cls = build.class_of(spec)
    known = [name for name in registry.parameters(cls) if name not in build.OF_NETWORK]
    for key in spec:
        if key not in known and key not in CLASS:
            raise ConfigError(f"unknown parameter {setting}.{key}: {_name(spec)} knows {', '.join(known) or 'none'}")
    base = spec.get("base")
    if issubclass(cls, Rotary) and isinstance(base, int | float) and not 1 < base < math.inf:
        raise ConfigError(f"{setting}.base must be above 1, got {base:g}: RoPE's is 10000")
    if spec.get(build.INNER) is not None:
        check(spec[build.INNER], f"{setting}.{build.INNER}")


def check_heads(spec: Spec, shape: Shape) -> None:
    """ConfigError where an encoding, or an inner one, rotates pairs of a head of odd size."""
    if issubclass(build.class_of(spec), Rotary) and shape.head_dim % 2:
        raise ConfigError(
            f"recipe.shape must give {_name(spec)} heads of an even size, got width={shape.width} of "
            f"heads={shape.heads}, {shape.head_dim} each: change one of the two"
        )
    if spec.get(build.INNER) is not None:
        check_heads(spec[build.INNER], shape)


def speaks_of_text(spec: Spec) -> bool:
    """Whether parameters of an encoding, or of an inner one, depend on the tokenizer."""
    cls = registry.class_of(spec, "encoding")
    assert issubclass(cls, Encoding)
    inner = spec.get(build.INNER)
    own = cls.settled.__func__ is not Encoding.settled.__func__  # type: ignore[attr-defined]
    return own or (inner is not None and speaks_of_text(inner))

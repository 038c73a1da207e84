"""What an encoding is called, and what a name means where a training goes on from a trained folder."""

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench.core import registry
from lexbench.encodings.base import Encoding, Rotary
from lexbench.native import build
from lexbench.native.decoder import Shape

Spec = Mapping[str, Any]
CLASS = ("_target_", "file")
"""How a spec says its class."""


def label(spec: Spec) -> str:
    """`name(parameter=value, ...)` with every parameter that is not the registry's, of what `build.resolved` gave."""
    name = _name(spec)
    usual = build.resolved(name) if name in registry.names("encoding") else {}
    changed = []
    for key, value in spec.items():
        if key in CLASS or usual.get(key) == value:
            continue
        changed.append(f"{key}={label(value) if key == build.INNER else value}")
    return f"{name}({', '.join(changed)})" if changed else name


def slug(said: str) -> str:
    """A label as a part of a folder's name: `kerple(form=power)` is kerple-form-power; long ones end in a hash."""
    plain = re.sub(r"[^\w.]+", "-", said).strip("-")
    return plain if len(plain) <= 80 else f"{plain[:70]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _name(spec: Spec) -> str:
    return Path(spec["file"]).stem if "file" in spec else str(spec["_target_"]).split(".")[-2]


def continued(given: str | Spec, before: Spec) -> dict[str, Any]:
    """An encoding as given, where it is the start's with the start's parameters, but for those given.

    `rope` over a folder trained with base 500000 keeps that base, also inside `pose`; base=10000 changes it.

    Args:
        given: a name, or `name` and parameters.
        before: the start's, resolved.
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
    """The spec of the same class among the start's and those inside it."""
    while before is not None:
        if all(config.get(key) == before.get(key) for key in CLASS):
            return before
        before = before.get(build.INNER)
    return None


def check(spec: Spec, setting: str = "encoding") -> None:
    """ValueError for a parameter that an encoding, or one inside it, does not know; before anything is built.

    Also for a base of rotations up to 1, with which no pair is slower than another.
    """
    cls = build.class_of(spec)
    known = registry.parameters(cls)
    for key in spec:
        if key not in known and key not in CLASS:
            raise ValueError(f"unknown parameter {setting}.{key}: {_name(spec)} knows {', '.join(known) or 'none'}")
    base = spec.get("base")
    if issubclass(cls, Rotary) and isinstance(base, int | float) and not 1 < base < math.inf:
        raise ValueError(f"{setting}.base must be above 1, got {base:g}: RoPE's is 10000")
    if spec.get(build.INNER) is not None:
        check(spec[build.INNER], f"{setting}.{build.INNER}")


def check_heads(spec: Spec, shape: Shape) -> None:
    """ValueError where an encoding, or one inside it, turns pairs of a head that has an odd size."""
    if issubclass(build.class_of(spec), Rotary) and shape.head_dim % 2:
        raise ValueError(
            f"recipe.shape must give {_name(spec)} heads of an even size, got width={shape.width} of "
            f"heads={shape.heads}, {shape.head_dim} each: change one of the two"
        )
    if spec.get(build.INNER) is not None:
        check_heads(spec[build.INNER], shape)


def speaks_of_text(spec: Spec) -> bool:
    """Whether parameters of an encoding, or of one inside it, are settled by a tokenizer."""
    cls = registry.class_of(spec, "encoding")
    assert issubclass(cls, Encoding)
    inner = spec.get(build.INNER)
    own = cls.settled.__func__ is not Encoding.settled.__func__  # type: ignore[attr-defined]
    return own or (inner is not None and speaks_of_text(inner))

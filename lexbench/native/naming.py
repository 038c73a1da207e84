"""What an encoding is called, and what a name means where a training goes on from a trained folder."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexbench import assets
from lexbench.encodings import Encoding
from lexbench.native import build

Spec = Mapping[str, Any]
CLASS = ("_target_", "file")
"""How a spec says its class."""


def label(spec: Spec) -> str:
    """`name(parameter=value, ...)` with every parameter that is not the registry's, of what `build.resolved` gave."""
    name = _name(spec)
    usual = build.resolved(name) if name in assets.names("encoding") else {}
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
    stated = assets.read("encoding", config["name"])
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


def check(spec: Spec) -> None:
    """ValueError for a parameter that an encoding, or one inside it, does not know; before anything is built."""
    known = assets.parameters(assets.class_of(spec, "encoding"))
    for key in spec:
        if key not in known and key not in CLASS:
            raise ValueError(f"unknown parameter encoding.{key}: {_name(spec)} knows {', '.join(known) or 'none'}")
    if spec.get(build.INNER) is not None:
        check(spec[build.INNER])


def speaks_of_text(spec: Spec) -> bool:
    """Whether parameters of an encoding, or of one inside it, are settled by a tokenizer."""
    cls = assets.class_of(spec, "encoding")
    assert issubclass(cls, Encoding)
    inner = spec.get(build.INNER)
    own = cls.settled.__func__ is not Encoding.settled.__func__  # type: ignore[attr-defined]
    return own or (inner is not None and speaks_of_text(inner))

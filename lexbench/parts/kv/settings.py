"""The compressed caches that `lexbench kv` compares, as methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lexbench.core.errors import ConfigError
from lexbench.methods.composition import method_config
from lexbench.parts.kv.compressor import USUAL_COMPRESSOR, compressor_names


def default_settings() -> list[str]:
    """Settings that are compared where none are asked for: bits, formats, and half of the tokens by each compressor."""
    chosen = [f"keep=0.5,by={name}" for name in compressor_names() if name != USUAL_COMPRESSOR]
    return [*ROUNDING_SETTINGS, "keep=0.5", *chosen, "bits=4,keep=0.5,by=snapkv"]


ROUNDING_SETTINGS = (
    *("bits=8", "bits=4", "bits=3", "bits=2", "bits=4,rotate=hadamard", "bits=2,rotate=hadamard"),
    *("format=fp8", "format=q8_0", "format=q4_0"),
)


def compress_method(base: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """The config of a method of positions with a compressed cache; of `none` the cache alone.

    Args:
        base: config of one method with its name, which may combine several.
        setting: parameters of `kv`: `bits=4,rotate=hadamard`.
    """
    given: dict[str, Any] = {}
    for word in setting.split(","):
        name, equals, value = word.partition("=")
        if not (equals and name and value):
            raise ConfigError(f"--settings must be parameters of kv, got {setting!r}: e.g. bits=4,rotate=hadamard")
        given[name] = yaml.safe_load(value)
    own = {"name": "kv", **given}
    if base["name"] == "none":
        return method_config(own)
    before = base["compose"] if "compose" in base else [dict(base)]
    return method_config({"compose": [*before, own]})


def methods(base: Mapping[str, Any], settings: Sequence[str]) -> list[dict[str, Any]]:
    """The method with each setting."""
    return [compress_method(base, setting) for setting in settings]

"""Encodings from what configs say of them, inner ones first, one for each layer where layers have their own."""

import inspect
from collections.abc import Mapping
from typing import Any

from lexbench import assets
from lexbench.encodings import Encoding, Layered
from lexbench.native.decoder import Shape
from lexbench.task import Tokenizer

INNER = "over"
"""The parameter that takes another encoding: a name, or {name: alibi, ...parameters}."""


def encoding(spec: str | Mapping[str, Any], shape: Shape, trained_length: int) -> Encoding:
    """The encoding of a decoder; ValueError for an unknown name or parameter, and whatever its class raises."""
    sizes = {
        "head_dim": shape.head_dim,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "width": shape.width,
        "layers": shape.layers,
        "vocabulary": shape.vocabulary,
        "trained_length": trained_length,
    }
    config = resolved(spec)
    one = _built(config, sizes)
    return one if one.shared else Layered([one, *(_built(config, sizes) for _ in range(shape.layers - 1))])


def resolved(spec: str | Mapping[str, Any], tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The class and every parameter, defaults included, as plain data: what another version needs to rebuild it.

    A tokenizer settles parameters that speak of text.
    """
    given = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = given.pop("name", None)
    config = {**(assets.read("encoding", name) if name else {}), **given}
    if config.get(INNER) is not None:
        config[INNER] = resolved(config[INNER], tokenizer)
    cls = assets.class_of(config, "encoding")
    assert issubclass(cls, Encoding), f"{cls.__name__} is no Encoding"
    signature = inspect.signature(cls)
    usual = {key: p.default for key, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
    config = {**usual, **config}
    return config if tokenizer is None else dict(cls.settled(config, tokenizer))


def _built(config: Mapping[str, Any], sizes: Mapping[str, int]) -> Encoding:
    inner = config.get(INNER)
    own = {key: value for key, value in config.items() if key != INNER or inner is None}
    inserted: dict[str, Any] = dict(sizes) if inner is None else {**sizes, INNER: _built(inner, sizes)}
    built = assets.build(own, "encoding", **inserted)
    assert isinstance(built, Encoding)
    return built

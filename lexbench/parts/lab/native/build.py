"""Build encodings from their configs: inner ones first, one for each layer where layers do not share it."""

import inspect
from collections.abc import Mapping
from typing import Any

from lexbench.core import objects, registry
from lexbench.core.moved_classes import present_path
from lexbench.core.task import Tokenizer
from lexbench.parts.lab.encodings.base import WEIGHT_DEVIATION, Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingPerLayer
from lexbench.parts.lab.native.decoder import DecoderShape

INNER_PARAMETER = "over"
"""The parameter that takes another encoding: a name, or {name: alibi, ...parameters}."""
NETWORK_PARAMETERS = ("head_dim", "heads", "kv_heads", "width", "layers", "vocabulary")
"""Parameters that follow from the sizes of the network, and cannot be set."""
PINNED_PARAMETERS = ("deviation",)
"""Parameters whose value is the training's where a spec does not state them."""


def build_encoding(spec: str | Mapping[str, Any], shape: DecoderShape, trained_length: int) -> Encoding:
    """The encoding of a decoder; ConfigError for an unknown name or parameter, and whatever its class raises."""
    sizes = {
        "head_dim": shape.head_dim,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "width": shape.width,
        "layers": shape.layers,
        "vocabulary": shape.vocabulary,
        "trained_length": trained_length,
    }
    return _build_for_layers(resolve_spec(spec), sizes)


def resolve_spec(spec: str | Mapping[str, Any], tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The class and every parameter, defaults included, as plain data, so that another version can rebuild it.

    With a tokenizer, texts among the parameters become token ids.
    """
    given = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = given.pop("name", None)
    config = {**(registry.read_named_config("encoding", name) if name else {}), **given}
    if config.get(INNER_PARAMETER) is not None:
        config[INNER_PARAMETER] = resolve_spec(config[INNER_PARAMETER], tokenizer)
    cls = encoding_class(config)
    signature = inspect.signature(cls)
    known = {key: p.default for key, p in signature.parameters.items() if key not in PINNED_PARAMETERS}
    usual = {key: value for key, value in known.items() if value is not inspect.Parameter.empty}
    config = {**usual, **config}
    return config if tokenizer is None else dict(cls.resolve_texts(config, tokenizer))


def pin_parameters(
    config: Mapping[str, Any], trained_length: int, deviation: float = WEIGHT_DEVIATION
) -> dict[str, Any]:
    """A resolved config that states its trained_length and the deviation of initial token embeddings.

    Its rules keep both where a later training has others.
    """
    known = objects.class_parameters(encoding_class(config))
    states = {"trained_length": trained_length, "deviation": deviation}
    own = {key: value for key, value in states.items() if key in known and key not in config}
    inner = (
        {INNER_PARAMETER: pin_parameters(config[INNER_PARAMETER], trained_length, deviation)}
        if config.get(INNER_PARAMETER) is not None
        else {}
    )
    return {**config, **own, **inner}


def update_stored_spec(config: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a trained folder, as today's version would write it.

    The class gets its present path, and a parameter that is newer than the folder the value that acts as before.
    """
    inner = (
        {INNER_PARAMETER: update_stored_spec(config[INNER_PARAMETER])}
        if config.get(INNER_PARAMETER) is not None
        else {}
    )
    present = {**config, **inner}
    if "_target_" in config:
        present["_target_"] = present_path(str(config["_target_"]))
    return {**encoding_class(present).before, **present}


def state_newer_parameters(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec by name that states its newer parameters, so that a later version knows which default it had."""
    whole = resolve_spec(spec)
    return {**spec, **{name: whole[name] for name in encoding_class(whole).before}}


def build_stated_encoding(spec: Mapping[str, Any], shape: DecoderShape, trained_length: int) -> Encoding:
    """The encoding of a stored spec by name, whose newer parameters act as before where it does not state them."""
    return build_encoding({**encoding_class(resolve_spec(spec)).before, **spec}, shape, trained_length)


def _build_for_layers(config: Mapping[str, Any], sizes: Mapping[str, int]) -> Encoding:
    """Build one encoding for all layers, or one for each; its inner encoding, too."""
    inner = _build_for_layers(config[INNER_PARAMETER], sizes) if config.get(INNER_PARAMETER) is not None else None
    if encoding_class(config).shared:
        return _build_one(config, sizes, inner)
    within = [inner.of(layer) if isinstance(inner, EncodingPerLayer) else inner for layer in range(sizes["layers"])]
    return EncodingPerLayer([_build_one(config, sizes, each) for each in within])


def _build_one(config: Mapping[str, Any], sizes: Mapping[str, int], inner: Encoding | None) -> Encoding:
    own = {key: value for key, value in config.items() if key != INNER_PARAMETER or inner is None}
    built = objects.build_object(
        own, "encoding", **(dict(sizes) if inner is None else {**sizes, INNER_PARAMETER: inner})
    )
    assert isinstance(built, Encoding)
    return built


def encoding_class(config: Mapping[str, Any]) -> type[Encoding]:
    """The encoding's class."""
    cls = objects.class_of(config, "encoding")
    assert issubclass(cls, Encoding), f"{cls.__name__} is no Encoding"
    return cls

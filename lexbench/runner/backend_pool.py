"""Open and close backends; the jobs of a sweep share one and its tokenizer, so that these are loaded once."""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from lexbench.backends import Backend
from lexbench.checkpoints.checkpoint import folder_of, modified
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.model import Model
from lexbench.core.task import Tokenizer


@dataclass
class Shared:
    """The backend that jobs share, and what it was opened for; and the tokenizers, by what they were loaded for."""

    key: str = ""
    longest: int = 0
    backend: Backend | None = None
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)


_shared: Shared | None = None


def opened(model: Model, config: Mapping[str, Any], longest: int) -> Backend:
    """The backend of a config, with the model loaded, for questions of at most `longest` tokens.

    Within `sharing`, the one that the job before had, where it is the same and no file of the model has changed. One
    that is told the longest question serves shorter ones, too; not where a model scales its angles itself, which may
    follow that length.
    """
    if _shared is None:
        return _built(model, config, longest)
    files = modified(folder_of(model, weights=False))
    key = json.dumps([asdict(model), dict(config), files], sort_keys=True, default=str)
    told = "longest" in registry.parameters(registry.checked(config, "backend"))
    fits = longest == _shared.longest or (longest < _shared.longest and model.rope_scaling is None) or not told
    if _shared.backend is None or _shared.key != key or not fits:
        # The old model goes first: memory may not hold both.
        before, _shared.backend = _shared.backend, None
        _end(before)
        del before
        gc.collect()  # some layers refer to themselves
        _shared.backend = _built(model, config, longest)
        _shared.key, _shared.longest = key, longest
    return _shared.backend


def tokenizer_of(model: Model, config: Mapping[str, Any] | None = None) -> Tokenizer:
    """The checkpoint's tokenizer; for a chat backend as it counts and frames questions.

    Within `sharing`, one and the same for all jobs that ask alike: questions are made once for each tokenizer.
    """
    folder = folder_of(model, weights=False)
    chat = config if config is not None and config.get("chat") else None
    key = json.dumps([str(folder), model.bos, chat, modified(folder)], sort_keys=True, default=str)
    known = {} if _shared is None else _shared.tokenizers
    if key not in known:
        tokenizer: Tokenizer = load_tokenizer(folder, model.bos)
        if chat is not None:
            tokenizer = registry.checked(chat, "backend").as_chat(tokenizer, chat)  # type: ignore[attr-defined]
        known[key] = tokenizer
    return known[key]


def done_with(backend: Backend) -> None:
    """Close the backend of a finished job, unless another job may share it."""
    if _shared is None or _shared.backend is not backend:
        _end(backend)


@contextmanager
def using(model: Model, config: Mapping[str, Any], longest: int) -> Iterator[Backend]:
    """The backend of a config for one job, which is done with it at the end of the block."""
    backend = opened(model, config, longest)
    try:
        yield backend
    finally:
        done_with(backend)


@contextmanager
def sharing() -> Iterator[None]:
    """Jobs inside that ask for the same backend of the same model get one and the same; it ends with the block."""
    global _shared
    before, _shared = _shared, Shared()
    try:
        yield
    finally:
        last, _shared = _shared.backend, before
        _end(last)


def _built(model: Model, config: Mapping[str, Any], longest: int) -> Backend:
    backend: Backend = registry.build(config, "backend", model=model, longest=longest)
    return backend


def _end(backend: Backend | None) -> None:
    if close := getattr(backend, "close", None):
        close()

"""Open and close backends; the jobs of a sweep share one and its tokenizer, so that these are loaded once."""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from lexbench.backends import Backend
from lexbench.checkpoints.checkpoint import file_timestamps, folder_of
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import objects
from lexbench.core.model import Model
from lexbench.core.task import Tokenizer


@dataclass
class SharedBackend:
    """The backend that jobs share, and what it was opened for; and the tokenizers, by what they were loaded for."""

    key: str = ""
    longest: int = 0
    backend: Backend | None = None
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)


_shared: SharedBackend | None = None


def open_backend(model: Model, config: Mapping[str, Any], longest: int) -> Backend:
    """The backend of a config, with the model loaded, for questions of at most `longest` tokens.

    Within `share_backends`, the one that the job before had, where it is the same and no file of the model has changed.
    One that is told the longest question serves shorter ones, too; not where a model scales its angles itself, which
    may follow that length.
    """
    if _shared is None:
        return _build_backend(model, config, longest)
    files = file_timestamps(folder_of(model, weights=False))
    key = json.dumps([asdict(model), dict(config), files], sort_keys=True, default=str)
    told = "longest" in objects.class_parameters(objects.checked_class(config, "backend"))
    fits = longest == _shared.longest or (longest < _shared.longest and model.rope_scaling is None) or not told
    if _shared.backend is None or _shared.key != key or not fits:
        # The old model goes first: memory may not hold both.
        before, _shared.backend = _shared.backend, None
        _close_backend(before)
        del before
        gc.collect()  # some layers refer to themselves
        _shared.backend = _build_backend(model, config, longest)
        _shared.key, _shared.longest = key, longest
    return _shared.backend


def tokenizer_of(model: Model, config: Mapping[str, Any] | None = None) -> Tokenizer:
    """The checkpoint's tokenizer; for a chat backend as it counts and frames questions.

    Within `share_backends`, one and the same for all jobs that ask alike: questions are made once for each tokenizer.
    """
    folder = folder_of(model, weights=False)
    chat = config if config is not None and config.get("chat") else None
    key = json.dumps([str(folder), model.bos, chat, file_timestamps(folder)], sort_keys=True, default=str)
    known = {} if _shared is None else _shared.tokenizers
    if key not in known:
        tokenizer: Tokenizer = load_tokenizer(folder, model.bos)
        if chat is not None:
            tokenizer = objects.checked_class(chat, "backend").as_chat(tokenizer, chat)  # type: ignore[attr-defined]
        known[key] = tokenizer
    return known[key]


def release_backend(backend: Backend) -> None:
    """Close the backend of a finished job, unless another job may share it."""
    if _shared is None or _shared.backend is not backend:
        _close_backend(backend)


@contextmanager
def backend_for_job(model: Model, config: Mapping[str, Any], longest: int) -> Iterator[Backend]:
    """The backend of a config for one job, which is done with it at the end of the block."""
    backend = open_backend(model, config, longest)
    try:
        yield backend
    finally:
        release_backend(backend)


@contextmanager
def share_backends() -> Iterator[None]:
    """Jobs inside that ask for the same backend of the same model get one and the same; it ends with the block."""
    global _shared
    before, _shared = _shared, SharedBackend()
    try:
        yield
    finally:
        last, _shared = _shared.backend, before
        _close_backend(last)


def _build_backend(model: Model, config: Mapping[str, Any], longest: int) -> Backend:
    backend: Backend = objects.build_object(config, "backend", model=model, longest=longest)
    return backend


def _close_backend(backend: Backend | None) -> None:
    if close := getattr(backend, "close", None):
        close()

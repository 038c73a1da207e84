"""What a question asks, as a short hash that its sample keeps: answers to other questions are not taken for its own."""

import hashlib
import json
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from lexbench.core.task import AnyQuestion

UNASKED_FIELDS = ("index", "cluster", "facts", "floors", "bytes", "words", "answer", "guess", "chance", "shortcut")
"""Fields for scoring and for readers, which a model does not see; a sample holds them itself, or what follows."""


def question_hash(question: AnyQuestion) -> str:
    """Hash of a question's kind and of all that a model is given: tokens, options, places, stop texts, limits.

    A field that has its default is left out, so that a later field changes no hash.
    """
    found = hashlib.sha256(type(question).__name__.encode())
    for each in fields(question):
        value = getattr(question, each.name)
        if each.name in UNASKED_FIELDS or (each.default is not MISSING and _is_default(value, each.default)):
            continue
        found.update(b"\0" + each.name.encode() + b"\0")
        _add(found, value)
    return found.hexdigest()[:16]


def _is_default(value: Any, default: Any) -> bool:
    return not isinstance(value, np.ndarray) and bool(value == default)


def _add(found: Any, value: Any) -> None:
    """Add a value to a hash: arrays as whole numbers of 8 bytes, the same on every processor."""
    if isinstance(value, np.ndarray):
        found.update(str(value.shape).encode() + value.astype("<i8").tobytes())
    elif isinstance(value, tuple) and any(isinstance(each, np.ndarray) for each in value):
        found.update(f"({len(value)})".encode())
        for each in value:
            _add(found, each)
    else:
        found.update(json.dumps(value, sort_keys=True, default=str).encode())

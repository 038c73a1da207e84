"""Old names of lexbench 0.1. They work until 0.3, with a warning."""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

_ATTENTION = ("Blocks", "Chunks", "Dynamic", "HeadRatios", "Line", "LogScale", "Remap", "Slopes", "Stairs", "Window")
_PERPLEXITY = ("AVERAGING", "DocumentTask", "EncodedCorpus", "bos_policy", "encoded_corpus", "place_of")
_SCORING = ("score_choice", "score_likelihood", "score_marks", "score_written")

NAMES: Mapping[str, str] = {
    **{name: f"lexbench.core.attention:{name}" for name in _ATTENTION},
    **{name: f"lexbench.taskkit.perplexity:{name}" for name in _PERPLEXITY},
    **{name: f"lexbench.taskkit.scoring:{name}" for name in _SCORING},
    "single_tokens": "lexbench.taskkit.sampling:single_tokens",
    "draw": "lexbench.taskkit.sampling",
    "haystack": "lexbench.taskkit.haystack",
    "keys": "lexbench.taskkit.key_tokens",
    "longbench": "lexbench.taskkit.longbench",
    "official_qa": "lexbench.taskkit.squad_hotpot",
    "scoring": "lexbench.taskkit.matching",
}
"""Old name under `lexbench` -> its module, or module:name."""


def find(name: str) -> Any:
    """The object of an old name; AttributeError for an unknown name."""
    if name not in NAMES:
        raise AttributeError(f"module 'lexbench' has no attribute {name!r}")
    module, _, attribute = NAMES[name].partition(":")
    place = f"from {module} import {attribute}" if attribute else f"import {module}"
    warnings.warn(f"lexbench.{name} has moved, and goes in 0.3: {place}", DeprecationWarning, stacklevel=3)
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found

"""Key tokens: those that only a long context makes predictable, as an evaluator model found them once: their file.

LongPPL (Fang et al. 2024, arXiv 2410.23771) takes the perplexity of the tokens i for which, under the evaluator,

    NLL(i | short context) - NLL(i | all tokens before) > gain = 2 nats    and    NLL(i | all before) < loss = 2 nats

A short context is the `short` tokens or more in front of i, shared by `window` tokens that follow one another:

    short 4, window 2          a b c d e f g h i j
    first window               a b c d[e f]             begins where the text begins: nothing is cut off, no keys
    second window                  c d e f[g h]         g is given c d e f, h one token more
    third window                       e f g h[i j]

The file holds the characters of the key tokens, so that models of any tokenizer are measured on the same ones: a token
of another tokenizer is a key token where it shares a character with one of the evaluator's, blanks at its ends left
out. (The paper's code takes only tokens that lie wholly inside, and so none where the tokens are larger.)
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexbench.core.model import Model
from lexbench.core.task import Encoded

FORMAT = 1
MAKE = "make one by `lexbench keys model=EVALUATOR corpus=CORPUS out=FILE`"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What makes a token a key token; lengths in the evaluator's tokens.

    Args:
        longest: read of a document, BOS counted.
        short: tokens of a short context, at the least.
        window: tokens that share one.
        gain: nats, at the least, by which the whole context is better than the short one; the paper's alpha.
        loss: nats, at the most, given the whole context; the paper's -beta.
    """

    longest: int
    short: int
    window: int
    gain: float = 2.0
    loss: float = 2.0

    @classmethod
    def of(cls, model: Model, longest: int | None, short: int | None, window: int | None, **nats: float) -> "Rule":
        """The paper's lengths where none is given, scaled down for an evaluator trained on fewer than 32768 tokens.

        32768 tokens of a document, an eighth of them a short context, a quarter of that a window: 4096 and 1024.
        """
        for name, value in (("longest", longest), ("short", short), ("window", window)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ValueError(f"keys' {name} must be a whole number of tokens, got {value!r}")
        longest = min(32768, model.trained_length) if longest is None else longest
        short = max(1, longest // 8) if short is None else short
        window = max(1, short // 4) if window is None else window
        return cls(longest=longest, short=short, window=window, **nats)

    def __post_init__(self) -> None:
        for name in ("short", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"keys' {name} must be at least 1, got {getattr(self, name)}")
        if self.longest <= self.short + self.window:
            raise ValueError(
                f"keys' longest must be above short + window = {self.short + self.window}, got {self.longest}: "
                "only then is a context cut off"
            )
        if not all(isinstance(nats, Real) for nats in (self.gain, self.loss)) or self.gain < 0 or self.loss <= 0:
            raise ValueError(f"keys' gain must be at least 0 and loss above 0, got {self.gain} and {self.loss}: nats")


@dataclass(frozen=True, eq=False)
class KeyTokens:
    """A file of key tokens as it was read."""

    evaluator: str
    """Model and method."""
    rule: Rule
    corpus: str
    """Fingerprint of the texts."""
    spans: Mapping[str, NDArray[np.int64]]
    """Document name -> [keys, 2] first character, and the one behind the last."""
    ends: Mapping[str, int]
    """Document name -> characters that the evaluator has read of it: behind them no token can be key."""
    tokens: int
    """Of the evaluator, read in all documents."""
    hash: str
    """Of the file."""

    @property
    def count(self) -> int:
        """Key tokens of the evaluator, in all documents."""
        return sum(map(len, self.spans.values()))


def read(file: str | Path) -> KeyTokens:
    """A file of key tokens; ValueError where there is none, or something else."""
    try:
        return _parsed(Path(file).expanduser().read_bytes(), str(file))
    except OSError as error:
        raise ValueError(f"key tokens {file} cannot be read ({error.strerror}): {MAKE}") from None


@functools.lru_cache(maxsize=2)
def _parsed(content: bytes, file: str) -> KeyTokens:
    try:
        header, *rows = [json.loads(line) for line in content.splitlines()]
        if header["key_tokens"] != FORMAT or header["documents"] != len(rows):
            raise ValueError
        spans = {row["document"]: np.asarray(row["spans"], np.int64).reshape(-1, 2) for row in rows}
        ends = {row["document"]: int(row["end"]) for row in rows}
        tokens = sum(row["tokens"] for row in rows)
        evaluator = f"{header['evaluator']['model']}, {header['evaluator']['method']}"
        rule, corpus = Rule(**header["rule"]), header["corpus"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError(f"{file} is no whole file of key tokens of format {FORMAT}: {MAKE}") from None
    return KeyTokens(evaluator, rule, corpus, spans, ends, tokens, hashlib.sha256(content).hexdigest()[:12])


def tokens_within(encoded: Encoded, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending places of the tokens that share a character with one of the spans, [spans, 2]."""
    inside = np.zeros(len(encoded.text) + 1, np.int64)
    for first, end in spans.tolist():
        inside[first:end] = 1
    before = np.concatenate([[0], np.cumsum(inside)])
    firsts, ends = _extents(encoded)
    return np.flatnonzero(before[ends] > before[firsts])


def spans_of(encoded: Encoded, places: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Characters of tokens: (first, behind the last), without blanks at the ends unless there is nothing else."""
    firsts, ends = _extents(encoded)
    spans = []
    for first, end in zip(firsts[places].tolist(), ends[places].tolist(), strict=True):
        text = encoded.text[first:end]
        if text.strip():
            first, end = first + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        spans.append((first, end))
    return spans


def _extents(encoded: Encoded) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First character, and the one behind the last, of each token; further pieces of one character all have it."""
    ends = np.append(encoded.starts[1:], len(encoded.text))
    return np.maximum(np.minimum(encoded.starts, ends - 1), 0), ends

"""The file of key tokens: tokens that only a long context makes predictable, found once by an evaluator model.

LongPPL (Fang et al. 2024, arXiv 2410.23771) is the perplexity of the tokens i for which, under the evaluator,

    NLL(i | short context) - NLL(i | all tokens before) > gain = 2 nats    and    NLL(i | all before) < loss = 2 nats

A short context has at least `short` tokens before i; `window` consecutive tokens share its start:

    short 4, window 2          a b c d e f g h i j
    first window               a b c d[e f]             starts with the text, so nothing is cut off: no key tokens
    second window                  c d e f[g h]         g is given c d e f, h one token more
    third window                       e f g h[i j]

The file holds the characters of the key tokens, so models with any tokenizer are measured on the same key tokens: a
token of another tokenizer is a key token if it shares a character with one of the evaluator's, without blanks at the
ends. (The paper's code takes only tokens that lie entirely inside, and so none if the tokens are larger.)
"""

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lexbench.core.errors import ConfigError
from lexbench.core.model import Model
from lexbench.core.task import Encoded

FILE_FORMAT_VERSION = 1
MAKE_FILE_REMEDY = "make one by `lexbench keys model=EVALUATOR corpus=CORPUS out=FILE`"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Thresholds of a key token; lengths in the evaluator's tokens.

    Args:
        longest: tokens read of a document, with BOS.
        short: least tokens of a short context.
        window: tokens that share the start of a short context.
        gain: the NLL falls by more than this from the short to the whole context, nats; the paper's alpha.
        loss: the NLL given the whole context is below this, nats; the paper's -beta.
    """

    longest: int
    short: int
    window: int
    gain: float = 2.0
    loss: float = 2.0

    @classmethod
    def of(cls, model: Model, longest: int | None, short: int | None, window: int | None, **nats: float) -> "Rule":
        """A rule with the paper's lengths as defaults, scaled down for an evaluator trained on fewer tokens.

        The paper reads 32768 tokens of a document; `short` is an eighth of that (4096), `window` a quarter of `short`
        (1024).
        """
        for name, value, usual in (("longest", longest, 8192), ("short", short, 1024), ("window", window, 256)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigError(f"keys' {name} must be a whole number of tokens, got {value!r}: e.g. {name}={usual}")
        longest = min(32768, model.trained_length) if longest is None else longest
        short = max(1, longest // 8) if short is None else short
        window = max(1, short // 4) if window is None else window
        return cls(longest=longest, short=short, window=window, **nats)

    def __post_init__(self) -> None:
        for name in ("short", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"keys' {name} must be at least 1, got {getattr(self, name)}: leave it out for a share of longest"
                )
        if self.longest <= self.short + self.window:
            raise ConfigError(
                f"keys' longest must be above short + window = {self.short + self.window}, got {self.longest}: "
                "raise longest, or no context is cut off"
            )
        finite = all(isinstance(nats, Real) and math.isfinite(nats) for nats in (self.gain, self.loss))
        if not finite or self.gain < 0 or self.loss <= 0:
            raise ConfigError(f"keys' gain must be at least 0 and loss above 0, got {self.gain} and {self.loss}: nats")


@dataclass(frozen=True, eq=False)
class KeyTokens:
    """The content of a file of key tokens."""

    evaluator: str
    """Model and method."""
    rule: Rule
    corpus: str
    """Fingerprint of the texts."""
    spans: Mapping[str, NDArray[np.int64]]
    """Document name -> [keys, 2] first character, and the character behind the last."""
    ends: Mapping[str, int]
    """Document name -> characters read by the evaluator; no key tokens are behind them."""
    tokens: int
    """Tokens read by the evaluator in all documents."""
    hash: str
    """Hash of the file."""

    @property
    def count(self) -> int:
        """Number of the evaluator's key tokens in all documents."""
        return sum(map(len, self.spans.values()))


def read_key_tokens(file: str | Path) -> KeyTokens:
    """Read a file of key tokens; ConfigError if it is missing or not a whole one."""
    try:
        return _parse_key_tokens(Path(file).expanduser().read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"key tokens {file} cannot be read ({error.strerror}): {MAKE_FILE_REMEDY}") from None


@functools.lru_cache(maxsize=2)
def _parse_key_tokens(content: bytes, file: str) -> KeyTokens:
    try:
        header, *rows = [json.loads(line) for line in content.splitlines()]
        if header["key_tokens"] != FILE_FORMAT_VERSION or header["documents"] != len(rows):
            raise ConfigError
        spans = {row["document"]: np.asarray(row["spans"], np.int64).reshape(-1, 2) for row in rows}
        ends = {row["document"]: int(row["end"]) for row in rows}
        tokens = sum(row["tokens"] for row in rows)
        evaluator = f"{header['evaluator']['model']}, {header['evaluator']['method']}"
        rule, corpus = Rule(**header["rule"]), header["corpus"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ConfigError(
            f"{file} must be a whole file of key tokens of format {FILE_FORMAT_VERSION}: {MAKE_FILE_REMEDY}"
        ) from None
    return KeyTokens(evaluator, rule, corpus, spans, ends, tokens, hashlib.sha256(content).hexdigest()[:12])


def tokens_within(encoded: Encoded, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending places of all tokens that share a character with any span; `spans` is [spans, 2]."""
    # Marks characters, then counts them: a token shares one where the count grows between its first and its end.
    inside = np.zeros(len(encoded.text) + 1, np.int64)
    for first, end in spans.tolist():
        inside[first:end] = 1
    before = np.concatenate([[0], np.cumsum(inside)])
    firsts, ends = _extents(encoded)
    return np.flatnonzero(before[ends] > before[firsts])


def spans_of(encoded: Encoded, places: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Characters of tokens, (first, behind the last), without blanks at the ends unless the token is all blank."""
    firsts, ends = _extents(encoded)
    spans = []
    for first, end in zip(firsts[places].tolist(), ends[places].tolist(), strict=True):
        # Blanks at the ends would tie a token to its neighbours under a tokenizer that puts blanks elsewhere.
        text = encoded.text[first:end]
        if text.strip():
            first, end = first + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
        spans.append((first, end))
    return spans


def _extents(encoded: Encoded) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First character of each token, and the character behind its last; all pieces of one character cover it."""
    ends = np.append(encoded.starts[1:], len(encoded.text))
    # Tokens that start at one character are, but for the last, pieces of the character before it: they cover that one.
    return np.maximum(np.minimum(encoded.starts, ends - 1), 0), ends

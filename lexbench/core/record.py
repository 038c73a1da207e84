"""What a cell leaves behind: samples (raw), records (derived), or a refusal with its reason."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Refused(Exception):  # noqa: N818 (a refusal is a result, not an error)
    """A cell has no honest answer: raised anywhere below the runner, recorded with its reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Deferred(Refused):
    """There is no answer now, and may be one later (a server is down): the next run measures the cell again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One example's outcome, with everything needed to recompute any metric later.

    A task fills `scores`, or `nll` with its units, never both.
    """

    index: int
    """Place of the example in its cell; its seed is a hash of the cell's task, length, seed and this."""
    cluster: str
    """Document or haystack: examples of one cluster are not independent."""
    tokens: int
    """Realised length in tokens: BOS, prompt and room for the answer."""
    truncated: bool = False
    failed: str | None = None
    """Why there is no answer. It counts as score 0; likelihoods and measures of attention leave it out, and say so."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Metric name to value: in [0, 1], but for measures of attention."""
    chance: float | None = None
    """The accuracy, on average, of guessing among all possible answers."""
    parts: tuple[str, ...] = ()
    """Groups in which it is shown besides the whole: `words 0-4k`; records of each are derived, too."""
    statistics: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Raw arrays from which metrics and curves are made again: attention over distance, marks of each place."""
    nll: NDArray[np.float32] | None = None
    """[targets] negative log-likelihood of each target token, nats."""
    bytes: int | None = None
    """UTF-8 bytes that the targets stand for."""
    words: int | None = None
    """Whitespace-separated words that begin inside the targets."""
    prompt: str | None = None
    """What was asked, as text; of a long one the parts that matter."""
    output: str | None = None
    hit_room: bool | None = None
    """The model wrote until its room ended."""
    depth: float | None = None
    """Where the needle stands, 0 (start) to 1 (end), as realised."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else a reader may want: the expected answer, the document's place."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One (model, method, task, length, seed), as tables show it, and its whole identity."""

    model: str
    method: str
    """Name with every parameter that differs from its default: `yarn(factor=8.0)`."""
    task: str
    """Likewise: `passkey(digits=7)`."""
    length: int
    trained_length: int
    seed: int
    n: int
    """Samples asked."""
    protocol: str
    backend: str
    dtype: str
    kernel: str
    corpus: str | None
    version: str
    """Version of lexbench that measured; no part of the identity."""
    identity: Mapping[str, Any]
    """Plain JSON of everything that the numbers depend on; resuming, caching and comparison use its hash."""

    @functools.cached_property
    def id(self) -> str:
        """Hash of the identity: names the cell's files."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of `records.jsonl`: one metric of one cell, derived from its samples.

    A refused cell has one row with `metric`, `value`, `low` and `high` None and the reason in `refused`.
    """

    cell: str
    """Hash of the cell's identity: names its sample file."""
    model: str
    method: str
    """Name with every parameter that differs from its default: `yarn(factor=8.0)`."""
    attention: str | None
    """What the method came to at this length: each slot in use, frequencies by their ends; None: nothing is changed."""
    task: str
    length: int
    """Tokens: prompt and room, BOS counted."""
    trained_length: int
    seed: int
    metric: str | None
    """nll (nats per token), perplexity, bits_per_byte, word_perplexity, accuracy, ..."""
    part: str | None
    """The group of samples that the row is about: `words 0-4k`; None: all of the cell's."""
    value: float | None
    chance: float | None
    """Of accuracy: what guessing among all possible answers gives."""
    low: float | None
    """Lower end of the 95 % interval; None where one cluster allows none."""
    high: float | None
    interval: str | None
    """wilson or cluster_bootstrap; of a mean over cells, mover."""
    n: int
    """Samples behind the value."""
    clusters: int
    tokens_min: int | None
    tokens_median: float | None
    tokens_max: int | None
    truncated: int
    failed: int
    hit_room: int
    refused: str | None
    protocol: str
    """What exactly was measured: targets, windows, averaging, BOS; tables never mix two of them."""
    backend: str
    dtype: str
    kernel: str
    corpus: str | None
    version: str
    """Version of lexbench that measured."""

    @property
    def multiple(self) -> float:
        """Length as a multiple of the trained length."""
        return self.length / self.trained_length

"""Results of a cell: samples (raw), records (derived), or a refusal with its reason."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.method_key import MethodKey, Purpose


class Refused(Exception):  # noqa: N818 (a refusal is a result, not an error)
    """A cell has no honest answer. Raised anywhere below the runner, and recorded with its reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


SERVER_KERNEL = "server"
"""Kernel of a cell that a server answers: what it puts in front of a prompt is not seen."""
NOTHING_MEASURED = 3
"""Exit code of a run all of whose cells are refused."""


class Deferred(Refused):
    """No answer at the moment (e.g. a server is down): the next run measures the cell again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The outcome of one example, with everything needed to recompute any metric later.

    A task fills `scores`, or `nll` with its units, never both.
    """

    index: int
    """Number of the example in its cell; the example's seed is a hash of the cell's task, length, seed and this."""
    cluster: str
    """Document or haystack: examples of one cluster are not independent."""
    tokens: int
    """Realised length in tokens: BOS, prompt and the limit of new tokens."""
    truncated: bool = False
    failed: str | None = None
    """Why there is no answer. A failure has score 0; likelihoods and measures of attention leave it out and say so."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Metric name to value; in [0, 1], except measures of attention."""
    chance: float | None = None
    """Expected accuracy of guessing among all possible answers."""
    parts: tuple[str, ...] = ()
    """Groups with records of their own, besides the whole cell: `words 0-4k`."""
    statistics: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Raw arrays to recompute metrics and curves: attention over distance, accuracy of each place."""
    nll: NDArray[np.float32] | None = None
    """[targets] negative log-likelihood of each target token, nats."""
    bytes: int | None = None
    """UTF-8 bytes of the targets."""
    words: int | None = None
    """Whitespace-separated words that begin inside the targets."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """Mean NLL of counting models on the same targets, in nats, by name: uniform, unigram, bigram."""
    prompt: str | None = None
    """The question as text; a long one is shortened to the parts that matter."""
    output: str | None = None
    hit_room: bool | None = None
    """Whether the model wrote as many tokens as it may, without stopping by itself."""
    depth: float | None = None
    """Realised depth of the needle, 0 (start) to 1 (end)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for readers: the expected answer, the document, ..."""
    question: str | None = None
    """Hash of all that was asked (`lexbench.taskkit.asked`); None: by a version that did not keep it, or elsewhere."""
    checksum: str | None = None
    """Of all other fields, made when the answer was scored (`lexbench.store.checksum`); None as for `question`."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One (model, method, task, length, seed) as shown in tables, and its whole identity."""

    model: str
    method: MethodKey
    task: str
    """Name with every parameter that differs from its default: `passkey(digits=7)`."""
    length: int
    trained_length: int
    seed: int
    n: int
    """Requested samples."""
    protocol: str
    backend: str
    dtype: str
    kernel: str
    corpus: str | None
    version: str
    """Version of lexbench at the measurement; not part of the identity."""
    identity: Mapping[str, Any]
    """JSON values of everything that affects the numbers; resuming, caching and comparison use its hash."""
    purpose: Purpose | None = None
    """The reason for which it was measured; None: by a version that does not say so, or by another program."""
    own_metrics: Sequence[Mapping[str, Any]] = ()
    """Facts of the metrics that its task alone states (`core.metric.Metric`), for readers without that task."""

    @property
    def task_name(self) -> str:
        """Name of the task without its parameters."""
        return self._stated_name("task") or self.task

    @property
    def corpus_name(self) -> str | None:
        """Name of the corpus without its parameters; None: the task reads none."""
        return self._stated_name("corpus") or self.corpus

    def _stated_name(self, part: str) -> str | None:
        """Name of a part of the identity; None where it states none."""
        stated = self.identity.get(part)
        name = stated.get("name") if isinstance(stated, Mapping) else None
        return name if isinstance(name, str) else None

    @functools.cached_property
    def id(self) -> str:
        """Hash of the identity, and name of the cell's files."""
        # Sorted: the order in which a version states the identity names no other cell.
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row of `records.jsonl`: one metric of one cell, derived from its samples.

    A refused cell has one row with `metric`, `value`, `low` and `high` None and the reason in `refused`.
    """

    cell: str
    """Hash of the cell's identity, and name of its sample file."""
    model: str
    method: MethodKey
    """Name with every parameter that differs from its default: `yarn(factor=8.0)`."""
    attention: str | None
    """The method's attention at this length: every slot in use, frequencies by both ends; None: unchanged."""
    task: str
    length: int
    """Tokens of prompt and room, with BOS."""
    trained_length: int
    seed: int
    metric: str | None
    """nll (nats per token), perplexity, bits_per_byte, word_perplexity, accuracy, ..."""
    part: str | None
    """The group of samples, e.g. `words 0-4k`; None: all samples of the cell."""
    value: float | None
    chance: float | None
    """Expected accuracy of guessing among all possible answers."""
    uniform: float | None = None
    """Of a likelihood: the same metric, on the same targets, of a guess among all tokens of the vocabulary."""
    unigram: float | None = None
    """The same of a unigram model of the corpus's other documents (`lexbench.taskkit.floors`)."""
    bigram: float | None = None
    """The same of a bigram model of these documents."""
    low: float | None
    """Lower end of the 95 % interval; None if there is only one cluster."""
    high: float | None
    interval: str | None
    """wilson or cluster_bootstrap; for a mean over cells mover."""
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
    """What exactly was measured: targets, windows, averaging, BOS. Tables never mix protocols."""
    backend: str
    dtype: str
    kernel: str
    corpus: str | None
    version: str
    """Version of lexbench at the measurement."""

    def as_row(self) -> dict[str, Any]:
        """All fields by name, the method as its label."""
        return {**vars(self), "method": str(self.method)}

    @property
    def floor_of(self) -> str | None:
        """Name of the floor: the best of uniform, unigram and bigram, or chance; None: no floor is known."""
        if self.chance is not None:  # of a score, which counting tokens does not reach
            return "chance"
        # Likelihoods: the lowest is the best guess.
        known = {name: value for name in ("uniform", "unigram", "bigram") if (value := getattr(self, name)) is not None}
        return min(known, key=known.__getitem__) if known else None

    @property
    def floor(self) -> float | None:
        """Value that is reached without a model, in the record's metric; no better value says anything of a model."""
        return getattr(self, self.floor_of) if self.floor_of else None

    @property
    def multiple(self) -> float:
        """Length as a multiple of the trained length."""
        return self.length / self.trained_length


def expected_texts(value: Any) -> list[str]:
    """The texts in a sample's fact `expected`: one, or those of a list."""
    if isinstance(value, list | tuple):
        return [text for each in value for text in expected_texts(each)]
    return [value] if isinstance(value, str) and value else []

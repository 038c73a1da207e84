"""Questions, answers, and what a task must do."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lexbench.core.record import Sample

Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """What all kinds of questions know."""

    index: int
    cluster: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What scoring needs and a reader may want: expected answer, depth, document."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Write(Question):
    """Continue the prompt by at most `room` tokens."""

    prompt: Tokens
    room: int
    answer: str = ""
    """All that a flawless model writes, with the space that it begins with."""
    chance: float = 0.0
    """Accuracy, on average, of guessing among all possible answers."""
    until: tuple[str, ...] = ()
    """Texts after which nothing counts: writing may end as soon as one of them stands in the answer."""

    @property
    def length(self) -> int:
        """Tokens in all: prompt and room."""
        return len(self.prompt) + self.room

    def said(self, text: str) -> bool:
        """Whether one of the texts that end it stands in the answer."""
        return any(end in text for end in self.until)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choose(Question):
    """Which option follows the prompt? The one whose tokens are most likely there."""

    prompt: Tokens
    options: tuple[Tokens, ...]
    expected: int
    """Place of the right option among them."""

    def __post_init__(self) -> None:
        assert len(self.options) > 1 and min(map(len, self.options)) > 0, "a choice needs options of a token or more"

    @property
    def length(self) -> int:
        """Tokens in all: prompt and the longest option."""
        return len(self.prompt) + max(map(len, self.options))

    @property
    def chance(self) -> float:
        """Accuracy, on average, of guessing."""
        return 1 / len(self.options)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mark(Question):
    """At each of many places, which option is the token there, given all right tokens before it?"""

    tokens: Tokens
    places: NDArray[np.int64]
    """[places] ascending; tokens[places] are the right options."""
    options: Tokens
    """[options] token ids, each once."""

    def __post_init__(self) -> None:
        assert len(self.places) > 0 and self.places[0] >= 1, "places to mark lie behind the first token"
        assert np.isin(self.tokens[self.places], self.options).all(), "the right tokens are among the options"

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.tokens)

    @property
    def chance(self) -> float:
        """Accuracy, on average, of guessing."""
        return 1 / len(self.options)


@dataclass(frozen=True, kw_only=True, eq=False)
class Score(Question):
    """Negative log-likelihood of tokens[start:], each given all tokens before it."""

    tokens: Tokens
    start: int
    bytes: int
    """UTF-8 bytes that the targets stand for."""
    words: int

    def __post_init__(self) -> None:
        assert 1 <= self.start < len(self.tokens), f"start {self.start} of {len(self.tokens)} tokens"

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe(Question):
    """Measure attention over these tokens, which are read at once."""

    tokens: Tokens
    first: int = 4
    """Tokens at the start whose share of attention is told apart (attention sinks, arXiv 2309.17453, keeps 4)."""
    last: int | None = None
    """Queries at the end of the text over which attention weights are averaged; None: all."""

    def __post_init__(self) -> None:
        assert self.first >= 1 and len(self.tokens) > 0, "a probe needs tokens, and a first one"
        assert self.last is None or 1 <= self.last <= len(self.tokens), f"last {self.last} of {len(self.tokens)} tokens"

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """Answer to Write: the new tokens only, never the prompt."""

    tokens: Tokens
    text: str
    hit_room: bool
    """The room ended before the model did."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """Answer to Score."""

    nll: NDArray[np.float32]
    """[targets] nats."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """Answer to Choose."""

    nll: NDArray[np.float64]
    """[options] nats of each option's tokens together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Marked:
    """Answer to Mark."""

    nll: NDArray[np.float32]
    """[places, options] nats of each option, of the whole vocabulary."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Probed:
    """Answer to Probe: statistics of all attention logits and weights, everything applied."""

    statistics: Mapping[str, NDArray[np.float64]]
    """By name; s[n] is the mean logit at distance n over all queries of this text that see so far, NaN where none does.

    resolution   [layers, heads]        R(s), in (0, 1] (LEX, arXiv 2212.10554, eq. 4), over n below `reach`
    reach        [1]                    7/8 of the length: below, an eighth of the queries see so far (unmasked)
    preference   [layers, heads, bins]  mean of s[n] over the distances of each bin
    curve        [length]               mean of s[n] over all heads of all layers that see so far
    distance     [layers, heads]        tokens from query to key, mean under the weights; as all below, over the last
                                        queries of the probe
    entropy      [layers, heads]        nats
    first_mass   [layers, heads]        share of the weight on the first tokens
    mass         [layers, heads, bins]  share of the weight at the distances of each bin
    edges        [bins + 1]             tokens: bin b holds distances edges[b] to edges[b + 1] - 1, two bins an octave
    """


AnyQuestion = Write | Choose | Mark | Score | Probe
Answer = Written | Chosen | Marked | Scored | Probed


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as tokens, each with its place in the text."""

    ids: Tokens
    starts: NDArray[np.int64]
    """[tokens] first character of each token in `text`."""
    text: str

    def units(self, first: int, last: int) -> tuple[int, int]:
        """UTF-8 bytes, and words begun, of tokens first..last-1; neighbouring spans add up, all of them to `text`."""
        begin = int(self.starts[first]) if first > 0 else 0
        end = int(self.starts[last]) if last < len(self.starts) else len(self.text)
        span = self.text[begin:end]
        inside = begin > 0 and not self.text[begin - 1].isspace() and span[:1].strip() != ""
        return len(span.encode()), len(span.split()) - inside


@dataclass(frozen=True, eq=False)
class Frame:
    """Tokens around what a user says, to the point where the model's answer begins."""

    before: Tokens
    after: Tokens


class Tokenizer(Protocol):
    """What tasks need of a tokenizer. Special tokens are never added by encode."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens that begin every context: BOS, or nothing."""

    @property
    def bos(self) -> int | None:
        """The token that begins a document."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    def encode(self, text: str) -> Encoded:
        """Tokens of a text."""

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """Text of tokens, special ones left out."""

    def frame(self, chat: bool) -> Frame:
        """What begins every context alone; or the model's chat template around one message of a user.

        Raises ValueError where a template is asked for and there is none.
        """

    def __hash__(self) -> int:
        """What was encoded is kept by tokenizer."""


class Task:
    """Base of all tasks: frozen dataclasses whose fields are their parameters.

    `version` rises whenever the same parameters give other questions or scores.
    """

    version: ClassVar[int] = 1
    form: ClassVar[tuple[str, ...]] = ()
    """Parameters that say how a question is asked, not which one: they have no part in its randomness, so that all
    forms of a task ask the same questions."""

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """The task with what depends on all of a run's lengths settled; most depend on none."""
        return self

    def protocol(self, tokenizer: Tokenizer) -> str:
        """What exactly is measured, in one line: targets, windows, averaging, BOS."""
        raise NotImplementedError

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Questions of `length` tokens, for n samples; the first ones do not depend on n.

        Raises Refused where the task has no honest question of that length.
        """
        raise NotImplementedError

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """The sample that an answer makes."""
        raise NotImplementedError

    def rng(self, *place: int | str) -> np.random.Generator:
        """Randomness of one place (length, seed, index): a hash of it, the task's name, version and parameters.

        Those of `form` count as their defaults. A corpus is none of them: the same text gives the same questions
        wherever its file lies.
        """
        asked = [f for f in fields(self) if f.name != "corpus"]  # type: ignore[arg-type]
        parameters = {f.name: str(f.default if f.name in self.form else getattr(self, f.name)) for f in asked}
        key = json.dumps([type(self).__name__, self.version, parameters, *place], sort_keys=True)
        return np.random.default_rng(np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype=np.uint32))

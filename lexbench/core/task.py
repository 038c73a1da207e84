"""Questions, answers, tokenizers, and the base of all tasks."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lexbench.core.attention import Attention
from lexbench.core.metric import Metric
from lexbench.core.new_fields import stated_fields
from lexbench.core.record import Sample

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Positions of a text's tokens that jump, and keys that are hidden from some queries.

    A token sees those in front of it that stand at its own position or before: what is read before a key and stands
    behind it is blind to it. What answers a text stands behind its last token, and sees what that one sees.
    """

    starts: tuple[tuple[int, int], ...] = ((0, 0),)
    """(token, position), ascending in tokens from token 0: from this token on positions count on from this one."""
    hidden: tuple[tuple[int, int, int], ...] = ()
    """(first query, first key, end of keys) by numbers of tokens: no later query sees these keys."""

    def positions(self, tokens: int) -> Tokens:
        """[tokens] position of each."""
        firsts, places = (np.array(each, np.int64) for each in zip(*self.starts, strict=True))
        numbers = np.arange(tokens)
        run = np.searchsorted(firsts, numbers, side="right") - 1
        return places[run] + numbers - firsts[run]

    def visibility(self, begin: int, end: int) -> NDArray[np.bool_]:
        """[end - begin, end] whether tokens from `begin` on see each of the first `end` tokens."""
        here, there, places = np.arange(begin, end)[:, None], np.arange(end)[None, :], self.positions(end)
        found = (there <= here) & (places[None, :] <= places[begin:, None])
        for query, key, last in self.hidden:
            found &= ~((here >= query) & (there >= key) & (there < last))
        return found

    def length(self, tokens: int) -> int:
        """Positions up to that of the last token, itself counted."""
        return int(self.positions(tokens)[-1]) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """Number, cluster and facts of a question of any kind."""

    index: int
    """Number of the question in its cell; the sample keeps it, and both sides of a comparison are paired by it."""
    cluster: str
    """Document or haystack: questions of one cluster are not independent, so intervals resample clusters."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts for scoring and for readers: expected answer, depth, document."""
    shortcut: tuple[tuple[int, float], ...] = ()
    """Steps (tokens, accuracy), ascending from 0 tokens: expected accuracy of a perfect reader of so many last tokens
    in front of the answer, or more, who guesses what they do not tell (`taskkit.shortcuts`). (): not stated."""
    layout: Layout | None = None
    """Positions of the prompt's or text's tokens, where they are not 0, 1, 2, ...: for `Choose` and `Loglikelihood`,
    and for backends that can (`Capabilities.layouts`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Generate(Question):
    """Continue the prompt by at most `max_new_tokens` tokens."""

    prompt: Tokens
    max_new_tokens: int
    answer: str = ""
    """Answer of a flawless model, with its leading space."""
    chance: float = 0.0
    """Expected accuracy of guessing among all possible answers."""
    until: tuple[str, ...] = ()
    """Stop texts: writing may end as soon as the answer contains one, and nothing behind it counts."""
    messages: tuple[tuple[str, str], ...] = ()
    """Role and content of the messages that the prompt was made of, for servers that take messages; a last one of the
    assistant is the beginning of the answer. (): the prompt is a text, or one user message in the chat template."""
    text_tokens: int | None = None
    """First tokens of the prompt, in front of the question: a compressed cache is made of these alone; None: not told,
    then of the whole prompt."""
    thought: int = 0
    """Further tokens for thinking, in front of the answer: the run sets them, as the backend's budget says."""
    options: tuple[Tokens, ...] = ()
    """Answers whose likelihoods are measured behind the same reading of the prompt; nothing of what is written changes.
    None is longer than `max_new_tokens`. (): none."""
    expected: int = 0
    """Index of the right option, which is also taught: its tokens are read one behind another, and each is ranked."""

    def __post_init__(self) -> None:
        sizes = [*map(len, self.options)]
        assert not sizes or (len(sizes) > 1 and min(sizes) > 0), "a choice needs non-empty options"
        assert not sizes or 0 <= self.expected < len(sizes), f"option {self.expected} of {len(sizes)}"
        assert max(sizes, default=0) <= self.max_new_tokens, "an option is longer than the room of the answer"

    @property
    def length(self) -> int:
        """Tokens of the prompt, with the limits of the thought and of new tokens."""
        return len(self.prompt) + self.thought + self.max_new_tokens

    def contains_stop_text(self, text: str) -> bool:
        """Whether the answer contains a stop text."""
        return any(end in text for end in self.until)


@dataclass(frozen=True, kw_only=True, eq=False)
class Choose(Question):
    """Choose the option whose tokens are likeliest behind the prompt."""

    prompt: Tokens
    options: tuple[Tokens, ...]
    expected: int
    """Index of the right option."""
    guess: float | None = None
    """Expected accuracy of guessing, where that is not 1 / options."""
    text_tokens: int | None = None
    """First tokens of the prompt, in front of the question, as in `Generate`."""

    def __post_init__(self) -> None:
        assert len(self.options) > 1 and min(map(len, self.options)) > 0, "a choice needs non-empty options"

    @property
    def length(self) -> int:
        """Tokens of the prompt, or positions up to its end, and the longest option."""
        prompt = len(self.prompt)
        return (self.layout.length(prompt) if self.layout else prompt) + max(map(len, self.options))

    @property
    def chance(self) -> float:
        """Expected accuracy of guessing."""
        return 1 / len(self.options) if self.guess is None else self.guess


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassifyTokens(Question):
    """At each place, choose the likeliest option, given the right tokens before it (teacher forcing)."""

    tokens: Tokens
    places: NDArray[np.int64]
    """[places] ascending; tokens[places] are the right options."""
    options: Tokens
    """[options] distinct token ids."""
    guess: float | None = None
    """Expected accuracy of guessing, where that is not 1 / options."""

    def __post_init__(self) -> None:
        assert len(self.places) > 0 and self.places[0] >= 1, "places are behind the first token"
        assert np.isin(self.tokens[self.places], self.options).all(), "the right tokens are among the options"

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)

    @property
    def chance(self) -> float:
        """Expected accuracy of guessing."""
        return 1 / len(self.options) if self.guess is None else self.guess


@dataclass(frozen=True, kw_only=True, eq=False)
class Loglikelihood(Question):
    """Negative log-likelihood of tokens[first_target:], each given all tokens before it."""

    tokens: Tokens
    first_target: int
    bytes: int
    """UTF-8 bytes of the targets."""
    words: int
    floors: Mapping[str, float] = field(default_factory=dict)
    """Mean NLL of counting models on the targets, in nats, by name: uniform, unigram, bigram (`taskkit.floors`)."""

    def __post_init__(self) -> None:
        assert 1 <= self.first_target < len(self.tokens), f"first_target {self.first_target} of {len(self.tokens)}"

    @property
    def length(self) -> int:
        """Tokens of the text, or positions up to its end."""
        return self.layout.length(len(self.tokens)) if self.layout else len(self.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeAttention(Question):
    """Measure attention over these tokens in one forward pass."""

    tokens: Tokens
    first: int = 4
    """Number of first tokens whose share of attention is measured (attention sinks, arXiv 2309.17453, use 4)."""
    last: int | None = None
    """Number of last queries over which attention weights are averaged; None: all."""
    shortest: int | None = None
    """A length of at most this text's: R is also computed over the distances below 7/8 of it; None: the text's own."""

    def __post_init__(self) -> None:
        assert self.first >= 1 and len(self.tokens) > 0, "a probe needs at least one token, and first >= 1"
        assert self.last is None or 1 <= self.last <= len(self.tokens), f"last {self.last} of {len(self.tokens)} tokens"
        assert self.shortest is None or 1 <= self.shortest <= len(self.tokens), f"shortest {self.shortest}"

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureDivergence(Question):
    """Compare the distributions of tokens[first_target:] under this method with those under another method."""

    tokens: Tokens
    first_target: int
    against: str = ""
    """Name of the other method; empty: the same method with keys and values kept as they are computed."""

    def __post_init__(self) -> None:
        assert 1 <= self.first_target < len(self.tokens), f"first_target {self.first_target} of {len(self.tokens)}"

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerateAnswer:
    """Answer to `Generate`: the new tokens only, without the prompt."""

    tokens: Tokens
    text: str
    hit_room: bool
    """Whether the model wrote `max_new_tokens` tokens without stopping by itself."""
    thought: str = ""
    """The thought in front of the answer, without its markers; no part of `tokens` and `text`."""
    thought_cut: bool = False
    """Whether there is no answer behind the thought: its budget ended, or the model stopped in it."""
    option_nll: NDArray[np.float64] | None = None
    """[options] summed NLL of the tokens of each option, nats; None: none were asked, or the backend cannot tell."""
    taught_ranks: NDArray[np.int64] | None = None
    """[tokens of the right option] how many tokens are likelier than each, given the prompt and the right tokens before
    it; of equally likely ones that of the lowest id is the likeliest. None as `option_nll`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoglikelihoodAnswer:
    """Answer to `Loglikelihood`."""

    nll: NDArray[np.float32]
    """[targets] NLL of each target, nats."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChooseAnswer:
    """Answer to `Choose`."""

    nll: NDArray[np.float64]
    """[options] summed NLL of each option's tokens, nats."""
    taught_ranks: NDArray[np.int64] | None = None
    """Ranks of taught tokens, as in `GenerateAnswer`; None: the backend does not tell them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassifyTokensAnswer:
    """Answer to `ClassifyTokens`."""

    nll: NDArray[np.float32]
    """[places, options] NLL of each option, normalised over the whole vocabulary, nats."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeAttentionAnswer:
    """Answer to `ProbeAttention`: statistics of attention logits and weights, with the whole method applied."""

    statistics: Mapping[str, NDArray[np.float64]]
    """Arrays by name. s[n] is the mean logit at distance n over all queries that see distance n; NaN if none does.

    resolution         [layers, heads]  R(s), in (0, 1] (LEX, arXiv 2212.10554, eq. 4), over n below `reach`
    resolution_shared  [layers, heads]  the same over n below `shared`
    resolution_all     [layers, heads]  the same over all n, as LEX sums
    reach        [1]                    7/8 of the length: at least an eighth of the queries see these n (unmasked)
    shared       [1]                    7/8 of the probe's `shortest`: distances that all lengths of a run have
    preference   [layers, heads, bins]  mean of s[n] over the distances of each bin
    curve        [length]               mean of s[n] over all heads of all layers that see distance n
    edges        [bins + 1]             tokens: bin b has distances edges[b] to edges[b + 1] - 1; two bins per octave

    Over the last queries of the probe:

    distance     [layers, heads]        mean tokens from query to key under the weights
    entropy      [layers, heads]        nats
    first_mass   [layers, heads]        share of the weight on the first tokens
    mass         [layers, heads, bins]  share of the weight at the distances of each bin
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureDivergenceAnswer:
    """Answer to `MeasureDivergence`, with one number for each target."""

    divergence: NDArray[np.float32]
    """KL(other method's distribution || this method's), nats."""
    same_top: NDArray[np.bool_]
    """Whether both methods find the same token likeliest."""
    nll: NDArray[np.float32]
    """NLL of the target under this method, nats."""
    other_nll: NDArray[np.float32]
    """NLL of the target under the other method, nats."""


AnyQuestion = Generate | Choose | ClassifyTokens | Loglikelihood | ProbeAttention | MeasureDivergence
Answer = (
    GenerateAnswer
    | ChooseAnswer
    | ClassifyTokensAnswer
    | LoglikelihoodAnswer
    | ProbeAttentionAnswer
    | MeasureDivergenceAnswer
)


@dataclass(frozen=True)
class Outline:
    """Sizes of a cell's questions, told before any of them is written."""

    questions: int
    length: float
    """Tokens of a question and its answer; the mean, where they differ."""
    max_new_tokens: float = 0
    """Tokens that are written for a question, at most; 0: it is not answered by writing."""
    per_text: int = 1
    """Questions behind one text, which may be read once."""
    apart: float = 0
    """Tokens of a question and its answer behind the text that it shares with others."""
    probes: bool = False
    """Whether attention is measured."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A tokenized text with the place of each token."""

    ids: Tokens
    starts: NDArray[np.int64]
    """[tokens] first character of each token in `text`."""
    text: str

    def units(self, first: int, last: int) -> tuple[int, int]:
        """UTF-8 bytes, and words that begin, in tokens first..last-1; adjacent spans sum to the whole text."""
        begin = int(self.starts[first]) if first > 0 else 0
        end = int(self.starts[last]) if last < len(self.starts) else len(self.text)
        span = self.text[begin:end]
        # Whether the span begins inside a word, which the span before has counted.
        inside = begin > 0 and not self.text[begin - 1].isspace() and span[:1].strip() != ""
        return len(span.encode()), len(span.split()) - inside


@dataclass(frozen=True, eq=False)
class Frame:
    """Tokens before and behind a user message; the model's answer begins behind them."""

    before: Tokens
    after: Tokens

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat template: nothing stands behind a plain prompt."""
        return len(self.after) > 0


class Tokenizer(Protocol):
    """Interface of a tokenizer for tasks. `encode` never adds special tokens."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens at the start of every context: BOS, or nothing."""

    @property
    def bos(self) -> int | None:
        """The BOS token, if there is one."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    def encode(self, text: str) -> Encoded:
        """Tokens of a text."""

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """Text of tokens, without special tokens."""

    def frame(self, chat: bool) -> Frame:
        """Only the prefix; or with `chat` the model's chat template around one user message.

        Raises ConfigError if `chat` is set and the model has no chat template.
        """

    def __hash__(self) -> int:
        """Needed because encoded texts are cached per tokenizer."""


class Task:
    """Base of all tasks: frozen dataclasses whose fields are their parameters.

    `version` rises whenever the same parameters give other questions or scores.
    """

    version: ClassVar[int] = 1
    questions_version: ClassVar[int | None] = None
    """The version whose questions are still asked, where later ones changed scores alone; None: `edition`."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Scores of the task beside those that `Metric` need not describe: shares in [0, 1], higher being better."""
    form: ClassVar[tuple[str, ...]] = ()
    """Parameters that change only the form of a question. They do not affect the seed, so all forms of a task have the
    same questions."""

    @property
    def edition(self) -> int:
        """The version of the form that the parameters ask for: that of the class, unless forms have their own."""
        return self.version

    @property
    def questions_edition(self) -> int:
        """The version of the form whose questions are still asked: `questions_version`, unless forms have their own."""
        return self.edition if self.questions_version is None else self.questions_version

    @property
    def first_scored_edition(self) -> int:
        """The earliest version whose scores this one gives, too: later ones only added scores."""
        return self.edition

    def gives_scores_of(self, version: object) -> bool:
        """Whether the scores of this version are scores of the task today."""
        return isinstance(version, int) and self.first_scored_edition <= version <= self.edition

    @property
    def factor_of_prompt(self) -> bool:
        """Whether a method that follows the length is set for that of each question; `length` is a ceiling then."""
        return False

    def for_lengths(self, lengths: Sequence[int]) -> Self:
        """Set the parameters that depend on all lengths of a run; most tasks have none."""
        return self

    def protocol(self, tokenizer: Tokenizer) -> str:
        """Describe the measurement in one line: targets, windows, averaging, BOS."""
        raise NotImplementedError

    def attention(self, length: int) -> Attention:
        """The task's own change of attention at a length, beside that of the method; nearly all tasks have none."""
        return Attention()

    def questions(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Sequence[AnyQuestion]:
        """Questions of `length` tokens for n samples; a larger n only appends questions.

        Raises Refused if the task has no honest question of this length.
        """
        raise NotImplementedError

    def outline(self, tokenizer: Tokenizer, length: int, n: int, seed: int) -> Outline:
        """Sizes of these questions at once, without writing them: n texts that fill the length and are read.

        A task whose answers are written, or whose texts are of another number or size, says so. Raises Refused where it
        is certain without any question that the task has none of this length; `questions` decides.
        """
        return Outline(n, length)

    def score(self, question: AnyQuestion, answer: Answer) -> Sample:
        """Score the answer to a question; returns the sample."""
        raise NotImplementedError

    def rng(self, *place: int | str) -> np.random.Generator:
        """A generator for a place (length, seed, index), seeded by a hash of place, class name, version of questions,
        and parameters.

        Parameters of `form` enter with their defaults. A parameter that is younger than seeds that are in use (metadata
        "new") enters only where it is not its default, so that those seeds stay; one of `form` never does. The corpus
        does not enter: the same text gives the same questions wherever its file is.
        """
        stated = [f for f in stated_fields(self) if f.name != "corpus"]
        hashed = [f for f in stated if not (f.name in self.form and f.metadata.get("new"))]
        parameters = {f.name: str(f.default if f.name in self.form else getattr(self, f.name)) for f in hashed}
        key = json.dumps([type(self).__name__, self.questions_edition, parameters, *place], sort_keys=True)
        return np.random.default_rng(np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype=np.uint32))

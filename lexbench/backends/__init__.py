"""One model under one Attention: what the runner asks of a backend."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    Chosen,
    Mark,
    Marked,
    Probe,
    Probed,
    Score,
    Scored,
    Tokenizer,
    Write,
    Written,
)


class Identified(Protocol):
    """What of a backend enters a cell's identity."""

    name: str
    """hf, native, chance, ..."""
    version: str
    """Of the libraries that compute: `transformers 5.23.0, torch 2.13.0`."""
    dtype: str
    """float32, bfloat16, ...: the dtype of weights and activations."""
    kernel: str
    """What computes attention: sdpa, eager, dense."""
    revision: str
    """Fingerprint of the weights, or the hub's commit."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's, by which questions are made."""


class Backend(Identified, Protocol):
    """A loaded model. Built from a yaml's parameters and the model's facts: `Hf(model, dtype=..., ...)`.

    A parameter `longest`, where it has one, is filled with the tokens of the longest question to come.
    `attend` raises Refused naming the slot that it cannot realise; the questions' methods raise Refused where
    they cannot answer at all, and convert running out of memory for one question to Refused in one place.
    """

    model: Model

    def attend(self, attention: Attention) -> None:
        """Put the model under this Attention, exactly; an empty one gives the model unchanged."""

    def write(self, question: Write) -> Written:
        """Greedy continuation."""

    def choose(self, question: Choose) -> Chosen:
        """NLL of each option after the prompt."""

    def mark(self, question: Mark) -> Marked:
        """NLL of each option at each place."""

    def score(self, question: Score) -> Scored:
        """NLL of the targets."""

    def probe(self, question: Probe) -> Probed:
        """Attention statistics."""


@runtime_checkable
class Remote(Backend, Protocol):
    """A backend whose model runs in other processes: it takes many questions at once, and its memory is not ours."""

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """The answer of each question in turn; later ones are worked on meanwhile."""

    def close(self) -> None:
        """End what was started, and free its memory; again does nothing."""


@runtime_checkable
class Recalling(Backend, Protocol):
    """A backend that can keep what it has read for a question that begins alike, where `reuse` is set."""

    reuse: bool

    def sees_no_future(self) -> bool:
        """Whether, under the present Attention, a text's first tokens are read in the same way whatever follows."""


@runtime_checkable
class Batching(Backend, Protocol):
    """A backend that can answer several questions in one pass."""

    def alike(self, question: AnyQuestion) -> Hashable | None:
        """What questions have in common that can be answered together; None: each alone."""

    def together(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """Answers of questions that are alike, as many at once as fit."""

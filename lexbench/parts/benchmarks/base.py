"""Description of a benchmark: parts, files, examples with their messages, new tokens, scores."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.core.task import Tokenizer
from lexbench.parts.benchmarks.copy import BenchmarkFiles

Message = tuple[str, str]
"""Role and content."""


@dataclass(frozen=True)
class BenchmarkExample:
    """Question of a benchmark, in its official form."""

    id: str
    messages: Sequence[Message] | Callable[[], Sequence[Message]]
    """Messages; or a function that makes them, where all together would fill the memory."""
    facts: Mapping[str, Any]
    """Facts for scoring; kept with the sample."""
    room: int
    """Official number of new tokens."""
    answer: str
    """Answer of a flawless model, without a leading blank."""
    cue: str = ""
    """First words of the answer, behind the messages."""
    parts: tuple[str, ...] = ()
    """Groups by the benchmark's own axis, with records of their own."""
    cluster: str | None = None
    """Examples of one document are not independent; None: this one has its own."""
    chance: float = 0.0

    def build_messages(self) -> Sequence[Message]:
        """The messages."""
        return self.messages() if callable(self.messages) else self.messages


def cluster_of(text: str) -> str:
    """The cluster of all examples over one text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BenchmarkRequest:
    """Choices of the user: part, files, prompts, length class, tokenizer and tokens."""

    part: str
    files: BenchmarkFiles
    prompts: Path | None
    """The official file with the wording, where the data do not hold it."""
    axis: str | None
    """Class of the benchmark's own length axis; None: all."""
    template: str
    """Family of the official prompts, where there are several."""
    tokenizer: Tokenizer
    length: int
    """Tokens of prompt and new tokens, at most."""
    room: int | None = None
    """Tokens of an answer that the user asks for, in place of the official number."""
    chat: bool = False
    """Whether the messages go into a chat template."""
    framing: int = 0
    """Tokens of BOS, or of the chat template around one message."""
    n: int = 0
    """Examples wanted, of benchmarks that make them."""
    seed: int = 0

    def tokens_of_axis(self) -> int:
        """The axis of a benchmark whose classes are numbers of tokens; ConfigError for any other axis."""
        axis = self.axis or ""
        if not axis.isdecimal() or int(axis) < 1:
            raise ConfigError(f"axis must be a number of tokens of at least 1, got {axis}: e.g. axis=1000")
        return int(axis)


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark."""

    title: str
    parts: Sequence[str]
    files: Callable[[str, str | None], Sequence[str]]
    """Patterns of a part's files by part and axis, the first that matches counts."""
    examples: Callable[[BenchmarkRequest], Iterator[BenchmarkExample]]
    metric: str
    score: Callable[[Mapping[str, Any], str, str], float]
    """Function from an example's facts, a written answer and the scorer to the score in [0, 1]."""
    scorers: Sequence[str] = ("official", "repaired")
    chat: bool = True
    """Whether the official form is a chat, where the model has one."""
    chats: Sequence[str] = ()
    """Parts that officially are chats, where the others are not."""
    completions: Sequence[str] = ()
    """Families of prompts that officially stand without a chat template."""
    prompts: str | None = None
    """The official file that `prompts` must name; None: the data hold the wording."""
    cuts_middle: bool = False
    """Whether over-long prompts officially lose their middle."""
    axes: str = ""
    """Values of `axis`, for the docs; empty: there is no such choice."""
    add_companion_files: Callable[[BenchmarkFiles, str, str], BenchmarkFiles] | None = None
    """Adds further files of the copy."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metrics of parts that have another one."""

    def metric_of(self, part: str) -> str:
        """Name of a part's metric."""
        return self.metrics.get(part, self.metric)

    def is_chat(self, part: str, template: str) -> bool:
        """Whether a part officially is a chat, in this family of prompts."""
        return (self.chat or part in self.chats) and template not in self.completions

"""Chat models that may think: how they are asked, and a thought and an answer, each with its own budget."""

import bisect
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.task import Frame, Generate, GenerateAnswer, Tokenizer, Tokens

THOUGHT_MARKERS = ("<think>", "</think>")
THINKING_MODES = ("none", "free", "budget")
THOUGHT_ANSWER_GAP = "\n\n"
"""Between a thought and first words of the answer."""


@dataclass(frozen=True)
class Form:
    """Settings of a chat; see the backends' parameters."""

    transport: ClassVar[str] = "chat completions"
    cued: ClassVar[str] = "at the end of the question"
    """Place of the first words of an answer that are not prefilled."""

    chat: bool = False
    system: str | None = None
    thinking: str = "none"
    thought: int = 0
    prefill: bool = True
    markers: tuple[str, ...] = THOUGHT_MARKERS

    def __post_init__(self) -> None:
        if self.thinking not in THINKING_MODES:
            raise ConfigError(f"backend.thinking must be one of {', '.join(THINKING_MODES)}, got {self.thinking}")
        if (self.thinking == "none") != (self.thought == 0) or self.thought < 0:
            raise ConfigError(
                f"backend.thought must be tokens above 0 with thinking, and 0 without, got {self.thought} with "
                f"thinking={self.thinking}: e.g. backend.thinking=free backend.thought=2048"
            )
        if not self.chat and any(getattr(self, each.name) != each.default for each in fields(self)):
            raise ConfigError("backend.system, thinking, thought, prefill and markers need backend.chat=true: set it")
        if len(self.markers) != 2 or not all(self.markers):
            raise ConfigError(f"backend.markers must be two texts, got {list(self.markers)}: e.g. [<think>,</think>]")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The form that a backend's config states."""
        stated = {each.name: config[each.name] for each in fields(cls) if each.name in config}
        return cls(**{**stated, "markers": tuple(stated.get("markers", THOUGHT_MARKERS))})

    @property
    def continues(self) -> bool:
        """Whether the first words of an answer are a message of the assistant; a thought comes before them."""
        return self.prefill and self.thinking == "none"

    def __str__(self) -> str:
        parts = [self.transport]
        parts += [f"system message {self.system!r}"] if self.system is not None else []
        place = "prefilled" if self.continues else self.cued
        parts += [f"first words of the answer, without leading blanks, {place}"]
        parts += [f"thinking {self.thinking}, {self.thought} tokens" if self.thought else "no thinking"]
        return ", ".join(parts)

    def tokenizer(self, tokenizer: FastTokenizer) -> FastTokenizer:
        """The tokenizer that makes questions for this model."""
        return tokenizer.as_chat(str(self), self.system, self.thinking != "none", self.thought)


class LocalForm(Form):
    """Settings of a chat with a model in this process, or in an engine that takes tokens."""

    transport = "chat template"
    cued = "behind the thought"

    def tokenizer(self, tokenizer: FastTokenizer) -> FastTokenizer:
        """The tokenizer that makes questions; ConfigError if the text of a thought would not show where it ends."""
        if not self.chat:
            return tokenizer
        if self.thought:
            end = self.markers[1]
            if end not in tokenizer.decode(tokenizer.template_tokens(end)):
                raise ConfigError(f"backend.markers: the tokenizer does not write {end} as text: name another one")
            if self.thought <= len(thought_end_tokens(tokenizer, self)):
                raise ConfigError(f"backend.thought={self.thought} has no room for {end}: raise it")
        return super().tokenizer(tokenizer)

    @classmethod
    def as_chat(cls, tokenizer: FastTokenizer, config: Mapping[str, Any]) -> FastTokenizer:
        """The tokenizer as a backend of this config counts and frames questions."""
        return cls.of(config).tokenizer(tokenizer)


def answer_place(frame: Frame, prompt: Tokens) -> int:
    """Number of a prompt's tokens up to the end of its chat template; behind it begins the answer, or its first words.

    Refused where the prompt has no such template.

    Args:
        frame: the template around one user message.
        prompt: of a task.
    """
    size = len(frame.after)
    # From the end: a conversation has the template around each of its messages, and only the last one is open.
    for place in range(len(prompt), size - 1, -1) if size else ():
        if np.array_equal(prompt[place - size : place], frame.after):
            return place
    raise Refused("a chat needs a question in the chat template, this task's has none: set task.chat=true")


def thought_end_tokens(tokenizer: FastTokenizer, form: Form) -> Tokens:
    """Tokens that end a thought."""
    return tokenizer.template_tokens(form.markers[1] + THOUGHT_ANSWER_GAP)


def drop_thought(written: GenerateAnswer, tokenizer: Tokenizer, form: Form) -> GenerateAnswer:
    """The answer of a model that shall not think, without a thought that it wrote nevertheless.

    Refused where the thought has taken all tokens of the answer.
    """
    begin, end = form.markers
    if not written.text.lstrip().startswith(begin):
        return written
    thought = _thought(written.text, form)
    if end not in written.text or (thought and written.hit_room):
        raise Refused(
            f"the model writes a thought ({begin}) in place of the answer: set backend.chat=true backend.thinking=free "
            "backend.thought=2048"
        )
    size = _tokens_up_to_marker(written.tokens, end, tokenizer)
    tokens = written.tokens[size:]
    return replace(written, tokens=tokens, text=tokenizer.decode(tokens).lstrip(), thought=thought)


def _tokens_up_to_marker(ids: Tokens, end: str, tokenizer: Tokenizer) -> int:
    """Number of tokens up to the marker: it may be several tokens, or share one with the text behind it."""
    sizes = range(1, len(ids) + 1)
    return sizes[bisect.bisect_left(sizes, True, key=lambda size: end in tokenizer.decode(ids[:size]))]


def _thought(text: str, form: Form) -> str:
    """The thought at the beginning of a text, without its markers."""
    begin, end = form.markers
    return text.partition(end)[0].strip().removeprefix(begin).strip()


def think_then_answer(
    question: Generate, tokenizer: FastTokenizer, form: Form
) -> Generator[Generate, GenerateAnswer, GenerateAnswer]:
    """Ask a thinking model twice: for a thought, then for the answer behind it.

    A thought that does not end in its budget is ended there (`budget`), or has no answer (`free`). First words of the
    answer stand behind the thought. Tokens of prompt, thought and answer are those of the question, at most.

    Args:
        question: with its budgets in `thought` and `max_new_tokens`.
        tokenizer: of the chat.
        form: markers, and whether the budget ends a thought.
    """
    begin, end = form.markers
    frame, close = tokenizer.frame(chat=True), thought_end_tokens(tokenizer, form)
    place = answer_place(frame, question.prompt)
    asked, begun = question.prompt[:place], question.prompt[place:]
    stage = replace(question, thought=0, messages=(), options=())  # what stands behind a thought is no option
    # The tokens that end a thought count in its budget.
    first = yield replace(stage, prompt=asked, max_new_tokens=question.thought - len(close), until=(end,))
    ids = first.tokens
    ended = end in first.text
    if ended:
        ids = ids[: _tokens_up_to_marker(ids, end, tokenizer)]
    thought = _thought(tokenizer.decode(ids), form)
    # The template or the model may have opened the thought.
    opened = tokenizer.decode(frame.after).rstrip().endswith(begin) or first.text.lstrip().startswith(begin)
    if not (ended or first.hit_room or opened):
        size = min(len(ids), question.max_new_tokens)  # no thought
        text = tokenizer.decode(ids[:size]).lstrip()
        return GenerateAnswer(
            tokens=ids[:size], text=text, hit_room=size < len(ids) and not question.contains_stop_text(text)
        )
    if not ended and not (first.hit_room and form.thinking == "budget"):
        cut = first.hit_room
        return GenerateAnswer(tokens=ids[:0], text="", hit_room=cut, thought=thought, thought_cut=cut)
    if not ended:
        ids = np.concatenate([ids, close])
    elif len(begun):
        ids = np.concatenate([ids, tokenizer.encode(THOUGHT_ANSWER_GAP).ids])
    second = yield replace(stage, prompt=np.concatenate([asked, ids, begun]))
    return replace(second, text=second.text.lstrip(), thought=thought)

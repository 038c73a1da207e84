"""Chat models that may think: how they are asked, and a thought and an answer, each with its own budget."""

import bisect
import re
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
THOUGHT_TAG_NAME = r"\|?((begin|start|end)_of_|\w+:)?(think|thinking|thought|reasoning)\|?"
OPENING_PATTERN = re.compile(
    rf"\s*([<\[\u25c1](?!\|?end){THOUGHT_TAG_NAME}[>\]\u25b7]"
    r"|(<\|start\|>assistant)?<\|channel\|?>\s*(analysis|commentary|thought)\s*(<\|message\|>)?)",
    re.IGNORECASE,
)
"""Beginning of a text with a tag that opens a thought, or with the channel of one."""
NAKED_CHANNEL_PATTERN = re.compile(r"\s*analysis(?=[A-Z])")
"""The same of a text without its special tokens."""
CLOSING_PATTERN = re.compile(
    rf"[<\[\u25c1](/|(?=\|?end)){THOUGHT_TAG_NAME}[>\]\u25b7]"
    r"|(<\|end\|>)?(<\|start\|>assistant)?<\|channel\|>\s*final\s*<\|message\|>|<channel\|>|assistantfinal",
    re.IGNORECASE,
)
"""End of such a thought: a closing tag, or the channel of the answer."""
ANSWER_CHANNEL_PATTERN = re.compile(r"\s*(<\|start\|>assistant)?<\|channel\|>\s*final\s*<\|message\|>")
ANSWER_END_PATTERN = re.compile(r"<\|(return|end)\|>\s*$")
"""Before and behind an answer in a channel."""
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
    found = find_thought(written.text, form)
    if found is None:
        return written
    if not found.ended or (found.thought and written.hit_room):
        raise Refused(
            f"the model writes a thought ({found.begin}) in place of the answer: set backend.chat=true "
            "backend.thinking=free backend.thought=2048"
        )
    size = _tokens_up_to_marker(written.tokens, written.text[: found.answer_start], tokenizer)
    tokens = written.tokens[size:]
    return replace(written, tokens=tokens, text=tokenizer.decode(tokens).lstrip(), thought=found.thought)


@dataclass(frozen=True)
class FoundThought:
    """A thought at the beginning of a text."""

    begin: str
    """What opens it; empty: a template did, or only the channel of an answer was written."""
    thought: str
    """Without markers."""
    ended: bool
    answer_start: int
    """Place of the answer in the text; its end where the thought has not ended."""


def find_thought(text: str, form: Form, last: bool = False) -> FoundThought | None:
    """The thought at the beginning of a text: between the form's markers, other tags of thoughts, or in a channel.

    Args:
        text: that a model has written.
        form: with the markers.
        last: the thought ends at the last end marker, and may have been opened by a template, so that only its end
            is seen; False: it ends at the first.
    """
    begin, end = form.markers
    stripped = text.lstrip()
    place = (text.rfind(end) if last else text.find(end)) if last or stripped.startswith(begin) else -1
    if place >= 0:
        thought = text[:place].strip().removeprefix(begin).strip()
        return FoundThought(begin, thought, True, place + len(end))
    if stripped.startswith(begin):
        return FoundThought(begin, stripped.removeprefix(begin).strip(), False, len(text))
    if found := ANSWER_CHANNEL_PATTERN.match(text):
        return FoundThought("", "", True, found.end())
    opened = OPENING_PATTERN.match(text) or NAKED_CHANNEL_PATTERN.match(text)
    if opened is None:
        return None
    closing = [*CLOSING_PATTERN.finditer(text, opened.end())]
    closed = closing[-1 if last else 0] if closing else None
    thought = text[opened.end() : closed.start() if closed else len(text)].strip()
    return FoundThought(opened[0].strip(), thought, closed is not None, closed.end() if closed else len(text))


def _tokens_up_to_marker(ids: Tokens, end: str, tokenizer: Tokenizer) -> int:
    """Number of tokens up to a marker, or a text that ends in it: it may share a token with the text behind it."""
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
    *_, behind = tokenizer.decode(frame.after).rpartition(begin)
    opened = (begin in tokenizer.decode(frame.after) and end not in behind) or first.text.lstrip().startswith(begin)
    if not (ended or first.hit_room or opened):
        size = min(len(ids), question.max_new_tokens)  # no thought
        text = tokenizer.decode(ids[:size]).lstrip()
        return GenerateAnswer(
            tokens=ids[:size], text=text, hit_room=size < len(ids) and not question.contains_stop_text(text)
        )
    if not ended and not (first.hit_room and form.thinking == "budget"):
        return GenerateAnswer(tokens=ids[:0], text="", hit_room=first.hit_room, thought=thought, thought_cut=True)
    if not ended:
        ids = np.concatenate([ids, close])
    elif len(begun):
        ids = np.concatenate([ids, tokenizer.encode(THOUGHT_ANSWER_GAP).ids])
    second = yield replace(stage, prompt=np.concatenate([asked, ids, begun]))
    return replace(second, text=second.text.lstrip(), thought=thought)

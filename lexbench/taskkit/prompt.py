"""Shared by tasks with a prompt: checks of parameters and of the length, the room, the text around the haystack."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.core.task import Choose, Generate, Outline, Tokenizer, Tokens

TEXTS_FOR_SIZES = 8
"""Texts that are looked at for an outline."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedParts:
    """The parts of a sample that are the same at every length: all but the haystack."""

    index: int
    before: Tokens
    """Prompt before the haystack."""
    after: Tokens
    """Prompt behind the haystack."""
    room: int
    answer: str

    @property
    def tokens(self) -> int:
        """Tokens of these parts: prompt and room."""
        return len(self.before) + len(self.after) + self.room

    def write(self, body: Sequence[Tokens], cluster: str, chance: float, facts: Mapping[str, Any]) -> Generate:
        """The question with this body between the fixed parts of its prompt."""
        prompt = self._prompt(body)
        return Generate(
            index=self.index,
            cluster=cluster,
            prompt=prompt,
            text_tokens=len(prompt) - len(self.after),
            max_new_tokens=self.room,
            answer=self.answer,
            chance=chance,
            facts=facts,
        )

    def choose(
        self,
        body: Sequence[Tokens],
        cluster: str,
        options: Sequence[Tokens],
        expected: int,
        facts: Mapping[str, Any],
        guess: float | None = None,
    ) -> Choose:
        """Make the question as a choice among options, of which number `expected` is right."""
        prompt = self._prompt(body)
        return Choose(
            index=self.index,
            cluster=cluster,
            prompt=prompt,
            text_tokens=len(prompt) - len(self.after),
            options=tuple(options),
            expected=expected,
            guess=guess,
            facts=facts,
        )

    def _prompt(self, body: Sequence[Tokens]) -> Tokens:
        return np.concatenate([self.before, *body, self.after])


def task_name_of(task: object) -> str:
    """A task's name in messages, from its class: NonOverlapping is non_overlapping."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(task).__name__).lower()


def check_at_least(task: str, parameters: object, **least: int) -> None:
    """ConfigError for a parameter that is not None and below a bound: `check_at_least("copy", self, size=1)`."""
    for name, smallest in least.items():
        value = getattr(parameters, name)
        if value is not None and value < smallest:
            owner = f"{task}'" if task.endswith("s") else f"{task}'s"
            usual = getattr(type(parameters), name, smallest)
            remedy = f"e.g. task.{name}={usual}" if isinstance(usual, int) else "leave it out"
            raise ConfigError(f"{owner} {name} must be at least {smallest}, got {value}: {remedy}")


def check_haystack(task: str, parameters: Any, kinds: Sequence[str] = ("noise", "text")) -> None:
    """Check `haystack` and `corpus` of a task, and drop a corpus that the haystack does not read.

    Raises ConfigError for a haystack of another kind, or one of text without a corpus.
    """
    haystack = parameters.haystack
    if haystack not in kinds:
        raise ConfigError(f"{task}'s haystack must be one of {', '.join(kinds)}, got {haystack}")
    if haystack != "text":
        object.__setattr__(parameters, "corpus", None)
    elif parameters.corpus is None:
        raise ConfigError(f"{task} with haystack=text needs a corpus, got none: give one, or haystack=noise")


def check_length(task: str, needed: int, length: int, remedy: str = "raise length") -> None:
    """Refused if the task needs more tokens than the length."""
    if length < needed:
        raise Refused(f"{task} needs at least {needed} tokens, asked for {length}: {remedy}")


def check_count(task: str, count: int, noun: str, length: int) -> None:
    """Refused if a text of the length cannot hold so many needles or words, before they are drawn."""
    if count > length:
        raise Refused(f"{task} has {count:,} {noun}, asked for {length} tokens: lower their number, or raise length")


def resolve_max_new_tokens(task: str, answer: int, room: int | None, spare: int) -> int:
    """Tokens to write: `room`, by default those of the answer and `spare` more; Refused if the answer does not fit."""
    if room is not None and room < answer:
        raise Refused(f"{task} needs a room of at least {answer} tokens for its answer, got {room}: raise room")
    return answer + spare if room is None else room


def tokens_around_haystack(
    tokenizer: Tokenizer, chat: bool, headers: Sequence[str], ask: str, begin: str
) -> tuple[Tokens, Tokens]:
    """Tokens before and behind the haystack. Each text is tokenized on its own.

    Args:
        tokenizer: of the model.
        chat: put headers, haystack and `ask` into one user message of the chat template.
        headers: texts in front of the haystack.
        ask: the question behind the haystack.
        begin: first words of the answer; in a chat they come after the template and lose their leading blanks.
    """
    frame = tokenizer.frame(chat)
    # Each text is tokenized alone, so that the tokens around the haystack are the same at every length.
    before = [frame.before, *(tokenizer.encode(header).ids for header in headers)]
    # A chat backend frames every question, whatever the task asks for.
    begun = begin.lstrip() if chat or frame.is_chat else begin
    after = [tokenizer.encode(ask).ids, frame.after, tokenizer.encode(begun).ids]
    return np.concatenate(before), np.concatenate(after)


def fixed_fields(
    task: Any,
    tokenizer: Tokenizer,
    index: int,
    headers: Sequence[str],
    ask: str,
    begin: str,
    answers: Sequence[str],
    spare: int,
) -> dict[str, Any]:
    """The fields of `FixedParts` for one sample of a task that has `room` and `chat`.

    Args:
        task: of the sample.
        tokenizer: of the model.
        index: of the sample.
        headers: texts in front of the haystack, as in `tokens_around_haystack`.
        ask: the question behind the haystack.
        begin: first words of the answer.
        answers: right answers, each with its leading blank, the usual one first. The longest must fit in the room.
        spare: tokens to write beyond those of the longest answer, where the task states no room.
    """
    before, after = tokens_around_haystack(tokenizer, task.chat, headers, ask, begin)
    written = max(len(tokenizer.encode(answer).ids) for answer in answers)
    room = resolve_max_new_tokens(task_name_of(task), written, task.room, spare)
    return {"index": index, "before": before, "after": after, "room": room, "answer": answers[0]}


def texts_for_sizes(n: int, per_text: int = 1) -> range:
    """The first texts of n questions: their fixed parts tell the sizes of all."""
    return range(min(TEXTS_FOR_SIZES, -(-n // per_text)))


def outline_of(texts: Sequence[Sequence[FixedParts]], length: int, n: int, writes: bool = True) -> Outline:
    """Sizes of n questions that fill the length.

    Args:
        texts: the fixed parts of all questions behind each of the first texts.
        length: tokens.
        n: questions.
        writes: whether answers are written; False: they are chosen.
    """
    asked = [each for text in texts for each in text]
    room, behind = (float(np.mean(sizes)) for sizes in zip(*((one.room, len(one.after)) for one in asked), strict=True))
    return Outline(n, length, max_new_tokens=room if writes else 0, per_text=len(texts[0]), apart=behind + room)


def conversation_tokens(tokenizer: Tokenizer, messages: Sequence[tuple[str, str]]) -> list[Tokens]:
    """Tokens of several messages in the model's chat template, in pieces, of which every second one is a message.

    Refused for a tokenizer that only frames one user message.
    """
    if not isinstance(tokenizer, FastTokenizer):
        raise Refused("a conversation needs the tokenizer of a checkpoint with a chat template: set task.chat=false")
    return tokenizer.talk(messages)


def has_chat(tokenizer: Tokenizer) -> bool:
    """Whether the model has a chat template."""
    try:
        tokenizer.frame(chat=True)
    except ValueError:
        return False
    return True


def context_prefix(tokenizer: Tokenizer, chat: bool) -> tuple[int, ...]:
    """Tokens that begin a context: the tokenizer's, but none in a chat whose template lacks them."""
    if not ((chat or bool(getattr(tokenizer, "form", ""))) and has_chat(tokenizer)):
        return tokenizer.prefix
    before = tokenizer.frame(chat=True).before[: len(tokenizer.prefix)]
    return tokenizer.prefix if tuple(before) == tokenizer.prefix else ()


def bos_note(tokenizer: Tokenizer, chat: bool) -> str:
    """Words for the protocol: `BOS` or `no BOS`."""
    return "BOS" if context_prefix(tokenizer, chat) else "no BOS"


def context_beginning(tokenizer: Tokenizer, chat: bool = False) -> str:
    """Beginning of the context, for the protocol: `BOS`, `no BOS`, `BOS, chat template`."""
    return bos_note(tokenizer, chat) + (", chat template" if chat else "")

"""Questions as completion requests, for engines that continue a prompt and return log-probabilities."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.thinking import LocalForm, in_stages, without_thought
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.record import Refused
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
    Tokens,
    Write,
    Written,
)

MOST_OPTIONS = 128
"""Most tokens with log-probabilities in one vLLM request (vllm/sampling_params.py, MAX_LOGPROB_TOKEN_IDS)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Continue:
    """Write greedily behind the tokens, at most `room` new ones; stops at an end token, which is left out."""

    tokens: Tokens
    room: int
    until: tuple[str, ...] = ()
    """Stop strings: writing may stop once one of them is written."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued:
    """Reply to Continue: the new tokens."""

    tokens: Tokens
    hit_room: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Likely:
    """Reply `[len(tokens) - start]` nats: the NLL of tokens[start:], each given all tokens before it."""

    tokens: Tokens
    start: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Next:
    """Reply `[len(options)]` nats: the NLL of each option, of the whole vocabulary, as the token after `tokens`."""

    tokens: Tokens
    options: Tokens


Request = Continue | Likely | Next
Losses = NDArray[np.float32]
Reply = Continued | Losses
Steps = Generator[list[Request], list[Reply], Answer]
"""Yields lists of requests, receives their replies, and returns the answer."""


class Completions:
    """Base class of backends that answer every question by completions; a subclass implements `ask`."""

    name: str
    tokenizer: Tokenizer
    form = LocalForm()
    """Settings of the chat."""

    @property
    def by_prefix(self) -> bool:
        """Whether the engine caches common prefixes of prompts, so that options are cheaper token by token."""
        return False

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Reply to all requests, in order; raises Refused if one of them cannot be answered."""
        raise NotImplementedError

    def write(self, question: Write) -> Written:
        """Greedy continuation."""
        return self._answered(question)  # type: ignore[return-value]

    def choose(self, question: Choose) -> Chosen:
        """NLL of each option."""
        return self._answered(question)  # type: ignore[return-value]

    def mark(self, question: Mark) -> Marked:
        """NLL of each option at each place."""
        return self._answered(question)  # type: ignore[return-value]

    def score(self, question: Score) -> Scored:
        """NLL of the targets."""
        return self._answered(question)  # type: ignore[return-value]

    def probe(self, question: Probe) -> Probed:
        """Always Refused: engines do not return attention weights."""
        raise Refused(f"{self.name} does not return attention weights: use backend=hf")

    def steps(self, question: AnyQuestion) -> Steps:
        """Requests for a question, as a generator that returns the answer."""
        if isinstance(question, Write):
            return self._writing(question)
        if isinstance(question, Choose):
            return self._choosing(question)
        if isinstance(question, Mark):
            return _marking(question)
        if isinstance(question, Score):
            return _scoring(question)
        if isinstance(question, Probe):
            self.probe(question)
        raise Refused(f"{self.name} does not show the logits of a whole vocabulary: use backend=hf")

    def _answered(self, question: AnyQuestion) -> Answer:
        return next(in_turn(self, [question], at_once=1))

    def _writing(self, question: Write) -> Steps:
        if not question.thought:
            written = yield from self._continuing(question)
            return without_thought(written, self.tokenizer, self.form)
        stages = in_stages(question, cast(FastTokenizer, self.tokenizer), self.form)
        stage = next(stages)
        while True:
            written = yield from self._continuing(stage)
            try:
                stage = stages.send(written)
            except StopIteration as end:
                return cast(Written, end.value)

    def _continuing(self, question: Write) -> Generator[list[Request], list[Reply], Written]:
        [reply] = yield [Continue(tokens=question.prompt, room=question.room, until=question.until)]
        assert isinstance(reply, Continued)
        text = self.tokenizer.decode(reply.tokens)
        return Written(tokens=reply.tokens, text=text, hit_room=reply.hit_room and not question.said(text))

    def _choosing(self, question: Choose) -> Steps:
        """With a prefix cache: all first tokens in one request, later tokens one by one; else whole options."""
        prompt, options = question.prompt, question.options
        # Without a prefix cache each further token would read the prompt again: a whole option reads it once.
        if not self.by_prefix and max(map(len, options)) > 1:
            wholes = [np.concatenate([prompt, option]) for option in options]
            replies = yield [Likely(tokens=whole, start=len(prompt)) for whole in wholes]
            return Chosen(nll=np.array([_losses(reply).astype(np.float64).sum() for reply in replies]))
        # Options often begin alike: each first token is asked once. `unique` sorts, as `searchsorted` needs it.
        first = np.unique(np.array([option[0] for option in options]))
        [heads] = yield [Next(tokens=prompt, options=first)]
        sums = _losses(heads)[np.searchsorted(first, [option[0] for option in options])].astype(np.float64)
        later = [(which, place) for which, option in enumerate(options) for place in range(1, len(option))]
        if later:
            replies = yield [
                Next(tokens=np.concatenate([prompt, options[which][:place]]), options=options[which][place : place + 1])
                for which, place in later
            ]
            for (which, _), reply in zip(later, replies, strict=True):
                sums[which] += _losses(reply)[0]
        return Chosen(nll=sums)


def in_turn(backend: Completions, questions: Sequence[AnyQuestion], at_once: int) -> Iterator[Answer]:
    """Answer questions in order, `at_once` at a time: the first requests of all of them together, then the next."""
    for begin in range(0, len(questions), at_once):
        running = {place: backend.steps(question) for place, question in enumerate(questions[begin : begin + at_once])}
        answers: dict[int, Answer] = {}
        waiting = {place: next(steps) for place, steps in running.items()}
        while waiting:
            replies = iter(backend.ask([request for requests in waiting.values() for request in requests]))
            following = {}
            for place, requests in waiting.items():
                try:
                    following[place] = running[place].send([next(replies) for _ in requests])
                except StopIteration as end:
                    answers[place] = end.value
            waiting = following
        yield from (answers[place] for place in running)


def _marking(question: Mark) -> Steps:
    """Ask at the last place first: all other prompts are prefixes of it, and then in the engine's cache."""
    places, tokens = question.places, question.tokens
    [last] = yield [Next(tokens=tokens[: places[-1]], options=question.options)]
    others = yield [Next(tokens=tokens[:place], options=question.options) for place in places[:-1]]
    return Marked(nll=np.stack([*map(_losses, others), _losses(last)]))


def _scoring(question: Score) -> Steps:
    [reply] = yield [Likely(tokens=question.tokens, start=question.start)]
    return Scored(nll=_losses(reply))


def _losses(reply: Reply) -> Losses:
    assert isinstance(reply, np.ndarray), "the request was for likelihoods"
    return reply

"""Questions as completion requests, for engines that continue a prompt and return log-probabilities."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lexbench.backends.thinking import LocalForm, drop_thought, think_then_answer
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.core.record import Refused
from lexbench.core.task import (
    Answer,
    AnyQuestion,
    Choose,
    ChooseAnswer,
    ClassifyTokens,
    ClassifyTokensAnswer,
    Generate,
    GenerateAnswer,
    Loglikelihood,
    LoglikelihoodAnswer,
    ProbeAttention,
    ProbeAttentionAnswer,
    Tokenizer,
    Tokens,
)

MOST_OPTIONS = 128
"""Most tokens with log-probabilities in one vLLM request (vllm/sampling_params.py, MAX_LOGPROB_TOKEN_IDS)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Continue:
    """Write at most `max_new_tokens` tokens greedily behind these; stop at an end token, which is left out."""

    tokens: Tokens
    max_new_tokens: int
    until: tuple[str, ...] = ()
    """Stop strings: writing may stop once one of them is written."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Continued:
    """Reply to Continue: the new tokens."""

    tokens: Tokens
    hit_room: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Likely:
    """Reply [len(tokens) - first_target] nats: the NLL of tokens[first_target:], each given all tokens before it."""

    tokens: Tokens
    first_target: int


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

    def write(self, question: Generate) -> GenerateAnswer:
        """Greedy continuation."""
        return self._answer_of(question)  # type: ignore[return-value]

    def choose(self, question: Choose) -> ChooseAnswer:
        """NLL of each option."""
        return self._answer_of(question)  # type: ignore[return-value]

    def mark(self, question: ClassifyTokens) -> ClassifyTokensAnswer:
        """NLL of each option at each place."""
        return self._answer_of(question)  # type: ignore[return-value]

    def score(self, question: Loglikelihood) -> LoglikelihoodAnswer:
        """NLL of the targets."""
        return self._answer_of(question)  # type: ignore[return-value]

    def probe(self, question: ProbeAttention) -> ProbeAttentionAnswer:
        """Always Refused: engines do not return attention weights."""
        raise Refused(f"{self.name} does not return attention weights: use backend=hf")

    def steps(self, question: AnyQuestion) -> Steps:
        """Requests for a question, as a generator that returns the answer."""
        if question.layout is not None:
            raise Refused(f"{self.name} counts the positions of a text by itself, this question's jump: use backend=hf")
        if isinstance(question, Generate):
            return self._generate_steps(question)
        if isinstance(question, Choose):
            return self._choose_steps(question)
        if isinstance(question, ClassifyTokens):
            return _classify_tokens_requests(question)
        if isinstance(question, Loglikelihood):
            return _loglikelihood_requests(question)
        if isinstance(question, ProbeAttention):
            self.probe(question)
        raise Refused(f"{self.name} does not show the logits of a whole vocabulary: use backend=hf")

    def _answer_of(self, question: AnyQuestion) -> Answer:
        return next(answer_in_turn(self, [question], at_once=1))

    def _generate_steps(self, question: Generate) -> Steps:
        if not question.thought:
            written = yield from self._continue_steps(question)
            return drop_thought(written, self.tokenizer, self.form)
        stages = think_then_answer(question, cast(FastTokenizer, self.tokenizer), self.form)
        stage = next(stages)
        while True:
            written = yield from self._continue_steps(stage)
            try:
                stage = stages.send(written)
            except StopIteration as end:
                return cast(GenerateAnswer, end.value)

    def _continue_steps(self, question: Generate) -> Generator[list[Request], list[Reply], GenerateAnswer]:
        [reply] = yield [Continue(tokens=question.prompt, max_new_tokens=question.max_new_tokens, until=question.until)]
        assert isinstance(reply, Continued)
        text = self.tokenizer.decode(reply.tokens)
        return GenerateAnswer(
            tokens=reply.tokens, text=text, hit_room=reply.hit_room and not question.contains_stop_text(text)
        )

    def _choose_steps(self, question: Choose) -> Steps:
        """With a prefix cache: all first tokens in one request, later tokens one by one; else whole options."""
        prompt, options = question.prompt, question.options
        # Without a prefix cache each further token would read the prompt again: a whole option reads it once.
        if not self.by_prefix and max(map(len, options)) > 1:
            wholes = [np.concatenate([prompt, option]) for option in options]
            replies = yield [Likely(tokens=whole, first_target=len(prompt)) for whole in wholes]
            return ChooseAnswer(nll=np.array([_losses(reply).astype(np.float64).sum() for reply in replies]))
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
        return ChooseAnswer(nll=sums)


def answer_in_turn(backend: Completions, questions: Sequence[AnyQuestion], at_once: int) -> Iterator[Answer]:
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


def _classify_tokens_requests(question: ClassifyTokens) -> Steps:
    """Ask at the last place first: all other prompts are prefixes of it, and then in the engine's cache."""
    places, tokens = question.places, question.tokens
    [last] = yield [Next(tokens=tokens[: places[-1]], options=question.options)]
    others = yield [Next(tokens=tokens[:place], options=question.options) for place in places[:-1]]
    return ClassifyTokensAnswer(nll=np.stack([*map(_losses, others), _losses(last)]))


def _loglikelihood_requests(question: Loglikelihood) -> Steps:
    [reply] = yield [Likely(tokens=question.tokens, first_target=question.first_target)]
    return LoglikelihoodAnswer(nll=_losses(reply))


def _losses(reply: Reply) -> Losses:
    assert isinstance(reply, np.ndarray), "the request was for likelihoods"
    return reply

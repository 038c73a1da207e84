"""Servers of a small language model that reads all of its prompt, and the ways in which they are wrong."""

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.backends.scripted import Body, Reply, replied
from tests.backends.speaking import Speaker

Nats = NDArray[np.float64]
KNOWN_TOKENS = 120
"""Tokens of the first trials, at most: faults of long prompts begin behind them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reader(Speaker):
    """A model whose every token changes what follows it; the likeliest tokens are told beside the written ones.

    Args:
        behind: tokens of a prompt from which it is wrong.
        prompt: what it reads in place of a long prompt.
        values: what it gives in place of log-probabilities of a long prompt's tokens, of these, behind the first.
        chosen: what it writes in place of the likeliest token behind a long prompt, of log-probabilities.
        told: whether log-probabilities of written tokens are given, and of how many likeliest.
    """

    behind: int = KNOWN_TOKENS
    prompt: Callable[[list[int]], list[int]] = lambda tokens: tokens
    values: Callable[[list[float]], list[float]] = lambda row: row
    chosen: Callable[[Nats, np.random.Generator], int] = lambda row, rng: int(row.argmax())
    told: int = 1
    names: bool = True
    digits: int | None = None
    last: list[Body] = field(default_factory=list)

    def row(self, tokens: Sequence[int]) -> Nats:
        """[vocabulary] log-probabilities of the token behind these."""
        read = self.prompt(list(tokens)) if len(tokens) > self.behind else list(tokens)
        seed = zlib.crc32(np.array(read, np.int64).tobytes())
        logits = (
            self.logits(tuple(read[-2:]))
            + 0.5
            * np.random.default_rng([self.seed, seed]).normal(size=2048)[np.arange(self.tokenizer.vocabulary) % 2048]
        )
        if self.noise:
            logits = logits + self.noise * self.rng.normal(size=len(logits))
        found: Nats = logits - np.log(np.exp(logits).sum())
        return found if self.digits is None else found.round(self.digits)

    def written(self, tokens: Sequence[int], room: int) -> tuple[list[int], list[float]]:
        """New tokens and their log-probabilities."""
        new, values, _ = self.ranked(tokens, room)
        return new, values

    def ranked(self, tokens: Sequence[int], room: int) -> tuple[list[int], list[float], list[float]]:
        """New tokens, their log-probabilities, and those of the likeliest in their places."""
        new, values, best = list[int](), list[float](), list[float]()
        while len(new) < room:
            row = self.row([*tokens, *new])
            wrong = len(tokens) > self.behind
            new.append(self.chosen(row, self.rng) if wrong else int(row.argmax()))
            values.append(float(row[new[-1]]))
            best.append(float(row.max()))
        return new, values, best

    def read(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities that the server gives of tokens[1:]."""
        row = [float(self.row(tokens[:place])[tokens[place]]) for place in range(1, len(tokens))]
        return self.values(row) if len(tokens) > self.behind else row

    def following(self, tokens: Sequence[int], options: Sequence[int]) -> list[float]:
        """Log-probabilities that the server gives of options behind tokens."""
        row = [float(each) for each in self.row(tokens)[list(options)]]
        return self.values(row) if len(tokens) > self.behind else row

    def told_by(self, form: str) -> Callable[[Body], Reply]:
        """Answers in one of the forms of `FORMS`."""
        answer = {"vllm": self.vllm, "older vllm": self.without_options, "echo": self.echo, "text": self.echo_of_text}
        known = answer.get(form, self.echo)

        def told(body: Body) -> Reply:
            if form in ("writes", "silent") and (
                body.get("echo") or set(body) & {"prompt_logprobs", "return_token_ids"}
            ):
                return 400, {"error": {"message": "not supported"}}
            status, whole = replied(known, body)
            if status == 200:
                [choice] = whole["choices"]
                self._tell(choice, body, form)
            return status, whole

        return told

    def _tell(self, choice: Body, body: Body, form: str) -> None:
        """Name the likeliest token in each new place, where the request asks and the server does so."""
        given = choice.get("logprobs")
        if not given or body.get("logprob_token_ids") or body.get("echo"):
            return
        if form == "silent":
            choice["logprobs"] = None
            return
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = [*self.tokenizer.prefix, *self.tokenizer.encode(prompt).ids.tolist()]
        if self.noise == 0 and self.names:  # the same tokens once more
            _, _, best = self.ranked(prompt, len(given["token_logprobs"])) if not self.is_random else ([], [], [])
            given["top_logprobs"] = [{"x": value} for value in best]

    @property
    def is_random(self) -> bool:
        """Whether the same request has other answers."""
        return getattr(self.chosen, "__name__", "") == "drawn"


FORMS = ("vllm", "older vllm", "echo", "text", "writes", "silent")
"""vLLM's; vLLM's without options of the next token; echo of ids; echo of text; only written tokens and their
log-probabilities; only written tokens."""


def drawn(row: Nats, rng: np.random.Generator) -> int:
    """At temperature 1."""
    return int(rng.choice(len(row), p=np.exp(row) / np.exp(row).sum()))


def second(row: Nats, rng: np.random.Generator) -> int:
    """The second likeliest."""
    return int(np.argsort(row)[-2])


def lukewarm(row: Nats, rng: np.random.Generator) -> int:
    """At temperature 0.6."""
    chances = np.exp(row / 0.6)
    return int(rng.choice(len(row), p=chances / chances.sum()))


lukewarm.__name__ = "drawn"

LIKELIHOOD_FAULTS: dict[str, dict[str, Any]] = {
    "0.0": {"values": lambda row: [0.0] * len(row)},
    "one constant": {"values": lambda row: [-2.5] * len(row)},
    "0.0 behind the first 120": {
        "values": lambda row: [*row[:120], *[0.0] * (len(row) - 120)] if len(row) > 120 else row
    },
    "scaled by 1.3": {"values": lambda row: [1.3 * value for value in row]},
    "scaled by 0.75": {"values": lambda row: [0.75 * value for value in row]},
    "off by one to the right": {"values": lambda row: [row[0], *row[:-1]]},
    "off by one to the left": {"values": lambda row: [*row[1:], row[-1]]},
    "moved by 0.3": {"values": lambda row: [value - 0.3 for value in row]},
}
WRITING_FAULTS: dict[str, dict[str, Any]] = {
    "temperature ignored": {"chosen": drawn},
    "a temperature of 0.6": {"chosen": lukewarm},
    "the second likeliest token": {"chosen": second},
}
PROMPT_FAULTS: dict[str, dict[str, Any]] = {
    "cut to the last 100": {"prompt": lambda tokens: tokens[-100:]},
    "cut to the last half": {"prompt": lambda tokens: tokens[len(tokens) // 2 :]},
    "cut in the middle": {"prompt": lambda tokens: tokens[: len(tokens) // 4] + tokens[-len(tokens) // 4 :]},
    "first token lost": {"prompt": lambda tokens: tokens[1:]},
}
UNSEEN_FAULTS: dict[str, dict[str, Any]] = {
    "a text in front": {"prompt": lambda tokens: [*tokens[:1], 90, 91, 92, 93, *tokens[1:]]},
    "BOS twice": {"prompt": lambda tokens: [tokens[0], *tokens]},
}
"""They contradict nothing that a server says: without a reference they cannot be judged."""


def of_another_request(answer: Callable[[Body], Reply]) -> Callable[[Body], Reply]:
    """Each request gets the answer of the one before."""
    before: list[Reply] = []

    def said(body: Body) -> Reply:
        before.append(answer(body))
        return before[max(0, len(before) - 2)]

    return said


def exchanging(answer: Callable[[Body], Reply]) -> Callable[[Body], Reply]:
    """Two requests that are on the way together get the answers of each other; one that is alone gets its own."""
    barrier, replies = threading.Barrier(2), dict[int, Reply]()

    def said(body: Body) -> Reply:
        own = answer(body)
        try:
            place = barrier.wait(0.5)
            replies[place] = own
            barrier.wait(0.5)
            other = replies[1 - place]
            barrier.wait(0.5)
        except threading.BrokenBarrierError:
            barrier.reset()
            return own
        return other

    return said

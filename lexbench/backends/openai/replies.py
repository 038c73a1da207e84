"""Answers of a server, read with distrust: a number that cannot be trusted is refused, never guessed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lexbench.backends.openai.http import Server
from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens

NOTHING = -9999.0
"""What vLLM writes in place of a log-probability of minus infinity."""
ROUNDING = 1e-3
"""How far above 0 a log-probability may come by rounding."""


class Replies:
    """Reads what a server answers.

    Args:
        server: whose answers they are.
        tokenizer: of the model, here.
        vocabulary: number of its token ids.
    """

    def __init__(self, server: Server, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._server, self._tokenizer, self._vocabulary = server, tokenizer, vocabulary

    def new_tokens(self, choice: Mapping[str, Any], room: int) -> Tokens:
        """The ids that were written, perhaps with the end token."""
        ids = found(self._server, choice, list, "token_ids")
        if len(ids) > room or any(type(i) is not int or not 0 <= i < self._vocabulary for i in ids):
            raise malformed(self._server, f"token_ids must be at most {room} ids below {self._vocabulary}")
        return np.array(ids, dtype=np.int64)

    def of_prompt(self, choice: Mapping[str, Any], tokens: Tokens, start: int) -> list[float]:
        """From `prompt_logprobs`: an entry a token, by its id."""
        entries = found(self._server, choice, list, "prompt_logprobs")
        if len(entries) != len(tokens):
            raise malformed(self._server, f"prompt_logprobs has {len(entries)} entries for {len(tokens)} tokens")
        losses = []
        for place in range(start, len(tokens)):
            entry = entries[place]
            own = entry.get(str(tokens[place])) if isinstance(entry, dict) else None
            if not isinstance(own, dict):
                raise malformed(self._server, f"prompt_logprobs at {place} is not of token {tokens[place]}, as sent")
            losses.append(self.nll(own.get("logprob"), f"place {place}"))
        return losses

    def of_echo(self, choice: Mapping[str, Any], tokens: Tokens, start: int) -> list[float]:
        """From `logprobs` with `echo`: an entry a token, and perhaps one of a token written behind them."""
        values = found(self._server, choice, list, "logprobs", "token_logprobs")
        texts = found(self._server, choice, list, "logprobs", "tokens")
        if not len(tokens) <= len(values) <= len(tokens) + 1 or len(texts) != len(values):
            raise malformed(self._server, f"{len(values)} log-probabilities of {len(texts)} tokens for {len(tokens)}")
        for place in range(start, len(tokens)):
            words = self._tokenizer.decode(tokens[place : place + 1]).split()
            if any(word.isascii() and word not in str(texts[place]) for word in words):
                raise malformed(self._server, f"logprobs at {place} are not of {words[0]!r}, as sent")
        return [self.nll(values[place], f"place {place}") for place in range(start, len(tokens))]

    def of_next(self, choice: Mapping[str, Any], options: Tokens) -> list[float]:
        """From the new token's `top_logprobs`: an entry an option, by its id."""
        given = found(self._server, choice, dict, "logprobs", "top_logprobs", 0)
        return [self.nll(given.get(f"token_id:{option}"), f"token {option}") for option in options]

    def nll(self, value: Any, what: str) -> float:
        """Nats from a log-probability; Refused where it is no honest number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not NOTHING < value <= ROUNDING:
            shown = self._server.words(str(value))[:40]
            raise malformed(self._server, f"the log-probability of {what} must be finite and at most 0, got {shown}")
        return max(-float(value), 0.0)


def models(server: Server) -> list[dict[str, Any]]:
    """What the server lists, each with its `id`; one attempt (see `Server.get`)."""
    entries = found(server, server.get("models"), list, "data")
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def found(server: Server, answer: Any, kind: type, *path: str | int) -> Any:
    """What stands in an answer at a path; Refused where it is missing or of another kind."""
    place = answer
    for step in path:
        try:
            place = place[step]
        except (KeyError, IndexError, TypeError):
            place = None
    if not isinstance(place, kind):
        where = ".".join(map(str, path))
        raise malformed(server, f"{where} must be a {kind.__name__}, got {type(place).__name__}")
    return place


def malformed(server: Server, what: str) -> Refused:
    """For an answer that cannot be trusted."""
    return Refused(f"malformed answer of {server.url}: {what}")

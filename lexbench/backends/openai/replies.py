"""Reads and validates answers of a server: a suspicious number is refused, never guessed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lexbench.backends.openai.http import ServerClient
from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens

VLLM_MINUS_INFINITY = -9999.0
"""vLLM writes this in place of a log-probability of minus infinity."""
MAX_LOG_PROBABILITY = 1e-3
"""Largest log-probability accepted: rounding may lift it above 0."""


class Replies:
    """Reads the answers of a server.

    Args:
        server: for error messages.
        tokenizer: of the model, loaded here.
        vocabulary: number of token ids.
    """

    def __init__(self, server: ServerClient, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._server, self._tokenizer, self._vocabulary = server, tokenizer, vocabulary

    def new_tokens(self, choice: Mapping[str, Any], room: int) -> Tokens:
        """The ids of new tokens; the end token may be among them."""
        ids = value_at(self._server, choice, list, "token_ids")
        if len(ids) > room or any(type(i) is not int or not 0 <= i < self._vocabulary for i in ids):
            raise malformed_answer(self._server, f"token_ids must be at most {room} ids below {self._vocabulary}")
        return np.array(ids, dtype=np.int64)

    def prompt_losses(self, choice: Mapping[str, Any], tokens: Tokens, start: int) -> list[float]:
        """NLL of tokens[start:] from `prompt_logprobs` (vLLM): one entry per token, keyed by token id."""
        entries = value_at(self._server, choice, list, "prompt_logprobs")
        if len(entries) != len(tokens):
            raise malformed_answer(self._server, f"prompt_logprobs has {len(entries)} entries for {len(tokens)} tokens")
        losses = []
        for place in range(start, len(tokens)):
            entry = entries[place]
            own = entry.get(str(tokens[place])) if isinstance(entry, dict) else None
            if not isinstance(own, dict):
                raise malformed_answer(
                    self._server, f"prompt_logprobs at {place} lacks token {tokens[place]}, which was sent"
                )
            losses.append(self.nll(own.get("logprob"), f"place {place}"))
        return losses

    def echo_losses(self, choice: Mapping[str, Any], tokens: Tokens, start: int) -> list[float]:
        """NLL of tokens[start:] from `logprobs` with `echo`: one entry per token, and perhaps one of a new token.

        The entries name tokens as text, so only their ASCII words are compared.
        """
        values = value_at(self._server, choice, list, "logprobs", "token_logprobs")
        texts = value_at(self._server, choice, list, "logprobs", "tokens")
        if not len(tokens) <= len(values) <= len(tokens) + 1 or len(texts) != len(values):
            raise malformed_answer(
                self._server, f"{len(values)} log-probabilities of {len(texts)} tokens for {len(tokens)}"
            )
        for place in range(start, len(tokens)):
            words = self._tokenizer.decode(tokens[place : place + 1]).split()
            if any(word.isascii() and word not in str(texts[place]) for word in words):
                raise malformed_answer(self._server, f"logprobs at {place} are not of {words[0]!r}, which was sent")
        return [self.nll(values[place], f"place {place}") for place in range(start, len(tokens))]

    def next_token_losses(self, choice: Mapping[str, Any], options: Tokens) -> list[float]:
        """NLL of each option from the new token's `top_logprobs`: one entry per option, keyed by token id."""
        given = value_at(self._server, choice, dict, "logprobs", "top_logprobs", 0)
        return [self.nll(given.get(f"token_id:{option}"), f"token {option}") for option in options]

    def nll(self, value: Any, what: str) -> float:
        """NLL (nats) from a log-probability; Refused if it is not a finite number of at most 0."""
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not VLLM_MINUS_INFINITY < value <= MAX_LOG_PROBABILITY
        ):
            shown = self._server.one_line_message(str(value))[:40]
            raise malformed_answer(
                self._server, f"the log-probability of {what} must be finite and at most 0, got {shown}"
            )
        return max(-float(value), 0.0)


def list_models(server: ServerClient) -> list[dict[str, Any]]:
    """The server's list of models, each with its `id`; one attempt (see `Server.get`)."""
    entries = value_at(server, server.get("models"), list, "data")
    server.listed = True
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def value_at(server: ServerClient, answer: Any, kind: type, *path: str | int) -> Any:
    """The value at a path in an answer; Refused if it is missing or of another type."""
    place = answer
    for step in path:
        try:
            place = place[step]
        except (KeyError, IndexError, TypeError):
            place = None
    if not isinstance(place, kind):
        where = ".".join(map(str, path))
        raise malformed_answer(server, f"{where} must be a {kind.__name__}, got {type(place).__name__}")
    return place


def malformed_answer(server: ServerClient, what: str) -> Refused:
    """The Refused for an answer that cannot be trusted."""
    return Refused(f"malformed answer of {server.url}: {what}")

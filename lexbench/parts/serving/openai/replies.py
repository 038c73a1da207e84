"""Reads and validates answers of a server: a suspicious number is refused, never guessed."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lexbench.core.record import Refused
from lexbench.core.task import Tokenizer, Tokens
from lexbench.parts.serving.openai.http import ServerClient

VLLM_MINUS_INFINITY = -9999.0
"""vLLM writes this in place of a log-probability of minus infinity."""
MAX_LOG_PROBABILITY = 1e-3
"""Largest log-probability accepted: rounding may lift it above 0."""
MIN_NEXT_TOKENS = 2
"""Next tokens that a server gives likelihoods of, at least: one alone says too little."""
TOKEN_ID_MARK = "token_id:"
"""Before the id of a token that vLLM names by it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NextTokens:
    """The likeliest next tokens that a server tells, and the one that it has written."""

    nats: Mapping[int, float]
    """By id; a token whose id cannot be told is left out."""
    written: float
    """Nats of the written token above those of the likeliest; 0: it is the likeliest."""


class NoLikelihoods(Refused):
    """The server gives no log-probabilities of the tokens that it writes."""


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

    def likeliest_next_tokens(self, choice: Mapping[str, Any]) -> NextTokens:
        """The likeliest next tokens, from completions' or from chat's form of `logprobs`; Refused where it is neither,
        `NoLikelihoods` where there are none.

        Infinite and missing log-probabilities are left out. Servers name a token by its id, or by its text alone.
        """
        if choice.get("logprobs") is None:
            raise NoLikelihoods(f"{self._server.url} gives no log-probabilities of the tokens that it writes")
        logprobs = value_at(self._server, choice, dict, "logprobs")
        if isinstance(logprobs.get("content"), list):  # of chat, and of llama.cpp's completions
            first = value_at(self._server, logprobs, dict, "content", 0)
            given = [
                (each.get("id", each.get("token")), each.get("logprob"))
                for each in value_at(self._server, first, list, "top_logprobs")
                if isinstance(each, dict)
            ]
            written = first.get("logprob")
        else:
            given = [*value_at(self._server, logprobs, dict, "top_logprobs", 0).items()]
            written = next(iter(value_at(self._server, logprobs, list, "token_logprobs")), None)
        known = [(name, self.nll(value, "a next token")) for name, value in given if _is_finite_logprob(value)]
        if len(known) < MIN_NEXT_TOKENS:
            raise malformed_answer(self._server, f"it must have {MIN_NEXT_TOKENS} next tokens with finite likelihoods")
        ids = [(self._id_of_token(name), nats) for name, nats in known]
        least = min(nats for _, nats in known)
        return NextTokens(
            nats={own: nats for own, nats in ids if own is not None},
            written=self.nll(written, "the written token") - least if _is_finite_logprob(written) else 0.0,
        )

    def ranks_of_new(self, choice: Mapping[str, Any]) -> list[tuple[float, float | None]]:
        """Nats of each new token, and its nats above the likeliest that is named in its place, None where none is.

        Empty where the server tells none, or no finite ones, in completions' or in chat's form of `logprobs`.
        """
        logprobs = choice.get("logprobs")
        given: Any = logprobs if isinstance(logprobs, dict) else {}
        if isinstance(given.get("content"), list):
            places = [each if isinstance(each, dict) else {} for each in given["content"]]
            written: list[Any] = [each.get("logprob") for each in places]
            rows: list[list[Any]] = [
                [one.get("logprob") for one in _dicts(each.get("top_logprobs"))] for each in places
            ]
        else:
            written, named = _as_list(given.get("token_logprobs")), _as_list(given.get("top_logprobs"))
            rows = [[*each.values()] if isinstance(each, dict) else [] for each in named]
        if not written or not all(map(_is_log_probability, written)):
            return []
        found = list[tuple[float, float | None]]()
        for place, value in enumerate(written):
            others = [each for each in rows[place] if _is_log_probability(each)] if place < len(rows) else []
            found.append((max(0.0, -value), max(0.0, max(others) - value) if others else None))
        return found

    def _id_of_token(self, name: Any) -> int | None:
        """The id of a token that an answer names; None where several have this text, or none."""
        if isinstance(name, str) and name.startswith(TOKEN_ID_MARK):
            name = int(found) if (found := name.removeprefix(TOKEN_ID_MARK)).isdecimal() else -1
        if type(name) is int:
            return name if 0 <= name < self._vocabulary else None
        own = self._ids_by_text.get(str(name))
        return own if own is not None else self._ids_by_text.get(_without_byte_letters(str(name)))

    @functools.cached_property
    def _ids_by_text(self) -> dict[str, int]:
        """Ids of tokens by their text inside a text; those that share theirs, and parts of characters, have none."""
        before = self._tokenizer.encode("a").ids[-1:].tolist()
        skipped = len(self._tokenizer.decode(before))
        found: dict[str, int] = {}
        shared = {"", "\N{REPLACEMENT CHARACTER}"}
        for own in range(self._tokenizer.vocabulary):
            text = self._tokenizer.decode([*before, own])[skipped:]
            if text in found:
                shared.add(text)
            found[text] = own
        return {text: own for text, own in found.items() if text not in shared}

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


def _is_finite_logprob(value: Any) -> bool:
    """Whether it is a number above what stands for minus infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > VLLM_MINUS_INFINITY


def _is_log_probability(value: Any) -> bool:
    """Whether it is a finite log-probability."""
    return _is_finite_logprob(value) and value <= MAX_LOG_PROBABILITY


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in _as_list(value) if isinstance(each, dict)]


def _without_byte_letters(name: str) -> str:
    """The text of a token that is named as its vocabulary writes it, with letters in place of a blank or a line."""
    for letter, text in (("\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}", " "), ("\N{LOWER ONE EIGHTH BLOCK}", " ")):
        name = name.replace(letter, text)
    return name.replace("\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}", "\n")


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

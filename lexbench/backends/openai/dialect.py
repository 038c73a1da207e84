"""Detects what a server supports of OpenAI's completions, sends requests in that form, and validates the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lexbench.backends.completions import MOST_OPTIONS, Continue, Continued, Losses
from lexbench.backends.openai.http import Rejected, Server
from lexbench.backends.openai.replies import Replies, found, malformed, models
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Tokenizer, Tokens

STOPS = 4
"""Most stop strings that the interface accepts."""
SCORING: Sequence[Mapping[str, Any]] = (
    {"prompt_logprobs": 0, "max_tokens": 1},
    {"echo": True, "logprobs": 0, "max_tokens": 0},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"echo": True, "logprobs": 1, "max_tokens": 1},
)
"""Fields that request the likelihood of a prompt: vLLM's own, then OpenAI's; some servers accept one form only."""
APART = 0.5
"""Nats by which a token may differ between being written and being read by the same engine; rounding moves it less."""
PROBE = "The grass is green and the sky is blue."
TELLING = (
    "In 1997: 3.14159265358979323846, then 271828182845904523536. Naïve Übermäßigkeit, Москва и Киев, 東京都と大阪府, "
    "καλημέρα κόσμε;\n        for (int i = 0; i != rows_of(table); i++) { sum += x[i]*y[i]; }"
)
"""Digits, scripts and code, which two tokenizers hardly ever cut into equally many tokens."""
OTHERWISE = 0.1
"""Share of the tokens of `TELLING` by which a server may differ: a BOS, an end token, a space in front."""


@dataclass(frozen=True)
class Abilities:
    """Abilities of a server, detected by trial requests."""

    ids: bool
    """It accepts prompts as token ids; if not, as text only."""
    exact: bool
    """It returns ids of new tokens and accepts our end tokens (vLLM)."""
    scoring: Mapping[str, Any] | None
    """The form of `SCORING` that it answers; None: none of them."""
    options: bool
    """It returns log-probabilities of given next tokens (`logprob_token_ids` of vLLM)."""
    odd: str = ""
    """Why its likelihoods are not believed."""


class Dialect:
    """Completions of one model on a server; `able` holds what it supports.

    `fingerprint` is the server's own, `answering` the name of the model that it gives with its answers.

    The constructor sends a few trial requests; Refused if the server answers none, Deferred if it cannot now.

    Args:
        server: to send requests to.
        served: the model's name on the server.
        tokenizer: of the model, loaded here.
        ends: ids of the end tokens.
        vocabulary: number of token ids.
        steady: the server reports a fingerprint of its arguments (vLLM), which must not change during a run.
    """

    def __init__(
        self, server: Server, served: str, tokenizer: Tokenizer, ends: Sequence[int], vocabulary: int, steady: bool
    ) -> None:
        self._server, self._served, self._tokenizer = server, served, tokenizer
        self._ends, self._steady = ends, steady
        self._replies = Replies(server, tokenizer, vocabulary)
        self.fingerprint: str | None = None
        self.answering: str | None = None
        self._trying = True
        self.able = self._abilities()
        self._trying = False

    def continued(self, request: Continue) -> Continued:
        """Greedy continuation of the tokens."""
        until = [text for text in request.until if text][:STOPS]
        fields = {**(self._exactly() if self.able.exact else {}), **({"stop": until} if until else {})}
        choice, counted = self._complete(self.able.ids, request.tokens, max_tokens=request.room, **fields)
        cut = self._is_cut(choice)
        if self.able.exact:
            tokens = self._replies.new_tokens(choice, request.room)
            written: int | None = len(tokens)
        else:  # only text: its tokens may differ from the ones written, the server's count is kept
            tokens = self._tokenizer.encode(found(self._server, choice, str, "text")).ids
            written = counted
            if written is not None and written > request.room:
                raise Refused(
                    f"{self._server.url} wrote {written} tokens of at most {request.room}: it ignores max_tokens"
                )
            tokens = tokens[: request.room]
        if cut and written is not None and written < request.room:
            raise Refused(
                f"{self._server.url} stopped after {written} of {request.room} tokens: raise its limit on new tokens"
            )
        self._check_secret(self._tokenizer.decode(tokens))
        [ends] = np.nonzero(np.isin(tokens, self._ends))
        if len(ends):
            return Continued(tokens=tokens[: ends[0]], hit_room=False)
        return Continued(tokens=tokens, hit_room=cut)

    def likely(self, tokens: Tokens, start: int) -> Losses:
        """NLL of tokens[start:]."""
        form = self.able.scoring
        if form is None:
            why = self.able.odd or (
                "gives no log-probabilities of a prompt, neither prompt_logprobs nor echo with logprobs"
            )
            raise Refused(f"{self._server.url} {why}: use a vLLM server, or backend=hf")
        if (
            "prompt_logprobs" in form and self.able.options
        ):  # score the last token as the next one: fits a prompt of the full window
            return self._ahead(tokens[:-1], tokens[-1:], start)
        return self._scored(self.able.ids, form, tokens, start)

    def next(self, tokens: Tokens, options: Tokens) -> Losses:
        """NLL of each option as the next token."""
        if not self.able.options:
            wholes = [np.append(tokens, option) for option in options]
            return np.concatenate([self.likely(whole, len(tokens)) for whole in wholes])
        # Each part reads the prompt again, but for what the server's prefix cache holds.
        parts = [options[begin : begin + MOST_OPTIONS] for begin in range(0, len(options), MOST_OPTIONS)]
        return np.concatenate([self._ahead(tokens, part, len(tokens)) for part in parts])

    # requests

    def _exactly(self) -> dict[str, Any]:
        """Fields that make vLLM write as we do: only our end tokens, no repetition penalty from the model's folder."""
        return {
            "return_token_ids": True,
            "ignore_eos": True,
            "stop_token_ids": list(self._ends),
            "repetition_penalty": 1.0,
        }

    def _ahead(self, tokens: Tokens, options: Tokens, start: int) -> Losses:
        """NLL of tokens[start:] and of each option as the next token, in one request to vLLM."""
        scoring = {"prompt_logprobs": 0} if start < len(tokens) else {}
        choice, _ = self._complete(
            True,
            tokens,
            max_tokens=1,
            logprobs=len(options),
            logprob_token_ids=options.tolist(),
            return_tokens_as_token_ids=True,
            **scoring,
        )
        before = self._replies.of_prompt(choice, tokens, start) if scoring else []
        return np.array([*before, *self._replies.of_next(choice, options)], dtype=np.float32)

    def _scored(self, ids: bool, form: Mapping[str, Any], tokens: Tokens, start: int) -> Losses:
        """NLL of tokens[start:], by one of the forms of `SCORING`."""
        choice, _ = self._complete(ids, tokens, **form)
        read = self._replies.of_echo if "echo" in form else self._replies.of_prompt
        return np.array(read(choice, tokens, start), dtype=np.float32)

    def _complete(self, ids: bool, tokens: Tokens, **fields: Any) -> tuple[dict[str, Any], int | None]:
        """The only choice of an answer, whose prompt was read whole, and its new tokens, if the server counts them."""
        prompt = tokens.tolist() if ids else self._text(tokens)
        answer, choice = self._posted("completions", {"prompt": prompt, **fields})
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        # A server may omit the count where its tokens are compared, and for the ids of a trial.
        compared = "echo" in fields or "prompt_logprobs" in fields or (ids and self._trying)
        if read != len(tokens) and not (read is None and compared):
            shown = "an unknown number" if read is None else self._server.words(str(read))
            raise Refused(
                f"{self._server.url} has read {shown} of {len(tokens)} tokens: it truncates prompts, "
                "has another tokenizer, or another BOS policy (model.bos)"
            )
        return choice, written if isinstance(written, int) else None

    def _posted(self, path: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A greedy answer and its only choice, by the server that this run began with."""
        try:
            answer = self._server.post(path, {"model": self._served, "temperature": 0, **fields})
        except Rejected as no:
            raise self._gone(no) if no.status == 404 else no from None
        self._check_same(answer)
        choices = found(self._server, answer, list, "choices")
        if not choices and not self._trying:  # it knows the request: this passes
            raise Deferred(f"{self._server.url} sent an answer without a choice: repeat the command")
        if len(choices) != 1:
            raise malformed(self._server, "it must have exactly one choice")
        return answer, found(self._server, answer, dict, "choices", 0)

    def _is_cut(self, choice: Mapping[str, Any]) -> bool:
        """Whether the answer filled its room; Deferred if it ended neither so nor by itself."""
        reason = choice.get("finish_reason")
        if reason is None:
            raise Deferred(
                f"{self._server.url} does not say why an answer ended (finish_reason), so a cut one cannot be told "
                "from a whole one: take a server, or a proxy before it, that says so"
            )
        if reason not in ("stop", "length"):
            said = self._server.words(str(reason))
            raise Deferred(
                f"{self._server.url} cut an answer short ({said}): see its log and settings, then repeat the command"
            )
        return bool(reason == "length")

    def _check_secret(self, text: str) -> None:
        if self._server.holds_key(text):
            raise Refused(f"{self._server.url} wrote the API key that was sent to it: a record must not hold the key")

    def _check_same(self, answer: Mapping[str, Any]) -> None:
        """Raise Deferred if the server's fingerprint has changed, by a restart with other arguments, or its model."""
        said = answer.get("system_fingerprint") if self._steady else None
        said = self._server.words(said) if isinstance(said, str) else None
        self.fingerprint = self.fingerprint or said
        if said != self.fingerprint:
            raise Deferred(
                f"{self._server.url} is not the server that this run began with (other fingerprint): repeat the command"
            )
        if isinstance(answer.get("model"), str):
            model = self._server.words(answer["model"])
            self.answering = self.answering or model
            if model != self.answering:
                raise Deferred(
                    f"{self._server.url} answers by model {model}, and by {self.answering} when this run began: repeat "
                    "the command"
                )

    def _text(self, tokens: Tokens) -> str:
        """The tokens as text, without the BOS that the server adds; Refused if the text gives other tokens."""
        prefix = self._tokenizer.prefix
        own = tokens[len(prefix) :] if tuple(tokens[: len(prefix)]) == prefix else tokens
        text = self._tokenizer.decode(own)
        if not np.array_equal(self._tokenizer.encode(text).ids, own):
            raise Refused(
                f"{self._server.url} takes prompts as text only, and no text has these tokens: use backend=hf"
            )
        return text

    def _gone(self, no: Rejected) -> Refused:
        """Explain a 404: Deferred if the server has another model by now, or no list of models any more, which it had.

        Else the rejection itself.
        """
        try:
            names = [str(entry["id"]) for entry in models(self._server)]
        except Refused as lost:
            if self._server.listed or isinstance(lost, Deferred):
                return Deferred(f"{no.reason}, nor does it list its models: start the server, then repeat the command")
            return no
        if self._served in names:
            return no
        others = self._server.words(", ".join(names)) or "nothing"
        return Deferred(f"{self._server.url} no longer serves {self._served}, but {others}: give backend.served=...")

    # detection

    def _abilities(self) -> Abilities:
        tokens = np.array([*self._tokenizer.prefix, *self._tokenizer.encode(PROBE).ids], dtype=np.int64)
        ids, exact = self._prompts(tokens)
        if ids:
            self._check_tokenizer()
        # Tried, not told: the same server answers otherwise by its version and by how it was started.
        scoring = next((form for form in SCORING if _understood(self._scored, ids, form, tokens, 1)), None)
        options = ids and _understood(self._ahead, tokens, tokens[-2:], len(tokens))
        odd = self._contradiction(ids, scoring, tokens) if scoring and "echo" in scoring else ""
        return Abilities(ids, exact, None if odd else scoring, options, odd)

    def _contradiction(self, ids: bool, form: Mapping[str, Any], tokens: Tokens) -> str:
        """Words for a token whose likelihood differs between being written and being read; empty: none was seen."""
        try:
            choice, _ = self._complete(ids, tokens, max_tokens=1, logprobs=1)
            new = found(self._server, choice, list, "logprobs", "token_logprobs")
            text = self._tokenizer.decode(tokens[len(self._tokenizer.prefix) :]) + str(choice.get("text"))
            whole = np.array([*self._tokenizer.prefix, *self._tokenizer.encode(text).ids], dtype=np.int64)
            if len(new) != 1 or len(whole) != len(tokens) + 1 or not np.array_equal(whole[:-1], tokens):
                return ""  # an end, or text that joins another token
            written = self._replies.nll(new[0], "a new token")
            read = float(self._scored(ids, form, whole, len(tokens))[0])
        except Deferred:
            raise
        except Refused:
            return ""
        if abs(read - written) <= APART:
            return ""
        return (
            f"contradicts itself: a token of {written:.2f} nats when it was written has {read:.2f} when it is read, so "
            "its likelihoods of a prompt are of other tokens"
        )

    def _prompts(self, tokens: Tokens) -> tuple[bool, bool]:
        """Whether prompts may be token ids, and whether new tokens come as ids; Refused if no form is answered."""
        ways: Sequence[tuple[bool, Mapping[str, Any]]] = ((True, self._exactly()), (True, {}), (False, {}))
        for ids, fields in ways:
            try:
                choice, _ = self._complete(ids, tokens, max_tokens=1, **fields)
            except Deferred:
                raise
            except Refused as refusal:
                last = refusal
                continue
            if PROBE in str(choice.get("text")):
                raise Refused(f"{self._server.url} repeats the prompt in front of its answers: switch that off there")
            return ids, bool(fields) and isinstance(choice.get("token_ids"), list)
        raise last

    def _check_tokenizer(self) -> None:
        """Raise Refused if a server that takes ids reads a text as another number of tokens: ids mean others there."""
        own = len(self._tokenizer.encode(TELLING).ids)
        try:
            answer, _ = self._posted("completions", {"prompt": TELLING, "max_tokens": 1})
            read = found(self._server, answer, int, "usage", "prompt_tokens")
        except Deferred:
            raise
        except Refused:  # it takes no text, or does not count
            return
        if abs(read - own) > OTHERWISE * own:
            raise Refused(
                f"{self._server.url} reads a text as {read} tokens that are {own} by the tokenizer here: it runs "
                "another model, give that one by model=..."
            )


def _understood(ask: Callable[..., object], *arguments: object) -> bool:
    """Whether a server answers this request; Deferred if it does not answer at all."""
    try:
        ask(*arguments)
    except Deferred:
        raise
    except Refused:
        return False
    return True

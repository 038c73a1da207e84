"""Detects what a server supports of OpenAI's completions, sends requests in that form, and validates the answers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Generate, Tokenizer, Tokens
from lexbench.parts.serving.completions import MOST_OPTIONS, Continue, Continued, Losses
from lexbench.parts.serving.openai.constants import ConstantWatch
from lexbench.parts.serving.openai.http import MAX_ANSWER_BYTES, Rejected, ServerClient
from lexbench.parts.serving.openai.mixing import find_mixing
from lexbench.parts.serving.openai.replies import (
    NextTokens,
    NoLikelihoods,
    Replies,
    list_models,
    malformed_answer,
    value_at,
)
from lexbench.parts.serving.openai.trials import (
    N_COMPARED_PLACES,
    Drawn,
    find_contradiction,
    find_sampling,
    find_slips,
    write_between_words,
)
from lexbench.parts.serving.openai.whole_prompt import UNKNOWN_CUT, find_cut

MAX_STOP_STRINGS = 4
"""Most stop strings that the interface accepts."""
LIKELIHOOD_REQUEST_FORMS: Sequence[Mapping[str, Any]] = (
    {"prompt_logprobs": 0, "max_tokens": 1},
    {"echo": True, "logprobs": 0, "max_tokens": 0},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"echo": True, "logprobs": 1, "max_tokens": 1},
)
"""Fields that request the likelihood of a prompt: vLLM's own, then OpenAI's; some servers accept one form only."""
NEXT_TOKEN_COUNTS = (20, 5)
"""Likeliest next tokens that are asked for: most servers' limit, and that of some."""
LONGEST_TOKEN = 512
"""Characters of the longest token: 128 blanks or lines in today's vocabularies."""
FEWEST_BYTES, BYTES_PER_TOKEN = 1 << 20, 1 << 10
"""Most bytes of an answer, and for each token that it may hold: a log-probability with its names takes some 150."""
TRIAL_SENTENCE = "The grass is green and the sky is blue."
TOKENIZER_TRIAL_TEXT = (
    "In 1997: 3.14159265358979323846, then 271828182845904523536. Naïve Übermäßigkeit, Москва и Киев, 東京都と大阪府, "
    "καλημέρα κόσμε;\n        for (int i = 0; i != rows_of(table); i++) { sum += x[i]*y[i]; }"
)
"""Digits, scripts and code, which two tokenizers hardly ever cut into equally many tokens."""
SERVER_REMEDY = "use a vLLM server, or backend=hf"
MAX_TOKEN_COUNT_DIFFERENCE_SHARE = 0.1
"""Share of the tokens of `TOKENIZER_TRIAL_TEXT` by which a server may differ: a BOS, an end token, a space in front."""


@dataclass(frozen=True)
class Abilities:
    """Abilities of a server, detected by trial requests."""

    ids: bool
    """Whether the server accepts prompts as token ids; if not, as text only."""
    exact: bool
    """Whether the server returns ids of new tokens and accepts our end tokens (vLLM)."""
    scoring: Mapping[str, Any] | None
    """The form of `LIKELIHOOD_REQUEST_FORMS` that the server answers; None: none of them."""
    options: bool
    """Whether the server returns log-probabilities of given next tokens (`logprob_token_ids` of vLLM)."""
    odd: str = ""
    """Why the server's likelihoods are not believed; empty: they are."""
    contradicts: bool = False
    """Whether that is so because they contradict what the server writes: then it is not asked to write, either."""
    sampled: str = ""
    """Why the server's answers are not believed to be greedy; empty: they are."""
    cut: str = ""
    """Why the server is not believed to read whole prompts; empty: it is."""
    mixed: str = ""
    """Why the server is not believed to answer each request by its own prompt; empty: it is."""
    unknown: str = ""
    """What could not be judged at the greatest length; empty: all of it was."""


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

    room_field = "max_tokens"
    """The field that limits new tokens."""

    def __init__(
        self,
        server: ServerClient,
        served: str,
        tokenizer: Tokenizer,
        ends: Sequence[int],
        vocabulary: int,
        steady: bool,
    ) -> None:
        self._server, self._served, self.tokenizer = server, served, tokenizer
        self._ends, self._steady = ends, steady
        self._replies = Replies(server, tokenizer, vocabulary)
        self.fingerprint: str | None = None
        self.answering: str | None = None
        self._next_token_count: int | None = None
        self._drawn = list[Drawn]()
        self._constants = ConstantWatch()
        self._tells_written: bool | None = None
        """Whether it takes requests for the log-probabilities of new tokens; None: it was not asked yet."""
        self._trying, self._may_be_unknown = True, False
        self.able = self._abilities()
        self._try_writing_and_reading(None)
        self._trying = False

    def try_at(self, length: int, sees_all: bool = True, fixed_angles: bool = True, at_once: int = 1) -> None:
        """Try the server on prompts that have, with their answers, `length` tokens; `able` holds what is found.

        Args:
            length: tokens.
            sees_all: a layer of the model sees all keys, so that what is far back changes answers.
            fixed_angles: its positions turn alike in short and in long prompts, so that a beginning is read alike.
            at_once: requests in flight, as the run has them.
        """
        self._trying = True
        try:
            self._try_writing_and_reading(length, fixed_angles)
            if not (self.able.sampled or self.able.contradicts):
                mixed, drawn = find_mixing(self, length, at_once)
                self.able = replace(self.able, mixed=mixed, sampled=find_slips(drawn) or find_slips(self._drawn))
            if not (self.able.sampled or self.able.contradicts or self.able.mixed):
                cut, unknown = find_cut(self, length)
                if cut and not sees_all:
                    cut, unknown = "", UNKNOWN_CUT
                ranks = "" if any(each.ranked for each in self._drawn) else "whether it writes the likeliest tokens"
                self.able = replace(self.able, cut=cut, unknown=" and ".join(filter(None, (ranks, unknown))))
        finally:
            self._trying = False

    def _try_writing_and_reading(self, length: int | None, prefix: bool = False) -> None:
        """Look for contradictions between what is written and what is read, and for answers that are not greedy."""
        able = self.able
        if able.sampled and able.odd:
            return
        text = write_between_words(self, length)
        if able.scoring or able.options:
            # At the greatest length each option reads the whole prompt again.
            places = (N_COMPARED_PLACES if length is None else 1) if able.options else 0
            odd, contradicts = find_contradiction(self, text, able.scoring is not None, places, prefix)
            if odd:
                able = self.able = replace(able, scoring=None, options=False, odd=odd, contradicts=contradicts)
        if able.contradicts:
            return
        sampled, drawn = find_sampling(self, length)
        self._drawn += [*text.drawn, *drawn]
        self.able = replace(able, sampled=able.sampled or sampled or find_slips(self._drawn))

    def continue_greedily(self, request: Continue) -> Continued:
        """Greedy continuation of the tokens; Refused if the server was seen not to write greedily."""
        self.check_greedy()
        until = [text for text in request.until if text][:MAX_STOP_STRINGS]
        fields = {**(self._exactly() if self.able.exact else {}), **({"stop": until} if until else {})}
        choice, counted = self._complete(self.able.ids, request.tokens, max_tokens=request.max_new_tokens, **fields)
        cut = self._is_cut(choice)
        if self.able.exact:
            tokens = self._replies.new_tokens(choice, request.max_new_tokens)
            written: int | None = len(tokens)
        else:  # only text: its tokens may differ from the ones written, the server's count is kept
            text = value_at(self._server, choice, str, "text")
            self._check_secret(text)
            tokens, written = self._first_tokens(text, request.max_new_tokens), counted
            if written is not None and written > request.max_new_tokens:
                raise Refused(
                    f"{self._server.url} wrote {written} tokens of at most {request.max_new_tokens}: it ignores "
                    "max_tokens"
                )
            tokens = tokens[: request.max_new_tokens]
        if cut and written is not None and written < request.max_new_tokens:
            raise Refused(
                f"{self._server.url} stopped after {written} of {request.max_new_tokens} tokens: raise its limit on "
                "new tokens"
            )
        self._check_secret(self.tokenizer.decode(tokens))
        [ends] = np.nonzero(np.isin(tokens, self._ends))
        if len(ends):
            return Continued(tokens=tokens[: ends[0]], hit_room=False)
        return Continued(tokens=tokens, hit_room=cut)

    def target_losses(self, tokens: Tokens, start: int) -> Losses:
        """NLL of tokens[start:]; Refused where they are one constant."""
        self._check_whole()
        form = self.able.scoring
        if form is None:
            why = self.able.odd or (
                "gives no log-probabilities of a prompt, neither prompt_logprobs nor echo with logprobs"
            )
            raise Refused(f"{self._server.url} {why}: {SERVER_REMEDY}")
        if (
            "prompt_logprobs" in form and self.able.options
        ):  # score the last token as the next one: fits a prompt of the full window
            return self._check_constant(self._ahead(tokens[:-1], tokens[-1:], start))
        return self._check_constant(self._prompt_losses(self.able.ids, form, tokens, start))

    def option_losses(self, tokens: Tokens, options: Tokens) -> Losses:
        """NLL of each option as the next token."""
        if not self.able.options:
            wholes = [np.append(tokens, option) for option in options]
            return np.concatenate([self.target_losses(whole, len(tokens)) for whole in wholes])
        # Each part reads the prompt again, but for what the server's prefix cache holds.
        parts = [options[begin : begin + MOST_OPTIONS] for begin in range(0, len(options), MOST_OPTIONS)]
        return self._check_constant(np.concatenate([self._ahead(tokens, part, len(tokens)) for part in parts]))

    def _check_constant(self, losses: Losses) -> Losses:
        """The losses of an answer; Refused where they are one constant."""
        if not self._trying and self._constants.is_constant(losses):
            raise Refused(
                f"{self._server.url} gives all tokens the same likelihood, {losses[0]:.2f} nats: {SERVER_REMEDY}"
            )
        return losses

    def likeliest_next_tokens(self, question: Generate) -> NextTokens:
        """The likeliest tokens behind a prompt, as many as the server tells: 20 or 5; `NoLikelihoods` where it tells
        none.

        The first question finds the number.
        """
        counts = NEXT_TOKEN_COUNTS if self._next_token_count is None else (self._next_token_count,)
        for count in counts:
            try:
                choice = self._write_one(question, count)
            except Rejected as no:
                if count == counts[-1]:
                    raise no if len(counts) == 1 else NoLikelihoods(no.reason) from None
            else:
                break
        self._next_token_count = count
        return self._replies.likeliest_next_tokens(choice)

    def next_text(self, question: Generate) -> str:
        """The text of the token that the server writes behind a prompt; Refused if it was seen not to write greedily.

        Its blanks may be left out.
        """
        self.check_greedy()
        return self._text_of_choice(self._write_one(question, 0))

    def _text_of_choice(self, choice: Mapping[str, Any]) -> str:
        """The text of an answer."""
        return str(value_at(self._server, choice, str, "text"))

    def _write_one(self, question: Generate, count: int) -> dict[str, Any]:
        """A choice of one new token, with the likelihoods of so many likeliest ones; 0: without."""
        fields = (
            {**self._exactly(), "stop_token_ids": [], "return_tokens_as_token_ids": True} if self.able.exact else {}
        )
        likely = {"logprobs": count} if count else {}
        choice, _ = self._complete(self.able.ids, question.prompt, max_tokens=1, **likely, **fields)
        return choice

    @property
    def takes_ids(self) -> bool:
        """Whether prompts are sent as ids."""
        return self.able.ids

    @property
    def tells_options(self) -> bool:
        """Whether one request tells the likelihoods of many next tokens."""
        return self.able.options

    def _check_whole(self) -> None:
        """Refused if the server was seen to read a part of long prompts, or to exchange requests."""
        if self.able.mixed:
            raise Refused(f"{self._server.url} {self.able.mixed}: take another server, or another version of it")
        if self.able.cut:
            raise Refused(f"{self._server.url} {self.able.cut}: raise its context window, or take shorter lengths")

    def check_greedy(self) -> None:
        """Refused if the server was seen not to write greedily, to contradict itself, or to read a part of prompts."""
        self._check_whole()
        if self.able.contradicts:
            raise Refused(f"{self._server.url} {self.able.odd}, and it is not asked to write: {SERVER_REMEDY}")
        if self.able.sampled:
            raise Refused(f"{self._server.url} {self.able.sampled}: start it so that it obeys temperature 0")

    # trials

    def draw(self, tokens: Tokens, count: int) -> Drawn:
        """What the server writes behind these tokens, so many new ones; their ids as far as they can be told."""
        if self._tells_written is not False:
            self._may_be_unknown = self._tells_written is None  # some servers end with HTTP 500 where they tell none
            try:
                found = self._draw(tokens, count, logprobs=1)
            except Rejected:
                if self._tells_written:
                    raise
                self._tells_written = False
            else:
                self._tells_written = True
                return found
            finally:
                self._may_be_unknown = False
        return self._draw(tokens, count)

    def _draw(self, tokens: Tokens, count: int, **likely: int) -> Drawn:
        fields = {**self._exactly(), "stop_token_ids": []} if self.able.exact else {}
        choice, _ = self._complete(self.able.ids, tokens, max_tokens=count, **likely, **fields)
        ranked = self._replies.ranks_of_new(choice) if likely else []
        if self.able.exact:
            new = self._replies.new_tokens(choice, count)
            text = self.tokenizer.decode(new)
        else:
            text = value_at(self._server, choice, str, "text")[: LONGEST_TOKEN * (count + 1)]
            own = tokens[len(self.tokenizer.prefix) :]
            whole = self.tokenizer.encode(self.tokenizer.decode(own) + text).ids
            new = whole[len(own) :]
            if not np.array_equal(whole[: len(own)], own) or len(new) != len(ranked):  # its text joins other tokens
                return Drawn(tokens=self._first_tokens(text, count), text=text, ranked=ranked)
        nats = [nats for nats, _ in ranked]
        return Drawn(tokens=new, text=text, nats=nats if len(nats) <= len(new) else [], ranked=ranked)

    def can_send(self, tokens: Tokens) -> bool:
        """Whether a prompt of these tokens can be sent: as ids any, as text only what a text gives."""
        return self.able.ids or self._text(tokens) is not None

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
        before = self._replies.prompt_losses(choice, tokens, start) if scoring else []
        return np.array([*before, *self._replies.next_token_losses(choice, options)], dtype=np.float32)

    def _prompt_losses(self, ids: bool, form: Mapping[str, Any], tokens: Tokens, start: int) -> Losses:
        """NLL of tokens[start:], by one of the forms of `LIKELIHOOD_REQUEST_FORMS`."""
        choice, _ = self._complete(ids, tokens, **form)
        read = self._replies.echo_losses if "echo" in form else self._replies.prompt_losses
        return np.array(read(choice, tokens, start), dtype=np.float32)

    def _complete(self, ids: bool, tokens: Tokens, **fields: Any) -> tuple[dict[str, Any], int | None]:
        """The only choice of an answer, whose prompt was read whole, and its new tokens, if the server counts them."""
        prompt = tokens.tolist() if ids else self._text(tokens)
        if prompt is None:
            raise Refused(
                f"{self._server.url} takes prompts as text only, and no text has these tokens: use backend=hf"
            )
        answer, choice = self._post_greedy("completions", {"prompt": prompt, **fields})
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        # A server may omit the count where its tokens are compared, and for the ids of a trial.
        compared = "echo" in fields or "prompt_logprobs" in fields or (ids and self._trying)
        if read != len(tokens) and not (read is None and compared):
            shown = "an unknown number" if read is None else self._server.one_line_message(str(read))
            raise Refused(
                f"{self._server.url} has read {shown} of {len(tokens)} tokens: it truncates prompts, "
                "has another tokenizer, or another BOS policy (model.bos)"
            )
        return choice, written if isinstance(written, int) else None

    def _post_greedy(self, path: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A greedy answer and its only choice, by the server that this run began with."""
        prompt = fields.get("prompt", ())  # what of a prompt's tokens or characters comes back; of messages nothing
        most = FEWEST_BYTES + BYTES_PER_TOKEN * (len(prompt) + fields.get(self.room_field, 0))
        try:
            answer = self._server.post(
                path,
                {"model": self._served, "temperature": 0, **fields},
                min(most, MAX_ANSWER_BYTES),
                trial=self._may_be_unknown,
            )
        except Rejected as no:
            raise self._explain_404(no) if no.status == 404 else no from None
        self._check_same(answer)
        choices = value_at(self._server, answer, list, "choices")
        if not choices and not self._trying:  # it knows the request: this passes
            raise Deferred(f"{self._server.url} sent an answer without a choice: repeat the command")
        if len(choices) != 1:
            raise malformed_answer(self._server, "it must have exactly one choice")
        choice = value_at(self._server, answer, dict, "choices", 0)
        if choice.get("error"):  # a router's: what is beside it is half an answer
            said = self._server.one_line_message(json.dumps(choice["error"]))
            raise Deferred(f"{self._server.url} sent an answer with an error ({said}): repeat the command")
        return answer, choice

    def _is_cut(self, choice: Mapping[str, Any]) -> bool:
        """Whether the answer ended at the limit of new tokens; Deferred if it ended neither so nor by itself."""
        reason = choice.get("finish_reason")
        if reason is None:
            raise Deferred(
                f"{self._server.url} does not say why an answer ended (finish_reason), so a cut one cannot be told "
                "from a whole one: take a server, or a proxy before it, that says so"
            )
        if reason not in ("stop", "length"):
            said = self._server.one_line_message(str(reason))
            raise Deferred(
                f"{self._server.url} cut an answer short ({said}): see its log and settings, then repeat the command"
            )
        return bool(reason == "length")

    def _first_tokens(self, text: str, room: int) -> Tokens:
        """Tokens of a text's beginning, more than `room` if it has more: encoding 10 MB takes minutes and gigabytes."""
        text = text[: LONGEST_TOKEN * (room + 1)]
        return self.tokenizer.encode(text).ids if text else np.empty(0, np.int64)

    def _check_secret(self, text: str) -> None:
        if self._server.holds_key(text):
            raise Refused(f"{self._server.url} wrote the API key that was sent to it: a record must not hold the key")

    def _check_same(self, answer: Mapping[str, Any]) -> None:
        """Raise Deferred if the server's fingerprint has changed, by a restart with other arguments, or its model."""
        said = answer.get("system_fingerprint") if self._steady else None
        said = self._server.one_line_message(said) if isinstance(said, str) else None
        self.fingerprint = self.fingerprint or said
        if said != self.fingerprint:
            raise Deferred(
                f"{self._server.url} is not the server that this run began with (other fingerprint): repeat the command"
            )
        if isinstance(answer.get("model"), str):
            model = self._server.one_line_message(answer["model"])
            self.answering = self.answering or model
            if model != self.answering:
                raise Deferred(
                    f"{self._server.url} answers by model {model}, and by {self.answering} when this run began: repeat "
                    "the command"
                )

    def _text(self, tokens: Tokens) -> str | None:
        """The tokens as text, without the BOS that the server adds; None if the text gives other tokens."""
        prefix = self.tokenizer.prefix
        own = tokens[len(prefix) :] if tuple(tokens[: len(prefix)]) == prefix else tokens
        text = self.tokenizer.decode(own)
        return text if np.array_equal(self.tokenizer.encode(text).ids, own) else None

    def _explain_404(self, no: Rejected) -> Refused:
        """Explain a 404: Deferred if the server has another model by now, or no list of models any more, which it had.

        Else the rejection itself.
        """
        try:
            names = [str(entry["id"]) for entry in list_models(self._server)]
        except Refused as lost:
            if self._server.listed or isinstance(lost, Deferred):
                return Deferred(f"{no.reason}, nor does it list its models: start the server, then repeat the command")
            return no
        if self._served in names:
            return no
        others = self._server.one_line_message(", ".join(names)) or "nothing"
        return Deferred(f"{self._server.url} no longer serves {self._served}, but {others}: give backend.served=...")

    # detection

    def _abilities(self) -> Abilities:
        tokens = np.array([*self.tokenizer.prefix, *self.tokenizer.encode(TRIAL_SENTENCE).ids], dtype=np.int64)
        ids, exact = self._prompts(tokens)
        if ids:
            self._check_tokenizer()
        # Tried, not told: the same server answers otherwise by its version and by how it was started.
        scoring = next(
            (form for form in LIKELIHOOD_REQUEST_FORMS if self._answers(self._prompt_losses, ids, form, tokens, 1)),
            None,
        )
        options = ids and self._answers(self._ahead, tokens, tokens[-2:], len(tokens))
        return Abilities(ids, exact, scoring, options)

    def _prompts(self, tokens: Tokens) -> tuple[bool, bool]:
        """Whether prompts may be token ids, and whether new tokens come as ids; Refused if no form is answered."""
        ways: Sequence[tuple[bool, Mapping[str, Any]]] = ((True, self._exactly()), (True, {}), (False, {}))
        for ids, fields in ways:
            self._may_be_unknown = ids
            try:
                choice, _ = self._complete(ids, tokens, max_tokens=1, **fields)
            except Deferred:
                raise
            except Refused as refusal:
                last = refusal
                continue
            finally:
                self._may_be_unknown = False
            if TRIAL_SENTENCE in str(choice.get("text")):
                raise Refused(f"{self._server.url} repeats the prompt in front of its answers: switch that off there")
            return ids, bool(fields) and isinstance(choice.get("token_ids"), list)
        raise last

    def _check_tokenizer(self) -> None:
        """Raise Refused if a server that takes ids reads a text as another number of tokens: ids mean others there."""
        own = len(self.tokenizer.encode(TOKENIZER_TRIAL_TEXT).ids)
        try:
            answer, _ = self._post_greedy("completions", {"prompt": TOKENIZER_TRIAL_TEXT, "max_tokens": 1})
            read = value_at(self._server, answer, int, "usage", "prompt_tokens")
        except Deferred:
            raise
        except Refused:  # it takes no text, or does not count
            return
        if abs(read - own) > MAX_TOKEN_COUNT_DIFFERENCE_SHARE * own:
            raise Refused(
                f"{self._server.url} reads a text as {read} tokens that are {own} by the tokenizer here: it runs "
                "another model, give that one by model=..."
            )

    def _answers(self, ask: Callable[..., object], *arguments: object) -> bool:
        """Whether the server answers requests of this form; Deferred if it does not answer at all."""
        self._may_be_unknown = True
        try:
            ask(*arguments)
        except Deferred:
            raise
        except Refused:
            return False
        finally:
            self._may_be_unknown = False
        return True

"""Models behind a server with OpenAI's completions interface: `vllm serve`, and others as far as they support it."""

import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from lexbench.backends import Backend, Capabilities
from lexbench.backends.thinking import THOUGHT_MARKERS, Form
from lexbench.checkpoints.checkpoint import end_tokens, folder_of
from lexbench.checkpoints.structure import has_full_attention, turns_by_length
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer
from lexbench.core.attention import Attention, Shift
from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object
from lexbench.core.model import Model
from lexbench.core.record import SERVER_KERNEL, Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion, Generate
from lexbench.methods.composition import method_config, read_method
from lexbench.methods.scaled import attention_of
from lexbench.parts.serving.completions import Completions, Continue, Likely, Reply, Request
from lexbench.parts.serving.openai.again import MixedUp, check_again
from lexbench.parts.serving.openai.chat import ChatDialect
from lexbench.parts.serving.openai.dialect import Dialect
from lexbench.parts.serving.openai.http import Rejected, ServerClient, checked_url
from lexbench.parts.serving.openai.replies import NextTokens, list_models

MIN_TRIED_TOKENS = 120
"""Greatest length at which a server is tried once more: the first trials have texts of up to so many tokens."""
GREATEST_LENGTH_SHARE = 0.9
"""Share of the greatest length from which questions are of that length: some tasks cannot fill it."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class OpenAI(Completions, Backend):
    """A model on a server, used by completions; the tokenizer comes from the model's local folder.

    Args:
        model: with the folder or hub name in `path`.
        url: root URL of the interface.
        served: the model's name on the server; None: the only model that it lists.
        serves: the method that the server was started with: its name, {name: ..., parameters}, or several
            combined (yarn+log_n).
        serves_length: length, in tokens, that this method was resolved for; None: it is the same at all lengths.
        key_variable: name of the environment variable that holds the API key; None: send no key.
        concurrency: questions in flight at once.
        timeout: seconds for one answer.
        retries: attempts after the first; 10 retries last about 3 minutes, enough for a server to restart.
        requests_per_minute: rate limit; None: no limit.
        dtype: of weights and activations on the server, which no server reports.
        chat: ask by chat completions, in messages; only tasks that write. False: by completions, in tokens.
        system: chat: message in front of the user's; None: none.
        thinking: chat: `none` tells the model's template not to think; `free` lets it think; `budget` also sends the
            budget to the server (vLLM's thinking_token_budget), which ends the thought there.
        thought: chat: tokens for thinking, beside those of the answer; both count in the length.
        prefill: chat: whether the server continues a message of the assistant, which a task's first words of the answer
            need (vLLM, SGLang). False, or with thinking: these words end the question.
        markers: chat: what begins and ends a thought in an answer, where the server does not take it out.
        longest: length of the longest question, prompt and answer, at which the server is tried before the first one;
            None: it is tried on short texts only.
    """

    name = "openai"
    kernel = SERVER_KERNEL
    capabilities = Capabilities(remote=True, one_method=True)

    def __init__(
        self,
        model: Model,
        url: str = "http://127.0.0.1:8000/v1",
        served: str | None = None,
        serves: Any = "none",
        serves_length: int | None = None,
        key_variable: str | None = "OPENAI_API_KEY",
        concurrency: int = 8,
        timeout: float = 600.0,
        retries: int = 10,
        requests_per_minute: float | None = None,
        dtype: str = "unknown",
        chat: bool = False,
        system: str | None = None,
        thinking: str = "none",
        thought: int = 0,
        prefill: bool = True,
        markers: Sequence[str] = THOUGHT_MARKERS,
        longest: int | None = None,
    ) -> None:
        given: dict[str, Any] = {"concurrency": concurrency, "timeout": timeout, "retries": retries}
        given |= {"requests_per_minute": requests_per_minute, "serves": serves, "serves_length": serves_length}
        self.check_settings({**given, "key_variable": key_variable}, model)
        self.model, self.dtype = model, dtype
        self._serves, self._slots = server_method(serves, serves_length, model)
        self._serves_length = serves_length
        folder = self._folder = folder_of(model, weights=False)
        self.tokenizer = load_tokenizer(folder, model.bos)
        form = Form(chat, system, thinking, thought, prefill, tuple(markers))
        if chat:
            self.tokenizer = form.tokenizer(self.tokenizer)
        self._concurrency, self._longest, self._tried_longest = concurrency, longest, False
        self._mixed_up = ""
        """Why no further answer is believed; empty: none was seen to be another request's."""
        self._server = ServerClient(url, _key(key_variable), key_variable, timeout, retries, requests_per_minute)
        entry = _entry(self._server, served)
        self.version = _version(self._server, entry)
        ends, vocabulary = sorted(end_tokens(folder)), max(model.vocabulary or 0, self.tokenizer.vocabulary)
        # Only vLLM's fingerprint is of its arguments; those of others may change from answer to answer.
        steady = self.version.startswith("vLLM")
        asked = (self._server, entry["id"], self.tokenizer, ends, vocabulary, steady)
        try:
            self._dialect = ChatDialect(*asked, form=form) if chat else Dialect(*asked)
        except Refused as refusal:
            raise ConfigError(refusal.reason) from None
        if isinstance(self._dialect, ChatDialect) and not self._dialect.switches:
            self.version += ", which takes no chat_template_kwargs"
        told = {"fingerprint": self._dialect.fingerprint, "answering": self._dialect.answering}
        self.revision = _server_revision(self._server, {**entry, **told})
        self.weights_known = steady and self._dialect.fingerprint is not None

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any], model: Model) -> None:
        """ConfigError for a parameter that is wrong whatever the server."""
        concurrency, timeout = settings.get("concurrency", 1), settings.get("timeout", 1.0)
        pace, length = settings.get("requests_per_minute"), settings.get("serves_length")
        _check("concurrency", concurrency, concurrency >= 1, "at least 1")
        _check("timeout", timeout, 0 < timeout < math.inf, "seconds above 0")
        _check("retries", settings.get("retries"), settings.get("retries", 0) >= 0, "at least 0")
        _check("requests_per_minute", pace, 0 < (pace or 1) < math.inf, "above 0")
        _check("serves_length", length, length is None or length >= 1, "at least 1 token")
        server_method(settings.get("serves", "none"), length, model)
        Form.of(settings)
        _key(settings.get("key_variable"))
        if "url" in settings:
            checked_url(settings["url"])

    @classmethod
    def as_chat(cls, tokenizer: FastTokenizer, config: Mapping[str, Any]) -> FastTokenizer:
        """The tokenizer as this backend with `chat` counts and frames questions."""
        return Form.of(config).tokenizer(tokenizer)

    def _answer_of(self, question: AnyQuestion) -> Answer:
        if not isinstance(self._dialect, ChatDialect):
            return super()._answer_of(question)
        if not isinstance(question, Generate):
            raise Refused(
                "a chat server gives no likelihoods of given tokens: take a task that writes, or backend.chat=false"
            )
        return self._dialect.write(question)

    @property
    def asks_in_chat(self) -> bool:
        """Whether questions are sent as messages."""
        return isinstance(self._dialect, ChatDialect)

    @property
    def takes_ids(self) -> bool:
        """Whether prompts are sent as ids."""
        return self._dialect.takes_ids

    @property
    def bos_of_chats(self) -> float | None:
        """BOS that the server puts in front of messages, with its template; None where it is not asked in such."""
        return self._dialect.bos_count if isinstance(self._dialect, ChatDialect) else None

    @property
    def by_prefix(self) -> bool:
        """vLLM caches common prefixes of prompts, except when it returns log-probabilities of the prompt itself."""
        return self._dialect.able.options

    def attend(self, attention: Attention) -> None:
        """Raise Deferred unless the server was started with this Attention: a server has one method."""
        if isinstance(attention.remap, Shift):
            raise Refused(f"{self._server.url} counts positions from 0 and takes no offset: use backend=hf or native")
        if attention.as_data() != self._slots:
            raise Deferred(
                f"{self._server.url} serves {self._serves}, not this method at this length: start it with the command "
                "that lexbench export --to vllm prints, and set backend.serves=... and backend.serves_length=..."
            )
        self._try_longest()

    def _try_longest(self) -> None:
        """Try the server once at the greatest length of the run, and say what cannot be judged of it."""
        if self._longest is None or self._tried_longest:
            return
        if self._longest >= MIN_TRIED_TOKENS:
            file = self._folder / "config.json"
            config = read_object(file, "download it again") if file.exists() else {}
            fixed = self._serves_length is None and not turns_by_length(config)
            self._dialect.try_at(self._longest, has_full_attention(config), fixed, self._concurrency)
        self._tried_longest = True
        what = [self._dialect.able.unknown] if self._dialect.able.unknown else []
        what += ["whether a text or a second BOS stands in front of every prompt"]
        print(
            f"lexbench: {self._server.url}: {' and '.join(what)} cannot be judged without a reference: "
            f"lexbench identify {self._server.url} --against MODEL",
            file=sys.stderr,
        )

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """Answer questions in order, with `concurrency` of them in flight.

        At the greatest length a few are asked again at the end, one by one and in another order: Refused where the
        server answers otherwise, as one does that mixes requests up.
        """

        def answered(question: AnyQuestion, stop: threading.Event) -> Answer:
            self._server.give_up_when(stop)
            return self._answer_of(question)

        if self._mixed_up:
            raise Refused(self._mixed_up)
        found = map_in_order(answered, questions, self._concurrency)
        longest = max((question.length for question in questions), default=0)
        in_run = self._tried_longest  # `identify` asks again by itself
        if not in_run or self._longest is None or longest < GREATEST_LENGTH_SHARE * self._longest:
            return found
        return self._answer_and_check(questions, found)

    def _answer_and_check(self, questions: Sequence[AnyQuestion], found: Iterator[Answer]) -> Iterator[Answer]:
        """The answers, of which some are asked again; later cells are refused, too, where the server mixes them up."""
        try:
            yield from check_again(questions, found, self._answer_of, self._server.url)
        except MixedUp as refusal:
            self._mixed_up = refusal.reason
            raise

    def check_consistent(self) -> None:
        """Refused if the server's likelihoods were seen to contradict what it writes."""
        if self._dialect.able.contradicts:
            raise Refused(f"{self._server.url} {self._dialect.able.odd}")

    def check_greedy(self) -> None:
        """Refused if the server was seen not to write the likeliest tokens."""
        self._dialect.check_greedy()

    def likeliest_next_tokens(self, texts: Sequence[Sequence[Generate]]) -> list[list[NextTokens]]:
        """The likeliest tokens behind each prompt of each text, as many as the server tells (20 or 5)."""
        return self._ask_in_turn(self._dialect.likeliest_next_tokens, texts)

    def next_texts(self, texts: Sequence[Sequence[Generate]]) -> list[list[str]]:
        """The text of the token that the server writes behind each prompt of each text."""
        return self._ask_in_turn(self._dialect.next_text, texts)

    def _ask_in_turn(
        self, ask: Callable[[Generate], Result], texts: Sequence[Sequence[Generate]]
    ) -> list[list[Result]]:
        """Answers to each prompt of each text.

        Texts are asked with `concurrency` of them in flight, the prompts of one in turn: where each begins with the one
        before, the server reads on from its prefix cache.
        """

        def asked(prompts: Sequence[Generate], stop: threading.Event) -> list[Result]:
            self._server.give_up_when(stop)
            return [ask(each) for each in prompts]

        return list(map_in_order(asked, texts, self._concurrency))

    def close(self) -> None:
        """Close the connections; the server runs on."""
        self._server.close()

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Reply to the requests in turn; Refused if the server cannot answer, Deferred if it cannot now."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        if isinstance(request, Continue):
            return self._dialect.continue_greedily(request)
        if isinstance(request, Likely):
            return self._dialect.target_losses(request.tokens, request.first_target)
        return self._dialect.option_losses(request.tokens, request.options)


# options of the user


def _check(name: str, value: float | None, holds: bool, rule: str) -> None:
    if not holds or (value == 0 and name != "retries"):
        raise ConfigError(f"backend.{name} must be {rule}, got {value}: e.g. backend.{name}=8")


def _key(variable: str | None) -> str | None:
    """The API key from the environment; ConfigError if it is malformed (the message never shows it)."""
    if variable is None:
        return None
    if not re.fullmatch("[A-Z_][A-Z0-9_]*", variable):
        raise ConfigError(
            "backend.key_variable must be the name of an environment variable, in capital letters, not the key itself: "
            "e.g. backend.key_variable=OPENAI_API_KEY"
        )
    key = os.environ.get(variable, "").strip()
    if re.search("[^!-~]", key):
        raise ConfigError(f"the key in {variable} must be printable ASCII without spaces: set it again")
    return key or None


def server_method(serves: Any, length: int | None, model: Model) -> tuple[str, dict[str, Any]]:
    """Label of the method that a server was started with, and its `Attention.as_data()`.

    Raises ConfigError if there is no such method, or if it depends on the length and no length is given.
    """
    try:
        _, method, key = read_method(method_config(serves))
        lengths = [length] if length else [model.trained_length, 8 * model.trained_length]
        slots = [attention_of(method, model, each).as_data() for each in lengths]
    except (ValueError, Refused) as error:
        raise ConfigError(f"backend.serves: {error}") from None
    if slots[0] != slots[-1]:
        raise ConfigError(
            f"backend.serves={key} depends on the length: give backend.serves_length=N, the tokens it was started for"
        )
    return (f"{key} at {length} tokens" if length else str(key)), slots[0]


# what the server reports about itself


def _entry(server: ServerClient, served: str | None) -> dict[str, Any]:
    """The server's entry of the model; ConfigError if the server does not answer or does not have the model."""
    try:
        listed = list_models(server)
    except Rejected as no:
        if served is not None and no.status == 404:  # the server has no /models
            return {"id": served}
        raise ConfigError(f"{no.reason}: check backend.url, it usually ends in /v1") from None
    except Refused as refusal:
        raise ConfigError(f"{refusal.reason}: start the server, or give backend.url=...") from None
    names = [entry["id"] for entry in listed]
    if served is None and len(names) == 1:
        return listed[0]
    if served not in names:
        choices = server.one_line_message(", ".join(names)) or "none"
        rule = "does not serve exactly one model" if served is None else f"does not serve {served!r}"
        raise ConfigError(f"{server.url} {rule}: give backend.served=NAME from {choices}")
    return listed[names.index(served)]


def _server_revision(server: ServerClient, entry: Mapping[str, Any]) -> str:
    """The model's revision: its name, there and in answers, and what tells it from other models of that name.

    vLLM reports folder, base model, window, and a fingerprint: a hash of version, model, method, dtype and all other
    arguments that change numbers.
    """
    parts = [entry.get(key) for key in ("root", "parent", "fingerprint", "answering")]
    more = [str(each) for each in parts if each not in (None, entry["id"])]
    if entry.get("max_model_len") is not None:
        more.append(f"max_model_len {entry['max_model_len']}")
    return server.one_line_message(f"{entry['id']} ({', '.join(more)})" if more else entry["id"])


def _version(server: ServerClient, entry: Mapping[str, Any]) -> str:
    """The version of vLLM; other servers do not report theirs."""
    if entry.get("owned_by") != "vllm":
        return "OpenAI API"
    try:
        version = server.get("/version").get("version")
    except Refused:
        version = None
    return server.one_line_message(f"vLLM {version}") if isinstance(version, str) else "vLLM"


# concurrency


def map_in_order(
    work: Callable[[Item, threading.Event], Result], items: Sequence[Item], at_once: int
) -> Iterator[Result]:
    """Process items in `at_once` threads, and yield results in the order of the items.

    After the first failure no other item is started; the error is raised after all results before it. If it is
    Deferred, or if the caller stops early, items in flight are told to stop by their Event. The threads are daemons,
    so an interrupted process does not wait for them.
    """
    stop, lock = threading.Event(), threading.Lock()
    failures: list[BaseException] = []
    futures: list[Future[Result]] = [Future() for _ in items]
    pairs = iter(zip(items, futures, strict=True))

    def worker() -> None:
        while not (stop.is_set() or failures):
            with lock:
                pair = next(pairs, None)
            if pair is None:
                return
            item, future = pair
            try:
                future.set_result(work(item, stop))
            except BaseException as error:  # raised again by future.result()
                failures.append(error)
                future.set_exception(error)
                if isinstance(error, Deferred):
                    stop.set()

    try:
        for _ in range(min(at_once, len(items))):
            threading.Thread(target=worker, daemon=True).start()
        for future in futures:
            try:
                result = future.result()
            except Deferred:
                raise failures[0] from None  # the cause; this item may only have been told to stop
            yield result
    finally:
        stop.set()

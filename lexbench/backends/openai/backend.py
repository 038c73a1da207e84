"""Models behind a server with the interface of OpenAI's completions: `vllm serve`, and others as far as they go."""

import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from lexbench.backends import Backend, Capabilities
from lexbench.backends.completions import Completions, Continue, Likely, Reply, Request
from lexbench.backends.openai.dialect import Dialect
from lexbench.backends.openai.http import Rejected, Server
from lexbench.backends.openai.replies import models
from lexbench.core.attention import Attention
from lexbench.core.checkpoint import end_tokens, locate
from lexbench.core.method import method_entries, read_method
from lexbench.core.model import Model
from lexbench.core.record import Deferred, Refused
from lexbench.core.task import Answer, AnyQuestion
from lexbench.core.tokenizer import load_tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")


class OpenAI(Completions, Backend):
    """A model that a server runs, asked for completions; the tokenizer is that of the model's folder here.

    Args:
        model: facts, with the folder or hub name in `path`.
        url: root of the server's interface.
        served: the model's name there; None: the only one that it lists.
        serves: the method that the server was started with: its name, {name: ..., parameters}, or a list of these.
        serves_length: tokens that this method was resolved for; None: it is the same at all lengths.
        key_variable: name of the environment variable that holds the key; None: no key is sent.
        concurrency: questions on the way at once.
        timeout: seconds that one answer may take.
        retries: attempts after the first; 10 last about 3 minutes, in which a server can come back.
        requests_per_minute: None: as many as come.
        dtype: of weights and activations there, which no server says.
    """

    name = "openai"
    kernel = "server"
    capabilities = Capabilities(remote=True)

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
    ) -> None:
        if model.path is None:
            raise ValueError(f"model {model.name} has no tokenizer to use: give model.path=DIR or a hub name")
        _check("concurrency", concurrency, concurrency >= 1, "at least 1")
        _check("timeout", timeout, 0 < timeout < math.inf, "seconds above 0")
        _check("retries", retries, retries >= 0, "at least 0")
        _check("requests_per_minute", requests_per_minute, 0 < (requests_per_minute or 1) < math.inf, "above 0")
        _check("serves_length", serves_length, serves_length is None or serves_length >= 1, "at least 1 token")
        self.model, self.dtype = model, dtype
        self._serves, self._slots = started_with(serves, serves_length, model)
        folder = locate(model.path, model.revision, weights=False)
        self.tokenizer = load_tokenizer(folder, model.bos)
        self._concurrency = concurrency
        self._server = Server(url, _key(key_variable), key_variable, timeout, retries, requests_per_minute)
        entry = _entry(self._server, served)
        self.version = _version(self._server, entry)
        ends, vocabulary = sorted(end_tokens(folder)), max(model.vocabulary or 0, self.tokenizer.vocabulary)
        steady = self.version.startswith("vLLM")
        try:
            self._dialect = Dialect(self._server, entry["id"], self.tokenizer, ends, vocabulary, steady)
        except Refused as refusal:
            raise ValueError(refusal.reason) from None
        self.revision = _identified(self._server, {**entry, "fingerprint": self._dialect.fingerprint})

    @property
    def by_prefix(self) -> bool:
        """vLLM reads prompts that begin alike once, but for those whose own likelihood is asked."""
        return self._dialect.able.options

    def attend(self, attention: Attention) -> None:
        """Deferred unless it is what the server was started with: a server has one method."""
        if attention.as_data() != self._slots:
            raise Deferred(
                f"{self._server.url} serves {self._serves}, not this method at this length: start it with the line "
                "that lexbench export --to vllm prints, and say so by backend.serves=... and backend.serves_length=..."
            )

    def answers(self, questions: Sequence[AnyQuestion]) -> Iterator[Answer]:
        """The answer of each question in turn, `concurrency` of them on the way."""

        def answered(question: AnyQuestion, stop: threading.Event) -> Answer:
            self._server.heed(stop)
            return self._answered(question)

        return in_order(answered, questions, self._concurrency)

    def close(self) -> None:
        """Close the connections; the server runs on."""
        self._server.close()

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """The replies, one after another; Refused where the server cannot give one, Deferred where not now."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        if isinstance(request, Continue):
            return self._dialect.continued(request)
        if isinstance(request, Likely):
            return self._dialect.likely(request.tokens, request.start)
        return self._dialect.next(request.tokens, request.options)


# what the user says


def _check(name: str, value: float | None, holds: bool, rule: str) -> None:
    if not holds or (value == 0 and name != "retries"):
        raise ValueError(f"backend.{name} must be {rule}, got {value}: e.g. backend.{name}=8")


def _key(variable: str | None) -> str | None:
    """The key that the environment holds; ValueError, which never shows it, where it can be none."""
    if variable is None:
        return None
    if not re.fullmatch("[A-Z_][A-Z0-9_]*", variable):
        raise ValueError(
            "backend.key_variable must be the name of an environment variable, in capital letters, and never the key: "
            "e.g. backend.key_variable=OPENAI_API_KEY"
        )
    key = os.environ.get(variable, "").strip()
    if re.search("[^!-~]", key):
        raise ValueError(f"the key in {variable} must be of plain characters without blanks: set it again")
    return key or None


def started_with(serves: Any, length: int | None, model: Model) -> tuple[str, dict[str, Any]]:
    """Label of the method that a server was started with, and its `Attention.as_data()`.

    ValueError where there is no such method, or it has other numbers at other lengths and no length is given.
    """
    several = not isinstance(serves, str | Mapping)
    try:
        listed = method_entries(serves if several else [serves])
        _, method, label = read_method({"compose": listed} if several else listed[0])
        lengths = [length] if length else [model.trained_length, 8 * model.trained_length]
        slots = [method.attention(model, each).as_data() for each in lengths]
    except (ValueError, Refused) as error:
        raise ValueError(f"backend.serves: {error}") from None
    if slots[0] != slots[-1]:
        raise ValueError(
            f"backend.serves={label} follows the length: give backend.serves_length=N, the tokens it was started for"
        )
    return (f"{label} at {length} tokens" if length else label), slots[0]


# what the server says of itself


def _entry(server: Server, served: str | None) -> dict[str, Any]:
    """The model among those of the server; ValueError where it does not answer, or has no such model."""
    try:
        listed = models(server)
    except Rejected as no:
        if served is not None and no.status == 404:  # a server without a list
            return {"id": served}
        raise ValueError(f"{no.reason}: does backend.url end as the server wants it, e.g. in /v1?") from None
    except Refused as refusal:
        raise ValueError(f"{refusal.reason}: start the server, or give backend.url=...") from None
    names = [entry["id"] for entry in listed]
    if served is None and len(names) == 1:
        return listed[0]
    if served not in names:
        choices = server.words(", ".join(names)) or "none"
        rule = "serves not exactly one model" if served is None else f"serves no {served!r}"
        raise ValueError(f"{server.url} {rule}: give backend.served=NAME from {choices}")
    return listed[names.index(served)]


def _identified(server: Server, entry: Mapping[str, Any]) -> str:
    """The name, and what else tells the model from others of this name; vLLM says folder, base, arguments and window.

    Its fingerprint is a hash of version, model, method, dtype and whatever else of its arguments shapes numbers.
    """
    said = [entry.get(key) for key in ("root", "parent", "fingerprint")]
    more = [str(each) for each in said if each not in (None, entry["id"])]
    if entry.get("max_model_len") is not None:
        more.append(f"max_model_len {entry['max_model_len']}")
    return server.words(f"{entry['id']} ({', '.join(more)})" if more else entry["id"])


def _version(server: Server, entry: Mapping[str, Any]) -> str:
    """vLLM's own, as other servers say none."""
    if entry.get("owned_by") != "vllm":
        return "OpenAI API"
    try:
        said = server.get("/version").get("version")
    except Refused:
        said = None
    return server.words(f"vLLM {said}") if isinstance(said, str) else "vLLM"


# many at once


def in_order(work: Callable[[Item, threading.Event], Result], items: Sequence[Item], at_once: int) -> Iterator[Result]:
    """Results in the order of the items, so many worked on at once, each by a thread of its own.

    Once one has failed no other is begun, and after the results before it its error is raised; once it is Deferred,
    or nobody wants more results, those on the way are told to stop. The threads are daemons: an interrupted process
    does not wait for them.
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
            except BaseException as error:  # raised again where the result is asked for
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
                raise failures[0] from None  # that told this one to stop
            yield result
    finally:
        stop.set()

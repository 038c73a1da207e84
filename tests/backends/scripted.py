"""A server of completions that is no model: its likelihoods are a formula, and it breaks as a test wants."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lexbench.core.task import Tokenizer

Body = dict[str, Any]
Reply = tuple[int, Any] | tuple[int, Any, Mapping[str, str]] | None
"""Status, JSON or bytes, and headers; None: the connection breaks."""


def nll(tokens: Sequence[int], place: int) -> float:
    """Nats of tokens[place] after those before it, exact in float32."""
    return 0.25 + ((sum(tokens[:place]) * 7 + tokens[place] * 3 + place) % 64) / 16


@dataclass
class Server:
    """What a test sees of it, and how it answers."""

    answer: Callable[[Body], Reply]
    """To a completion."""
    models: Any = None
    version: Any = None
    key: str | None = None
    """What it lets in."""
    seconds: float = 0.0
    """That a completion takes."""
    url: str = ""
    asked: list[Body] = field(default_factory=list)
    """All completions, in their order."""
    at: list[float] = field(default_factory=list)
    """When each of them came, in seconds."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    at_once: int = 0
    """The most completions that were on the way together."""

    def reply(self, path: str, body: Body | None, headers: Mapping[str, str]) -> Reply:
        """To any request."""
        self.headers.append(headers)
        if self.key is not None and headers.get("Authorization") != f"Bearer {self.key}":
            return 401, {"error": {"message": f"Incorrect API key provided: {headers.get('Authorization')}"}}
        if path == "/version" and self.version is not None:
            return 200, {"version": self.version}
        if path == "/v1/models":
            return self.models if isinstance(self.models, tuple) else (200, self.models)
        if path in ("/v1/completions", "/v1/chat/completions") and body is not None:
            self.asked.append(body)
            self.at.append(time.monotonic())
            return self.answer(body)
        return 404, {"detail": "Not Found"}


def listing(*names: str, **more: Any) -> Body:
    return {"object": "list", "data": [{"id": name, "object": "model", **more} for name in names]}


VLLM = {"owned_by": "vllm", "root": "/models/one", "max_model_len": 512}


@contextmanager
def serving(answer: Callable[[Body], Reply], models: Any = None, port: int = 0, **settings: Any) -> Iterator[Server]:
    """A server on loopback, which ends with the block."""
    server = Server(answer, listing("one") if models is None else models, **settings)
    flying, lock = [0], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and content in one packet

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            with lock:
                flying[0] += 1
                server.at_once = max(server.at_once, flying[0])
            try:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(server.seconds)
                self._answer(json.loads(content))
            finally:
                with lock:
                    flying[0] -= 1

        def _answer(self, body: Body | None) -> None:
            reply = server.reply(self.path, body, dict(self.headers))
            if reply is None:
                self.close_connection = True
                return
            status, said, headers = (*reply, {})[:3]
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" in headers:  # more than comes: the connection breaks
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):
                return

    class Quick(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    http = Quick(("127.0.0.1", port), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def completion(tokens: int, choice: Body, **more: Any) -> Body:
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    whole = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None, **choice}
    return {"object": "text_completion", "choices": [whole], "usage": usage, **more}


def vllm(
    written: Sequence[int] = (), fingerprint: str = "vllm-0.30.0-abc", ends: bool = True
) -> Callable[[Body], Reply]:
    """Answers as vLLM does: `written` is what it writes, and then an end token, if it `ends`.

    The first token of `written` is the likeliest, wherever it is read.
    """

    first = written[0] if len(written) else 5

    def cost(tokens: Sequence[int], place: int) -> float:
        return nll(tokens, place) / (100 if int(tokens[place]) == first else 1)

    def answer(body: Body) -> Reply:
        tokens = body["prompt"]
        if isinstance(tokens, str):  # it has no tokenizer
            return 400, {"error": {"message": "prompt must be ids"}}
        choice: Body = {}
        if body.get("return_token_ids"):
            stops = body["stop_token_ids"][:1] if ends else []
            ids = [*written, *stops][: body["max_tokens"]]
            stopped = len(ids) <= len(written) + len(stops) and ids[-1:] == stops and bool(stops)
            choice = {"token_ids": ids, "finish_reason": "stop" if stopped else "length"}
            if body.get("logprobs"):
                ids = choice["token_ids"] = ids or [5]
                choice["logprobs"] = {"token_logprobs": [-cost([*tokens, ids[0]], len(tokens))]}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [
                None,
                *({str(tokens[p]): {"logprob": -cost(tokens, p), "rank": 1}} for p in range(1, len(tokens))),
            ]
        if options := body.get("logprob_token_ids"):
            if len(options) > 128 or body["logprobs"] != len(options):
                return 400, {"error": {"message": "logprobs must equal len(logprob_token_ids)"}}
            row = {f"token_id:{option}": -cost([*tokens, option], len(tokens)) for option in options}
            choice["logprobs"] = {"tokens": ["token_id:5"], "top_logprobs": [{"token_id:5": -9.5, **row}]}
        return 200, completion(len(tokens), choice, system_fingerprint=fingerprint)

    return answer


def replied(answer: Callable[[Body], Reply], body: Body) -> tuple[int, Body]:
    """Status and JSON that a way of answering gives to a completion."""
    reply = answer(body)
    assert reply is not None
    return reply[0], reply[1]


def always(reply: Reply) -> Callable[[Body], Reply]:
    """Answers with the same reply to all."""
    return lambda _: reply


STANDARD = {"model", "prompt", "max_tokens", "temperature", "stop", "echo", "logprobs"}


def echo(
    tokenizer: Tokenizer, forms: Sequence[tuple[int, int]] = ((0, 0),), text: bool = False, written: str = ""
) -> Callable[[Body], Reply]:
    """Answers as the interface says, and knows nothing else.

    `forms` are the pairs of logprobs and max_tokens with which it echoes; `text`: prompts must be text. Where it tells
    the likelihood of a new token, this is the first of `written`, or a comma.
    """

    def answer(body: Body) -> Reply:
        if odd := set(body) - STANDARD:
            return 400, {"error": {"message": f"Unrecognized request argument supplied: {sorted(odd)[0]}"}}
        prompt = body["prompt"]
        if isinstance(prompt, str) != text:
            return 422, {"detail": f"prompt must be {'text' if text else 'ids'}"}
        tokens = [*tokenizer.prefix, *tokenizer.encode(prompt).ids.tolist()] if text else prompt
        choice: Body = {"text": written, "finish_reason": "stop" if written else "length"}
        if body.get("echo"):
            if (body["logprobs"], body["max_tokens"]) not in forms:
                return 400, {"error": {"message": "echo is not supported with these"}}
            values = [None, *(-nll(tokens, p) for p in range(1, len(tokens)))]
            texts = [tokenizer.decode([token]) for token in tokens]
            more = body["max_tokens"]
            choice["logprobs"] = {"tokens": texts + ["x"] * more, "token_logprobs": values + [-1.5] * more}
        elif body.get("logprobs"):
            choice["text"] = tokenizer.decode(tokenizer.encode(written or ",").ids[:1])
            new = [*tokens, *tokenizer.encode(choice["text"]).ids]
            choice["logprobs"] = {"token_logprobs": [-nll(new, len(tokens))]}
        return 200, completion(len(tokens), choice)

    return answer


def next_tokens(most: int) -> Callable[[Body], Reply]:
    """Answers by ids that tell the `most` likeliest next tokens, at 1 nat, 2 nats, ..., and nothing of a prompt."""

    def answer(body: Body) -> Reply:
        count = body.get("logprobs") or 0
        if set(body) - STANDARD or isinstance(body["prompt"], str) or body.get("echo") or count > most:
            return 400, {"error": {"message": f"unsupported, or logprobs above {most}"}}
        row = {f"token_id:{each}": -1.0 - each for each in range(count)}
        choice = {"text": ",", "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [row]}}
        return 200, completion(len(body["prompt"]), choice)

    return answer

"""HTTP client of a JSON server for many threads: bounded retries, a rate limit, and an API key that is never shown."""

import contextlib
import email.utils
import functools
import ipaddress
import json
import math
import random
import re
import ssl
import threading
import time
import urllib.parse
import zlib
from collections.abc import Mapping
from typing import Any

import httpx2

from lexbench.core.errors import ConfigError
from lexbench.core.record import Deferred, Refused
from lexbench.parts.serving.openai.network import Hurried, Pace
from lexbench.parts.serving.openai.secret import Secret

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first retry, doubled for each further one up to the longest; each times a random 0.75 to 1.25."""
TRIAL_ATTEMPTS = 2
"""Attempts with a form that a server may not know, where each ends with HTTP 500."""
MAX_RETRY_AFTER_SECONDS = 300.0
"""Longest Retry-After, in seconds, that is obeyed; a longer one counts as no answer."""
CONNECT_TIMEOUT_SECONDS = 10.0
"""Seconds for a connection, and for the list of models."""
IDLE_CONNECTION_SECONDS = 2.0
"""Seconds to keep an idle connection: servers close theirs after 5, and a request at that moment would fail."""
MAX_SHOWN_CHARACTERS = 300
"""Most characters of a server's message to show."""
MAX_ANSWER_BYTES = 256 << 20
"""Most bytes of an answer, decompressed: log-probabilities of a prompt of a million tokens take less."""
MOST_LISTED = 16 << 20
"""Most bytes of an answer to GET, decompressed: a router's list of a thousand models takes less."""


HALF_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair."""
RETRYABLE_STATUSES = (408, 409, 425, 429)
"""Statuses of requests that may be sent again."""


class Fault(Deferred):
    """An attempt failed; another may succeed, after at least `wait` seconds."""

    def __init__(self, reason: str, wait: float = 0.0, status: int | None = None) -> None:
        super().__init__(reason)
        self.wait, self.status = wait, status


class Rejected(Refused):
    """The server understood the request and rejected it; a retry would not help."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class ServerClient:
    """Send requests to one server, with its key, rate limit and retries.

    Args:
        url: root of its interface, http://127.0.0.1:8000/v1.
        key: API key, sent as a bearer token and masked in every message; None: send none.
        key_variable: name of the key's environment variable, for error messages.
        timeout: seconds for one answer, to its last byte.
        retries: attempts after the first.
        requests_per_minute: rate limit; None: no limit.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        key_variable: str | None,
        timeout: float,
        retries: int,
        requests_per_minute: float | None,
    ) -> None:
        self.url = checked_url(url)
        self._secret, self._key_variable = Secret(key), key_variable
        self._timeout, self._retries = timeout, retries
        self._pace = Pace(60 / requests_per_minute if requests_per_minute else 0.0)
        self._down = False
        self.listed = False
        """Whether the server has listed its models once."""
        self._thread = threading.local()
        self._client = httpx2.Client(
            # Only what `_content` unpacks within a bound.
            headers={"Accept-Encoding": "gzip", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx2.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT_SECONDS)),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_CONNECTION_SECONDS
            ),
            verify=_certificates(),
            trust_env=not is_loopback(httpx2.URL(url).host),  # a proxy set in the environment cannot reach this machine
        )
        for transport in (self._client._transport, *self._client._mounts.values()):
            if isinstance(transport, httpx2.HTTPTransport):  # httpx2 has no public way to say how connections are read
                transport._pool._network_backend = Hurried(transport._pool._network_backend, self._thread)

    def give_up_when(self, stop: threading.Event) -> None:
        """Make requests of this thread give up once `stop` is set."""
        self._thread.stop = stop

    def get(self, path: str) -> dict[str, Any]:
        """GET in one attempt of at most CONNECT_TIMEOUT_SECONDS seconds; Fault without an answer, Rejected if the
        server rejects it.

        `path` is relative to the url; with a leading slash it is relative to the server's root, e.g. /version.
        """
        # vLLM has its version beside the interface, not in it.
        root = self.url.removesuffix("/v1") if path.startswith("/") else f"{self.url}/"
        return self._attempt("GET", f"{root}{path}", None, min(self._timeout, CONNECT_TIMEOUT_SECONDS), MOST_LISTED)

    def post(
        self, path: str, body: Mapping[str, Any], most: int = MAX_ANSWER_BYTES, trial: bool = False
    ) -> dict[str, Any]:
        """POST with retries; Deferred if all attempts fail.

        Raises Rejected if the server rejects the request, Refused if the answer is too large.

        Args:
            path: relative to the url.
            body: of the request, sent as JSON.
            most: bytes of the answer, decompressed.
            trial: the server may not know this form: HTTP 500 to both of two attempts is a rejection.
        """
        # Once a question has used up its attempts, others need not wait as long: one attempt each, and only if the
        # server lists its models, until it answers again.
        quick = self._down
        attempts = 1 if quick else 1 + self._retries
        for attempt in range(attempts):
            try:
                if quick:
                    self._check_lists_models()
                answer = self._attempt("POST", f"{self.url}/{path}", body, self._timeout, most)
            except Fault as fault:
                if trial and fault.status == 500 and attempt + 1 >= min(TRIAL_ATTEMPTS, attempts):
                    raise Rejected(fault.reason, 500) from None
                if attempt + 1 == attempts or fault.wait > MAX_RETRY_AFTER_SECONDS:
                    self._down = True
                    tries = f" ({attempt + 1} attempts)" if attempt else ""
                    raise Deferred(f"{fault.reason}{tries}: fix the server, then repeat the command") from None
                self._wait(fault, attempt)
            except Rejected:
                self._down = False
                raise
            else:
                self._down = False
                return answer
        raise AssertionError("attempts is at least 1")

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def one_line_message(self, said: str) -> str:
        """A server's message as one line of at most MAX_SHOWN_CHARACTERS printable characters, with the key masked."""
        # A page may be long. The key may be split where it is cut, and the stars take less room: so far beyond
        # MAX_SHOWN_CHARACTERS.
        line = "".join(
            each if each.isprintable() else "?" for each in " ".join(said[: 100 * MAX_SHOWN_CHARACTERS].split())
        )
        line = self._secret.mask(line)
        return line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]} ..."

    def holds_key(self, text: str) -> bool:
        """Whether a text contains the key or a part of it, in any form (`Secret.is_in`)."""
        return self._secret.is_in(text)

    def _check_lists_models(self) -> None:
        """Raise Deferred if the server does not even list its models."""
        try:
            self.get("models")
        except Deferred:
            raise
        except Refused:  # no such list, but the server answers
            return

    def _wait(self, fault: Fault, attempt: int) -> None:
        """Wait until the next attempt; the server's Retry-After holds back all threads."""
        pause = min(FIRST_PAUSE * 2.0**attempt, LONGEST_PAUSE) * random.uniform(0.75, 1.25)
        # For all threads: each of them would be turned away, too.
        self._pace.hold_back(fault.wait)
        self._sleep(pause, fault.reason)

    def _sleep(self, seconds: float, reason: str) -> None:
        stop: threading.Event = getattr(self._thread, "stop", None) or threading.Event()
        if stop.wait(seconds):
            raise Deferred(reason)

    def _attempt(
        self, method: str, url: str, body: Mapping[str, Any] | None, seconds: float, most: int
    ) -> dict[str, Any]:
        self._sleep(
            self._pace.reserve_turn(), f"{self.url} got no request: the cell ended with the error of another question"
        )
        limit = httpx2.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT_SECONDS))
        try:
            response, content = self._receive_response(method, url, body, seconds, limit, most)
        except httpx2.ConnectTimeout:
            raise Fault(
                f"{self.url} accepts no connection within {min(seconds, CONNECT_TIMEOUT_SECONDS):g} seconds"
            ) from None
        except httpx2.TimeoutException:
            raise Fault(f"{self.url} gives no answer within {seconds:g} seconds") from None
        except httpx2.RequestError as error:
            said = self.one_line_message(str(error)) or type(error).__name__
            raise Fault(f"{self.url} does not answer ({said})") from None
        text = content.decode(errors="replace")
        self._check(response, text)
        answer = self._object(text)
        if answer.get("error"):  # a router's, as a success; choices beside it may be of half an answer
            self._check_error(answer["error"], text)
        if "\ufffd" in text and text.encode() != content:
            raise self._unwritten_refusal()
        return answer

    def _receive_response(
        self, method: str, url: str, body: Mapping[str, Any] | None, seconds: float, limit: httpx2.Timeout, most: int
    ) -> tuple[httpx2.Response, bytes]:
        """The response and its whole content, within the seconds: `limit` is for each read, and a server may drip."""
        self._thread.end = time.monotonic() + seconds
        with self._client.stream(method, url, json=body, timeout=limit) as response:
            return response, self._content(response, most)

    def _content(self, response: httpx2.Response, most: int) -> bytes:
        """The content, decompressed as it comes; Refused once it has more than `most` bytes, of which no more are held.

        httpx2's own decoders inflate a piece of the network whole, up to a thousand times its size.
        """
        coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if coding not in ("identity", "gzip", "x-gzip"):
            raise Refused(
                f"{self.url} compresses answers by {self.one_line_message(coding)}, which was not asked for: use gzip"
            )
        unpacker = None if coding == "identity" else zlib.decompressobj(wbits=31)  # 31: gzip
        content = bytearray()
        for piece in response.iter_raw():
            try:
                content += piece if unpacker is None else unpacker.decompress(piece, most + 1 - len(content))
            except zlib.error as error:
                raise Fault(f"malformed answer of {self.url}: {error}") from None
            if len(content) > most:
                raise Refused(f"{self.url} sends more than {most / 2**20:.3g} MiB in one answer: check backend.url")
        if unpacker is not None and content and not unpacker.eof:
            raise Fault(f"malformed answer of {self.url}: its compressed content breaks off")
        return bytes(content)

    def _check(self, response: httpx2.Response, text: str) -> None:
        """Raise Fault, Deferred or Rejected for every status except success."""
        status = response.status_code
        if 200 <= status < 300:
            return
        said = f"{self.url} says HTTP {status}: {self._error_message(text) or response.reason_phrase}"
        if status in (401, 403):
            name = self._key_variable or "one by backend.key_variable"
            raise Deferred(f"{said}: the key is wrong or missing, set {name}")
        if status == 402:
            raise Deferred(f"{said}: its account is used up, pay, then repeat the command")
        # 501: the server does not have this interface. llama-cpp-python's answers 500 to what it cannot read.
        unread = status == 501 or (status == 500 and " validation error" in said)
        if status in RETRYABLE_STATUSES or (status >= 500 and not unread):
            raise Fault(said, _retry_after(response.headers.get("Retry-After", "")), status)
        if 300 <= status < 400:
            elsewhere = self.one_line_message(response.headers.get("Location", "elsewhere"))
            raise Rejected(f"{said}: it has moved to {elsewhere}, give that as backend.url", status)
        raise Rejected(said, status)

    def _check_error(self, error: Any, text: str) -> None:
        """Raise Rejected for an error whose code is that of a wrong request, else Fault."""
        said, code = (
            f"{self.url} says: {self._error_message(text)}",
            error.get("code") if isinstance(error, dict) else None,
        )
        if isinstance(code, int) and 400 <= code < 500 and code not in (401, 402, 403, *RETRYABLE_STATUSES):
            raise Rejected(said, code)
        raise Fault(said)

    def _error_message(self, text: str) -> str:
        """The message in an error response: servers nest it under error, message or detail."""
        said: Any = text
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(text)
        for name in ("error", "message", "detail"):
            said = said.get(name, said) if isinstance(said, dict) else said
        return self.one_line_message(said if isinstance(said, str) else json.dumps(said))

    def _object(self, text: str) -> dict[str, Any]:
        """The answer; Fault if it is no JSON object: a proxy's page while the server restarts, for example."""
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Fault(f"malformed answer of {self.url}: {self.one_line_message(text)!r} is no JSON object")
        # A server that cuts text by bytes may send half a character, as an escape that JSON allows.
        return self._with_whole_characters(answer) if "\\ud" in text.lower() else answer

    def _with_whole_characters(self, value: Any) -> Any:
        """A JSON value with U+FFFD for halves of surrogate pairs, which no text file and no terminal can take.

        Halves stand where a text was cut, at its ends; Refused where one is inside, as the other half is lost.
        """
        if isinstance(value, str):
            joined = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
            if HALF_SURROGATE_PATTERN.search(joined[1:-1]):
                raise self._unwritten_refusal()
            return HALF_SURROGATE_PATTERN.sub("\ufffd", joined)
        if isinstance(value, list):
            return [self._with_whole_characters(each) for each in value]
        if isinstance(value, dict):
            whole = self._with_whole_characters
            return {whole(key): whole(each) for key, each in value.items()}
        return value

    def _unwritten_refusal(self) -> Refused:
        """The Refused for an answer whose texts are not what the model wrote."""
        return Refused(f"malformed answer of {self.url}: it is no UTF-8, so its texts are not what was written")


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The trusted certificates, read once: reading them takes a noticeable time."""
    return httpx2.create_ssl_context()


def checked_url(url: str) -> str:
    """The URL without a slash at its end; ConfigError if malformed, or with secrets, which records would hold."""
    try:
        parts = urllib.parse.urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        httpx2.URL(url).host.encode("idna")  # as connecting does
    except (ValueError, httpx2.InvalidURL):
        complete = False
    if not complete:
        raise ConfigError("backend.url must be a complete address: e.g. backend.url=http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("backend.url must not have a password, ? or #: it is stored in records")
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback name or address of this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header, which holds a number or a date; 0 if it cannot be read."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0

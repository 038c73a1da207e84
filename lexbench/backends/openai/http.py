"""A server asked for JSON by many threads: retries within bounds, at the pace allowed, and a key that stays hidden."""

import contextlib
import email.utils
import functools
import ipaddress
import json
import math
import random
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

import httpx2

from lexbench.core.record import Deferred, Refused

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first retry, doubled with each further one, at most this; each is drawn from 3/4 to 5/4 of it."""
PATIENCE = 300.0
"""Seconds that a server may ask us to wait (Retry-After); beyond that it counts as one that gives no answer."""
CONNECT = 10.0
"""Seconds in which a server that runs accepts a connection, and lists its models."""
IDLE = 2.0
"""Seconds that an unused connection is kept: servers close theirs after 5, and one used at that moment breaks."""
SAID = 300
"""Characters of a server's own words that are shown."""


class Fault(Deferred):
    """No answer this time; the next attempt may have one, after at least `wait` seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class Rejected(Refused):
    """The server has understood the request, and says no."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Server:
    """One server.

    Args:
        url: root of its interface, http://127.0.0.1:8000/v1.
        key: sent as a bearer token, and starred out of whatever the server says; None: none is sent.
        key_variable: what the user sets it by, for the error that says so.
        timeout: seconds that one answer may take.
        retries: attempts after the first one, where an attempt had no answer.
        requests_per_minute: how often it may be asked; None: as often as we can.
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
        self._key, self._key_variable = key, key_variable
        self._timeout, self._retries = timeout, retries
        self._pace = Pace(60 / requests_per_minute if requests_per_minute else 0.0)
        self._down = False
        self._thread = threading.local()
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(timeout, connect=min(timeout, CONNECT)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE),
            verify=_certificates(),
            trust_env=not is_loopback(httpx2.URL(url).host),  # a proxy of the environment cannot reach this machine
        )

    def heed(self, stop: threading.Event) -> None:
        """From now on, what this thread asks is given up once `stop` is set."""
        self._thread.stop = stop

    def get(self, path: str) -> dict[str, Any]:
        """The answer to one attempt, soon: Fault where there is none, Rejected where the server says no.

        `path` goes on behind the url; one that begins with a slash stands beside the interface: /version.
        """
        root = self.url.removesuffix("/v1") if path.startswith("/") else f"{self.url}/"
        return self._attempt("GET", f"{root}{path}", None, min(self._timeout, CONNECT))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, after as many attempts as it takes.

        Deferred once they are used up. From then on until something is answered, there is one attempt only. Rejected
        where the server says no, Refused where it gives no JSON object.
        """
        quick = self._down
        attempts = 1 if quick else 1 + self._retries
        for attempt in range(attempts):
            try:
                if quick:
                    self._listed()
                answer = self._attempt("POST", f"{self.url}/{path}", body, self._timeout)
            except Fault as fault:
                if attempt + 1 == attempts or fault.wait > PATIENCE:
                    self._down = True
                    tries = f" ({attempt + 1} attempts)" if attempt else ""
                    raise Deferred(f"{fault.reason}{tries}: mend it, then run the same command again") from None
                self._wait(fault, attempt)
            except Rejected:
                self._down = False
                raise
            else:
                self._down = False
                return answer
        raise AssertionError("there is at least one attempt")

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def words(self, said: str) -> str:
        """What a server says in one line of a limited length, without the key."""
        line = " ".join(said.split())
        line = line.replace(self._key, "***") if self._key else line
        return line if len(line) <= SAID else f"{line[:SAID]} ..."

    def holds_key(self, text: str) -> bool:
        """Whether the key stands in a text; one of a few letters, as `EMPTY`, is a placeholder and no secret."""
        return self._key is not None and len(self._key) >= 8 and self._key in text

    def _listed(self) -> None:
        """Deferred where a server that gave no answer before does not even list its models now."""
        try:
            self.get("models")
        except Deferred:
            raise
        except Refused:  # it has no such list, but it answers
            return

    def _wait(self, fault: Fault, attempt: int) -> None:
        """Until the next attempt."""
        pause = min(FIRST_PAUSE * 2.0**attempt, LONGEST_PAUSE) * random.uniform(0.75, 1.25)
        self._pace.hold(fault.wait)
        self._sleep(pause, fault.reason)

    def _sleep(self, seconds: float, reason: str) -> None:
        stop: threading.Event = getattr(self._thread, "stop", None) or threading.Event()
        if stop.wait(seconds):
            raise Deferred(reason)

    def _attempt(self, method: str, url: str, body: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
        self._sleep(self._pace.turn(), f"{self.url} was not asked: another question ended the cell")
        limit = httpx2.Timeout(seconds, connect=min(seconds, CONNECT))
        try:
            response = self._client.request(method, url, json=body, timeout=limit)
        except httpx2.ConnectTimeout:
            raise Fault(f"{self.url} accepts no connection within {min(seconds, CONNECT):g} seconds") from None
        except httpx2.TimeoutException:
            raise Fault(f"{self.url} gives no answer within {seconds:g} seconds") from None
        except httpx2.RequestError as error:
            said = self.words(str(error)) or type(error).__name__
            raise Fault(f"{self.url} does not answer ({said})") from None
        self._check(response)
        return self._object(response)

    def _check(self, response: httpx2.Response) -> None:
        """Fault, Deferred or Rejected for every status but success."""
        status = response.status_code
        if 200 <= status < 300:
            return
        said = f"{self.url} says HTTP {status}: {self._said(response)}"
        if status in (401, 403):
            name = self._key_variable or "one by backend.key_variable"
            raise Deferred(f"{said}: the key is wrong or missing, set {name}")
        if status in (408, 429) or (status >= 500 and status != 501):  # 501: what was asked does not exist there
            raise Fault(said, _retry_after(response.headers.get("Retry-After", "")))
        if 300 <= status < 400:
            elsewhere = self.words(response.headers.get("Location", "elsewhere"))
            raise Rejected(f"{said}: it has moved to {elsewhere}, give that as backend.url", status)
        raise Rejected(said, status)

    def _said(self, response: httpx2.Response) -> str:
        """The message of an error, however it is wrapped."""
        said: Any = response.text
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(response.text)
        for name in ("error", "message", "detail"):
            said = said.get(name, said) if isinstance(said, dict) else said
        return self.words(said if isinstance(said, str) else json.dumps(said)) or response.reason_phrase

    def _object(self, response: httpx2.Response) -> dict[str, Any]:
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Refused(f"malformed answer of {self.url}: {self.words(response.text)!r} is no JSON object")
        return answer


class Pace:
    """Turns that are `gap` seconds apart, whoever takes them."""

    def __init__(self, gap: float) -> None:
        self._gap, self._next, self._lock = gap, 0.0, threading.Lock()

    def turn(self) -> float:
        """Take the next one; seconds until it comes."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._gap
            return begin - now

    def hold(self, seconds: float) -> None:
        """No turn comes before."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Whom we trust, read once."""
    return httpx2.create_ssl_context()


def checked_url(url: str) -> str:
    """The url of an interface; ValueError in one line where it is none, or says what records must not hold."""
    try:
        parts = urllib.parse.urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        complete = False
    if not complete:
        raise ValueError("backend.url must be a whole address: e.g. backend.url=http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("backend.url must hold neither a password nor anything behind ? or #: it goes into records")
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its own name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _retry_after(value: str) -> float:
    """Seconds that a Retry-After header asks for, given as such or as a date; 0 where it cannot be read."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0

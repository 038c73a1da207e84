"""Connections whose requests end in time, and turns of requests at a rate."""

import threading
import time
from typing import Any

import httpcore2


class Hurried(httpcore2.NetworkBackend):
    """Connections on which no read waits beyond the end of its thread's request, headers and TLS included.

    Args:
        inner: opens connections.
        thread: `end` of each thread, on the monotonic clock in seconds.
    """

    def __init__(self, inner: httpcore2.NetworkBackend, thread: threading.local) -> None:
        self._inner, self._thread = inner, thread

    def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.NetworkStream:
        """Open a connection."""
        return HurriedStream(self._inner.connect_tcp(*args, **options), self._thread)


class HurriedStream(httpcore2.NetworkStream):
    """A connection of `Hurried`."""

    def __init__(self, inner: httpcore2.NetworkStream, thread: threading.local) -> None:
        self._inner, self._thread = inner, thread

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read within what is left of the request's time; ReadTimeout where nothing is."""
        left = self._thread.end - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout
        return self._inner.read(max_bytes, left if timeout is None else min(left, timeout))

    def start_tls(self, *args: Any, **options: Any) -> httpcore2.NetworkStream:
        """Encrypt a connection."""
        return HurriedStream(self._inner.start_tls(*args, **options), self._thread)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send."""
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        """Facts of the connection itself."""
        return self._inner.get_extra_info(info)


class Pace:
    """Rate limiter: turns at least `gap` seconds apart, shared by all threads."""

    def __init__(self, gap: float) -> None:
        self._gap, self._next, self._lock = gap, 0.0, threading.Lock()

    def reserve_turn(self) -> float:
        """Reserve the next turn; the seconds until it comes."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._gap
            return begin - now

    def hold_back(self, seconds: float) -> None:
        """Allow no turn in the next `seconds`."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

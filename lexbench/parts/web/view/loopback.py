"""HTTP server of the page: a few fixed paths, on loopback only, read-only."""

import errno
import logging
import re
import socketserver
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lexbench.core.errors import ConfigError
from lexbench.parts.web.page import safety, samples
from lexbench.parts.web.view.folders import FolderWatch
from lexbench.parts.web.view.pages import PageCache, PageMaker, waiting_page
from lexbench.parts.web.view.progress import progress_data
from lexbench.store.store import Store

log = logging.getLogger(__name__)

LOOPBACK_ADDRESS = "127.0.0.1"
ALLOWED_HOST_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Allowed Host names. Others are refused: DNS rebinding lets a foreign page reach 127.0.0.1 by its own name."""
PAGE_PATIENCE_SECONDS = 3.0
"""Seconds that a request waits for the page; after that the progress page is sent."""
EMPTY_POLICY = "default-src 'none'"
PAGE_PATH_PATTERN = re.compile(r"/(?:\?seen=(\w+))?")
"""The page; with the state of the one that the reader has seen."""
SAMPLES_PATH_PATTERN = re.compile(r"/samples/([0-9a-f]{16})\.json")
RESPONSE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class PageResponse:
    """An answer, without the headers that all answers have."""

    status: HTTPStatus
    kind: str
    """Media type."""
    body: str
    policy: str = EMPTY_POLICY
    """Content security policy."""


class PageServer(ThreadingHTTPServer):
    """HTTP server of one or more run folders, one thread per request."""

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.watch = FolderWatch(folders)
        self.maker = PageMaker(folders)
        self.pages = PageCache(self.watch, self.maker)
        super().__init__((LOOPBACK_ADDRESS, port), PageRequestHandler)

    def server_bind(self) -> None:
        """Bind without a DNS look-up: HTTPServer.server_bind asks for our host name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def server_close(self) -> None:
        """Close the socket, and stop a page in the making."""
        super().server_close()
        self.maker.close()
        self.pages.wait()

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{LOOPBACK_ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        """Accepted Host headers."""
        return {f"{name}:{self.server_port}" for name in ALLOWED_HOST_NAMES} | (
            {*ALLOWED_HOST_NAMES} if self.server_port == 80 else set()
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections closed by the browser; other errors were logged already."""

    def answer(self, path: str) -> PageResponse:
        """Answer a path; only those named here exist."""
        if match := PAGE_PATH_PATTERN.fullmatch(path):
            return self._page(match[1])
        if path == "/progress.json":
            return self._progress()
        if path == "/favicon.ico":
            return PageResponse(HTTPStatus.OK, "image/x-icon", "")  # browsers request it, and log a 404
        if match := SAMPLES_PATH_PATTERN.fullmatch(path):
            return self._samples(match[1])
        return error_response(HTTPStatus.NOT_FOUND, "nothing here")

    def _progress(self) -> PageResponse:
        state, cells = self.watch.folders_state()
        now = {**progress_data(self.watch.read_runs()), "state": state, "cells": cells, "making": self.pages.is_making}
        return PageResponse(HTTPStatus.OK, "application/json", safety.script_json(now))

    def _page(self, seen: str | None) -> PageResponse:
        made = self.pages.get(PAGE_PATIENCE_SECONDS, seen)
        if made is None:
            return PageResponse(HTTPStatus.OK, "text/html", *waiting_page(self.watch.folders))
        if made.failed:
            return error_response(
                HTTPStatus.INTERNAL_SERVER_ERROR, "the page cannot be made: see the terminal for the reason"
            )
        content = made.content
        about = f'<section id="progress" data-state="{content.state}" data-cells="{content.cells}"'
        shown = content.html.replace('<section id="progress"', about, 1)
        return PageResponse(HTTPStatus.OK, "text/html", shown, made.policy)

    def _samples(self, cell: str) -> PageResponse:
        for folder in self.watch.find_run_folders():
            if (folder / "cells" / f"{cell}.parquet").is_file():
                store = Store(folder)
                if found := store.load([cell]):
                    return PageResponse(HTTPStatus.OK, "application/json", samples.samples_json(found[0]))
                return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "this cell's file cannot be read")
        return error_response(HTTPStatus.NOT_FOUND, "no such cell")


class PageRequestHandler(BaseHTTPRequestHandler):
    """One request; each has its own connection."""

    server: PageServer
    timeout = 30  # seconds until an idle connection is closed

    def do_GET(self) -> None:
        """Answer with a body."""
        self._send(self._answer())

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._send(self._answer())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer errors found by http.server: methods other than GET and HEAD, malformed requests."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(error_response(status, status.phrase.lower()))

    def version_string(self) -> str:
        """Server header without version numbers."""
        return "lexbench"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing per request."""

    def _answer(self) -> PageResponse:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return error_response(HTTPStatus.MISDIRECTED_REQUEST, f"wrong host: open {self.server.url}")
        try:
            return self.server.answer(self.path)
        except Exception as error:  # an error in one path must not stop the server
            log.error(
                "%s cannot be shown (%s: %s)", self.path, type(error).__name__, " ".join(str(error).split())[:200]
            )
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "cannot be shown: see the terminal for the reason")

    def _send(self, response: PageResponse) -> None:
        body = response.body.encode()
        self.send_response(response.status)
        self.send_header("Content-Type", f"{response.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", f"{response.policy}; frame-ancestors 'none'")
        for name, value in RESPONSE_HEADERS.items():
            self.send_header(name, value)
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def error_response(status: HTTPStatus, reason: str) -> PageResponse:
    """An error answer: a line of plain text."""
    return PageResponse(status, "text/plain", f"{status.value} {reason}\n")


def bind_server(folders: Sequence[Path], port: int = 8000) -> PageServer:
    """A server of run folders, or of folders of run folders, bound but not serving yet; port 0 takes a free one.

    Raises ConfigError for a folder that does not exist, and for a port that is not available.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(
            f"port must be between 0 and 65535, got {port}: e.g. --port 8000, or --port 0 for any free one"
        )
    try:
        return PageServer(folders, port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        said = "taken" if error.errno == errno.EADDRINUSE else "reserved"
        raise ConfigError(f"port {port} is {said}: give another, e.g. --port 0 for any free one") from None


def serve(folders: Sequence[Path], port: int = 8000) -> None:
    """Serve run folders until Ctrl-C; prints the address. Raises ConfigError as `server` does."""
    with bind_server(folders, port) as serving:
        names = ", ".join(str(folder) for folder in folders)
        try:
            print(f"{names} at {serving.url} (Ctrl-C ends)", flush=True)
            serving.pages.get(patience=0)
            serving.serve_forever()
        except KeyboardInterrupt:
            print(flush=True)

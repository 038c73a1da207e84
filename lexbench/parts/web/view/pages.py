"""Makes the page again when cells have changed, in the background, and a waiting page until then."""

import html
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lexbench.core import registry
from lexbench.parts.web.page import safety
from lexbench.parts.web.view.folders import FolderWatch
from lexbench.report.formats import escape_html

PAGE_FOLDER = Path(safety.__file__).parent
WAITING_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>lexbench: {names}</title>
<noscript><meta http-equiv="refresh" content="3"></noscript>
<style>{style}</style>
</head>
<body data-served data-waiting>
<header><h1>{names}</h1></header>
<main>
<p>The page is being made and will appear here. With many samples this takes minutes.</p>
<section id="progress" hidden></section>
</main>
<script>{script}</script>
</body>
</html>
"""


@dataclass(frozen=True)
class PageContent:
    """A page, and the state of the files that it was made from."""

    state: str
    """`Watch.state` of these files: hash, then number of finished cells."""
    cells: int
    html: str


@dataclass(frozen=True)
class ServedPage:
    """HTML page that is ready to send, with its policy and times."""

    content: PageContent
    policy: str
    """Content security policy of the page."""
    seconds: float
    """Seconds that it took to make the page."""
    made: float
    """Time at which the page was ready, in seconds of time.monotonic."""
    failed: bool = False


class PageCache:
    """The page for all requests; made in the background, one at a time."""

    def __init__(self, watch: FolderWatch, make: Callable[[], PageContent]) -> None:
        self._watch = watch
        self._make = make
        self._changed = threading.Condition()
        self._page: ServedPage | None = None
        self._making: threading.Thread | None = None

    @property
    def is_making(self) -> bool:
        """Whether a page is being made."""
        return self._making is not None

    def get(self, patience: float, seen: str | None = None) -> ServedPage | None:
        """The page of the current files; None if that takes longer than `patience` seconds.

        If cells finish faster than pages are made, a page younger than the time it took is good enough, but for a
        reader who has `seen` it: the state of that page.
        """
        state, _ = self._watch.folders_state()
        with self._changed:
            if not self._is_good_enough(state, seen) and not self._making:
                self._making = threading.Thread(target=self._make_page, args=(state,), daemon=True)
                self._making.start()
            self._changed.wait_for(lambda: self._is_good_enough(state, seen), patience)
            return self._page if self._is_good_enough(state, seen) else None

    def wait(self) -> None:
        """Wait until no page is being made."""
        if thread := self._making:
            thread.join()

    def _is_good_enough(self, state: str, seen: str | None) -> bool:
        page = self._page
        if page is None or page.content.state == state:
            return page is not None
        return page.content.state != seen and time.monotonic() - page.made < page.seconds

    def _make_page(self, state: str) -> None:
        begun = time.monotonic()
        try:
            content, failed = self._make(), False
        except Exception:  # the process has printed the reason; keep serving
            content, failed = PageContent(state, 0, ""), True
        ended = time.monotonic()
        with self._changed:
            self._page = ServedPage(content, policy_of(content.html), ended - begun, ended, failed)
            self._making = None
            self._changed.notify_all()


class PageMaker:
    """Makes the page in a separate process: with many samples it takes minutes and gigabytes."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [str(folder) for folder in folders]
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def __call__(self) -> PageContent:
        """Make the page; CalledProcessError if the process fails (it prints the reason)."""
        # The process must import this lexbench, wherever it was started: -P keeps the current folder out of the path.
        ours = [str(registry.PACKAGE_FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-P", "-m", "lexbench.parts.web.view.make", *self._folders]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(ours)},
            start_new_session=True,  # Ctrl-C reaches only the server, which then ends this process
        ) as self._process:
            if self._closed:
                self._process.kill()
            content, _ = self._process.communicate()
        if self._process.returncode:
            raise subprocess.CalledProcessError(self._process.returncode, command)
        state, cells, html = content.decode().split(maxsplit=2)
        return PageContent(state, int(cells), html)

    def close(self) -> None:
        """Kill the process, if one is running."""
        self._closed = True
        if self._process and self._process.poll() is None:
            self._process.kill()


def waiting_page(folders: Sequence[Path]) -> tuple[str, str]:
    """The waiting page, and its content security policy."""
    script, style = ((PAGE_FOLDER / name).read_text(encoding="utf-8") for name in ("live.js", "page.css"))
    policy = safety.security_policy([script], [style], served=True)
    names = escape_html(", ".join(folder.resolve().name for folder in folders))
    return WAITING_PAGE.format(policy=html.escape(policy), names=names, style=style, script=script), policy


def policy_of(content: str) -> str:
    """The content security policy in the head of a page."""
    stated = re.search(r'<meta http-equiv="Content-Security-Policy"\s+content="([^"]*)"', content)
    return html.unescape(stated[1]) if stated else "default-src 'none'"

"""Whether progress bars may be drawn, and lines in their place."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_LINE_SECONDS = 10.0
"""Seconds of work after which a command without a bar says that it is at work."""
LINE_INTERVAL_SECONDS = 60.0
"""Seconds between two lines, where a line is not called for."""


def bars_are_disabled() -> bool:
    """Whether the environment forbids bars: TQDM_DISABLE is set, and not to 0 or false."""
    return os.environ.get("TQDM_DISABLE", "").lower() not in ("", "0", "false")


def must_hide_bar(quiet: bool = False) -> bool:
    """Whether to draw no bar: asked for, forbidden, or standard error is no terminal (a file, a pipe)."""
    return quiet or bars_are_disabled() or not sys.stderr.isatty()


def has_colour() -> bool:
    """Whether standard output takes colours: a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class Lines:
    """Lines on standard error where no bar is drawn: `00:10<00:30, text`, as spent and left; none if silenced.

    Args:
        plan: the first line.
    """

    def __init__(self, plan: str) -> None:
        self._speaks = must_hide_bar() and not bars_are_disabled()
        self._started = time.monotonic()
        self._next = self._started + LINE_INTERVAL_SECONDS
        if self._speaks:
            print(plan, file=sys.stderr, flush=True)

    def show(self, text: str, due: bool, done: int = 0, left: int = 0) -> None:
        """Print a line if one is due, or if the last one is a minute old.

        Args:
            text: behind the times.
            due: whatever the time.
            done: parts of the work that were done since the first line.
            left: parts that are left; both 0: no time left is said.
        """
        now = time.monotonic()
        if not self._speaks or not (due or now >= self._next):
            return
        from tqdm import tqdm

        self._next = now + LINE_INTERVAL_SECONDS
        spent = now - self._started
        to_go = f"<{tqdm.format_interval(spent / done * left)}" if done else ""
        print(f"{tqdm.format_interval(spent)}{to_go}, {text}", file=sys.stderr, flush=True)


@contextmanager
def at_work(name: str) -> Iterator[None]:
    """Say on standard error that a command is at work and for how long: after FIRST_LINE_SECONDS seconds, then every
    LINE_INTERVAL_SECONDS seconds.

    For commands that know no number of steps, in a process of their own; nothing if silenced. By an alarm of the
    system, where it has one: a thread would keep a report from sharing its work by forks.
    """
    started = time.monotonic()

    def tell(*_: object) -> None:
        if getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", None):  # a bar is drawn now
            return
        spent = round(time.monotonic() - started)
        print(f"lexbench {name}: at work for {spent // 60:02d}:{spent % 60:02d}", file=sys.stderr, flush=True)

    if bars_are_disabled() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, FIRST_LINE_SECONDS, LINE_INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""Whether progress bars may be drawn, and lines in their place."""

import os
import sys
import time

EVERY = 60.0
"""Seconds between two lines, where a line is not called for."""


def silenced() -> bool:
    """Whether the environment forbids bars: TQDM_DISABLE is set, and not to 0 or false."""
    return os.environ.get("TQDM_DISABLE", "").lower() not in ("", "0", "false")


def without_bar(quiet: bool = False) -> bool:
    """Whether to draw no bar: asked for, forbidden, or standard error is no terminal (a file, a pipe)."""
    return quiet or silenced() or not sys.stderr.isatty()


def has_colour() -> bool:
    """Whether standard output takes colours: a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


class Lines:
    """Lines on standard error where no bar is drawn: `00:10<00:30, text`, as spent and left; none if silenced.

    Args:
        plan: the first line.
    """

    def __init__(self, plan: str) -> None:
        self._speaks = without_bar() and not silenced()
        self._started = time.monotonic()
        self._next = self._started + EVERY
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

        self._next = now + EVERY
        spent = now - self._started
        to_go = f"<{tqdm.format_interval(spent / done * left)}" if done else ""
        print(f"{tqdm.format_interval(spent)}{to_go}, {text}", file=sys.stderr, flush=True)

"""Whether progress bars may be drawn."""

import os
import sys


def silenced() -> bool:
    """Whether the environment forbids bars: TQDM_DISABLE is set, and not to 0 or false."""
    return os.environ.get("TQDM_DISABLE", "").lower() not in ("", "0", "false")


def without_bar(quiet: bool = False) -> bool:
    """Whether to draw no bar: asked for, forbidden, or standard error is no terminal (a file, a pipe)."""
    return quiet or silenced() or not sys.stderr.isatty()

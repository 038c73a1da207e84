"""Pictures of the site's pages, as bytes."""

import tempfile
from collections.abc import Callable
from pathlib import Path


def drawn(draw: Callable[[Path], None]) -> bytes:
    """Return the SVG that a function draws."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture.svg"
        draw(file)
        return file.read_bytes()

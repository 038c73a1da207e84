"""Readings of a pack's texts, kept until the pack is written: making it may be interrupted."""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lexbench.core.files import read_bytes, write_bytes
from lexbench.parts.serving.identify.pack import UNREADABLE_ERRORS, Nats


@dataclass(frozen=True)
class Reading:
    """The nats of one reading of all texts."""

    targets: Nats
    """[texts, targets]."""
    likeliest: Nats
    """[texts, prefixes, tokens] of the stored tokens."""


class KeptReadings:
    """Readings in a folder beside the pack, by a hash of what was read and how.

    Args:
        folder: made with the first reading; None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, key: Mapping[str, Any], read: Callable[[], Reading]) -> Reading:
        """The kept reading of this key; if there is none, what `read` gives, which is then kept."""
        if self._folder is None:
            return read()
        name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]
        file = self._folder / f"{name}.npz"
        # One that is damaged is read anew.
        with contextlib.suppress(*UNREADABLE_ERRORS), np.load(io.BytesIO(read_bytes(file)), allow_pickle=False) as held:
            return Reading(held["targets"], held["likeliest"])
        found = read()
        content = io.BytesIO()
        np.savez(content, targets=found.targets, likeliest=found.likeliest)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content.getvalue())
        return found

    def remove(self) -> None:
        """Remove the folder: the pack is written."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

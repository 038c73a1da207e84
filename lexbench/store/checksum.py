"""Checksum of a sample, made when its answer is scored: what changes on the way to a table is seen by `doctor`.

The checksum of a finished cell's file (`lexbench.store.format`) begins when that file is written; until then a sample
has lain in a file of lines, in another cell, or in another process.
"""

import hashlib
import json
from dataclasses import replace

from lexbench.core.record import Sample
from lexbench.store.format import as_json, sample_values

NUMBER_FIELDS = ("chance", "depth")
"""Fields of a sample that files hold as floating-point numbers, though a task may give whole ones."""


def checksum_of(sample: Sample) -> str:
    """Checksum of all fields but itself; the same before a sample is written and after it is read."""
    row = {name: value for name, value in sample_values(sample).items() if name not in ("nll", "checksum")}
    row |= {name: float(row[name]) for name in NUMBER_FIELDS if row[name] is not None}
    # Read back once: keys of facts become texts, and are sorted as such.
    found = hashlib.sha256(as_json(json.loads(as_json(row))).encode(errors="backslashreplace"))
    if sample.nll is not None:
        found.update(sample.nll.astype("<f4").tobytes())
    return found.hexdigest()[:16]


def with_checksum(sample: Sample) -> Sample:
    """The sample with its checksum."""
    return replace(sample, checksum=checksum_of(sample))


def has_changed(sample: Sample) -> bool:
    """Whether a sample is not what it was when it was scored; False where it says no checksum."""
    return sample.checksum is not None and sample.checksum != checksum_of(sample)

"""The cells of a job: planned before the model is loaded, and with the identity that the loaded model gives them."""

import functools
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from lexbench.backends import Backend
from lexbench.core.attention import Attention
from lexbench.core.guard import plugin_guard
from lexbench.core.method_key import OWN_POLICY, MethodKey, Purpose
from lexbench.core.new_fields import stated_fields, stated_text
from lexbench.core.plug_in import user_code_hash
from lexbench.core.record import Cell
from lexbench.core.task import Tokenizer
from lexbench.corpora import Corpus
from lexbench.taskkit.perplexity import encoded_corpus

_fingerprints: dict[Corpus, str] = {}
"""Fingerprint of each corpus in the last job of this process that read it."""


@dataclass(frozen=True)
class Component:
    """An object built from the registry, with what tables and identities call it."""

    name: str
    obj: Any
    label: str
    """`yarn(factor=8.0)`: every parameter that the user changed."""
    unresolved: Any = None
    """A task before `for_lengths` has set what the user left open."""

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Name and every parameter, as plain JSON; of a plug-in, which may change, also a hash of its `file`.

        A task's corpus is left out, a cell names it apart. A corpus states by its fingerprint whether it has changed. A
        parameter with the metadata "new" is left out while it has its default: older cells lack it.
        """
        # Through JSON, so that a cell read from a file has an equal identity: tuples become lists.
        values = {f.name: getattr(self.obj, f.name) for f in stated_fields(self.obj) if f.name != "corpus"}
        file = None if hasattr(self.obj, "fingerprint") else user_code_hash(type(self.obj), *values.values())
        about = {"name": self.name, **json.loads(json.dumps(values, default=stated_text))}
        return about if file is None else about | {"file": file}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of a corpus's texts, once for each job: a file may change between two jobs of a process.

        Texts that have changed since an earlier job are read anew.
        """
        with plugin_guard(f"{self.name}.fingerprint"):
            found = self.obj.fingerprint()
            assert isinstance(found, str), f"a fingerprint is a text, got {type(found).__name__}"
        if _fingerprints.setdefault(self.obj, found) != found:
            encoded_corpus.cache_clear()
            _fingerprints[self.obj] = found
        return found


@dataclass(frozen=True)
class MethodComponent(Component):
    """A method, with its key in tables and what its cells are measured for."""

    key: MethodKey = field(kw_only=True)
    purpose: Purpose = field(default=OWN_POLICY, kw_only=True)

    @classmethod
    def of(cls, name: str, built: Any, key: MethodKey, purpose: Purpose = OWN_POLICY) -> "MethodComponent":
        """The method of a key, which also gives its label."""
        return cls(name, built, str(key), key=key, purpose=purpose)


@dataclass(frozen=True)
class Workload:
    """The computing that one cell takes."""

    questions: int = 0
    tokens: int = 0
    """Read and written, over all questions; a text that several share once, where it is read once."""
    dense: float = 0.0
    """Operations that grow with the tokens: products with weights."""
    quadratic: float = 0.0
    """Operations that grow with the square of the length: attention."""
    steps: int = 0
    """Forward passes of a single token: writing."""

    @property
    def flops(self) -> float:
        """All operations."""
        return self.dense + self.quadratic


@dataclass(frozen=True)
class PlannedCell:
    """Planned cell: the objects that it is made of, and its workload."""

    method: MethodComponent
    task: Component
    length: int
    seed: int
    attention: Attention | None
    refusal_reason: str | None
    """Why there is no attention or no question."""
    workload: Workload
    retry: bool = False
    """Whether it is only deferred: a plug-in failed, and may be mended."""
    is_foreseen: bool = False
    """Whether the refusal is what the task foresees: its questions decide when the cell is reached."""
    groups: Mapping[int, Attention] = field(default_factory=dict)
    """Attention of the questions up to each of these lengths, which differ; empty: all have `attention`."""


@dataclass(frozen=True)
class BackendFacts:
    """The part of a loaded backend that enters a cell's identity."""

    name: str
    version: str
    dtype: str
    kernel: str
    revision: str
    tokenizer: Tokenizer
    file: str | None = None
    """Hash of a plug-in's code, or of an encoding's."""
    weights_known: bool = True
    """Whether the revision tells the weights; no part of an identity."""

    @classmethod
    def of(cls, backend: Backend) -> "BackendFacts":
        """The facts of a loaded backend."""
        stated = {name: getattr(backend, name) for name in REQUIRED_BACKEND_FACTS}
        file = user_code_hash(type(backend), *getattr(backend, "parts", ()))
        return cls(**stated, file=file, weights_known=getattr(backend, "weights_known", True))


REQUIRED_BACKEND_FACTS = [each.name for each in fields(BackendFacts) if each.default is MISSING]
"""Facts that every backend states."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenCell(Cell):
    """A Cell that a run is to measure, with its step of the plan. Only the Cell's own fields are stored."""

    step: PlannedCell
    weights_known: bool = True
    """Whether the identity tells the weights that answer (`BackendFacts`)."""

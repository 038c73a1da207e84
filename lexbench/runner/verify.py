"""Checks of a method on the loaded model before it is measured: applied, exact, independent of earlier texts."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexbench.backends import Backend, capabilities
from lexbench.core.attention import Attention, Shift
from lexbench.core.errors import ConfigError
from lexbench.core.files import read_object, write_text
from lexbench.core.task import Tokens
from lexbench.kernels.reference import first_change

if TYPE_CHECKING:
    from torch import Tensor

CHEAP = 512
"""Tokens of the text on which a run checks its methods."""
BEYOND = 64
"""Tokens behind a window of the model, where layers drop keys from a cache."""
LOGITS = {"float64": 5e-5, "float32": 5e-4, "float16": 2e-2, "bfloat16": 6e-2}
"""Tolerance of logits computed in two ways, by dtype: deviation of the difference as a share of the spread."""
REALISED = 2e-3
"""Tolerance of cos, sin and attention weights; angles are float32, each further position adds `STEP`."""
STEP = 2.0**-22
NOISE = 5.0
"""Times the identity's error, or float32's, that logits must move by where the method must show."""


@dataclass(frozen=True)
class Check:
    """One property of a method under test."""

    name: str
    passed: bool | None
    """None: not promised, or nothing to see at this length."""
    said: str
    """The measured value, or why there is none."""


def verify(backend: Backend, attention: Attention, length: int) -> list[Check]:
    """Check one Attention on a loaded model, with a random text of `length` tokens.

    applied: every layer called the attention function put in place, and logits changed where they must.
    identity: as far as the Attention promises it, logits are the model's own.
    realised: cos and sin, or attention weights, are those of the formula in float64.
    cached: a prefill, single tokens and a last piece give the logits of one full forward pass.
    order: what was read before makes no difference, to the last bit.
    batch: nor does a longer text in the same padded batch.
    finite: all logits are numbers.

    The backend is left under the Attention. Refused where it cannot be realised.
    """
    if length < 2:
        raise ConfigError(f"verify needs a text of at least 2 tokens, got {length}: raise length")
    tokens = _text(backend, length)
    half = tokens[: max(1, length // 2)]
    backend.attend(Attention())
    own = backend.logits(tokens, [length], length)
    backend.attend(attention)
    whole = backend.logits(tokens, [length], length)
    alone = backend.logits(half, [len(half)], len(half))
    again = backend.logits(tokens, [length], length)
    change = first_change(attention, backend.model, length)
    # `first_change` tries powers of two: the change lies above half of what it found.
    begin = length if change is None else change // 2  # up to here all tokens see the model's own attention
    grows = any(part.dynamic is not None for part in attention.parts())
    history = "frequencies follow the longest text so far, " if grows else ""

    def same(name: str, ours: "Tensor", theirs: "Tensor", not_promised: str = "") -> Check:
        return _same(backend, name, ours, theirs, not_promised)

    return [
        _applied(backend, whole, own, change, begin),
        same("identity", whole[:begin], own[:begin]) if begin else Check("identity", None, "not promised"),
        _realised(backend, length),
        _cached(backend, tokens, history and history + "cached keys keep older ones"),
        Check("order", bool((whole == again).all()), "same bits" if bool((whole == again).all()) else "other logits"),
        same("batch", backend.logits_together([half, tokens])[0], alone, history and history + "of the batch"),
        _finite(whole),
    ]


def continues(backend: Backend, length: int) -> list[Check]:
    """Check that the present Attention, read in pieces with a cache, gives the logits of one full forward pass."""
    grows = "" if backend.sees_no_future() else "frequencies follow the longest text so far"
    return [_cached(backend, _text(backend, max(2, length)), grows)]


def _text(backend: Backend, length: int) -> Tokens:
    """Random tokens, always the same ones."""
    return np.random.default_rng(0).integers(0, backend.model.vocabulary or backend.tokenizer.vocabulary, length)


def _cached(backend: Backend, tokens: Tokens, not_promised: str) -> Check:
    length = len(tokens)
    prompt = max(1, length - 8)
    ours = backend.logits(tokens, _pieces(prompt, length), prompt)
    return _same(backend, "cached", ours, backend.logits(tokens, [length], prompt), not_promised)


def _same(backend: Backend, name: str, ours: "Tensor", theirs: "Tensor", not_promised: str) -> Check:
    error = float((ours - theirs).std() / theirs.std()) if ours.numel() > 1 else 0.0
    if not_promised:
        return Check(name, None, f"not promised: {not_promised} ({error:.0e})")
    return Check(name, error <= LOGITS[backend.dtype], f"{error:.0e}")


def _pieces(prompt: int, length: int) -> list[int]:
    """A prefill, up to four single tokens, and the rest."""
    singles = min(4, length - prompt)
    rest = length - prompt - singles
    return [prompt, *[1] * singles, *([rest] if rest else [])]


def _applied(backend: Backend, whole: "Tensor", own: "Tensor", change: int | None, begin: int) -> Check:
    if not backend.all_layers_attended():
        return Check("applied", False, "a layer never asked the attention function")
    if change is None:
        return Check("applied", None, f"changes nothing within {len(whole)} tokens")
    rows = change - 1
    moved = float((whole[rows:] - own[rows:]).square().mean().sqrt() / own.std())
    noise = float((whole[:begin] - own[:begin]).square().mean().sqrt() / own.std()) if begin else 0.0
    shows = moved > NOISE * max(noise, 1e-7)
    return Check("applied", shows, f"{moved:.0e} from {change} tokens on" if shows else "logits did not change")


def _realised(backend: Backend, length: int) -> Check:
    if not backend.all_layers_attended():
        return Check("realised", None, "nobody asked")
    error = backend.realised(length)
    if error is None:
        return Check("realised", None, "not promised: frequencies follow the text")
    return Check("realised", error <= REALISED + STEP * length, f"{error:.0e}")


def _finite(logits: "Tensor") -> Check:
    finite = bool(logits.isfinite().all())
    return Check("finite", finite, "yes" if finite else "NaN or inf")


def failure(checks: Sequence[Check]) -> str | None:
    """Why a method must not be measured, or None."""
    failed = [f"{check.name} ({check.said})" for check in checks if check.passed is False]
    return f"failed its self-check: {', '.join(failed)}" if failed else None


class Preflight:
    """The checks that a run makes before it measures an Attention at a length, remembered in the run folder, if any.

    A backend that does not show enough of itself is not checked.
    """

    def __init__(self, folder: Path | None, backend: Backend, version: str) -> None:
        self._file = None if folder is None else folder / "verified.json"
        self._backend = backend
        self._version = version
        self._known = _read(self._file) if self._file is not None and self._file.exists() else {}

    def failure(self, attention: Attention, length: int) -> str | None:
        """Why this Attention must not be measured, or None."""
        if not capabilities(self._backend).verifiable or not attention.slots():
            return None
        short = min(length, CHEAP)
        if isinstance(attention.remap, Shift):  # far away angles lose precision, which is what is measured there
            attention = replace(attention, remap=Shift(min(attention.remap.offset, short)))
        return self._once([attention.as_data(), short], lambda: verify(self._backend, attention, short))

    def failure_of_cache(self, attention: Attention, length: int) -> str | None:
        """Why no question must be measured that goes on from a prompt, or None.

        The Attention is in place. One with slots has had this check among its own, on a text of `CHEAP` tokens; it gets
        it here where layers drop keys later. The model without a method, whose family may be newer than lexbench, gets
        it here in any case.
        """
        if not capabilities(self._backend).verifiable:
            return None
        drops = getattr(self._backend, "drops_after", None)  # a plug-in may lack it
        short = min(length, max(CHEAP, ((drops and drops()) or 0) + BEYOND))
        if attention.slots() and short <= CHEAP:
            return None
        what = ["cached", short, *([attention.as_data()] if attention.slots() else [])]
        if why := self._once(what, lambda: continues(self._backend, short)):
            return f"{why}: what it keeps of a text gives other logits than one forward pass, use tasks that score"
        return None

    def _once(self, what: list[Any], checks: Callable[[], list[Check]]) -> str | None:
        """Why checks fail, or None; made once for a loaded model."""
        backend = self._backend
        device = getattr(backend, "device", None)  # a plug-in may lack it
        by = (self._version, backend.name, backend.version, backend.revision, backend.dtype, backend.kernel, device)
        name = hashlib.sha256(json.dumps([*what, *by], sort_keys=True).encode()).hexdigest()[:16]
        if name not in self._known:
            self._known[name] = failure(checks())
            if self._file is not None:
                write_text(self._file, json.dumps(self._known, indent=1) + "\n")
        return self._known[name]


def _read(file: Path) -> dict[str, str | None]:
    remedy = "delete it, the checks are made again"
    known = read_object(file, remedy)
    if not all(isinstance(value, str | None) for value in known.values()):
        raise ConfigError(f"{file} must be a JSON object of checks: {remedy}")
    return known

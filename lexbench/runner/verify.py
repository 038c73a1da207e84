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
from lexbench.corpora.synthetic import Synthetic
from lexbench.kernels.reference import first_change

if TYPE_CHECKING:
    from torch import Tensor

CHECK_TEXT = "sentences"
"""Name of the text; another one, and checks are made anew."""
CHECK_TEXT_TOKENS = 512
"""Tokens of the text on which a run checks its methods."""
MIN_DIFFERENT_TOKENS = 16
"""Tokens that such a text has at least: one of unknown tokens alone would show no method."""
TOKENS_BEYOND_WINDOW = 64
"""Tokens behind a window of the model, where layers drop keys from a cache."""
LOGITS_TOLERANCE_OF_DTYPE = {"float64": 5e-5, "float32": 5e-4, "float16": 2e-2, "bfloat16": 6e-2}
"""Tolerance of logits computed in two ways, by dtype: deviation of the difference as a share of the spread."""
ANGLE_TOLERANCE = 1e-4
"""Tolerance of cos, sin and attention weights; angles are float32, each further position adds
`ANGLE_TOLERANCE_PER_POSITION`."""
ANGLE_TOLERANCE_PER_POSITION = 2.0**-22
MIN_EFFECT_NOISE_MULTIPLE = 5.0
"""Logits must move by this many times the error of the unmodified model, or of float32, where a method changes them."""


@dataclass(frozen=True)
class MethodCheck:
    """Result of one check of a method."""

    name: str
    passed: bool | None
    """None: not promised, or nothing to see at this length."""
    explanation: str
    """The measured value, or the reason for none."""


def verify_attention(backend: Backend, attention: Attention, length: int) -> list[MethodCheck]:
    """Check one Attention on a loaded model, with a text of `length` tokens.

    applied: every layer called the attention function put in place, and logits changed where they must.
    identity: as far as the Attention promises it, logits are the model's own.
    realised: cos and sin, or attention weights, are those of the formula in float64, and each layer turns by them.
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

    def same(name: str, ours: "Tensor", theirs: "Tensor", not_promised: str = "") -> MethodCheck:
        return _check_equal_logits(backend, name, ours, theirs, not_promised)

    return [
        _check_applied(backend, whole, own, change, begin),
        same("identity", whole[:begin], own[:begin]) if begin else MethodCheck("identity", None, "not promised"),
        _check_angles(backend, attention, length),
        _check_cache(backend, tokens, history and history + "cached keys keep older ones"),
        MethodCheck(
            "order", bool((whole == again).all()), "same bits" if bool((whole == again).all()) else "other logits"
        ),
        same("batch", backend.logits_together([half, tokens])[0], alone, history and history + "of the batch"),
        _check_finite(whole),
    ]


def check_cached_reading(backend: Backend, length: int) -> list[MethodCheck]:
    """Check that the present Attention, read in pieces with a cache, gives the logits of one full forward pass."""
    grows = "" if backend.is_causal() else "frequencies follow the longest text so far"
    return [_check_cache(backend, _text(backend, max(2, length)), grows)]


def _text(backend: Backend, length: int) -> Tokens:
    """[length] ids of short English sentences, always the same ones; random ids where the tokenizer gives no such text.

    On random tokens the logits of a real model lie close together and far from what it learned, so that rounding in
    half precision moves them by up to a third of their spread under a method that is exact in float32.
    """
    (document,) = Synthetic(count=1, words=length).documents()
    ids = np.asarray(backend.tokenizer.encode(document.text).ids)[:length]
    if len(ids) == length and len(np.unique(ids)) >= min(length, MIN_DIFFERENT_TOKENS):
        return ids
    return np.random.default_rng(0).integers(0, backend.model.vocabulary or backend.tokenizer.vocabulary, length)


def _check_cache(backend: Backend, tokens: Tokens, not_promised: str) -> MethodCheck:
    length = len(tokens)
    prompt = max(1, length - 8)
    ours = backend.logits(tokens, _piece_sizes(prompt, length), prompt)
    return _check_equal_logits(backend, "cached", ours, backend.logits(tokens, [length], prompt), not_promised)


def _check_equal_logits(
    backend: Backend, name: str, ours: "Tensor", theirs: "Tensor", not_promised: str
) -> MethodCheck:
    error = float((ours - theirs).std() / theirs.std()) if ours.numel() > 1 else 0.0
    if not_promised:
        return MethodCheck(name, None, f"not promised: {not_promised} ({error:.0e})")
    return MethodCheck(name, error <= LOGITS_TOLERANCE_OF_DTYPE[backend.dtype], f"{error:.0e}")


def _piece_sizes(prompt: int, length: int) -> list[int]:
    """A prefill, up to four single tokens, and the rest."""
    singles = min(4, length - prompt)
    rest = length - prompt - singles
    return [prompt, *[1] * singles, *([rest] if rest else [])]


def _check_applied(backend: Backend, whole: "Tensor", own: "Tensor", change: int | None, begin: int) -> MethodCheck:
    if not backend.all_layers_attended():
        return MethodCheck("applied", False, "a layer never asked the attention function")
    if change is None:
        return MethodCheck("applied", None, f"changes nothing within {len(whole)} tokens")
    rows = change - 1
    moved = float((whole[rows:] - own[rows:]).square().mean().sqrt() / own.std())
    noise = float((whole[:begin] - own[:begin]).square().mean().sqrt() / own.std()) if begin else 0.0
    shows = moved > MIN_EFFECT_NOISE_MULTIPLE * max(noise, 1e-7)
    return MethodCheck("applied", shows, f"{moved:.0e} from {change} tokens on" if shows else "logits did not change")


def _check_angles(backend: Backend, attention: Attention, length: int) -> MethodCheck:
    if not backend.all_layers_attended():
        return MethodCheck("realised", None, "nobody asked")
    if wrong := getattr(backend, "wrong_layer", lambda *_: None)(attention, length):  # a plug-in may lack it
        return MethodCheck("realised", False, wrong)
    error = backend.difference_from_method(length)
    if error is None:
        return MethodCheck("realised", None, "not promised: frequencies follow the text")
    return MethodCheck("realised", error <= ANGLE_TOLERANCE + ANGLE_TOLERANCE_PER_POSITION * length, f"{error:.0e}")


def _check_finite(logits: "Tensor") -> MethodCheck:
    finite = bool(logits.isfinite().all())
    return MethodCheck("finite", finite, "yes" if finite else "NaN or inf")


def failure_of_checks(checks: Sequence[MethodCheck]) -> str | None:
    """Reason why a method must not be measured: its failed checks; None: it passes."""
    failed = [f"{check.name} ({check.explanation})" for check in checks if check.passed is False]
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
        short = min(length, CHECK_TEXT_TOKENS)
        if isinstance(attention.remap, Shift):  # far away angles lose precision, which is what is measured there
            attention = replace(attention, remap=Shift(min(attention.remap.offset, short)))
        return self._check_once([attention.as_data(), short], lambda: verify_attention(self._backend, attention, short))

    def failure_of_cache(self, attention: Attention, length: int) -> str | None:
        """Why no question must be measured that goes on from a prompt, or None.

        The Attention is in place. One with slots has had this check among its own, on a text of `CHECK_TEXT_TOKENS`
        tokens; it gets it here where layers drop keys later. The model without a method, whose family may be newer than
        lexbench, gets it here in any case.
        """
        if not capabilities(self._backend).verifiable:
            return None
        drops = getattr(self._backend, "drops_after", None)  # a plug-in may lack it
        short = min(length, max(CHECK_TEXT_TOKENS, ((drops and drops()) or 0) + TOKENS_BEYOND_WINDOW))
        if attention.slots() and short <= CHECK_TEXT_TOKENS:
            return None
        what = ["cached", short, *([attention.as_data()] if attention.slots() else [])]
        if why := self._check_once(what, lambda: check_cached_reading(self._backend, short)):
            return f"{why}: what it keeps of a text gives other logits than one forward pass, use tasks that score"
        return None

    def _check_once(self, what: list[Any], checks: Callable[[], list[MethodCheck]]) -> str | None:
        """Why checks fail, or None; made once for a loaded model."""
        backend = self._backend
        device = getattr(backend, "device", None)  # a plug-in may lack it
        by = (self._version, backend.name, backend.version, backend.revision, backend.dtype, backend.kernel, device)
        name = hashlib.sha256(json.dumps([CHECK_TEXT, *what, *by], sort_keys=True).encode()).hexdigest()[:16]
        if name not in self._known:
            self._known[name] = failure_of_checks(checks())
            if self._file is not None:
                write_text(self._file, json.dumps(self._known, indent=1) + "\n")
        return self._known[name]


def _read(file: Path) -> dict[str, str | None]:
    remedy = "delete it, the checks are made again"
    known = read_object(file, remedy)
    if not all(isinstance(value, str | None) for value in known.values()):
        raise ConfigError(f"{file} must be a JSON object of checks: {remedy}")
    return known

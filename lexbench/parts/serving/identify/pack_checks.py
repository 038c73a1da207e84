"""Checks of a pack that was read from a file, which may hold anything."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core.errors import ConfigError

Nats = NDArray[np.float64]
MAX_NOISE_NATS = 1.0
"""Rounding of single tokens, root mean square, beyond which a pack tells no setup from another model; in 8 bits it is
0.23 nats of SmolLM2."""
NATS_PARTS = ("nll", "changes", "noise", "prefix_nll", "prefix_changes", "prefix_noise")
IDS_PARTS = ("tokens", "written", "prefix_places", "prefix_ids")
N_AXES = {"tokens": 2, "nll": 2, "changes": 3, "written": 2, "prefix_places": 2, "prefix_ids": 3, "prefix_nll": 3}
"""Axes of parts; of noise one more than of what it belongs to, but for format 1."""


def one_line(text: str) -> str:
    """A text of a foreign file as one line of printable characters."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def check_about(about: Any, newest: int) -> None:
    """ConfigError where the description of a pack is none, is of a newer format, or has unprintable names."""
    if not isinstance(about, dict) or type(about.get("format")) is not int or about["format"] < 1:
        raise ConfigError("its description has no format")
    if about["format"] > newest:
        raise ConfigError(f"it has format {about['format']}, this version reads up to {newest}")
    labels = about.get("labels")
    names = [*(labels if isinstance(labels, list) else [None]), about.get("model", "")]
    if not names or not all(isinstance(name, str) and name.isprintable() for name in names):
        raise ConfigError("its labels and its model must be printable texts")
    if type(about.get("opening", 0)) is not int or type(about.get("vocabulary", 0)) is not int:
        raise ConfigError("its opening and its vocabulary must be whole numbers")
    frame = about.get("frame", {})
    if not isinstance(frame, dict) or not all(_are_ids(ids) for ids in frame.values()):
        raise ConfigError("its frame must be ids of tokens")


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(each) is int and each >= 0 for each in given)


def check_kinds(held: Mapping[str, NDArray[Any]]) -> None:
    """ConfigError where a part has numbers of another kind, or another number of axes."""
    for parts, kind in ((NATS_PARTS, np.floating), (IDS_PARTS, np.integer)):
        for name in parts:
            if name in held and not np.issubdtype(held[name].dtype, kind):
                raise ConfigError(f"its part {name} has numbers of another kind")
    for name, axes in N_AXES.items():
        if name in held and held[name].ndim != axes:
            raise ConfigError(f"its part {name} must have {axes} axes")


def check_shapes(
    tokens: NDArray[np.int64], nll: Nats, noise: Nats, written: NDArray[np.int64], labels: int, opening: int
) -> None:
    """ConfigError where texts, setups and targets of the parts are not as many."""
    fits = labels == len(nll) and len(noise) > 0 and noise.shape[1:] == nll.shape[1:]
    fits = fits and 0 < nll.shape[1] == len(tokens) == len(written) and written.shape[1] < tokens.shape[1]
    if not fits or not 0 <= opening < nll.shape[2] < tokens.shape[1]:
        raise ConfigError("its parts do not fit together")


def check_nats(nll: Nats, noise: Nats) -> None:
    """ConfigError where likelihoods are no numbers, or where rounding would explain everything."""
    if not np.isfinite(nll).all() or not np.isfinite(noise).all():
        raise ConfigError("its likelihoods and its noise must be finite numbers")
    rounding = (
        float(np.sqrt(np.square(noise).mean(axis=tuple(range(1, noise.ndim))).max(initial=0.0))) if noise.size else 0.0
    )
    if rounding > MAX_NOISE_NATS:
        raise ConfigError(f"its noise of {rounding:.2g} nats is more than rounding, at most {MAX_NOISE_NATS:g}")

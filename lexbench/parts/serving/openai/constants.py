"""Looks for one constant in place of the likelihoods of a run's questions."""

import threading
from collections import deque

import numpy as np

from lexbench.parts.serving.completions import Losses

N_ROW_TOKENS, N_TOKENS = 16, 64
"""Likelihoods in one answer, and in shorter ones together, that are not all equal by chance."""
MIN_SPREAD_NATS, MIN_CERTAIN_SPREAD_NATS = 0.01, 1e-6
"""Nats between the least and the most likely token, below which all are one constant: of tokens that are not certain,
and of certain ones, which a model may read one after another in a text that repeats itself."""
CERTAIN_NATS = 0.05
"""Nats of a certain token, at most."""


class ConstantWatch:
    """The last likelihoods of short answers, and a rule for all; many threads may ask."""

    def __init__(self) -> None:
        self._last, self._lock = deque[float](maxlen=N_TOKENS), threading.Lock()

    def is_constant(self, losses: Losses) -> bool:
        """Whether an answer, or the last short ones together, are one constant."""
        if len(losses) >= N_ROW_TOKENS:
            return _is_constant(losses)
        with self._lock:
            self._last.extend(losses.tolist())
            return len(self._last) == N_TOKENS and _is_constant(np.array(self._last))


def _is_constant(losses: Losses) -> bool:
    certain = float(losses.max()) < CERTAIN_NATS
    return float(np.ptp(losses)) < (MIN_CERTAIN_SPREAD_NATS if certain else MIN_SPREAD_NATS)

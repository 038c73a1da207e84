"""How long the rest of a run takes: told by the cells that it has measured, and before these by the machine's speed."""

from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lexbench.runner.plan import Estimate, Step

CELL, QUESTION, TOKEN = 0.02, 0.002, 0.005
"""Seconds of a cell, a question and a written token beside their operations, as long as nothing is measured."""
TRUST = 0.01
"""Weight of these guesses, and of the machine's, beside that of one measured cell."""

RECENT = 200
"""Cells that are fitted: the last ones, so that a cell costs the same however many there were."""


class Forecast:
    """Seconds of a cell: a + b questions + c dense + d quadratic operations + e written tokens, times its method's own.

    The five are fitted to the cells measured so far, none below 0, so that relative errors are least; a method's own
    factor is the mean ratio of its cells to that. Only cells that were measured whole count.

    Args:
        speed: operations per second to begin with.
    """

    def __init__(self, speed: float) -> None:
        self._guess = np.array([CELL, QUESTION, 1 / speed, 1 / speed, TOKEN])
        self._weights = self._guess
        self._rows: deque[NDArray[np.float64]] = deque(maxlen=RECENT)
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._methods: deque[str] = deque(maxlen=RECENT)
        self._factors: dict[str, float] = {}

    def learn(self, step: Step, seconds: float) -> None:
        """What a whole cell has taken."""
        from scipy.optimize import nnls  # takes half a second, and a run's first number does not need it

        self._rows.append(_features(step.estimate))
        self._seconds.append(max(seconds, 1e-3))
        self._methods.append(step.method.label)
        rows, taken = np.array(self._rows), np.array(self._seconds)
        guess = self._guess * np.median(taken / (rows @ self._guess))  # the machine is as fast as it is
        pull = np.sqrt(TRUST)
        matrix = np.vstack([rows * guess / taken[:, None], pull * np.eye(len(guess))])
        found, _ = nnls(matrix, np.concatenate([np.ones(len(taken)), np.full(len(guess), pull)]))
        self._weights = found * guess
        ratios = defaultdict(list)
        for method, ratio in zip(self._methods, taken / (rows @ self._weights), strict=True):
            ratios[method].append(ratio)
        self._factors = {name: (sum(each) + 1) / (len(each) + 1) for name, each in ratios.items()}

    def seconds(self, step: Step) -> float:
        """Of one cell."""
        return float(_features(step.estimate) @ self._weights) * self._factors.get(step.method.label, 1.0)

    def left(self, steps: Iterable[Step]) -> float:
        """Of several cells, one behind the other."""
        return sum(map(self.seconds, steps))


def _features(cost: Estimate) -> NDArray[np.float64]:
    return np.array([1.0, cost.questions, cost.dense, cost.quadratic, cost.steps])

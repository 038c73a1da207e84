"""Forecast of a run's time: fitted to the measured cells; before the first one, by the machine's speed."""

import functools
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexbench.core import machine
from lexbench.core.model import Model
from lexbench.core.task import Outline
from lexbench.core.text import count_with_noun
from lexbench.runner.cells import PlannedCell, Workload

FORWARD_SPEED_SHARE = 0.5
"""Speed of a whole forward pass as a share of that of a large matrix product."""
CPU_PRODUCT_SIZE, GPU_PRODUCT_SIZE = 1024, 8192
"""Rows and columns of that product: large enough that its start takes a small part of its time."""
HALF_DTYPES = ("float16", "bfloat16")
FORWARD_PASSES_PER_PROBE = 3
"""Cost of a probe, in forward passes, as measured with the weights of half of the queries."""
SECONDS_PER_CELL, SECONDS_PER_QUESTION, SECONDS_PER_WRITTEN_TOKEN = 0.02, 0.002, 0.005
"""Seconds of a cell, a question and a written token beside their operations, until something is measured."""
GUESS_WEIGHT_CELLS = 0.01
"""Weight of these guesses, and of the machine's speed, beside that of one measured cell."""
MAX_FITTED_CELLS = 200
"""Cells that are fitted: the last ones, so that learning costs the same however many there were."""


def parameter_count(model: Model) -> float:
    """Parameters of the network: as stated, else a decoder's usual 12 layers width^2 and its embedding."""
    if model.parameters is not None:
        return float(model.parameters)
    width = model.width or 0
    return 12.0 * (model.layers or 0) * width**2 + float((model.vocabulary or 0) * width)


def cell_workload(model: Model, outline: Outline, once: bool = False) -> Workload:
    """Operations of forward passes: 2 per parameter and token, and causal attention's 2 layers width length^2.

    Args:
        model: its facts.
        outline: sizes of the questions.
        once: a text that several questions share is read once.
    """
    a_token, a_pair = 2.0 * parameter_count(model), 2.0 * (model.layers or 0) * (model.width or 0)
    texts = -(-outline.questions // outline.per_text) if once else outline.questions
    whole, further = texts * outline.length, (outline.questions - texts) * outline.apart
    times = FORWARD_PASSES_PER_PROBE if outline.probes else 1
    # A token behind a known text meets all keys, where a causal text meets half of them: twice as much a pair. So does
    # a written one; those of further questions are counted with the rest of what stands behind their text.
    met = 2 * (texts * outline.max_new_tokens + further)
    return Workload(
        questions=outline.questions,
        tokens=round(whole + further),
        dense=times * a_token * (whole + further),
        quadratic=times * a_pair * outline.length * (whole + met),
        steps=round(outline.questions * outline.max_new_tokens),
    )


@functools.cache
def operations_per_second(dtype: str = "float32", device: str = "auto") -> float:
    """Operations per second of a forward pass, guessed from a matrix product on the device that will run it.

    Args:
        dtype: of the products; another one than float16 and bfloat16 counts as float32.
        device: of the backend; auto and cuda: a GPU, where there is one.
    """
    gpu = machine.has_gpu_driver() and device != "cpu"
    size = GPU_PRODUCT_SIZE if gpu else CPU_PRODUCT_SIZE
    if gpu or dtype in HALF_DTYPES:
        import torch

        place = "cuda" if gpu and torch.cuda.is_available() else "cpu"
        left: Any = torch.ones(
            size, size, device=place, dtype=getattr(torch, dtype if dtype in HALF_DTYPES else "float32")
        )
    else:
        left = np.ones((size, size), np.float32)
    # The first product also starts threads and loads kernels; `item` waits for a GPU.
    (left @ left).sum().item()
    started = time.perf_counter()
    for _ in range(4):
        product = left @ left
    product.sum().item()
    return FORWARD_SPEED_SHARE * 4 * 2 * size**3 / (time.perf_counter() - started)


def format_duration(seconds: float) -> str:
    """Write a time in the largest unit of which there are at least two."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return count_with_noun(max(round(seconds), 1), "second")


class Forecast:
    """Seconds of a cell: a + b questions + c dense + d quadratic operations + e written tokens, times its method's own.

    The five are fitted to the cells measured so far, none below 0, so that relative errors are least; a method's own
    factor is the mean ratio of its cells to that. Only cells that were measured whole count.

    Args:
        speed: operations per second to begin with.
    """

    def __init__(self, speed: float) -> None:
        self._guess = np.array(
            [SECONDS_PER_CELL, SECONDS_PER_QUESTION, 1 / speed, 1 / speed, SECONDS_PER_WRITTEN_TOKEN]
        )
        self._weights = self._guess
        self._fitted = True
        self._rows: deque[NDArray[np.float64]] = deque(maxlen=MAX_FITTED_CELLS)
        self._seconds: deque[float] = deque(maxlen=MAX_FITTED_CELLS)
        self._methods: deque[str] = deque(maxlen=MAX_FITTED_CELLS)
        self._factors: dict[str, float] = {}

    def learn(self, step: PlannedCell, seconds: float) -> None:
        """Take in the seconds of a cell that was measured without a break."""
        self._rows.append(_features(step.workload))
        self._seconds.append(max(seconds, 1e-3))
        self._methods.append(step.method.label)
        self._fitted = False

    def _fit(self) -> None:
        """Fit the unknowns to the cells, before they are used."""
        from scipy.optimize import nnls  # takes half a second, and a run's first number does not need it

        self._fitted = True
        rows, taken = np.array(self._rows), np.array(self._seconds)
        guess = self._guess * np.median(taken / (rows @ self._guess))  # the machine is as fast as it is
        pull = np.sqrt(GUESS_WEIGHT_CELLS)
        # Rows by their seconds: relative errors count. Columns by the guess: all unknowns are near 1, and below the
        # rows a term pulls them there, by the weight of `GUESS_WEIGHT_CELLS` cells.
        matrix = np.vstack([rows * guess / taken[:, None], pull * np.eye(len(guess))])
        found, _ = nnls(matrix, np.concatenate([np.ones(len(taken)), np.full(len(guess), pull)]))
        self._weights = found * guess
        ratios = defaultdict(list)
        for method, ratio in zip(self._methods, taken / (rows @ self._weights), strict=True):
            ratios[method].append(ratio)
        # As if one more cell had been as fitted: a method of one cell has half of its deviation.
        self._factors = {name: (sum(each) + 1) / (len(each) + 1) for name, each in ratios.items()}

    def seconds(self, step: PlannedCell) -> float:
        """Forecast the seconds of one cell."""
        if not self._fitted:
            self._fit()
        return float(_features(step.workload) @ self._weights) * self._factors.get(step.method.label, 1.0)

    def remaining_seconds(self, steps: Iterable[PlannedCell]) -> float:
        """Forecast the seconds of several cells, measured one after the other."""
        return sum(map(self.seconds, steps))


def _features(cost: Workload) -> NDArray[np.float64]:
    return np.array([1.0, cost.questions, cost.dense, cost.quadratic, cost.steps])

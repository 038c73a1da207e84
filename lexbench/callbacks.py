"""Last-segment curves during training, in transformers' Trainer and in a loop of your own.

trainer.add_callback(lexbench.callbacks.trainer_callback(trainer, lengths=[512, 2048], every=500))

curve = lexbench.callbacks.LengthCurve(tokenizer, lengths=[512, 2048], every=500)
for step, batch in enumerate(loader, 1):
    ...
    if values := curve(model, step):
        wandb.log(values, step=step)

With keep="runs/trace" the answers stay there, and `lexbench trace out=runs/trace` makes a page of them at any time.
"""

import inspect
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexbench.api import evaluate
from lexbench.core.errors import ConfigError
from lexbench.core.files import check_folder
from lexbench.core.values import is_whole
from lexbench.stats.metrics import metric_sort_key

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

LOG_KEY_PREFIX = "lexbench"
KEPT_ANSWERS_FOLDER = "measured"
"""Folder of kept answers, with a run folder for each step, as `lexbench trace` reads it."""
OWN_EVALUATE_ARGUMENTS = ("model", "tokenizer", "lengths", "n", "results")
"""Arguments of `evaluate` that a curve sets itself."""


class LengthCurve:
    """NLL of the same last targets at each length, every so many steps, within a share of the training's time.

    Args:
        tokenizer: as `lexbench.evaluate` takes it.
        lengths: tokens.
        every: least number of steps between two curves.
        share: most of the time since the first call that curves may take, the next one included; a step on which it
            would take more is skipped. The first curve is always measured, because its time is not known.
        n: texts at each length.
        keep: folder that keeps the answers of every curve, for `lexbench trace out=KEEP`; None: they are not kept.
        options: further arguments of `lexbench.evaluate`: corpus, trained_length, task, ...
    """

    def __init__(
        self,
        tokenizer: Any,
        lengths: Sequence[int],
        *,
        every: int = 500,
        share: float = 0.03,
        n: int = 8,
        keep: str | Path | None = None,
        **options: Any,
    ) -> None:
        if not is_whole(every, 1) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"every must be at least 1 and share in (0, 1], got {every!r} and {share!r}")
        listed = isinstance(lengths, Sequence) and not isinstance(lengths, str) and bool(lengths)
        if not listed or not all(is_whole(length, 2) for length in lengths):
            raise ConfigError(
                f"lengths must list whole numbers of at least 2 tokens, got {lengths!r}: e.g. lengths=[512,2048]"
            )
        if not is_whole(n, 1):
            raise ConfigError(f"n must be a whole number of at least 1, got {n!r}: texts at each length, e.g. n=8")
        known = [name for name in inspect.signature(evaluate).parameters if name not in OWN_EVALUATE_ARGUMENTS]
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(f"unknown option {', '.join(unknown)}: choose from {', '.join(known)}")
        self.tokenizer = tokenizer
        self.lengths = [int(length) for length in lengths]
        self.every = every
        self.share = share
        self.n = int(n)
        self.keep = None if keep is None else Path(keep)
        if self.keep is not None:
            check_folder("keep", self.keep, "keep=DIR")
        self.options = options
        self.spent = 0.0
        """Seconds of all curves."""
        self._longest = 0.0
        self._begun: float | None = None
        self._last = 0

    def __call__(self, model: Any, step: int) -> dict[str, float]:
        """Values to log; empty on a step without a curve."""
        now = time.perf_counter()
        self._begun = now if self._begun is None else self._begun
        # The next curve is taken to last as long as the longest one, on both sides: in the curves and in the training.
        late = self.spent + self._longest > self.share * (now - self._begun + self._longest)
        if step - self._last < self.every or (self._longest and late):
            return {}
        return self.measure(model, step)

    def measure(self, model: Any, step: int) -> dict[str, float]:
        """Measure a curve now.

        Returns `lexbench/last_segment/nll@512` for each length, and `lexbench/seconds` of all curves so far. The metric
        is the headline of the task. Several methods or seeds stand before it: `lexbench/last_segment/yarn/nll@512`. A
        length at which the cell is refused is left out.
        """
        start = time.perf_counter()
        self._last = step
        # The step tells these weights from others; without a revision, all of them would be hashed for each curve. Kept
        # answers may be another training's: there the hash tells.
        revision = None if self.keep else f"step {step}"
        about: dict[str, Any] = {"task": "last_segment", "revision": revision, "price": False, **self.options}
        with tempfile.TemporaryDirectory(prefix="lexbench-", ignore_cleanup_errors=True) as temporary:
            folder = self.keep / KEPT_ANSWERS_FOLDER / str(step) if self.keep else temporary
            run = evaluate(model, self.tokenizer, lengths=self.lengths, n=self.n, results=folder, **about)
            records = run.records()
        named = ["task", *(name for name in ("method", "seed") if records[name].nunique() > 1), "metric"]
        rows = records.query("part.isna() and value.notna()")
        first = (
            rows.sort_values("metric", key=lambda names: names.map(metric_sort_key))
            .drop_duplicates("cell")
            .sort_index()
        )
        found: list[Any] = first.to_dict("records")
        values = {
            "/".join([LOG_KEY_PREFIX, *(str(row[name]) for name in named)]) + f"@{row['length']}": float(row["value"])
            for row in found
        }
        seconds = time.perf_counter() - start
        self.spent += seconds
        self._longest = max(self._longest, seconds)
        return {**values, f"{LOG_KEY_PREFIX}/seconds": self.spent}


def trainer_callback(trainer: "Trainer", lengths: Sequence[int], **options: Any) -> "TrainerCallback":
    """A callback that logs curves by the trainer's own log: to TensorBoard, W&B, MLflow, whatever it reports to.

    Args:
        trainer: of transformers, with its processing class (the tokenizer).
        lengths: tokens.
        options: of `LengthCurve`.
    """
    from transformers import TrainerCallback

    tokenizer = options.pop("tokenizer", trainer.processing_class)
    if tokenizer is None:
        raise ConfigError("the trainer has no processing_class: give it one, or tokenizer=...")
    curve = LengthCurve(tokenizer, lengths, **options)

    class Curves(TrainerCallback):  # type: ignore[misc]  # a class of transformers, which is not typed
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero and (values := curve(trainer.model, state.global_step)):
                due = control.should_log
                trainer.log(values)
                control.should_log = due  # a log takes this step's own for done: the loss would be lost

    return Curves()

"""What curves during training cost, with the trackers that people use: python tools/callbacks.py

transformers' Trainer trains lexlet while `lexbench.callbacks` logs last-segment curves, once for each tracker that is
installed: TensorBoard, W&B (offline) and MLflow (a local store), which write to a scratch folder; and once without any.
One thread computes, so its processor seconds are shared out exactly, whatever else the machine does: those of the
curves (measured and logged) and those of the training. A curve is measured every few steps; the first one, which
imports, stands apart. The last columns say what share that is of the training's seconds at the default of 500 steps
between curves, and after how many steps it is 3 %; LengthCurve itself skips a step on which the share would be larger.
What the library spends in threads and processes of its own stands apart. Kept: the values that the tracker's own reader
finds in its files; of W&B, whose log only its service reads, those of the last curve in its summary. Where it finds
another number of them than were logged, or the share at the default is above 3 %, the exit code is 1.
"""

import argparse
import inspect
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from scipy.special import stdtrit
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lexbench import callbacks
from tools import sides

METRIC = "lexbench/last_segment/nll"
MOST = 0.03
EVERY = 6
"""Steps between two curves, few so that many are measured."""
DEFAULT = inspect.signature(callbacks.LengthCurve).parameters["every"].default


def by_tensorboard(folder: Path) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [file] = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if METRIC in tag]
    return [each.value for tag in tags for each in events.Scalars(tag)]


def by_wandb(folder: Path) -> list[float]:
    """Of the run's summary: the last curve; nothing unless the log that `wandb sync` sends names the metric."""
    import wandb

    assert wandb.run is not None
    found = [float(wandb.run.summary[name]) for name in dict(wandb.run.summary) if METRIC in name]
    wandb.finish()
    [file] = folder.parent.rglob("*.wandb")
    return found if METRIC.encode() in file.read_bytes() else []


def by_mlflow(folder: Path) -> list[float]:
    import mlflow

    mlflow.end_run()
    client = mlflow.MlflowClient()
    [run] = client.search_runs(["0"])
    names = [name for name in run.data.metrics if METRIC in name]
    return [each.value for name in names for each in client.get_metric_history(run.info.run_id, name)]


TRACKERS: dict[str, Callable[[Path], list[float]]] = {
    "tensorboard": by_tensorboard,
    "wandb": by_wandb,
    "mlflow": by_mlflow,
}


class Heard(TrainerCallback):  # type: ignore[misc]
    """What the trackers are given."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.values += [value for name, value in logs.items() if METRIC in name]


class Clocked:
    """A callback's step, by the processor seconds of this thread: what the curves took, one after another."""

    def __init__(self, inner: TrainerCallback) -> None:
        self.seconds: list[float] = []
        self._step = inner.on_step_end
        inner.on_step_end = self

    def __call__(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        started = time.thread_time()
        done = self._step(args, state, control, **more)
        if state.global_step % EVERY == 0:
            self.seconds.append(time.thread_time() - started)
        return done


def of_children() -> float:
    """Processor seconds of the processes that this one has started; 0 where the system does not tell."""
    spent, tick = 0.0, os.sysconf("SC_CLK_TCK")
    waiting = [os.getpid()]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            for child in task.read_text().split():
                waiting.append(int(child))
                fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
                spent += (int(fields[11]) + int(fields[12])) / tick
    return spent


def trained(tracker: str, folder: Path, options: argparse.Namespace) -> bool:
    """One training's row; whether all was kept, within the share."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = AutoModelForCausalLM.from_pretrained(sides.LEXLET, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(sides.LEXLET)
    rows = torch.randint(3, 2048, (options.batch * 8, options.length), generator=torch.Generator().manual_seed(0))
    steps = EVERY * (options.curves + 1)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=options.batch,
        logging_steps=10,
        report_to=[] if tracker == "none" else [tracker],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    heard = Heard()
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(network, arguments, train_dataset=data, callbacks=[heard])
    asked: dict[str, Any] = {"corpus": "synthetic", "trained_length": 256, "n": options.n, "tokenizer": tokenizer}
    trainer.remove_callback(PrinterCallback)
    curves = callbacks.trainer_callback(trainer, options.lengths, every=EVERY, share=1.0, **asked)
    clocked = Clocked(curves)
    trainer.add_callback(curves)
    thread, process, others = time.thread_time(), time.process_time(), of_children()
    trainer.train()
    thread, process = time.thread_time() - thread, time.process_time() - process
    others = of_children() - others
    first, later = clocked.seconds[0], np.array(clocked.seconds[1:])
    step = (thread - sum(clocked.seconds)) / steps
    curve = later.mean()
    reach = stdtrit(len(later) - 1, 0.975) * later.std(ddof=1) / math.sqrt(len(later))
    share = (curve + reach) / (DEFAULT * step)
    kept = TRACKERS[tracker](folder) if tracker in TRACKERS else heard.values
    logged = heard.values[-len(options.lengths) :] if tracker == "wandb" else heard.values
    same = len(kept) == len(logged) and all(
        abs(a - b) <= 1e-6 * abs(b) for a, b in zip(sorted(kept), sorted(logged), strict=True)
    )
    sides.row(
        tracker, f"{1e3 * step:.0f}", f"{first:.2f}", f"{curve:.2f} -+ {reach:.2f}", len(later),
        f"{curve / (DEFAULT * step):.1%}, at most {share:.1%}", math.ceil((curve + reach) / (MOST * step)),
        f"{process - thread:.2f}", f"{others:.2f}", f"{len(kept)} of {len(logged)}{'' if same else ', not the same'}",
    )  # fmt: skip
    return same and share <= MOST


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trackers", nargs="+", default=["none", *TRACKERS], choices=["none", *TRACKERS])
    parser.add_argument("--curves", type=int, default=8, help="curves of a training, without the first")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--n", type=int, default=2, help="texts of a curve, at each length")
    options = parser.parse_args()
    sides.header("Curves during training")
    print("Processor seconds; a step in milliseconds.\n")
    sides.table(
        ":tracker", "a step", "the first curve", "a later one", "of them", f"share, every {DEFAULT} steps",
        f"steps to {MOST:.0%}", "its threads", "its processes", "kept",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        os.environ |= {
            "TENSORBOARD_LOGGING_DIR": str(scratch / "tensorboard"),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(scratch / "wandb"),
            "WANDB_SILENT": "true",
            "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/mlflow.db"
            if find_spec("sqlalchemy")
            else f"file://{scratch}/m",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }
        (scratch / "wandb").mkdir()
        good = [
            trained(each, scratch / each, options) for each in options.trackers if each == "none" or find_spec(each)
        ]
    if not any(map(find_spec, TRACKERS)):
        print("\nNone of these trackers is installed: pip install tensorboard wandb mlflow-skinny")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

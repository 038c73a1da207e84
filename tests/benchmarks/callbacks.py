"""What curves during training cost, with the trackers that people use: python tests/benchmarks/callbacks.py

transformers' Trainer trains lexlet while `lexbench.callbacks` logs last-segment curves, once for each tracker that is
installed: TensorBoard, W&B (offline) and MLflow (a local store), which write to a scratch folder. Overhead is the
seconds of all curves but the first, which is always measured, as a share of the training's other seconds. Kept: the
values that the tracker's own reader finds in its files; of W&B, whose log only its service reads, those of the last
curve in its summary. Where it finds another number of them than were
logged, or the overhead is above 3 %, the exit code is 1.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lexbench import callbacks
from tests.benchmarks import sides

METRIC = "lexbench/last_segment/nll"
MOST = 0.03


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
        self.seconds: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.values += [value for name, value in logs.items() if METRIC in name]
        self.seconds += [logs["lexbench/seconds"]] if "lexbench/seconds" in logs else []


def trained(tracker: str, folder: Path, options: argparse.Namespace) -> bool:
    """One training's row; whether all was kept, within the share."""
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_pretrained(sides.LEXLET, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(sides.LEXLET)
    rows = torch.randint(3, 2048, (options.batch * 8, options.length), generator=torch.Generator().manual_seed(0))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        logging_steps=10,
        report_to=[tracker],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    heard = Heard()
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(network, arguments, train_dataset=data, callbacks=[heard])
    asked: dict[str, Any] = {"corpus": "synthetic", "trained_length": 256, "n": options.n, "tokenizer": tokenizer}
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callbacks.trainer_callback(trainer, options.lengths, every=1, **asked))
    started = time.perf_counter()
    trainer.train()
    whole = time.perf_counter() - started
    first, last = heard.seconds[0], heard.seconds[-1]
    share = (last - first) / (whole - last)
    kept = TRACKERS[tracker](folder)
    logged = heard.values[-len(options.lengths) :] if tracker == "wandb" else heard.values
    same = len(kept) == len(logged) and all(
        abs(a - b) <= 1e-6 * abs(b) for a, b in zip(sorted(kept), sorted(logged), strict=True)
    )
    sides.row(
        tracker, f"{whole:.1f}", len(heard.seconds), f"{first:.2f}", f"{last - first:.2f}", f"{share:.1%}",
        f"{len(kept)} of {len(logged)}{'' if same else ', not the same'}",
    )  # fmt: skip
    return same and share <= MOST


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trackers", nargs="+", default=list(TRACKERS), choices=list(TRACKERS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--n", type=int, default=2, help="texts of a curve, at each length")
    options = parser.parse_args()
    sides.header("Curves during training")
    sides.table(":tracker", "seconds", "curves", "the first", "the others", "overhead", "kept")
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
        good = [trained(each, scratch / each, options) for each in options.trackers if find_spec(each)]
    if not good:
        print("\nNone of these trackers is installed: pip install tensorboard wandb mlflow-skinny")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

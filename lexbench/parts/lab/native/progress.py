"""Files of a running training: the checkpoint for resuming, the log, and the final record."""

import hashlib
import importlib.metadata
import io
import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lexbench.core.errors import ConfigError
from lexbench.core.files import lock_file, read_object, write_bytes, write_text
from lexbench.core.memory import is_out_of_memory
from lexbench.parts.lab.native.learner import Optimizers

DIGEST_BYTES = hashlib.sha256().digest_size
RECORDED_PACKAGES = ("lexbench", "torch", "tokenizers", "numpy")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder if needed and lock it for this process; ConfigError while another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        if not lock_file(lock.fileno(), wait=False):
            raise ConfigError(
                f"out={folder} is being trained by another process: wait until it ends, or give another folder"
            )
        yield


@contextmanager
def delay_interrupts() -> Iterator[Callable[[], bool]]:
    """Delay Ctrl-C to the end of the block, so that no step is cut in two; yields a function that says whether it came.

    A second Ctrl-C ends the block at once.
    """
    came: list[int] = []

    def hear(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if (
        not usual or threading.current_thread() is not threading.main_thread()
    ):  # Ctrl-C raises no KeyboardInterrupt here
        yield lambda: False
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


class TrainingProgress:
    """State of a training in its folder: checkpoint, log and record.

    training.checkpoint    SHA-256, then step, weights and optimizer by torch.save; removed at the end
    training.jsonl         the log, one line per step
    training.json          the record, written last: the training is finished

    Args:
        folder: of the training.
        key: hash of everything that the training depends on.
        former: hash of the same training as a version wrote it that had other defaults.

    Raises:
        ConfigError: the folder holds another training, or a damaged checkpoint.
    """

    def __init__(self, folder: Path, key: str, former: str | None = None) -> None:
        self.checkpoint, self.log, self.record = (
            folder / f"training.{ending}" for ending in ("checkpoint", "jsonl", "json")
        )
        self._before, self._started = 0.0, time.monotonic()
        self._state = None if self.finished or not self.begun else self._read_checkpoint()
        if self.finished:
            found = read_object(self.record, "remove the folder to start again").get("key")
        else:
            found = self._state["key"] if self._state else key
        if found not in (key, former):
            raise ConfigError(f"out={folder} holds another training: give a new folder, or remove it")
        self.key = found
        if not self.finished and not self.begun and (folder / "config.json").exists():
            raise ConfigError(f"out={folder} holds a model that is not of this training: give a new folder")

    @property
    def finished(self) -> bool:
        """Whether the record is written."""
        return self.record.exists()

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.checkpoint.exists()

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.record.parent.name

    def seconds(self) -> float:
        """Seconds of training so far, without interruptions."""
        return round(self._before + time.monotonic() - self._started, 2)

    def resume(self, weights: torch.nn.Module, optimizer: torch.optim.Optimizer | Optimizers) -> int:
        """Load the checkpoint, if any, and drop later lines of the log; the number of steps done.

        Raises ConfigError where the log lacks a step of the checkpoint.
        """
        self._started = time.monotonic()
        state, self._state = self._state, None  # read once: it may be large
        if state is None:
            write_text(self.log, "")
            return 0
        weights.load_state_dict(state["decoder"])
        optimizer.load_state_dict(state["optimizer"])
        rows = self._read_log()
        if lacking := set(range(1, state["step"] + 1)) - rows.keys():
            raise ConfigError(
                f"log {self.log} lacks step {min(lacking)}, its checkpoint has {state['step']} steps: "
                "remove the folder to start again"
            )
        # Steps behind the checkpoint are done again, and get their lines again.
        write_text(self.log, "".join(json.dumps(rows[step]) + "\n" for step in range(1, state["step"] + 1)))
        self._before = rows[state["step"]]["seconds"]
        return int(state["step"])

    def _read_log(self) -> dict[int, dict[str, Any]]:
        """The log by step, without lines that a killed process left incomplete."""
        rows = {}
        for line in self.log.read_bytes().splitlines() if self.log.exists() else ():
            try:
                row = json.loads(line)
                rows[int(row["step"])] = {**row, "seconds": float(row["seconds"])}
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                continue
        return rows

    def _read_checkpoint(self) -> dict[str, Any]:
        content = self.checkpoint.read_bytes()
        state: Any = None
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() == content[:DIGEST_BYTES]:
            try:
                state = torch.load(io.BytesIO(content[DIGEST_BYTES:]), weights_only=True, map_location="cpu")
            except Exception as error:  # torch raises many classes for files of other versions
                if is_out_of_memory(error):
                    raise
                said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
                here = f"torch {torch.__version__}"
                raise ConfigError(
                    f"checkpoint {self.checkpoint} is undamaged, and {here} cannot read it ({said}): "
                    "use the version that wrote it, or remove it to start again"
                ) from error
        if not isinstance(state, dict) or not {"key", "step", "decoder", "optimizer"} <= state.keys():
            raise ConfigError(f"checkpoint {self.checkpoint} is damaged: remove it to start again, or restore it")
        return state

    def save(self, weights: torch.nn.Module, optimizer: torch.optim.Optimizer | Optimizers, step: int) -> None:
        """Replace the checkpoint atomically."""
        buffer = io.BytesIO()
        state = {"key": self.key, "step": step, "decoder": weights.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, buffer)
        content = buffer.getvalue()
        write_bytes(self.checkpoint, hashlib.sha256(content).digest() + content)

    def append_log_row(self, row: Mapping[str, Any]) -> None:
        """Append one line to the log."""
        with self.log.open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    def finish(self, stated: Mapping[str, Any], tokens: int, device: torch.device, half: bool) -> None:
        """Write the record (job, losses, versions) and remove the checkpoint."""
        rows = [row for _, row in sorted(self._read_log().items())]
        every = stated["recipe"]["evaluate"]
        seconds = rows[-1]["seconds"]
        held_out = {name: loss for name, loss in rows[-1]["loss"].items() if name == "held_out"}
        record = {
            "key": self.key,
            **stated,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": round(tokens / max(seconds, 0.01)),
            # The mean of 100 steps, because their rows differ; held-out rows are the same ones at every step.
            "last_loss": _mean_losses([row["loss"] for row in rows[-100:]]) | _mean_losses([held_out]),
            "curve": [
                {"step": row["step"], **_mean_losses([row["loss"]])}
                for row in rows
                if row["step"] % every == 0 or row is rows[-1]
            ],
            "device": torch.cuda.get_device_name(0) if device.type == "cuda" else platform.machine() + " CPU",
            "precision": "bfloat16 autocast" if half else "float32",
            "versions": {
                "python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in RECORDED_PACKAGES},
            },
        }
        write_text(self.record, json.dumps(record, indent=1) + "\n")
        self.checkpoint.unlink(missing_ok=True)


def _mean_losses(losses: list[Mapping[str, float]]) -> dict[str, float]:
    """Mean loss of each kind over the steps that have it, in nats."""
    kinds = sorted({kind for loss in losses for kind in loss})
    found = {kind: [loss[kind] for loss in losses if kind in loss] for kind in kinds}
    return {kind: round(sum(values) / len(values), 4) for kind, values in found.items()}

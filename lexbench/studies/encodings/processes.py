"""Several processes at once, each a command of lexbench with its output in a file; what fails stops nothing else."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from lexbench.studies.encodings.plan import Step

POLL = 0.1
"""Seconds between two looks at the processes."""
EYES, LOG = 0.1, 10.0
"""Seconds, at least, between two states of the bar: before somebody's eyes, and in a file."""
PATIENCE = 15.0
"""Seconds that a process has to end by itself after Ctrl-C."""


@dataclass
class Running:
    """A step that goes on."""

    step: Step
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    started: float


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Nobody else works in the folder; what a killed suite has left running there is waited for.

    The lock is that of an open file, which processes started in the block inherit: it lasts as long as any of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lexbench: others work in {folder}: waiting until they have ended", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(todo: Sequence[Step], workers: int, lock: int, weights: dict[str, float]) -> dict[str, str]:
    """Do all steps, `workers` at once, those behind others that they need; why each failed that did.

    Args:
        todo: steps, each behind what it needs.
        workers: processes at once; the cores are shared among them.
        lock: of the folder, inherited by all processes.
        weights: seconds that each step should take, by label: shares of the bar.
    """
    waiting, running, failed = list(todo), list[Running](), dict[str, str]()
    total = sum(weights.values())
    apart = EYES if sys.stderr.isatty() else LOG
    with tqdm(total=max(total, 1.0), dynamic_ncols=True, bar_format=BAR, mininterval=apart) as bar:
        said = None
        try:
            while waiting or running:
                for step in _ready(waiting, running, failed, workers):
                    waiting.remove(step)
                    running.append(_start(step, workers, lock))
                for step in [each for each in waiting if each.needs in failed]:
                    waiting.remove(step)
                    failed[step.label] = f"{step.needs} failed"
                    bar.update(weights.get(step.label, 0.0))
                names = ", ".join(each.step.label for each in running)
                if names != said:
                    bar.set_description(said := names)
                time.sleep(POLL)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    reason = _ended(each)
                    if reason:
                        failed[each.step.label] = reason
                        tqdm.write(f"{each.step.label} failed: {reason}", file=sys.stderr)
                    bar.update(weights.get(each.step.label, 0.0))
        finally:
            _stop(running)
    return failed


BAR = "{percentage:3.0f}% |{bar:20}| {elapsed} gone, {remaining} to go  {desc}"


def _ready(waiting: Sequence[Step], running: Sequence[Running], failed: dict[str, str], workers: int) -> list[Step]:
    """Steps that can begin now: there is a worker, and nothing that they need is still to come."""
    coming = {step.label for step in waiting} | {each.step.label for each in running} | failed.keys()
    return [step for step in waiting if step.needs not in coming][: workers - len(running)]


def _start(step: Step, workers: int, lock: int) -> Running:
    """Begin a process in a session of its own: Ctrl-C comes from us, once."""
    step.log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, cores() // workers))
    log = step.log.open("ab")
    log.write(f"$ lexbench {' '.join(step.words)}\n".encode())
    log.flush()
    process = subprocess.Popen(
        [sys.executable, "-m", "lexbench", *step.words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        start_new_session=True,
        pass_fds=(lock,),
    )
    return Running(step, process, log, time.monotonic())


def _ended(each: Running) -> str | None:
    """Keep that a process has ended well; else the last line of its log."""
    each.log.close()
    if each.process.returncode == 0:
        each.step.ended(time.monotonic() - each.started)
        return None
    return last_line(each.step.log) or f"exit code {each.process.returncode}"


def last_line(file: Path) -> str:
    """The last line of a log that says something; of a progress bar, its last state."""
    lines = file.read_bytes().decode(errors="replace").replace("\r", "\n").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _stop(running: Sequence[Running]) -> None:
    """End what still runs: as by Ctrl-C, and after some seconds for good."""
    for each in running:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGINT)
    until = time.monotonic() + PATIENCE
    for each in running:
        try:
            each.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
        each.log.close()

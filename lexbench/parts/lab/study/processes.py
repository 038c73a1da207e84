"""Runs commands of lexbench as parallel processes with log files; a failure stops only the steps that need it."""

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

from lexbench.core.console import bars_are_disabled, must_hide_bar
from lexbench.core.machine import n_usable_cores
from lexbench.core.record import NOTHING_MEASURED
from lexbench.parts.lab.study.plan import StudyStep

POLL_INTERVAL_SECONDS = 0.1
"""Seconds between two checks of the processes."""
INTERRUPT_PATIENCE_SECONDS = 15.0
"""Seconds for a process to end after Ctrl-C, before it is killed."""


@dataclass
class RunningStep:
    """A running step."""

    step: StudyStep
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    started: float


@contextmanager
def lock_study_folder(folder: Path) -> Iterator[int]:
    """Lock the folder; wait for another study there, and for processes that a killed study has left running.

    Processes started in the block inherit the locked file, so the lock lasts until the last of them ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lexbench: another study works in {folder}: waiting until it ends", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def run_steps(todo: Sequence[StudyStep], workers: int, lock: int, weights: dict[str, float]) -> dict[str, str]:
    """Run all steps, `workers` at once, each after the one that it needs; the reason of each failure by label.

    Args:
        todo: steps, each after the one that it needs.
        workers: processes at once; they share the cores.
        lock: file descriptor of the folder's lock, inherited by all processes.
        weights: expected seconds of each step by label, for the progress bar.
    """
    waiting, running, failed = list(todo), list[RunningStep](), dict[str, str]()
    total = sum(weights.values())
    hidden = must_hide_bar()
    with tqdm(total=max(total, 1.0), dynamic_ncols=True, bar_format=PROGRESS_BAR_FORMAT, disable=hidden) as bar:
        shown = None
        try:
            while waiting or running:
                for step in _ready_steps(waiting, running, failed, workers):
                    waiting.remove(step)
                    running.append(_start_step(step, workers, lock))
                # A failure spreads to what needs it, one step further in every round.
                for step in [each for each in waiting if each.needs in failed]:
                    waiting.remove(step)
                    failed[step.label] = f"{step.needs} failed"
                    bar.update(weights.get(step.label, 0.0))
                names = ", ".join(each.step.label for each in running)
                if names != shown:
                    bar.set_description(shown := names)
                time.sleep(POLL_INTERVAL_SECONDS)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    reason = _finish_step(each)
                    if reason:
                        failed[each.step.label] = reason
                        tqdm.write(f"{each.step.label} failed: {reason}", file=sys.stderr)
                    elif hidden and not bars_are_disabled():
                        print(f"{each.step.label} finished", file=sys.stderr, flush=True)
                    bar.update(weights.get(each.step.label, 0.0))
        finally:
            _stop_steps(running)
    return failed


PROGRESS_BAR_FORMAT = "{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}, {desc}"


def _ready_steps(
    waiting: Sequence[StudyStep], running: Sequence[RunningStep], failed: dict[str, str], workers: int
) -> list[StudyStep]:
    """Steps that can start now: a worker is free, and the step that they need is done."""
    coming = {step.label for step in waiting} | {each.step.label for each in running} | failed.keys()
    return [step for step in waiting if step.needs not in coming][: workers - len(running)]


def _start_step(step: StudyStep, workers: int, lock: int) -> RunningStep:
    """Start a process in its own session, so that Ctrl-C reaches it only from `_stop_steps`."""
    step.log.parent.mkdir(parents=True, exist_ok=True)
    # Each process would start a thread for each core, and they would take turns.
    threads = str(max(1, n_usable_cores() // workers))
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
    return RunningStep(step, process, log, time.monotonic())


def _finish_step(each: RunningStep) -> str | None:
    """Record a success; else return the last line of the log."""
    each.log.close()
    # A run of refused cells is done: its page shows the refusals, and a repetition would refuse them again.
    if each.process.returncode in (0, NOTHING_MEASURED):
        each.step.record_success(time.monotonic() - each.started)
        return None
    return last_line(each.step.log) or f"exit code {each.process.returncode}"


def last_line(file: Path) -> str:
    """The last non-empty line of a log; of a progress bar its last state."""
    lines = file.read_bytes().decode(errors="replace").replace("\r", "\n").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _stop_steps(running: Sequence[RunningStep]) -> None:
    """Interrupt what still runs, and kill it after INTERRUPT_PATIENCE_SECONDS seconds."""
    for each in running:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGINT)
    until = time.monotonic() + INTERRUPT_PATIENCE_SECONDS
    for each in running:
        try:
            each.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
        each.log.close()

"""Runs that take their time, so that something can happen meanwhile; and what they leave."""

import os
import subprocess
import sys
import time
from pathlib import Path

SLOW = '''
import os
import time
from lexbench.backends.chance import Chance

PAUSE = float(os.environ.get("PAUSE", "0.1"))

class Slow(Chance):
    """Chance, at a tenth of a second a question, or PAUSE."""

    def write(self, question):
        time.sleep(PAUSE)
        return super().write(question)

    def score(self, question):
        time.sleep(PAUSE)
        return super().score(question)
'''


def slow_backend(tmp_path: Path) -> dict[str, str]:
    """Environment in which `backend=slow` exists, as a plug-in would bring it."""
    (tmp_path / "configs/backend").mkdir(parents=True)
    (tmp_path / "configs/backend/slow.yaml").write_text("_target_: slow_backend.Slow\n")
    (tmp_path / "slow_backend.py").write_text(SLOW)
    return {
        **os.environ,
        "LEXBENCH_CONFIG_PATH": str(tmp_path / "configs"),
        "PYTHONPATH": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
    }


def at_once(slow: dict[str, str]) -> dict[str, str]:
    """The same backend, without its pauses."""
    return {**slow, "PAUSE": "0"}


def command(folder: Path) -> list[str]:
    settings = ["backend=slow", "task=[passkey,last_segment]", "corpus=synthetic", "lengths=[128,256]", "n=6"]
    return [sys.executable, "-m", "lexbench", "run", *settings, f"results={folder}"]


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that numbers come from, by name."""
    files = [*(folder / "cells").glob("[!.]*"), folder / "records.jsonl"]
    return {file.name: file.read_bytes() for file in files}


def wait_for(folder: Path, samples: int, process: "subprocess.Popen[bytes]") -> None:
    """Until so many samples of some unfinished cell lie in the folder."""
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        lines = sum(file.read_bytes().count(b"\n") - 1 for file in folder.glob("cells/*.jsonl"))
        if lines >= samples:
            return
        time.sleep(0.01)

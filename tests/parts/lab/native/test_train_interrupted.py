"""Trainings that are killed or interrupted as real processes, and what reading their folders needs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lexbench.commands import main

ROOT = Path(__file__).parents[4]
SETTINGS = [
    "recipe=finetune",
    "recipe.shape={layers:2,width:32,heads:2,kv_heads:1,hidden:32}",
    "recipe.vocabulary=300",
    "recipe.trained_length=32",
    "recipe.stages=[{steps:200,lessons:{text:1.0}}]",
    "recipe.save=5",
    "recipe.optimizer=muon",  # with AdamW beside it: gains have a rate of their own
    "recipe.gain_rate=0.01",
    "encoding=shape",
    "corpora=[{name:synthetic,count:4,words:400}]",
]


def command(out: Path) -> list[str]:
    return ["train", *SETTINGS, f"out={out}"]


def started(out: Path, steps: int) -> subprocess.Popen[str]:
    """A training of which so many steps are done."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lexbench", *command(out)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell has it ignored
    )
    log, end = out / "training.jsonl", time.monotonic() + 300
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.005)
    return process


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"]["all"] for line in (out / "training.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_killed_and_interrupted_trainings_go_on_to_the_same_losses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(command(tmp_path / "whole")) == 0
    cut = tmp_path / "cut"
    for number in (signal.SIGKILL, signal.SIGINT):
        process = started(cut, 7 + (len(losses(cut)) if cut.exists() else 0))
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
        assert not (cut / "training.json").exists(), "it was too fast to be cut off"
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130, said
            last = [line for line in said.replace("\r", "\n").splitlines() if line.startswith("lexbench:")]
            assert len(last) == 1 and "interrupted" in last[0] and "Traceback" not in said
        assert (cut / "training.checkpoint").exists()
        assert len(losses(cut)) < 200
    assert main.main(command(cut)) == 0
    assert losses(cut) == losses(tmp_path / "whole")
    assert (cut / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    records = [json.loads((folder / "training.json").read_text()) for folder in (cut, tmp_path / "whole")]
    assert records[0]["curve"] == records[1]["curve"]
    capfd.readouterr()
    assert main.main(command(cut)) == 0
    assert "finished: nothing to do" in capfd.readouterr().err


@pytest.mark.slow
def test_reading_a_folder_needs_nothing_of_training() -> None:
    """`import lexbench` brings lexbench.corpora's types, for tasks; none of the corpora themselves."""
    training = [
        f"lexbench.parts.lab.native.{name}" for name in ("train", "lessons", "learner", "recipe", "progress", "start")
    ]
    code = (
        "import sys, lexbench.parts.lab.backend, lexbench.parts.lab.native.folder\n"
        f"print([m for m in sys.modules if m in {training} or m.startswith('lexbench.corpora.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"

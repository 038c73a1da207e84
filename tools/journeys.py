"""The journeys of four users, command by command: python tools/journeys.py

Each begins with lexbench installed and nothing else, in a folder of its own:

    researcher   has a method in a file, and wants it beside others: a table, a figure and two sentences for a paper
    engineer     must choose a scaling for a served model: measured, decided, exported, and gated in CI
    reader       was sent results, and wants to know whether a difference is real
    notebook     has a model in memory, and wants its curve

What a journey must end with is checked. Seconds are of the whole process, imports included; processor seconds say more
where other programs run beside it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides

METHOD = '''\
from dataclasses import dataclass

from lexbench import Attention, Method, Model


@dataclass(frozen=True)
class Halved(Method):
    """Halve all frequencies."""

    def attention(self, model: Model, length: int) -> Attention:
        return Attention(inv_freq=model.inv_freq() / 2)
'''
NOTEBOOK = """\
import lexbench
from lexbench.checkpoints.checkpoint import locate_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = locate_checkpoint("lexbench:lexlet", None)
network = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
run = lexbench.evaluate(network, AutoTokenizer.from_pretrained(folder), lengths=[128, 512], n=4)
run.plot("last_segment").savefig("curve.png"); print(run.table())
"""
FEW = "'lengths=[128,512]' n=4 corpus=synthetic"
JOURNEYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "researcher": (
        [
            f"lexbench run --config-dir mine -m method=none,yarn,halved task=passkey {FEW} results=runs/mine",
            "lexbench figure runs/mine --for acl-column --out figure.pdf table.tex",
            "lexbench compare runs/mine runs/mine --a method=none --b method=halved",
        ],
        {"figure.pdf": "%PDF", "table.tex": "halved"},
    ),
    "engineer": (
        [
            f"lexbench run -m method=none,yarn,ntk task=last_segment {FEW} results=runs/mine",
            "lexbench leaderboard runs/mine",
            "lexbench export method=yarn method.factor=2 model=lexlet length=512 --to vllm",
            "lexbench check runs/mine --baseline baseline.json --update",
            "lexbench check runs/mine --baseline baseline.json",
        ],
        {"baseline.json": "nll"},
    ),
    "reader": (
        [
            "lexbench leaderboard REFERENCE",
            "lexbench compare REFERENCE REFERENCE --a method=none --b method=yarn",
            "lexbench figure REFERENCE --task passkey --method none yarn rerope --out figure.svg",
        ],
        {"figure.svg": "<svg"},
    ),
    "notebook": (["python notebook.py"], {"curve.png": "PNG"}),
}


def walked(name: str, folder: Path, reference: Path) -> None:
    """One journey's row."""
    commands, ends = JOURNEYS[name]
    (folder / "mine" / "method").mkdir(parents=True)
    (folder / "mine" / "method" / "halved.py").write_text(METHOD)
    (folder / "mine" / "method" / "halved.yaml").write_text("file: halved.py\n")
    (folder / "notebook.py").write_text(NOTEBOOK)
    place = os.environ | {"PYTHONPATH": str(sides.ROOT), "HF_HUB_OFFLINE": "1"}
    before, started = os.times(), time.perf_counter()
    for line in commands:
        program = [sys.executable] if line.startswith("python ") else [sys.executable, "-m", "lexbench"]
        words = [word.strip("'").replace("REFERENCE", str(reference)) for word in line.split()[1:]]
        done = subprocess.run([*program, *words], cwd=folder, env=place, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: {line} ended with {done.returncode}: {done.stderr[-2000:]}")
    seconds, after = time.perf_counter() - started, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    for file, said in ends.items():
        if said.encode() not in (folder / file).read_bytes():
            raise SystemExit(f"{name}: {file} lacks {said}")
    lines = len(NOTEBOOK.splitlines()) if name == "notebook" else 0
    sides.row(name, len(commands), lines or "", f"{seconds:.1f}", f"{spent:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journeys", nargs="+", default=list(JOURNEYS), choices=list(JOURNEYS))
    parser.add_argument("--show", action="store_true", help="print their commands, and run none")
    options = parser.parse_args()
    sides.header("The journeys of four users")
    for name in options.journeys:
        print(f"{name}:\n")
        print(
            "\n".join(
                f"    {line}" for line in [*JOURNEYS[name][0], *(NOTEBOOK.splitlines() if name == "notebook" else [])]
            )
        )
        print()
    if options.show:
        return
    sides.table(":journey", "commands", "lines of Python", "seconds", "processor seconds")
    with tempfile.TemporaryDirectory() as temporary:
        reference = Path(temporary) / "reference"
        every = sorted((sides.ROOT / "results" / "reference" / "lexlet" / "cells").glob("*.parquet"))
        (reference / "cells").mkdir(parents=True)
        for file in every:
            shutil.copy(file, reference / "cells")
        for name in options.journeys:
            walked(name, Path(temporary) / name, reference)


if __name__ == "__main__":
    main()

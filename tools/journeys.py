"""Walk the journeys of four users, command by command: python tools/journeys.py

Each begins in an empty folder, with lexbench installed and nothing else, and types what README and docs/ say:

    method    has a method of their own, in Python: beside the usual ones, compared, drawn
    results   wants a first result, and a page to send: run, compare, report, board
    choice    must choose a method for a deployment: tune, versus, verify, export
    gate      wants CI to fail when a curve gets worse: docs/check.md copied as it stands, then a planted fault

What each must end with is checked. Seconds are of whole processes, imports included; processor seconds say more where
other programs run beside them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import sides

PROGRAM = """\
import lexbench


def halved(model, length):
    return lexbench.Attention(inv_freq=model.inv_freq() / 2)


run = lexbench.run("lexlet", [None, "yarn", halved], "passkey", lengths=[256, 512], n=16, results="runs/mine")
print(run.table())
print(run.compare(None, halved))
run.plot("passkey").savefig("curve.png")
"""
METHOD = '''\
from dataclasses import dataclass

from lexbench import Attention, Method, Model


@dataclass(frozen=True)
class Halved(Method):
    """Halve all frequencies."""

    def attention(self, model: Model, length: int) -> Attention:
        return Attention(inv_freq=model.inv_freq() / 2)
'''
FAULT = """\
python -c "import json, shutil; from lexbench.checkpoints.checkpoint import locate_checkpoint as locate
shutil.copytree(locate('lexbench:lexlet'), 'broken'); config = json.load(open('broken/config.json'))
json.dump({**config, 'rope_theta': 50.0}, open('broken/config.json', 'w'))"
"""
CHECK_PAGE = sides.ROOT / "docs" / "check.md"


@dataclass(frozen=True)
class Journey:
    """What a user types, in the order of typing."""

    commands: tuple[str, ...]
    ends: dict[str, str]
    """What stands at the end in which file: names and texts."""
    files: dict[str, str]
    """What the user has written before: names and texts."""
    fails: int = 0
    """The exit code of the last command."""


def gate_commands() -> tuple[str, ...]:
    """The commands of docs/check.md: the baseline once, the workflow's steps, then the same steps on a broken model."""
    page = CHECK_PAGE.read_text()
    once = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0].splitlines()
    [workflow] = re.findall(r"^```yaml title=\"\.github.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    steps = [step.get("run", "") for step in yaml.safe_load(workflow)["jobs"]["length"]["steps"]]
    measure, check = (step.strip() for step in steps if step.startswith("lexbench "))
    broken = measure.replace("model=lexlet", "model=./broken model.name=lexlet")
    return (*once, "rm -r runs", measure, check, FAULT.strip(), "rm -r runs", broken, check)


def journeys() -> dict[str, Journey]:
    """All four, by name."""
    return {
        "method": Journey(("python mine.py",), {"curve.png": "PNG"}, {"mine.py": PROGRAM}),
        "results": Journey(
            (
                "lexbench run method=none,yarn,rerope task=passkey 'multiples=[1,4]' n=16",
                "lexbench compare runs/lexlet runs/lexlet --a method=yarn --b method=rerope",
                "lexbench report runs/lexlet --html",
                "lexbench board runs --add runs/lexlet --by 'a laboratory'",
                "lexbench board runs --out board",
            ),
            {"runs/lexlet/report/report.html": "rerope", "board/index.html": "rerope"},
            {},
        ),
        "choice": Journey(
            (
                "lexbench tune model=lexlet corpus=stdlib length=512 'methods=[yarn,rerope]' budget=4 n=8 out=tuned",
                "lexbench versus --config-dir mine method=halved task=passkey 'multiples=[1,2]' n=8"
                " --against yarn rerope",
                "lexbench verify model=lexlet method=yarn method.factor=2 length=512",
                "lexbench export method=yarn method.factor=2 model=lexlet length=512 --to vllm >serve.sh",
            ),
            {"runs/lexlet/versus/versus.tex": "halved", "serve.sh": "vllm serve"},
            {"mine/method/halved.py": METHOD},
        ),
        "gate": Journey(gate_commands(), {"baseline.json": "rerope", "summary.md": "REGRESSED"}, {}, fails=1),
    }


def walk(name: str, journey: Journey, folder: Path) -> None:
    """Type the commands of one journey in a folder, and print a row for each; SystemExit where one fails."""
    for file, text in journey.files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    commands = folder / "bin"
    commands.mkdir(parents=True)
    for program, words in (("lexbench", "-m lexbench "), ("python", "")):
        (commands / program).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (commands / program).chmod(0o755)
    place = os.environ | {"PYTHONPATH": str(sides.ROOT), "HF_HUB_OFFLINE": "1", "PATH": f"{commands}:/usr/bin:/bin"}
    total = [0.0, 0.0]
    for number, command in enumerate(journey.commands, 1):
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(["bash", "-ec", command], cwd=folder, env=place, capture_output=True, text=True)
        seconds, after = time.perf_counter() - started, os.times()
        if done.returncode != (journey.fails if number == len(journey.commands) else 0):
            raise SystemExit(
                f"{name}: {command} ended with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}"
            )
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        total = [total[0] + seconds, total[1] + spent]
        if command.startswith(("lexbench", "python mine.py")):
            sides.row(name, f"`{command}`", f"{seconds:.1f}", f"{spent:.1f}")
    for file, text in journey.ends.items():
        if text.encode() not in (folder / file).read_bytes():
            raise SystemExit(f"{name}: {file} lacks {text}")
    sides.row(f"**{name}**", "all", *(f"**{each:.1f}**" for each in total))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = journeys()
    parser.add_argument("--journeys", nargs="+", default=list(every), choices=list(every))
    parser.add_argument("--show", action="store_true", help="print their commands, and run none")
    options = parser.parse_args()
    if options.show:
        for name in options.journeys:
            print(f"{name}:\n", *every[name].commands, "", sep="\n")
        return
    sides.header("The journeys of four users")
    sides.table(":journey", ":command", "seconds", "processor seconds")
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.journeys:
            walk(name, every[name], Path(temporary) / name)
            shutil.rmtree(Path(temporary) / name)


if __name__ == "__main__":
    main()

"""The Makefile takes the newest Python that runs, and says in one line what is missing."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAILS = {
    "sound": "",
    "unset": "exit 127",
    "old": '[ "$1" = -c ] && exit 1',
    "bare": 'case "$2" in *pip*) exit 1;; esac',
}
"""By the kind of a Python, the line by which it fails: a name without a version behind it, as pyenv leaves; another
version; one without venv."""
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def made(tmp_path: Path, pythons: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Run make for a virtual environment where only these Pythons are there, each of a kind in FAILS."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("sh", "make", "touch", "mkdir", "chmod"):
        if found := shutil.which(program):
            (folder / program).symlink_to(found)
    for name, kind in pythons.items():
        # It makes a venv whose python and pip do nothing.
        make = f"mkdir -p $3/bin\necho {name} >$3/made\nfor each in python pip; do echo '#!/bin/sh' >$3/bin/$each; done"
        (folder / name).write_text(f'#!/bin/sh\n{FAILS[kind]}\n[ "$1" = -c ] && exit 0\n{make}\nchmod +x $3/bin/*\n')
        (folder / name).chmod(0o755)
    place = tmp_path / "venv"
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", "-s", f"VENV={place}", str(place / ".ready"), *words],
        cwd=ROOT,
        env={**clean, "PATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3.11": "sound"}, "python3.11"),
        ({"python3.12": "sound"}, "python3.12"),
        ({"python3.13": "sound", "python3.11": "sound"}, "python3.13"),
        ({"python3.13": "unset", "python3.12": "sound", "python3.11": "sound"}, "python3.12"),
        ({"python3": "sound"}, "python3"),
    ],
)
def test_the_newest_python_that_runs_is_taken(pythons: Mapping[str, str], taken: str, tmp_path: Path) -> None:
    done = made(tmp_path, pythons)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "venv/made").read_text() == f"{taken}\n"


@pytest.mark.parametrize("file", ["Makefile", ".ci/run"])
def test_pip_compiles_nothing(file: str, tmp_path: Path) -> None:
    """Tried with pip itself, by a wheel of one module: PIP_NO_COMPILE=1 compiles it."""
    stated = dict(re.findall(r"\b(PIP_[A-Z_]+)\s*:?=\s*(\w+)", re.sub("(?m)^#.*$", "", (ROOT / file).read_text())))
    assert stated
    info = "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(tmp_path / "one-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {"one.py": "", "one-1.0.dist-info/METADATA": info, "one-1.0.dist-info/WHEEL": tag}.items():
            wheel.writestr(name, text)
        wheel.writestr("one-1.0.dist-info/RECORD", "")
    others = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHONDONTWRITE"))}
    for settings, compiled in ((stated, 0), ({}, 1)):
        place = tmp_path / f"place{compiled}"
        words = ["install", "--quiet", "--no-index", "--target", str(place), str(tmp_path / "one-1.0-py3-none-any.whl")]
        run = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
        subprocess.run(run, env={**others, **settings}, check=True, cwd=tmp_path)
        assert (place / "one.py").is_file() and len([*place.rglob("*.pyc")]) == compiled


def test_a_python_that_is_given_is_taken(tmp_path: Path) -> None:
    assert made(tmp_path, {"python3.13": "sound", "python3.11": "sound"}, "PYTHON=python3.11").returncode == 0
    assert (tmp_path / "venv/made").read_text() == "python3.11\n"


@pytest.mark.parametrize(
    ("pythons", "said"),
    [
        ({}, "Python 3.11, 3.12 or 3.13 is missing: install one with its venv (python3-venv)"),
        ({"python3": "old"}, "Python 3.11, 3.12 or 3.13 is missing: install one with its venv (python3-venv)"),
        (
            {"python3.12": "bare"},
            "python3.12 cannot make a virtual environment: install its venv (Debian, Ubuntu: apt install python3-venv)",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(pythons: Mapping[str, str], said: str, tmp_path: Path) -> None:
    done = made(tmp_path, pythons)
    assert done.returncode == 2
    assert done.stdout == f"{said}\n"
    assert len(done.stderr.splitlines()) == 1  # make's own: the rule that failed

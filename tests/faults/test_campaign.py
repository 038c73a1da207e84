"""Faults of every kind, done to real runs: nothing is lost. `python tools/faults.py` does hundreds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = 9


@pytest.mark.slow
def test_no_fault_loses_anything() -> None:
    words = [sys.executable, "tools/faults.py", "--kills", "8", "--tries", "1", "--seed", "1"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, f"{' '.join(words)}\n{ran.stdout}\n{ran.stderr[-3000:]}"
    rows = [line.split(" | ") for line in ran.stdout.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == KINDS
    assert all(int(row[1]) > 0 and int(row[3]) > 0 and row[4] == "0 |" for row in rows), ran.stdout

"""The command line as a process of its own."""

import os
import subprocess
import sys

CHANCE = ["backend=chance", "task=passkey", "lengths=[128,256]", "n=2"]


def lexbench(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lexbench", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        timeout=240,
    )

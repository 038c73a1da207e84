"""The command line, called in this process."""

import subprocess

import pytest

from lexbench.commands import main
from tests.commands.program import Command


@pytest.fixture
def lexbench(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with these words and this environment: its exit code and what it prints."""

    def call(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        try:
            code = main.main([*words])
        except SystemExit as ended:  # argparse's way
            code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return call

"""`lexbench list`: a line each, of tasks with the file that a reader may open."""

from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.core import objects

TASK = '''\
from dataclasses import dataclass

from lexbench import Task


@dataclass(frozen=True)
class Own(Task):
    """Ask nothing."""

    def questions(self, tokenizer, length, n, seed):
        return []
'''


def test_a_task_has_its_file_and_a_suite_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine" / "task").mkdir(parents=True)
    (tmp_path / "mine" / "task" / "own.py").write_text(TASK)
    (tmp_path / "mine" / "task" / "both.yaml").write_text("suite: [own, passkey]\n")
    monkeypatch.chdir(tmp_path)
    assert main.main(["list", "task", "--config-dir", str(tmp_path / "mine")]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert lines["own"].endswith("Ask nothing. (mine/task/own.py)")
    assert lines["both"].endswith("suite: own, passkey")
    found = objects.source_file("task", "passkey")
    assert found is not None and found.is_file() and lines["passkey"].endswith(f"({found})")

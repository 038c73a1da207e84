"""The documentation's own example: its files and commands, as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from lexbench import cli

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"


def test_a_method_outside_the_repository_runs_is_verified_and_stands_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    files = re.findall(r"`(mine/\S+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["mine/method/root_pi.py", "mine/method/root_pi.yaml"]
    for name, content in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    [commands] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    said = {}
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
        assert program == "lexbench" and cli.main(words) == 0, line
        said[words[0]] = capsys.readouterr().out
    assert re.search(r"^  root_pi +Squeeze positions by a power of the stretch", said["list"], re.MULTILINE)
    assert "root_pi(power=0.25)" in said["show"]
    [row] = [line for line in said["verify"].splitlines() if line.startswith("| root_pi")]
    assert row.count("ok ") == 6 and "FAILED" not in row  # all but identity, which it does not promise
    assert re.search(r"\| root_pi +\| +\d\.\d+ \[", said["run"])
    report = tmp_path / said["report"].strip()
    assert "root_pi" in report.read_text()

"""The documentation's own example: its files and commands, as they stand there."""

import re
import shlex
from pathlib import Path

import pytest

from lexbench import cli

DOCS = Path(__file__).parent.parent / "docs"


def example(page: str, folder: Path) -> list[str]:
    """The commands of a page's example, its files written as they stand there."""
    text = (DOCS / page).read_text()
    for name, content in re.findall(r"`(mine/\S+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    [commands] = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return str(commands).splitlines()


def run(
    commands: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """What each command prints."""
    monkeypatch.chdir(folder)
    said = {}
    for line in commands:
        program, *words = shlex.split(line)
        monkeypatch.setenv("LEXBENCH_CONFIG_PATH", "")
        assert program == "lexbench" and cli.main(words) == 0, line
        said[words[0]] = capsys.readouterr().out
    return said


@pytest.mark.slow
def test_a_method_outside_the_repository_runs_is_verified_and_stands_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(example("methods.md", tmp_path), tmp_path, monkeypatch, capsys)
    assert re.search(r"^  root_pi +Squeeze positions by a power of the stretch", said["list"], re.MULTILINE)
    assert "root_pi(power=0.25)" in said["show"]
    [row] = [line for line in said["verify"].splitlines() if line.startswith("| root_pi")]
    assert row.count("ok ") == 6 and "FAILED" not in row  # all but identity, which it does not promise
    assert re.search(r"\| root_pi +\| +\d\.\d+ \[", said["run"])
    report = tmp_path / said["report"].strip()
    assert "root_pi" in report.read_text()


def test_a_task_outside_the_repository_runs_and_stands_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(example("tasks.md", tmp_path), tmp_path, monkeypatch, capsys)
    assert re.search(r"^  last_word +Repeat a secret word", said["list"], re.MULTILINE)
    assert re.search(r"\| none +\| +\d\.\d+ \[.*\| +\d\.\d+ \[", said["run"])
    assert "Chance: 0.25" in said["run"]
    assert "a word just read" in (tmp_path / said["report"].strip()).read_text()

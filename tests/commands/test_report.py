"""`lexbench report` and `lexbench leaderboard`."""

from pathlib import Path
from typing import Any

import pytest

from lexbench import run
from lexbench.commands import main
from tests.commands.program import CHANCE, Command
from tests.report.fake_run import finished, keep


@pytest.mark.usefixtures("undrawn")
def test_reports_need_no_model(lexbench: Command, tmp_path: Path) -> None:
    assert lexbench("run", *CHANCE, f"results={tmp_path}").returncode == 0
    done = lexbench("report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_file()
    nothing = lexbench("report", str(tmp_path / "nowhere"))
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("lexbench: ")
    assert len(nothing.stderr.splitlines()) == 1


def test_a_leaderboard_goes_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "run", [finished("passkey", method, 512, n=4) for method in ("none", "pi")])
    assert main.main(["leaderboard", str(tmp_path / "run"), "--out", str(tmp_path)]) == 2
    assert "is a folder: give a file, e.g. --out" in capsys.readouterr().err
    (ledger := tmp_path / "ledger.jsonl").write_text("{}\n")
    assert main.main(["leaderboard", str(tmp_path / "run"), "--out", str(ledger)]) == 2
    assert "--out must not be a .jsonl file, got ledger.jsonl" in capsys.readouterr().err
    assert ledger.read_text() == "{}\n"
    assert main.main(["leaderboard", str(tmp_path / "run"), "--out", str(tmp_path / "board.md")]) == 0
    assert "## passkey on lexlet: copied whole" in (tmp_path / "board.md").read_text()


@pytest.mark.parametrize("words", [["report"], ["figure", "--out", "f.tex"]], ids=["report", "figure"])
def test_a_method_to_highlight_must_be_there(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    methods: list[Any] = ["none", {"name": "pi", "factor": 2.0}, "yarn+log_n"]
    run("lexlet", methods, "passkey", [512], backend="chance", n=2, results="run", quiet=True)
    command, *options = words
    assert main.main([command, "run", *options, "--highlight", "log_n", "yarm"]) == 2
    assert capsys.readouterr().err == (
        "lexbench: unknown method to highlight 'yarm' in these runs: did you mean yarn? "
        "choose from none, pi(factor=2.0), yarn+log_n\n"
    )

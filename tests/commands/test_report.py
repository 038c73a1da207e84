"""`lexbench report` and `lexbench leaderboard`."""

from pathlib import Path

import pytest

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
    assert main.main(["leaderboard", str(tmp_path / "run"), "--out", str(tmp_path / "board.md")]) == 0
    assert "## passkey on lexlet: accuracy" in (tmp_path / "board.md").read_text()

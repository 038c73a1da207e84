"""My method against others: one command to a figure, a table and sentences."""

from pathlib import Path

import pytest

from lexbench.commands import main

pytestmark = pytest.mark.slow


WORDS = ["method=dca", "backend=chance", "multiples=[1,2]", "n=8", "results=run"]


def test_one_command_ends_in_a_figure_tables_and_a_sentence_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods that answer by chance differ in nothing, and nothing is claimed."""
    monkeypatch.chdir(tmp_path)
    assert main.main(["versus", *WORDS, "name=CosRamp (ours)", "--against", "ntk", "dca"]) == 0
    text = capsys.readouterr().out
    assert "last_segment at 512 tokens (2x): CosRamp (ours) has 7.625" in text
    assert "better than" not in text
    assert text.splitlines()[-4:] == [f"run/versus/versus.{ending}" for ending in ("md", "svg", "pdf", "tex")]
    for line in text.splitlines()[-4:]:
        assert Path(line).stat().st_size
    assert Path("run/versus/versus.pdf").read_bytes().startswith(b"%PDF")


def test_a_dry_run_prints_the_plan_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["versus", *WORDS, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "methods  none, pi, ntk, yarn, self_extend, rerope, dca" in captured.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=none"], "versus needs a method to compare with others: give method=NAME"),
        (["method=dcaa"], "dca"),
        (["method=dca", "name="], "name must be a text in one line"),
        (["method=dca", "name=yarn"], "name yarn is that of another method"),
        (["method=dca", "--against", "yarnn"], "did you mean yarn?"),
        (["method=dca", "nam=x"], "did you mean name?"),
        (["method=dca", "--dryrun"], "--dry-run"),
    ],
)
def test_a_wrong_name_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["versus", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line

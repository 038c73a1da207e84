"""My method against others: one command to a figure, a table and sentences."""

from pathlib import Path

import pytest

from lexbench.commands import main

pytestmark = pytest.mark.slow


def test_one_command_ends_in_a_figure_a_table_and_a_sentence_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods that answer by chance differ in nothing, and nothing is claimed."""
    monkeypatch.chdir(tmp_path)
    words = ["method=dca", "backend=chance", "multiples=[1,2]", "n=8", "results=run", "--against", "ntk", "dca"]
    assert main.main(["versus", *words]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "run/versus/versus.md").read_text() + "\n" == text
    assert "- last_segment at 512 tokens (2x): dca has 7.625" in text
    assert "; none has 7.625" in text and "; the best of the others, ntk, has 7.625" in text
    assert text.count("cannot be told") >= 2 and "dca is better" not in text
    assert "| ntk " in text and "| dca " in text
    drawn = (tmp_path / "run/versus/versus.pdf").read_bytes()
    assert drawn.startswith(b"%PDF") and (tmp_path / "run/versus/versus.svg").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [(["method=none"], "versus needs a method to compare with others: give method=NAME"), (["method=dcaa"], "dca")],
)
def test_a_wrong_name_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["versus", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line

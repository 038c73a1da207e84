"""`lexbench doctor` finds nothing in what a search has just written."""

from pathlib import Path

import pytest

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.commands import main
from tests.commands.test_doctor import check_sound

COMMANDS: dict[str, list[str]] = {
    "tune": [
        *("tune", "corpus=synthetic", "length=384", "methods=[yarn,pi]", "budget=4", "n=4"),
        *("nll=last_segment", "out={0}/tune"),
    ],
    "trace": [
        *("trace", str(locate_checkpoint("lexbench:lexlet")), "task=[last_segment,passkey]", "corpus=synthetic"),
        *("lengths=[128,512]", "n=2", "out={0}/trace"),
    ],
}


@pytest.mark.slow
@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_search_has_written_is_sound_and_is_read(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_sound(COMMANDS[command], tmp_path)
    assert "though its identity" not in caplog.text


@pytest.mark.everyday("keys")
@pytest.mark.parametrize(
    "words",
    [
        ["keys", "out={0}/made/keys.jsonl", "corpus=synthetic", "longest=64", "short=16", "window=8", "n=1"],
        ["search", "out={0}/made/found.yaml", "corpus=synthetic", "length=300", "n=1", "iterations=0"],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_without_cells_is_said_in_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([*(word.format(tmp_path) for word in words), "backend=chance"]) == 0
    capsys.readouterr()
    assert main.main(["doctor", str(tmp_path / "made")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "holds no cells" in line

"""`lexbench train` and `lexbench convert`; more in tests/parts/lab/native/test_train_command.py."""

from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.parts.lab.commands import train
from tests.commands.test_words import check_one_method


def test_convert_takes_folders_on_disk_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["convert", "some/where", "--into", str(tmp_path / "out")]) == 2
    assert "convert needs a folder on disk, some/where is none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.everyday("corpora=[]", "held_out=[]")
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("corpora=[]", "corpora must be a list of corpora, got []"),
        ("corpora=[5]", "corpora must list corpora by name, got 5"),
        ("corpora=[{path:x}]", "corpora must list corpora by name, got {'path': 'x'}"),
        ("held_out=[]", "held_out must be a list of corpora, got []"),
    ],
)
def test_texts_of_a_training_are_lists_of_corpora(
    setting: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["train", "recipe=zoo_tiny", f"out={tmp_path / 'out'}", setting]) == 2
    assert said in capsys.readouterr().err


def test_a_training_of_one_method_says_how_to_combine_several() -> None:
    check_one_method(train.COMMAND)

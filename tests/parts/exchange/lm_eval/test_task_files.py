"""Yamls of our tasks for the harness."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

import lexbench
from lexbench.checkpoints.tokenizer import FastTokenizer
from lexbench.commands import main
from lexbench.core.errors import ConfigError
from lexbench.core.record import Refused
from lexbench.parts.exchange.lm_eval.questions import HarnessCell


def test_a_yaml_states_all_that_the_questions_depend_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lm_eval", "tasks", "passkey", "last_segment", "--lengths", "512", "256", "--out", str(tmp_path)]
    assert main.main(words) == 0
    names = [f"lexbench_{task}_{length}" for task in ("passkey", "last_segment") for length in (256, 512)]
    assert capsys.readouterr().out.split() == names == sorted(names, key=names.index)
    assert sorted(file.stem for file in tmp_path.iterdir()) == sorted(names)
    head, _, text = (tmp_path / "lexbench_last_segment_256.yaml").read_text().partition("\n")
    module, _, name = head.removeprefix("class: !function ").rpartition(".")
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    assert name == "LexbenchTask" and f"\nclass {name}(" in Path(found.origin).read_text()
    assert yaml.safe_load(text) == {
        "task": "lexbench_last_segment_256",
        "tag": ["lexbench", "lexbench_last_segment"],
        "metadata": {
            "lexbench": {
                "task": {"name": "last_segment"},
                "length": 256,
                "lengths": [256, 512],
                "n": 32,
                "seed": 0,
                "corpus": {"name": "stdlib"},
            }
        },
    }


def test_the_questions_of_a_cell_are_those_of_all_lengths_of_its_run(tokenizer: FastTokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"The sky of day {day} is blue." for day in range(100)))
    corpus = {"name": "files", "path": str(tmp_path / "text.txt")}
    cell = HarnessCell(task={"name": "last_segment"}, length=128, lengths=[64, 128, 256], n=3, corpus=corpus)
    task, questions = cell.questions(tokenizer)
    assert (task.obj.targets, task.obj.longest) == (32, 256)
    built: Any = lexbench.task("last_segment", corpus).for_lengths([64, 128, 256])
    assert [each.tokens.tolist() for each in questions] == [  # type: ignore[union-attr]
        each.tokens.tolist() for each in built.questions(tokenizer, 128, 3, 0)
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": {"name": "passkey"}}, "settings of a task must be task, length, and of lengths, n, seed, corpus"),
        ({"task": {"name": "passkey"}, "length": 64, "size": 3}, "settings of a task must be"),
        ({"task": "passkey", "length": 64}, "task must be a name and parameters, got 'passkey'"),
        ({"task": {"name": "ruler"}, "length": 64}, "task ruler is a suite of several: give each by its name, niah"),
        ({"task": {"name": "passkey", "digit": 3}, "length": 64}, "unknown parameter task.digit: did you mean digits"),
        ({"task": {"name": "passkey"}, "length": 64, "lengths": [32]}, r"length must be one of lengths \[32\], got 64"),
        ({"task": {"name": "passkey"}, "length": 64, "n": 0}, "n must be a whole number of at least 1"),
    ],
)
def test_a_wrong_setting_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HarnessCell.read(given).job()


def test_a_length_without_questions_is_refused(tokenizer: FastTokenizer) -> None:
    with pytest.raises(Refused, match="passkey needs at least"):
        HarnessCell(task={"name": "passkey"}, length=8).questions(tokenizer)

"""`lexbench doctor` finds nothing in what the other commands have just written.

Folders of `study` and `kv`, of the real lm-evaluation-harness and of a Ray cluster are examined where those are tested.
"""

from pathlib import Path

import pytest

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.commands import main
from lexbench.report.doctor import examine_runs
from lexbench.stats import records
from tests.parts.exchange.test_lm_eval_results import COLOURS, RIGHT, by_length, ours, write

RUN = ["run", "task=[passkey,last_segment]", "corpus=synthetic", "lengths=[128,512]", "n=2", "results={0}/run"]
COMPOSED = "method=[{name:yarn,factor:8},{name:log_n}]"
COMMANDS: dict[str, list[str]] = {
    "run": [*RUN, "method=none"],
    "run of a method with parameters": [*RUN, "method=yarn", "method.factor=8", "method.beta_fast=16"],
    "run of a method set for a length": [*RUN, "method=rerope", "method.at=512", "method.layers=all"],
    "run of a composition": [*RUN, COMPOSED],
    "sweep": ["run", "-m", *RUN[1:], "method=none,yarn,self_extend"],
    "run of a suite": ["run", "task=quick", "corpus=synthetic", "multiples=[1,2]", "n=2", "results={0}/run"],
    "tune": [
        *("tune", "corpus=synthetic", "length=384", "methods=[yarn,pi]", "budget=4", "n=4"),
        *("nll=last_segment", "out={0}/tune"),
    ],
    "trace": [
        *("trace", str(locate_checkpoint("lexbench:lexlet")), "task=[last_segment,passkey]", "corpus=synthetic"),
        *("lengths=[128,512]", "n=2", "out={0}/trace"),
    ],
    "versus": [
        *("versus", "method=dca", "multiples=[1,2]", "n=2", "corpus=synthetic", "results={0}/run"),
        *("--against", "ntk", "yarn"),
    ],
}


@pytest.mark.everyday("run", "run of a composition")
@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_has_written_is_sound_and_is_read(
    command: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [word.format(tmp_path) if "{0}" in word else word for word in COMMANDS[command]]
    name, *rest = words
    assert main.main([name, *rest[:1], "backend=chance", *rest[1:]]) == 0
    found = examine_runs([tmp_path])
    assert found.faults == [] and found.unfinished == 0 and found.cells > 0
    assert len(records.load_cells([tmp_path]).finished) == found.cells
    assert "though its identity" not in caplog.text


def test_what_import_has_written_is_sound(tmp_path: Path) -> None:
    """Of our own model at two lengths, one of them with a task that asks for several, and of another model."""
    results = [
        write(tmp_path / "short", {"colours": (RIGHT, COLOURS)}, config=ours(16)),
        write(tmp_path / "long", {"lengths": by_length({4096: [1.0], 8192: [0.0]})}, config=ours(32)),
        write(tmp_path / "other", {"colours": (RIGHT, COLOURS)}),
    ]
    words = ["--into", str(tmp_path / "run"), "--trained-length", "8", "--length", "8"]
    assert main.main(["import", "lm_eval", *map(str, results), *words]) == 0
    found = examine_runs([tmp_path / "run"])
    assert (found.faults, found.cells) == ([], 4)


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

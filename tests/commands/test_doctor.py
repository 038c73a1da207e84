"""`lexbench doctor` finds nothing in what the other commands have just written.

Folders of parts are examined where those are tested.
"""

from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.report.doctor import examine_runs
from lexbench.stats import records

RUN = ["run", "task=[passkey,last_segment]", "corpus=synthetic", "lengths=[128,512]", "n=2", "results={0}/run"]
COMPOSED = "method=[{name:yarn,factor:8},{name:log_n}]"
COMMANDS: dict[str, list[str]] = {
    "run": [*RUN, "method=none"],
    "run of a method with parameters": [*RUN, "method=yarn", "method.factor=8", "method.beta_fast=16"],
    "run of a method set for a length": [*RUN, "method=rerope", "method.at=512", "method.layers=all"],
    "run of a composition": [*RUN, COMPOSED],
    "sweep": ["run", "-m", *RUN[1:], "method=none,yarn,self_extend"],
    "run of a suite": ["run", "task=quick", "corpus=synthetic", "multiples=[1,2]", "n=2", "results={0}/run"],
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
    check_sound(COMMANDS[command], tmp_path)
    assert "though its identity" not in caplog.text


def check_sound(command: list[str], folder: Path) -> None:
    """What a command writes into a folder, `{0}` of its words, has no fault and is read."""
    name, *rest = [word.format(folder) if "{0}" in word else word for word in command]
    assert main.main([name, *rest[:1], "backend=chance", *rest[1:]]) == 0
    found = examine_runs([folder])
    assert found.faults == [] and found.unfinished == 0 and found.cells > 0
    assert len(records.load_cells([folder]).finished) == found.cells

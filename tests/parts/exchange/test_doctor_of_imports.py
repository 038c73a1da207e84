"""`lexbench doctor` finds nothing in what an import has just written."""

from pathlib import Path

from lexbench.commands import main
from lexbench.report.doctor import examine_runs
from tests.parts.exchange.test_lm_eval_results import COLOURS, RIGHT, by_length, ours, write


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

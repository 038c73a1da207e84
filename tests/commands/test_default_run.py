"""Defaults of `lexbench run`: the unmodified model beside a method, a task of each kind, plots."""

from pathlib import Path

import pytest

from lexbench.commands import main
from lexbench.commands.run import with_default_suite
from lexbench.core import registry, suites
from lexbench.store.store import Store
from tests.commands.program import CHANCE


def methods_of(folder: Path) -> set[str]:
    return {str(each.cell.method) for each in Store(folder).load()}


def test_the_unmodified_model_goes_along(tmp_path: Path) -> None:
    for place, (words, expected) in enumerate(
        [
            (["method=ntk"], {"none", "ntk"}),
            (["method=ntk", "baseline=false"], {"ntk"}),
            (["method=none,ntk"], {"none", "ntk"}),
        ]
    ):
        folder = tmp_path / str(place)
        assert main.main(["run", *CHANCE, "price=false", f"results={folder}", *words]) == 0
        assert methods_of(folder) == expected


def test_of_a_sweep_the_first_job_has_it(tmp_path: Path) -> None:
    words = ["run", "-m", *CHANCE, "price=false", "method=ntk", "seed=0,1", f"results={tmp_path}"]
    assert main.main(words) == 0
    found = {(str(each.cell.method), each.cell.seed) for each in Store(tmp_path).load()}
    assert found == {("none", 0), ("ntk", 0), ("ntk", 1)}


def test_plots_are_written_on_demand_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", *CHANCE, f"results={tmp_path}", "plots=true"]) == 0
    drawn = [line for line in capsys.readouterr().err.splitlines() if line.endswith(".svg")]
    assert drawn and all(Path(line).is_file() for line in drawn)
    assert main.main(["run", *CHANCE, f"results={tmp_path}", "plots=maybe"]) == 2
    assert "plots must be true, false or null, got 'maybe'" in capsys.readouterr().err
    # This is no terminal: nothing is drawn without being asked.
    assert main.main(["run", *CHANCE, f"results={tmp_path}"]) == 0
    assert "lexbench report" in capsys.readouterr().err


@pytest.mark.parts("True")
@pytest.mark.parametrize(
    ("words", "suite"),
    [
        (["method=ntk"], False),
        (["model=lexlet"], False),
        (["model=llama2"], True),
        (["model=llama2", "task=passkey"], False),
        (["model=./folder", "-m"], True),
    ],
)
def test_another_model_gets_a_task_of_each_kind(words: list[str], suite: bool) -> None:
    assert with_default_suite(words) == [*words, *(["task=kinds"] if suite else [])]


@pytest.mark.parts
def test_the_suite_has_six_kinds() -> None:
    entries = suites.expand_suite(registry.read_named_config("task", "kinds"))
    assert [each["name"] for each in entries] == [
        "last_segment",
        "passkey",
        "distractor_qa",
        "planted_summary",
        "next_line",
        "arithmetic",
    ]

"""`doctor` sees what a person would see: of each damage alone that the folder is wrong, and nothing in a sound one."""

import shutil
from pathlib import Path

import pytest

import lexbench
from lexbench.report.doctor import examine_runs
from lexbench.stats.records import records_of
from lexbench.store.store import Store
from tests.report.damages import DAMAGES, EVERYDAY, TEXT, WRITTEN

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "lexlet"
"""A run of format 1, without records: its samples have no checksums."""
UNSEEN_IN_FORMAT_1 = {
    *("likelihoods are reversed", "likelihoods are sorted"),  # only their checksums tell
    *("prompts are rotated", "prompts are rotated by two"),  # this run has kept none
    *("chance is lost", "floors are lost"),  # an earlier version may have kept none
    *("jobs are removed", "records are removed"),  # nothing says that there were any
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of lexlet as this version leaves it: two methods, two tasks, a length within and one beyond."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    lexbench.run(
        "lexlet",
        results=folder,
        task=[TEXT, WRITTEN],
        method=["none", "rerope"],
        lengths=[256, 512],
        n=8,
        corpus="synthetic",
        reuse=False,
    )
    assert examine_runs([folder]).faults == []
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight cells of the committed run, with records."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    for name in ("jobs", "costs.jsonl"):
        copy = shutil.copytree if (REFERENCE / name).is_dir() else shutil.copy
        folder.mkdir(exist_ok=True)
        copy(REFERENCE / name, folder / name)
    (folder / "cells").mkdir()
    wanted = [
        each.cell.id
        for each in Store(REFERENCE).load()
        if str(each.cell.method) in ("none", "rerope") and each.cell.length in (256, 512)
    ]
    for name in wanted:
        shutil.copy(REFERENCE / "cells" / f"{name}.parquet", folder / "cells")
    Store(folder).write_records(records_of)
    assert examine_runs([folder]).faults == []
    return folder


def damaged(folder: Path, name: str, tmp_path: Path) -> list[str]:
    shutil.copytree(folder, tmp_path / "run")
    DAMAGES[name](tmp_path / "run")
    return examine_runs([tmp_path / "run"]).faults


@pytest.mark.everyday(*[name for name in EVERYDAY if name not in UNSEEN_IN_FORMAT_1])
@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in UNSEEN_IN_FORMAT_1])
def test_a_damage_of_the_committed_run_is_seen(name: str, reference: Path, tmp_path: Path) -> None:
    assert damaged(reference, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damage_of_a_new_run_is_seen(name: str, measured: Path, tmp_path: Path) -> None:
    assert damaged(measured, name, tmp_path)


def test_a_committed_run_is_sound() -> None:
    assert examine_runs([REFERENCE]).faults == []

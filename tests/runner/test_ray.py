"""A run on a Ray cluster gives what one process gives, whatever dies meanwhile."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lexbench.commands import main
from lexbench.core import registry
from lexbench.core.record import Sample
from lexbench.runner import ray
from lexbench.runner.job import Job
from lexbench.runner.loop import Todo
from lexbench.runner.plan import Estimate, Step
from lexbench.runner.ray import Settings, _Waiting
from lexbench.store.store import Store
from tests.report.fake_run import cell
from tests.runner.slow_runs import at_once, command, contents, slow_backend, wait_for

RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
PARTS = {"task": "passkey", "corpus": "synthetic", "backend": "chance"}


class Part:
    def __init__(self, label: str) -> None:
        self.label = label


def todo(method: str, length: int, task: str = "passkey", attention: object = None) -> Todo:
    one = cell(task, method, length)
    one.identity["attention"] = attention  # type: ignore[index]
    return one, Step(Part(method), Part(task), length, 0, None, None, Estimate())


def names(waiting: _Waiting, method: str | None, busy: list[Todo]) -> tuple[str, int] | None:
    found = waiting.next(method, busy)
    return (found[0].method, found[0].length) if found else None


def test_a_worker_stays_with_its_method_and_others_take_what_is_most() -> None:
    waiting = _Waiting(
        [todo("none", 512), todo("ntk", 512), todo("none", 256), todo("ntk", 256), todo("ntk", 128)], False
    )
    assert names(waiting, None, []) == ("ntk", 512), "of the method with most cells left, in their order"
    assert names(waiting, None, [todo("ntk", 512)]) == ("none", 512), "of one that nobody has"
    assert names(waiting, "ntk", []) == ("ntk", 256)
    assert names(waiting, "ntk", []) == ("ntk", 128)
    assert names(waiting, "ntk", []) == ("none", 256)
    assert not waiting


def test_longer_cells_wait_for_shorter_ones_where_they_may_be_skipped() -> None:
    waiting = _Waiting([todo("none", 256), todo("none", 512), todo("none", 512, "prefix")], ascending=True)
    first = waiting.next(None, [])
    assert first is not None
    assert names(waiting, "none", [first]) == ("none", 512), "of the other task"
    assert names(waiting, "none", [first]) is None
    assert names(waiting, "none", []) == ("none", 512)


def test_a_twin_waits_for_the_one_that_is_measured() -> None:
    alike = {"inv_freq": [1.0]}
    waiting = _Waiting(
        [todo("ntk", 256, attention=alike), todo("yarn", 256, attention=alike), todo("yarn", 512)], False
    )
    busy = todo("none", 256, attention=alike)
    assert names(waiting, None, [busy]) == ("yarn", 512)
    assert names(waiting, None, [busy]) is None
    assert names(waiting, None, []) is not None


def test_a_cell_whose_worker_is_lost_comes_first() -> None:
    waiting = _Waiting([todo("none", 512), todo("none", 256)], False)
    lost = waiting.next(None, [])
    assert lost is not None
    waiting.back(lost)
    assert names(waiting, "none", []) == ("none", 512)


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 0), ("cpus", -1), ("gpus", "one"), ("tries", 0), ("memory_gb", True), ("patience", 0)],
)
def test_settings_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"ray\.{name} must be a number of at least .*got {value!r}"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["executor=slurm"], "executor must be here or ray, got 'slurm'"),
        (["executor=ray", "ray.wrokers=2"], "ray.wrokers"),
        (["executor=ray", "ray.tries=0"], "ray.tries must be a number of at least 1, got 0"),
    ],
)
def test_wrong_words_end_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["run", "task=passkey", "multiples=[0.5]", "n=2", f"results={tmp_path / 'run'}", *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("lexbench: ")
    assert said in error
    assert not (tmp_path / "run").exists()


def test_without_ray_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    words = ["run", "task=passkey", "multiples=[0.5]", "n=2", f"results={tmp_path}", "executor=ray"]
    assert main.main(words) == 2
    assert "pip install 'lexbench[ray]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head and a node with one core each, as processes of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        found.add_node(num_cpus=1)
        yield found
        found.shutdown()


@pytest.mark.slow
def test_a_node_that_dies_loses_and_doubles_nothing(tmp_path: Path, nodes: Any) -> None:
    slow = {**slow_backend(tmp_path), **RAY}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    subprocess.run(command(tmp_path / "whole"), check=True, env=at_once(slow), **quiet)
    far = [*command(tmp_path / "far"), "executor=ray", f"ray.address={nodes.address}"]
    process = subprocess.Popen(far, env=slow, **quiet)
    wait_for(tmp_path / "far", 3, process)
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said.decode()
    assert contents(tmp_path / "far") == contents(tmp_path / "whole")
    assert {each.refused for each in Store(tmp_path / "far").load()} == {None}
    costs = [json.loads(line) for line in (tmp_path / "far/costs.jsonl").read_text().splitlines()]
    assert sorted(row["cell"] for row in costs) == sorted(file.stem for file in (tmp_path / "far/cells").iterdir())


def test_a_worker_keeps_the_model_for_later_jobs(tmp_path: Path) -> None:
    def job(method: str, lengths: list[int]) -> dict[str, Any]:
        named = {part: {**registry.read(part, name), "name": name} for part, name in PARTS.items()}
        of = Job.of(
            model=registry.read("model", "lexlet"),
            methods=[{**registry.read("method", method), "name": method}],
            tasks=[named["task"]],
            corpus=named["corpus"],
            backend=named["backend"],
            lengths=lengths,
            multiples=None,
            n=2,
            seeds=[0],
            results=tmp_path,
        )
        return dict(of.config)

    worker = ray.Worker({}, [], str(tmp_path / "not there"))
    worker.take(job("none", [128, 200]), True)
    first = worker._backend
    worker.take(job("ntk", [128]), True)
    assert worker._backend is first
    *samples, spent = worker.samples(ray.Place(0, 0, 128, 0), [1])
    assert [sample.index for sample in samples if isinstance(sample, Sample)] == [0]
    assert isinstance(spent, ray.Spent)
    assert (spent.tokens, spent.asked) == (128, [0, 1])


@pytest.mark.slow
def test_workers_that_cannot_load_or_start_end_the_run_in_one_line(
    tmp_path: Path, nodes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "task=passkey", "lengths=[128]", "n=2", f"results={tmp_path / 'run'}", "executor=ray"]
    assert main.main([*words, "ray.address=127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and "leads to no cluster" in said.splitlines()[-1]
    for more, wanted in (
        (["ray.gpus=1", "ray.patience=1"], "ray has started no worker for 1 seconds"),
        (["backend.device=cuda:99"], "backend.device cuda:99 is not here"),
    ):
        found = subprocess.run(
            [sys.executable, "-m", "lexbench", *words, f"ray.address={nodes.address}", *more],
            env={**os.environ, **RAY},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (found.returncode, found.stderr.count("Traceback")) == (2, 0), found.stderr
        assert wanted.lower() in found.stderr.splitlines()[-1].lower()

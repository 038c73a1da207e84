"""A run on a Ray cluster gives what one process gives, whatever dies meanwhile."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lexbench
from lexbench import Generate
from lexbench.checkpoints.checkpoint import read_model
from lexbench.commands import main
from lexbench.core import registry
from lexbench.parts.cluster import ray
from lexbench.parts.cluster.ray import RaySettings
from lexbench.report.doctor import examine_runs
from lexbench.store.store import Store
from tests.runner.open_cells import open_cell
from tests.runner.slow_runs import at_once, command, contents, slow_backend, wait_for

RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("workers", 0), ("workers", 1.5), ("tries", 0), ("tries", 2.0), ("tries", None)),
        *(("cpus", -1), ("gpus", "one"), ("memory_gb", True), ("patience", 0), ("patience", math.nan)),
    ],
)
def test_settings_out_of_range_are_named(name: str, value: Any) -> None:
    kind = "whole number" if name in ("workers", "tries") else "number"
    with pytest.raises(ValueError, match=rf"ray\.{name} must be a {kind} of at least .*got {value!r}"):
        RaySettings(**{name: value})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["executor=slurm"], "executor must be here or ray, got 'slurm'"),
        (["executor=ray", "ray.wrokers=2"], "ray.wrokers"),
        (["executor=ray", "ray.tries=0"], "ray.tries must be a whole number of at least 1, got 0"),
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
    assert "pip install -c constraints.txt '.[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "backend", "there", "gpus"),
    [
        ({}, {}, 8, 1),
        ({}, {"tensor_parallel": 4}, 8, 4),
        ({}, {"tensor_parallel": 4}, 0, 0),  # over processes of a CPU
        ({}, {"device": "cpu"}, 8, 0),
        ({}, {}, 0, 0),
        ({"gpus": 0.5}, {}, 8, 0.5),
        ({"gpus": 4}, {"tensor_parallel": 2}, 8, 4),
        ({"gpus": 0}, {"device": "cpu"}, 8, 0),
        ({"gpus": 0, "workers": 2}, {}, 8, 0),
        ({"gpus": 1}, {}, 0, 1),  # waits for a node that has one
    ],
)
def test_a_worker_takes_the_gpus_that_its_model_needs(
    given: dict[str, Any], backend: dict[str, Any], there: float, gpus: float
) -> None:
    assert ray.gpus_of_worker(RaySettings(**given), ray.DeviceNeed.of(backend), there) == gpus


@pytest.mark.parametrize(
    ("gpus", "backend", "said"),
    [
        (0, {}, r"ray\.gpus must be above 0 in a cluster with GPUs \(8\), got 0, a worker on each core"),
        (0, {"device": "auto"}, "leave it out for one GPU each"),
        (0, {"tensor_parallel": 2}, r"at least backend\.tensor_parallel, 2, got 0: give ray\.gpus=2"),
        (1, {"tensor_parallel": 2}, r"at least backend\.tensor_parallel, 2, got 1"),
        (1.5, {"tensor_parallel": 2}, r"at least backend\.tensor_parallel, 2, got 1\.5"),
    ],
)
def test_gpus_that_do_not_suffice_are_refused(gpus: float, backend: dict[str, Any], said: str) -> None:
    with pytest.raises(lexbench.ConfigError, match=said):
        ray.gpus_of_worker(RaySettings(gpus=gpus), ray.DeviceNeed.of(backend), 8)


def test_a_cluster_counts_the_workers_that_its_gpus_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of 208 cores and 8 GPUs."""
    there = {"CPU": 208.0, "GPU": 8.0}
    started: list[dict[str, Any]] = []

    class Kind:
        def options(self, **given: Any) -> "Kind":
            started.append(given)
            return self

        def remote(self, *_: Any) -> None:
            pass

    fake = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: there, remote=lambda _: Kind())
    fake.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    for backend, workers, gpus in (({}, 8, 1), ({"tensor_parallel": 4}, 2, 4), ({"device": "cpu"}, 208, 0)):
        found = ray.Cluster(RaySettings(), ray.DeviceNeed.of(backend))
        assert found.n_fitting_workers() == workers
        found.worker()
        assert started[-1]["num_gpus"] == gpus


def test_variables_of_libraries_and_proxies_reach_workers_and_the_node_keeps_its_devices() -> None:
    taken = {
        *("NCCL_DEBUG", "VLLM_ATTENTION_BACKEND", "CUDA_DEVICE_ORDER", "TRANSFORMERS_CACHE", "HF_HOME"),
        *("http_proxy", "HTTPS_PROXY", "no_proxy", "ALL_PROXY", "LEXBENCH_HOME", "OMP_NUM_THREADS"),
    }
    left = {"CUDA_VISIBLE_DEVICES", "PATH", "HOME", "MY_VLLM_NOTE"}
    found = ray.inherited_environment(dict.fromkeys(taken | left, "1"))
    assert set(found) == taken


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
    assert examine_runs([tmp_path / "far"]).faults == []
    assert {each.refused for each in Store(tmp_path / "far").load()} == {None}
    costs = [json.loads(line) for line in (tmp_path / "far/costs.jsonl").read_text().splitlines()]
    assert sorted(row["cell"] for row in costs) == sorted(file.stem for file in (tmp_path / "far/cells").glob("[!.]*"))


def test_a_worker_keeps_the_model_for_later_jobs_and_answers_what_it_is_given(tmp_path: Path) -> None:
    model = read_model(registry.read_named_config("model", "lexlet"))
    backend = {**registry.read_named_config("backend", "chance"), "name": "chance"}
    worker = ray.Worker({}, [], str(tmp_path / "not there"))
    facts = worker.load(model, backend, 200, True)
    assert {name: facts[name] for name in ("name", "dtype", "revision")} == {
        "name": "chance",
        "dtype": "none",
        "revision": "chance",
    }
    first = worker._model.backend
    worker.load(model, backend, 128, True)
    assert worker._model.backend is first
    questions = lexbench.task("passkey", corpus="synthetic").questions(first.tokenizer, 128, 3, 0)
    cell = ray._cell_without_code(open_cell("none", 128, attention={}))
    worker.attend(cell)
    found = dict(worker.answers(cell, questions[1:]))
    for place, question in enumerate(questions[1:]):
        assert isinstance(question, Generate)
        assert found[place].tokens.tolist() == first.write(question).tokens.tolist()  # type: ignore[union-attr]


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
        (["backend.device=cuda:99"], "backend.device cuda:99 is not available"),
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

"""Memory is that of the device that computes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lexbench
from lexbench.backends.chance import Chance
from lexbench.backends.hf.backend import Hf
from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import machine
from lexbench.core.record import Deferred
from lexbench.core.task import Generate
from lexbench.runner.answers import LoadedModel
from lexbench.runner.verify import Preflight
from tests.runner.open_cells import open_cell

FREE, RESERVED, ALLOCATED, PEAK = [1000, 70], [500, 30], [200, 10], [800, 90]

PROMPT = np.arange(3, 40)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two GPUs with little memory, of which the first is the present one; those whose peak was reset."""
    reset: list[int] = []
    cuda = SimpleNamespace(
        device_count=lambda: 2,
        current_device=lambda: 0,
        mem_get_info=lambda gpu: (FREE[gpu], 2000),
        memory_reserved=lambda gpu: RESERVED[gpu],
        memory_allocated=lambda gpu: ALLOCATED[gpu],
        max_memory_allocated=lambda gpu: PEAK[gpu],
        reset_peak_memory_stats=reset.append,
        get_device_name=lambda gpu: "a GPU",
    )
    monkeypatch.setattr(machine, "_cuda", lambda: cuda)
    return reset


@pytest.mark.parametrize(
    ("device", "free", "peak", "those"),
    [
        (None, 1300, 800, [0]),
        ("cuda", 1300, 800, [0]),
        ("cuda:1", 90, 90, [1]),
        ("all", 1390, 890, [0, 1]),
    ],
)
def test_memory_is_that_of_the_named_gpus(
    device: str | None, free: int, peak: int, those: list[int], gpus: list[int]
) -> None:
    assert machine.free_bytes(device) == free
    assert machine.peak_bytes(device) == peak
    assert machine.forget_peak(device) and gpus == those


def test_a_processor_has_the_machines_memory(gpus: list[int]) -> None:
    [available] = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    ]
    assert machine.free_bytes("cpu") == pytest.approx(available, rel=0.5)
    assert machine.peak_bytes("cpu") > 1 << 20  # of this process
    machine.forget_peak("cpu")
    assert not gpus


def test_a_control_group_leaves_less_than_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 1000 bytes inside a user's 500, of which 300 and 50 are used; 20 of these hold files."""
    own, user = tmp_path / "own", tmp_path / "groups/user"
    own.write_text("4:memory:/old\n0::/user/job\n")
    (user / "job").mkdir(parents=True)
    monkeypatch.setattr(machine, "PROCESS_CGROUP_FILE", own)
    monkeypatch.setattr(machine, "CGROUPS_FOLDER", tmp_path / "groups")
    available = machine.free_bytes("cpu")
    assert available is not None and available > 1 << 20  # no group says anything
    (user / "job/memory.max").write_text("1000\n")
    (user / "job/memory.current").write_text("300\n")
    (user / "job/memory.stat").write_text("anon 280\ninactive_file 20\n")
    assert machine.free_bytes("cpu") == 720
    for name, said in (("memory.max", "500\n"), ("memory.current", "50\n"), ("memory.stat", "anon 50\n")):
        (user / name).write_text(said)
    assert machine.free_bytes("cpu") == 450
    (user / "memory.max").write_text("max\n")
    assert machine.free_bytes("cpu") == 720


@pytest.mark.slow
def test_a_model_on_a_processor_beside_a_full_gpu_is_measured(gpus: list[int], tmp_path: Path) -> None:
    asked: dict[str, Any] = {"task": "passkey", "lengths": [64], "n": 1, "quiet": True, "results": tmp_path}
    for backend in ("hf", "native", "chance"):
        lexbench.run("lexlet", backend=backend, **asked)
    records = lexbench.Run(tmp_path).records()
    assert records["refused"].isna().all() and set(records["backend"]) == {"hf", "native", "chance"}
    rows = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    assert min(row["peak_bytes"] for row in rows) > 1 << 20 and not gpus


def test_a_model_on_a_full_gpu_is_deferred(gpus: list[int]) -> None:
    backend = Chance(read_model({"path": "lexbench:lexlet"}))
    model = LoadedModel(backend, Preflight(None, backend, ""), reuse=False)
    model.attend(open_cell("none", 64))
    backend.device = "cuda:1"
    model = LoadedModel(backend, Preflight(None, backend, ""), reuse=False)
    with pytest.raises(Deferred, match=r"needs at least 0\.0 GiB beside the weights, 0\.0 GiB are free"):
        model.attend(open_cell("none", 64))


def test_what_an_earlier_cell_has_left_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hf` keeps the last prompt until a method is applied."""
    backend = Hf(read_model({"path": "lexbench:lexlet", "trained_length": 256}))
    model = LoadedModel(backend, Preflight(None, backend, ""), reuse=True)
    monkeypatch.setattr(
        machine, "free_bytes", lambda device: 0 if backend.reader.prefix_cache.shared_length(PROMPT) else 1 << 40
    )
    model.attend(open_cell("none", 64))
    backend.write(Generate(index=0, cluster="", prompt=PROMPT, max_new_tokens=1))
    assert backend.reader.prefix_cache.shared_length(PROMPT) == len(PROMPT) - 1
    model.attend(open_cell("none", 64))

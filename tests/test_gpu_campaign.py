"""The GPU campaign (tools/gpu.py) at toy sizes, here on a CPU: every kind of step, and going on."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lexbench
from lexbench import Model
from lexbench.core.attention import Remap, Window
from tools import gpu

ONE_OF_EACH = [
    "check/kernels/width_20",
    "check/methods/gpt_oss/float32/1",
    "check/paths",
    "measure",
]

RECORDS = sorted((gpu.ROOT / "results" / "benchmarks" / "gpu").glob("*.json"))


@pytest.mark.parametrize("name", gpu.LARGE.models)
@pytest.mark.parametrize("method", [each for each in gpu.METHODS if each != "none"])
def test_every_measured_method_changes_what_it_changes_at_the_lengths_asked(name: str, method: str) -> None:
    config = gpu.LARGE.models[name]
    model = Model(name=name, trained_length=config["max_position_embeddings"], head_dim=128, rope_base=1e4, layers=4)
    for length in gpu.LARGE.prefills:
        acting = lexbench.method(method).attention(model, length)
        mask = acting.mask
        assert acting.slots() and not (isinstance(mask, Window) and mask.size >= length)
        remap = acting.remap
        assert not isinstance(remap, Remap) or remap.window < length


def test_a_figure_of_several_repeats_is_their_median_and_spread() -> None:
    """By hand: of 2, 5 and 4 the median is 4, and 3 lie between the extremes."""
    found = gpu.middle_and_spread([{"token": each, "score": 1.0} for each in (2.0, 5.0, 4.0)])
    assert found == {"token": 4.0, "score": 1.0, "spread": {"token": 0.75, "score": 0.0}}
    assert gpu.LARGE.model_repeats >= 3


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_kind_of_step_runs_here_and_is_not_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("none", "rerope", "streaming_llm")
    monkeypatch.setattr(gpu, "METHODS", few)
    monkeypatch.setattr(
        "lexbench.core.registry.registered_names", lambda group: ["none", "dca", "rerope", "yarn", "streaming_llm"]
    )
    file = tmp_path / "record.json"
    asked = gpu.arguments(["--toy", "--record", str(file), "--only", *ONE_OF_EACH])
    gpu.work(asked, time.time() + 600)
    record = json.loads(file.read_text())
    assert set(record["steps"]) == set(gpu.wanted(asked))
    assert [step["wrong"] for step in record["steps"].values() if step.get("passed") is False] == []
    assert record["steps"]["check/methods/gpt_oss/float32/1"]["methods"].keys() == {"dca", "yarn"}
    assert all(record["steps"][f"measure/models/toy/{name}"]["96"]["token"] > 0 for name in ("stock", *few))
    gpu.work(asked, time.time() + 600)
    assert json.loads(file.read_text()) == record
    gpu.show(record)
    shown = capsys.readouterr().out
    assert "| toy/rerope | 96 |" in shown and "| a whole text, time / sdpa | toy 64 |" in shown
    assert "\nTrained lengths: toy 64. " in shown
    rows = [record["steps"][f"measure/models/toy/{name}"]["96"] for name in ("stock", *few)]
    assert all(each["spread"].keys() >= {"prefill", "token", "score"} for each in rows)


def test_a_length_that_fails_is_named_beside_the_figures_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(campaign: Any, model: Any, attention: Any, length: int) -> dict[str, float]:
        if length > 64:
            raise RuntimeError("out of memory")
        return {"prefill": 2.0, "token": 0.5, "cache_bytes": 0}

    monkeypatch.setattr(gpu, "measure_method", measured)
    campaign = gpu.Campaign("cpu", replace(gpu.TOY, prefills=(64, 96)), torch.float32)
    found = gpu.measure_model(campaign, "toy", "none")
    assert (found["passed"], found["wrong"]) == (False, ["96: RuntimeError: out of memory"])
    gpu.show_models({"measure/models/toy/none": found}, None)
    assert [line for line in capsys.readouterr().out.splitlines() if "toy/" in line] == [
        "| toy/none | 64 | 2.000 |  | 500.00 |  |  | 0% | 0.00 |  |"
    ]


def test_a_step_whose_process_dies_is_recorded_and_the_next_begins(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"steps": {}}))
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, signal, time\n"
        f"file = {str(file)!r}\n"
        "record = json.load(open(file))\n"
        "if record['steps']: raise SystemExit(0)\n"
        "record['running'] = ['one', time.time()]\n"
        "json.dump(record, open(file, 'w'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    gpu.supervise(gpu.arguments(["--toy", "--record", str(file), "--minutes", "1"]), [sys.executable, str(child)])
    [(name, step)] = json.loads(file.read_text())["steps"].items()
    assert (name, step["passed"], step["wrong"]) == ("one", False, ["its process ended with -9"])


def test_a_record_of_another_machine_is_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    gpu.keep(file, {**gpu.record_of(file, toy=True), "card": {"name": "another"}})
    with pytest.raises(ValueError, match="must be of this machine, it has another card: give --record"):
        gpu.record_of(file, toy=True)


@pytest.mark.parametrize("record", RECORDS, ids=lambda file: file.stem)
def test_a_records_page_has_its_tables_and_its_failures(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.show(json.loads(record.read_text()))
    lines = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    page = record.with_suffix(".md").read_text().splitlines()
    assert len(lines) > 5 and [line for line in lines if line not in page] == []

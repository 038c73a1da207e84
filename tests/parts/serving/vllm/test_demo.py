"""The demo comes out the same with each backend; with vLLM as a user runs it, with a method that it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lexbench

METHODS = ("none", "yarn")
RUN: dict[str, Any] = {"method": METHODS, "task": "demo", "corpus": "synthetic", "multiples": [0.5, 2], "n": 4}
COMMAND = "run -m method=none,rerope,yarn task=demo corpus=synthetic multiples=[0.5,2] n=4 backend=vllm"
Table = dict[tuple[Any, ...], dict[str, Any]]
"""Records by task, method, length and metric."""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def table(folder: Path) -> Table:
    """The records of a run that were measured."""
    rows = [row for row in lines(folder / "records.jsonl") if row["refused"] is None]
    return {tuple(row[key] for key in ("task", "method", "length", "metric", "part")): row for row in rows}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder: Path = tmp_path_factory.mktemp("hf")
    lexbench.run("lexlet", **RUN, backend="hf", results=folder)
    return table(folder)


def test_native_gives_what_transformers_gives(hf: Table, tmp_path: Path) -> None:
    lexbench.run("lexlet", **RUN, backend="native", results=tmp_path)
    same(table(tmp_path), hf)


def test_a_run_of_vllm_gives_what_transformers_gives_and_records_what_cannot_be(hf: Table, tmp_path: Path) -> None:
    words = [*COMMAND.split(), "backend.memory_share=0.08", f"results={tmp_path}"]
    command = [sys.executable, "-m", "lexbench", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "EngineCore" not in done.stdout + done.stderr
    # vLLM shows no likelihoods of options behind a written answer.
    same(table(tmp_path), {key: row for key, row in hf.items() if key[3] not in ("chosen", "forced")})
    records = lines(tmp_path / "records.jsonl")
    assert {record["backend"] for record in records} == {"vllm"}
    refused = {record["method"]: record["refused"] for record in records if record["refused"] is not None}
    assert refused.keys() == {"rerope"} and "cannot realise remap" in refused["rerope"]
    assert {cost["peak_bytes"] for cost in lines(tmp_path / "costs.jsonl")} == {None}  # another process's


def same(ours: Table, theirs: Table) -> None:
    """Every value lies within the intervals of the others, and nearer where questions are paired."""
    assert theirs.keys() == ours.keys() and len(theirs) > 15
    for key, record in ours.items():
        if theirs[key]["low"] is not None:
            assert theirs[key]["low"] <= record["value"] <= theirs[key]["high"], key
        if key[3] == "nll":  # paired by question, rounding is all that differs
            assert record["value"] == pytest.approx(theirs[key]["value"], abs=1e-4), key
        if key[3] == "accuracy":
            assert record["value"] == theirs[key]["value"], key

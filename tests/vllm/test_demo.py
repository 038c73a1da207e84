"""The demo comes out the same with each backend."""

import json
from pathlib import Path
from typing import Any

import pytest

import lexbench

METHODS = ("none", "yarn")
RUN: dict[str, Any] = {"method": METHODS, "task": "demo", "corpus": "synthetic", "multiples": [0.5, 2], "n": 4}
BACKENDS = {"hf": {}, "native": {}, "vllm": {"memory_share": 0.08}}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Of each backend the records, by task, method, length and metric."""
    found = {}
    for name, given in BACKENDS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        lexbench.run("lexlet", **RUN, backend={"name": name, **given}, results=folder)
        rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        found[name] = {tuple(row[key] for key in ("task", "method", "length", "metric", "part")): row for row in rows}
    return found


@pytest.mark.parametrize("name", ["native", "vllm"])
def test_every_value_lies_within_the_intervals_of_transformers(
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]], name: str
) -> None:
    theirs, ours = tables["hf"], tables[name]
    assert theirs.keys() == ours.keys() and len(theirs) > 15
    for key, record in ours.items():
        assert theirs[key]["refused"] is None and record["refused"] is None, key
        if theirs[key]["low"] is not None:
            assert theirs[key]["low"] <= record["value"] <= theirs[key]["high"], key
        if key[3] == "nll":  # paired by question, rounding is all that differs
            assert record["value"] == pytest.approx(theirs[key]["value"], abs=1e-4), key
        if key[3] == "accuracy":
            assert record["value"] == theirs[key]["value"], key

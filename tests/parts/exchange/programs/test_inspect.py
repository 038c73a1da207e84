"""Logs of Inspect, read by inspect_ai itself."""

import math
from pathlib import Path

import pytest

from lexbench.parts.exchange.share import share_files
from lexbench.stats import records

log = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed here: make test-exchange")


def test_inspect_reads_every_log_and_finds_our_numbers_in_its_samples(folder: Path, tmp_path: Path) -> None:
    share_files([folder], "inspect", tmp_path)
    loaded = records.load_cells([folder])
    found = {read.eval.eval_id: read for read in map(log.read_eval_log, log.list_eval_logs(str(tmp_path)))}
    measured = [each for each in loaded.finished if each.samples]
    assert set(found) == {each.cell.id for each in measured}
    every = records.build_records([folder])
    for each in measured:
        read = found[each.cell.id]
        assert read.status == "success" and read.eval.model == f"lexbench/{each.cell.model}"
        values = {record.metric: record.value for record in every if record.cell == each.cell.id}
        assert len(read.samples) == len(each.samples)
        if "accuracy" in values:
            right = [sample.scores["accuracy"].value for sample in read.samples if sample.scores]
            assert math.fsum(right) / len(read.samples) == pytest.approx(values["accuracy"])
            shown = next(score for score in read.results.scores if score.name == "accuracy")
            assert shown.metrics["mean"].value == values["accuracy"]
        else:  # every sample has 64 targets, so the cell's NLL is the mean of the samples' means
            mean = [sample.scores["nll"].value for sample in read.samples if sample.scores]
            assert math.fsum(mean) / len(mean) == pytest.approx(values["nll"], rel=1e-6)
            assert read.results.scores[0].metrics["perplexity"].value == values["perplexity"]


def test_inspect_shows_failed_samples_as_errors(folder: Path, tmp_path: Path) -> None:
    share_files([folder], "inspect", tmp_path, ["passkey"], ["ntk"])
    logs = [log.read_eval_log(each) for each in log.list_eval_logs(str(tmp_path))]
    errors = [sample.error.message for read in logs for sample in read.samples if sample.error]
    assert errors == ["the server closed the connection"]

"""Files for other programs: the harness's are read by lm_eval and by our own import; numbers are the records'."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lm_eval.utils import make_table

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.commands import main
from lexbench.core.record import Record
from lexbench.parts.exchange.lm_eval.results.command import import_lm_eval
from lexbench.parts.exchange.share import share_files
from lexbench.stats import records
from tests.report.fake_run import finished, keep

VALUES = ("acc,none", "perplexity,none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    places = [
        ("passkey", "ntk", 512),
        ("passkey", "ntk", 1024),
        ("passkey", "none", 128),
        ("last_segment", "none", 512),
    ]
    keep(folder, [finished(*place) for place in places])
    return folder


@pytest.fixture(scope="module")
def harness(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("harness")
    share_files([folder], "lm_eval", out)
    return out


def results(harness: Path, method: str, length: int) -> dict[str, Any]:
    (file,) = harness.glob(f"lexlet/{method}-{length}-*/results_*.json")
    return dict(json.loads(file.read_text()))


def accuracies(folder: Path) -> dict[tuple[int, str], Record]:
    every = records.build_records([folder])
    return {(each.length, each.method.bare): each for each in every if each.metric == "accuracy"}


def test_lm_eval_prints_the_values_and_its_own_standard_error(folder: Path, harness: Path) -> None:
    lines = make_table(results(harness, "ntk", 512)).splitlines()
    (line,) = [line for line in lines if "|acc " in line]
    value = accuracies(folder)[512, "ntk"].value
    assert value is not None
    error = math.sqrt(value * (1 - value) / 31)  # of 32 right or wrong answers: s / sqrt(n), n - 1 in s
    assert f"{value:.4f}" in line and f"{error:.4f}" in line


def test_a_likelihood_has_the_harness_s_definitions(folder: Path, harness: Path) -> None:
    """exp(-log-likelihood / words), -log-likelihood / (bytes ln 2), of the pairs in the logged samples."""
    shown = results(harness, "none", 512)["results"]["last_segment"]
    (file,) = harness.glob("lexlet/none-512-*/samples_last_segment_*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    sums = {name: [sum(part) for part in zip(*(row[name] for row in rows), strict=True)] for name in rows[0]["metrics"]}
    nats, words = sums["word_perplexity"]
    assert shown["word_perplexity,none"] == pytest.approx(math.exp(-nats / words))
    assert shown["bits_per_byte,none"] == pytest.approx(-nats / sums["bits_per_byte"][1] / math.log(2))
    assert shown["perplexity,none"] == pytest.approx(math.exp(-nats / (32 * 64)))


def test_our_own_import_gives_the_same_values_and_intervals(folder: Path, harness: Path, tmp_path: Path) -> None:
    import_lm_eval([harness], tmp_path)
    before, after = accuracies(folder), accuracies(tmp_path)
    assert set(after) == {place for place, each in before.items() if each.value is not None}
    for place, each in after.items():
        same = before[place]
        assert (each.value, each.low, each.high, each.n, each.clusters, each.trained_length) == (
            *(same.value, same.low, same.high, same.n, same.clusters, same.trained_length),
        )


def test_cells_of_one_task_stand_in_files_of_their_own(tmp_path: Path) -> None:
    """Texts of another corpus are another cell of the same task: a results file has room for one of them."""
    keep(
        tmp_path / "run",
        [
            finished("last_segment", "none", 512),
            finished("last_segment", "none", 512, corpus="pydoc"),
            finished("passkey", "none", 128),
            finished("passkey", "ntk", 512, n=8, dtype="bfloat16"),
            finished("passkey", "ntk", 512),
        ],
    )
    share_files([tmp_path / "run"], "lm_eval", tmp_path / "out")
    measured = [each for each in records.build_records([tmp_path / "run"]) if each.metric in ("perplexity", "accuracy")]
    files = [json.loads(file.read_text())["results"] for file in (tmp_path / "out").rglob("results_*.json")]
    values = [task[key] for each in files for task in each.values() for key in task if key in VALUES]
    assert sorted(values) == sorted(each.value for each in measured if each.value is not None)
    assert len(list((tmp_path / "out").rglob("samples_*.jsonl"))) == len(values) == 4


def test_an_export_keeps_tokens_cuts_and_chance_and_is_read_with_and_without_a_tokenizer(
    tmp_path: Path,
) -> None:
    """Prompts are shortened in a run folder, and say nothing of the room of an answer: neither can be counted."""
    one = finished("passkey", "ntk", 512)
    samples = [replace(each, truncated=each.index % 4 == 0, chance=0.125) for each in one.samples]
    keep(tmp_path / "run", [replace(one, samples=samples)])
    share_files([tmp_path / "run"], "lm_eval", tmp_path / "out")
    (before,) = [each for each in records.build_records([tmp_path / "run"]) if each.metric == "accuracy"]
    for tokenizer in (None, locate_checkpoint("lexbench:lexlet", None)):
        into = tmp_path / f"into {tokenizer is None}"
        import_lm_eval([tmp_path / "out"], into, tokenizer=tokenizer)
        (after,) = [each for each in records.build_records([into]) if each.metric == "accuracy"]
        assert (after.value, after.tokens_min, after.tokens_max) == (before.value, before.tokens_min, before.tokens_max)
        assert after.truncated == before.truncated == 8
        assert after.chance == before.chance == 0.125


def test_the_same_cells_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for to in ("inspect", "lm_eval", "every_eval_ever"):
        for out in (first, second):
            share_files([folder], to, out, by="us", developer="us")
    assert {file.relative_to(first): file.read_bytes() for file in first.rglob("*") if file.is_file()} == {
        file.relative_to(second): file.read_bytes() for file in second.rglob("*") if file.is_file()
    }


@pytest.mark.parametrize(("to", "first"), [("inspect", 1), ("lm_eval", 2), ("every_eval_ever", 2)])
def test_files_of_an_earlier_export_of_fewer_cells_are_named(to: str, first: int, tmp_path: Path) -> None:
    """A log; results and samples; a record and its samples."""
    cell = finished("passkey", "ntk", 512)
    keep(tmp_path / "run", [cell])
    for _ in range(2):  # the same cells give the same files
        _, notes = share_files([tmp_path / "run"], to, tmp_path / "out", by="us", developer="us")
        assert not any("other file" in note for note in notes)
    keep(tmp_path / "more", [cell, finished("passkey", "ntk", 256), finished("passkey", "ntk", 512, seed=1)])
    for file in (tmp_path / "more" / "cells").glob("[!.]*"):
        os.utime(file, (2e9, 2e9))
    _, notes = share_files([tmp_path / "more"], to, tmp_path / "out", by="us", developer="us")
    assert [note.split(" in ")[0] for note in notes if "other" in note] == [
        "1 other file" if first == 1 else f"{first} other files"
    ]


def test_every_eval_ever_has_a_value_with_its_interval_and_conditions(folder: Path, tmp_path: Path) -> None:
    share_files([folder], "every_eval_ever", tmp_path, ["passkey"], ["ntk"], by="us", developer="us")
    (log,) = [json.loads(file.read_text()) for file in tmp_path.rglob("*.json")]
    (result,) = [
        each
        for each in log["evaluation_results"]
        if each["evaluation_result_id"].endswith("/accuracy")
        and each["metric_config"]["metric_parameters"]["length"] == 512
    ]
    record = accuracies(folder)[512, "ntk"]
    assert result["score_details"]["score"] == record.value
    ends = result["score_details"]["uncertainty"]["confidence_interval"]
    assert (ends["lower"], ends["upper"], ends["method"]) == (record.low, record.high, record.interval)
    (samples,) = tmp_path.rglob("*_samples.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    mine = [line for line in lines if line["evaluation_result_id"] == result["evaluation_result_id"]]
    assert sum(line["evaluation"]["is_correct"] for line in mine) / len(mine) == record.value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "inspect"], "--to and --out go together"),
        (["--to", "every_eval_ever", "--out", "x"], "give --by ORGANIZATION"),
        (["--to", "every_eval_ever", "--out", "x", "--by", "us"], "give --developer NAME"),
        (["--to", "lm_eval", "--out", "x", "--method", "yarn"], "unknown method"),
    ],
)
def test_what_is_missing_is_named(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = [str(tmp_path) if word == "x" else word for word in words]
    assert main.main(["share", str(folder), *out]) == 2
    assert said in capsys.readouterr().err


def test_a_run_of_refusals_has_nothing_to_share(tmp_path: Path) -> None:
    keep(tmp_path / "run", [finished("passkey", "none", 128)])
    with pytest.raises(ValueError, match="has a value to share"):
        share_files([tmp_path / "run"], "inspect", tmp_path / "out")

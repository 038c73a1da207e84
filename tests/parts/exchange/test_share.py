"""Results for others: a model card that the hub's library reads, and samples that `datasets` loads."""

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import load_dataset
from huggingface_hub import DatasetCard, EvalResult, ModelCard, ModelCardData, parse_eval_result_entries

from lexbench.commands import main
from lexbench.core.errors import ConfigError
from lexbench.core.record import Sample
from lexbench.parts.exchange.hub import dataset_files, model_card
from lexbench.parts.exchange.hub.card_yaml import read_head, set_head_key
from lexbench.parts.exchange.hub.dataset_files import configuration_names
from lexbench.parts.exchange.share import share_card, share_files, share_samples
from lexbench.stats.records import build_records
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.report.fake_run import cell, fake_cells, finished, keep, likelihood_sample

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
NASTY = 'a|b: "c"\n---\n#d *e* <i> \U0001f600 {f} [g] %h @i `j` \u2028 - k\t\x85'
OTHERS = """\
---
# kept: a comment
license: mit   # and this one
language: [en, de]
model-index:
- name: lexlet
  results:
  - task: {type: text-generation}
    dataset: {name: Old, type: old, args: {num_few_shot: 5}}
    metrics: [{type: acc, value: 20.0 ± 1.2, verified: true}]
  - task: {type: text-generation}
    dataset: {name: gone, type: lexbench}
    metrics: [{type: accuracy, value: 0.5}]
    source: {name: lexbench, url: https://example.org}
- name: stale
  results:
  - task: {type: text-generation}
    dataset: {name: gone, type: lexbench}
    metrics: [{type: accuracy, value: 0.5}]
    source: {name: lexbench, url: https://example.org}
- name: another
  results:
  - task: {type: text-generation}
    dataset: {name: Other, type: other}
    metrics: [{type: acc, value: .nan}]

# about tags
tags:
- x
---
# Text

---
model-index: in the text
"""


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The samples of a committed run as a dataset, and what was said."""
    out = tmp_path_factory.mktemp("committed") / "samples"
    return out, share_samples([REFERENCE / "lexlet"], out)[1]


def rows_of(run: str) -> list[dict[str, Any]]:
    return [each.as_row() for each in build_records([REFERENCE / run])]


def on(card: Path) -> list[EvalResult]:
    return list(ModelCard.load(card).data.eval_results or [])


def share(folder: Path, **options: Any) -> list[EvalResult]:
    """What a new card holds."""
    share_card([folder], str(folder / "README.md"), **options)
    return on(folder / "README.md")


@pytest.mark.slow
def test_values_intervals_and_counts_on_a_card_are_those_of_records_jsonl(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    said, notes = share_card([REFERENCE / "lexlet"], str(card), methods=["none", "yarn"])
    assert said == str(card)
    headlines = {"last_segment": "perplexity", "passkey": "accuracy"}
    rows = [
        row
        for row in rows_of("lexlet")
        if row["method"] in ("none", "yarn") and row["metric"] == headlines[row["task"]]
    ]
    found = {str((result.metric_args or {})["cell"]): result for result in on(card)}
    assert (
        found.keys() == {row["cell"] for row in rows} and len(on(card)) == len(rows) == 20
    )  # 2 methods, 2 tasks, 5 lengths
    for row in rows:
        result = found[row["cell"]]
        about, conditions = result.metric_args or {}, result.dataset_args or {}
        assert (result.metric_type, result.metric_value) == (row["metric"], row["value"])
        assert [about[name] for name in ("low", "high")] == pytest.approx([row["low"], row["high"]], rel=1e-12)
        for name in ("length", "interval", "n", "clusters"):
            assert about[name] == row[name]
        assert about["multiple"] == row["length"] / 256 and about.get("chance") == row["chance"]
        assert "failed" not in about and "truncated" not in about
        for name in ("task", "method", "trained_length", "protocol", "seed", "backend", "dtype", "kernel"):
            assert conditions[name] == row[name]
        assert conditions.get("corpus") == row["corpus"] and conditions["confidence"] == 0.95
        assert result.task_type == "text-generation" and result.verified is False
        assert result.source_name == "lexbench" and result.source_url
        assert f"at {row['length']} tokens" in str(result.metric_name)
    assert notes == ["card: 20 values of 4 curves"]


def test_results_for_the_hubs_leaderboards_are_those_of_records_jsonl(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    _, notes = share_card([REFERENCE / "lexlet"], str(card), ["passkey"], ["none", "yarn"], dataset="me/samples")
    data = yaml.safe_load((tmp_path / ".eval_results" / "lexbench.yaml").read_text())
    found = parse_eval_result_entries(data)  # the hub's own reader
    rows = [row for row in rows_of("lexlet") if row["task"] == "passkey" and row["method"] in ("none", "yarn")]
    rows = [row for row in rows if row["metric"] == "accuracy"]
    assert sorted(each.value for each in found) == sorted(row["value"] for row in rows)
    assert {each.task_id for each in found} == {f"passkey-{row['length']}" for row in rows}
    assert {each.dataset_id for each in found} == {"me/samples"}
    [yarn] = [each for each in found if each.task_id == "passkey-512" and "yarn" in str(each.notes)]
    assert yarn.notes == "accuracy at 512 tokens (2x), passkey, method yarn, n=32"
    assert notes[-1].endswith(".eval_results/lexbench.yaml: the same values for the hub's leaderboards")


def test_results_for_leaderboards_need_a_data_set_one_model_and_a_file(tmp_path: Path, capsys: Any) -> None:
    card = str(tmp_path / "README.md")
    for name in ("samples", "/", "a/b/c"):
        with pytest.raises(ConfigError, match="must be the id of the samples on the hub"):
            share_card([REFERENCE / "lexlet"], card, ["passkey"], ["none"], dataset=name)
    for model in ("one", "other"):
        keep(tmp_path / "runs" / model, fake_cells(model=model))
    with pytest.raises(ConfigError, match="is for the page of one model, the runs are of one, other"):
        share_card([tmp_path / "runs"], card, dataset="me/samples")
    assert not Path(card).exists()
    assert main.main(["share", str(REFERENCE / "lexlet"), "--card", "-", "--dataset", "me/samples"]) == 2
    assert "--dataset goes with a card in a file" in capsys.readouterr().err


def test_a_new_card_is_what_is_printed_and_the_hubs_library_loses_nothing_of_it(tmp_path: Path) -> None:
    keep(tmp_path, fake_cells(losses={"none": 1.9, "pi": 0.1}, n=4))
    printed, _ = share_card([tmp_path], "-")
    share(tmp_path)
    assert (tmp_path / "README.md").read_text() == printed + "\n"
    card = ModelCard(printed)
    assert isinstance(card.data, ModelCardData)
    [entry] = yaml.safe_load(printed.split("---")[1])["model-index"]
    assert entry["name"] == card.data.model_name == "lexlet"
    assert [(len(result["metrics"]), result["dataset"]["name"]) for result in entry["results"]] == [
        (5, "last_segment on stdlib, method none"),
        (5, "last_segment on stdlib, method pi"),
        (4, "passkey, method none"),
        (5, "passkey, method pi"),
    ]
    again = ModelCard(str(card))  # it merges results of one type and configuration
    assert (
        isinstance(again.data, ModelCardData)
        and again.data.eval_results == card.data.eval_results
        and len(card.data.eval_results or []) == 19
    )


def test_everything_else_on_a_card_stays_to_the_letter(tmp_path: Path) -> None:
    keep(tmp_path, [finished("last_segment", "none", 256)])
    card = tmp_path / "README.md"
    for end, mark in (("\n", ""), ("\r\n", "\ufeff")):
        card.write_bytes((mark + OTHERS).replace("\n", end).encode())
        share(tmp_path)
        once = card.read_bytes()
        text = once.decode()
        before, rest = OTHERS.replace("\n", end).split("model-index:" + end, 1)
        assert text.startswith(mark + before)
        assert text.endswith(rest[rest.index(f"{end}# about tags") :])
        assert text.count("\n") == text.count(end)
        share(tmp_path)
        assert card.read_bytes() == once
    index = read_head(text)["model-index"]
    assert [entry["name"] for entry in index] == ["lexlet", "another"]
    theirs, ours = index[0]["results"]
    assert theirs == yaml.safe_load(OTHERS.split("---\n")[1])["model-index"][0]["results"][0]
    assert ours["source"]["name"] == "lexbench" and len(ours["metrics"]) == 1
    assert math.isnan(index[1]["results"][0]["metrics"][0]["value"])
    results = on(card)
    assert results[0].metric_value == "20.0 ± 1.2" and len(results) == 3


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("", "---\nk: 1\n---\n"),
        ("# Text\n", "---\nk: 1\n---\n# Text\n"),
        ("---\na: 2\n---\n", "---\na: 2\nk: 1\n---\n"),
        ("---\nk: [3]\n---\nText", "---\nk: 1\n---\nText"),
        ("---\nk:\n  x: 3\n# c\n\nb: 4\n---\n", "---\nk: 1\n# c\n\nb: 4\n---\n"),
        (
            "---\n\U0001f600: \u2028\nk: |\n  # no comment\n  text\n\nb: 4\n---\n",
            "---\n\U0001f600: \u2028\nk: 1\n\nb: 4\n---\n",
        ),
        ("---\r\na: 2\r\nk: 3\r\n---\r\nT", "---\r\na: 2\r\nk: 1\r\n---\r\nT"),
        ("---\n# only a comment\n---\n", "---\n# only a comment\nk: 1\n---\n"),
        ("---\na: {k: 3}\n---\n", "---\na: {k: 3}\nk: 1\n---\n"),
    ],
)
def test_one_key_of_a_head_is_replaced_alone(card: str, expected: str) -> None:
    assert set_head_key(card, "k", 1) == expected


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ("---\na: [\n---\n", "not YAML"),
        ("---\nHello\n---\n", "must be a mapping"),
        ("---\n{model-index: [], a: 1}\n---\n", "cannot be replaced alone"),
        ("---\nmodel-index: &a []\nb: *a\n---\n", "cannot be replaced alone"),
        ("---\nmodel-index: []\nmodel-index: []\n---\n", "cannot be replaced alone"),
        ("---\nmodel-index: 3\n---\n", "malformed"),
        ("---\nmodel-index: [{name: x}]\n---\n", "'results' is missing"),
        ("---\nmodel-index: [{results: []}]\n---\n", "'name' is missing"),
        (
            "---\nmodel-index: [{name: x, results: [{task: y, dataset: z, metrics: []}]}]\n---\n",
            "cannot read all results",
        ),
        ("---\nmodel-index: [{name: x, results: [{}]}]\n---\n", "cannot read all results"),
    ],
)
def test_a_card_that_cannot_be_parsed_is_one_line_and_stays(tmp_path: Path, card: str, why: str) -> None:
    keep(tmp_path, [finished("last_segment", "none", 256)])
    file = tmp_path / "README.md"
    file.write_text(card)
    with pytest.raises(ValueError, match=rf"card \S+README.md cannot be parsed: .*{why}") as error:
        share(tmp_path)
    assert "\n" not in str(error.value)
    assert file.read_text() == card


def test_a_card_of_another_kind_is_refused(tmp_path: Path) -> None:
    keep(tmp_path, [finished("last_segment", "none", 256)])
    with pytest.raises(ValueError, match=r"^card \S+ is a folder: give a file, e.g. "):
        share_card([tmp_path], str(tmp_path))
    (tmp_path / "README.md").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        share(tmp_path)


def test_names_that_nobody_chose_with_care_come_back(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"model": NASTY, "protocol": NASTY, "corpus": NASTY, "kernel": NASTY}
    this = cell(f"task({NASTY})", f"m({NASTY})", 512, **odd)
    sample = Sample(
        index=0,
        cluster=NASTY,
        tokens=512,
        scores={NASTY: 0.5},
        parts=(NASTY,),
        prompt=NASTY,
        output=NASTY + "\x00",
        facts={NASTY: [NASTY, None, 0.1]},
    )
    keep(tmp_path, [FinishedCell(this, [sample])])
    [result] = share(tmp_path)
    assert read_head((tmp_path / "README.md").read_text())["model-index"][0]["name"] == NASTY
    conditions = result.dataset_args or {}
    assert (conditions["task"], conditions["method"]) == (this.task, str(this.method))
    assert conditions["protocol"] == conditions["corpus"] == conditions["kernel"] == result.metric_type == NASTY
    assert str(result.dataset_name).isprintable() and str(result.metric_name) == f"{NASTY} at 512 tokens (2x)"
    share_samples([tmp_path], tmp_path / "out")
    [row] = load_dataset(str(tmp_path / "out"), split="test")
    assert {row[name] for name in ("model", "corpus", "protocol", "kernel", "cluster", "prompt")} == {NASTY}
    assert (row["task"], row["output"], row["parts"]) == (this.task, NASTY + "\x00", [NASTY])
    assert row[f"score_{NASTY}"] == 0.5 and json.loads(row["facts"]) == sample.facts
    text = DatasetCard.load(tmp_path / "out" / "README.md").text
    assert "\n---" not in text and "\u2028" not in text
    assert "<i>" not in re.sub(r"`[^`]*`|\\<i>", "", text)


def test_cells_that_differ_in_more_than_length_and_method_are_results_of_their_own(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{}, {"seed": 1}, {"backend": "vllm"}, {"dtype": "bfloat16"}, {"n": 16, "seed": 2}]
    cells = [finished("last_segment", "none", length, **way) for length in (256, 512) for way in ways]
    cells += [replace(each, cell=replace(each.cell, model="other")) for each in cells[:1]]
    cells[-1] = replace(cells[-1], cell=replace(cells[-1].cell, identity={"model": "other"}))
    keep(tmp_path, cells)
    share(tmp_path)
    one, other = read_head((tmp_path / "README.md").read_text())["model-index"]
    assert (one["name"], other["name"]) == ("lexlet", "other")
    assert [[metric["args"]["length"] for metric in result["metrics"]] for result in one["results"]] == [[256, 512]] * 5
    shown = {
        tuple(result["dataset"]["args"][name] for name in ("seed", "backend", "dtype", "samples"))
        for result in one["results"]
    }
    assert shown == {(0, "hf", "float32", 32), (1, "hf", "float32", 32), (0, "vllm", "float32", 32)} | {
        (0, "hf", "bfloat16", 32),
        (2, "hf", "float32", 16),
    }
    names = [result["dataset"]["name"] for result in one["results"]]
    assert len(set(names)) == 5 and any("backend.name vllm" in name for name in names)


@pytest.mark.slow
def test_random_answers_are_on_no_card(tmp_path: Path) -> None:
    asked = cell("passkey", "none", 128, n=2, model="lexlet", backend="chance")
    sample = Sample(index=0, cluster="a", tokens=128, scores={"accuracy": 1.0})
    keep(tmp_path, [FinishedCell(asked, [sample, replace(sample, index=1)])])
    with pytest.raises(ValueError, match="no cell has a value to share: all are of backend=chance, which answers at"):
        share_card([tmp_path], "-")
    with pytest.raises(ValueError, match="has a value to share"):
        share_files([tmp_path], "every_eval_ever", tmp_path / "out", by="us", developer="us")
    real = cell("passkey", "none", 128, n=2, model="lexlet")
    keep(tmp_path, [FinishedCell(real, [replace(sample, scores={"accuracy": 0.0}), replace(sample, index=1)])])
    card = tmp_path / "README.md"
    _, notes = share_card([tmp_path], str(card))
    assert [result.metric_value for result in on(card)] == [0.5]
    assert notes[0] == "card: 1 value of 1 curve"


@pytest.mark.slow
def test_of_many_methods_a_card_shows_none_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, fake_cells(["last_segment"], n=4))  # 5 methods at 5 lengths, one of them refused
    assert len(share(tmp_path)) == 24
    monkeypatch.setattr(model_card, "MAX_CARD_VALUES", 24)
    assert len(share(tmp_path)) == 24
    monkeypatch.setattr(model_card, "MAX_CARD_VALUES", 23)
    assert {(result.dataset_args or {})["method"] for result in share(tmp_path)} == {"none"}
    keep(tmp_path, [finished("passkey", "none", 128, n=4), finished("passkey", "rerope", 2048, n=4)])  # refused both
    _, notes = share_card([tmp_path], "-")
    assert [notes[0], notes[2]] == ["card: 5 values of 1 curve", "1 cell refused: left out"]
    assert notes[1].startswith("4 other methods left out") and "yarn(factor=8.0)" in notes[1]
    assert len(share(tmp_path, methods=["none", "yarn", "pi", "ntk", "rerope"])) == 24
    assert len(share(tmp_path, methods=["yarn"])) == len(share(tmp_path, methods=["yarn(factor=8.0)"])) == 5
    keep(
        tmp_path / "bare",
        fake_cells(["last_segment"], losses={"ntk": 0.2, "pi": 0.1, "rerope": 0, "yarn(factor=8.0)": 0}, n=4),
    )
    monkeypatch.setattr(model_card, "MAX_CARD_VALUES", 18)
    with pytest.raises(
        ValueError, match=r"card with 19 values .*at most 18.*choose --method from ntk, pi, rerope, yarn"
    ):
        share(tmp_path / "bare")


def test_tasks_and_methods_that_are_not_there_and_runs_without_a_value(tmp_path: Path) -> None:
    keep(tmp_path, [finished("passkey", "none", 128)])
    with pytest.raises(ValueError, match="unknown task 'passky' in these runs: did you mean passkey"):
        share_card([tmp_path], "-", tasks=["passky"])
    with pytest.raises(ValueError, match="unknown method 'yarn' in these runs: choose from none"):
        share_samples([tmp_path], tmp_path / "out", methods=["yarn"])
    with pytest.raises(ValueError, match=r"no cell has a value to share \(all are refused: passkey needs"):
        share_card([tmp_path], str(tmp_path / "README.md"))
    with pytest.raises(ValueError, match="has samples to share"):
        share_samples([tmp_path], tmp_path / "out")
    assert not (tmp_path / "README.md").exists() and not (tmp_path / "out").exists()


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    huge = replace(likelihood_sample(0, 512, 0.0), nll=np.full(64, 1000, np.float32))
    alive = finished("last_segment", "none", 256)
    store = keep(
        tmp_path,
        [FinishedCell(cell("last_segment", "none", 512, n=1), [huge]), finished("passkey", "none", 128), alive],
    )
    store.append(cell("last_segment", "none", 2048), huge)
    (tmp_path / "cells" / "broken.parquet").write_bytes(b"x")
    _, notes = share_card([tmp_path], "-")
    said = ["card: 1 value of 1 curve", "1 cell refused: left out", "1 cell without a value: left out"]
    assert notes[:3] == said and notes[3].startswith("1 cell unfinished")
    _, notes = share_samples([tmp_path], tmp_path / "out")
    assert notes[:2] == ["samples: 33 of 2 cells, 1 task", "1 cell refused, without samples"]
    assert notes[2].startswith("not readable: cell ") and "broken.parquet" in notes[2]
    assert "1 cell refused, without samples: passkey needs" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_a_committed_run_loads_as_one_dataset_and_task_by_task(committed: tuple[Path, list[str]]) -> None:
    out, notes = committed
    rows = rows_of("lexlet")
    cells = {row["cell"]: row for row in rows if row["refused"] is None}
    assert notes == ["samples: 2112 of 66 cells, 2 tasks"]
    every = load_dataset(str(out), split="test")
    assert len(every) == len(load_dataset("parquet", data_files=f"{out}/*/*.parquet", split="train")) == 32 * 66 == 2112
    assert Counter(every["cell"]) == dict.fromkeys(cells, 32)
    about = read_head((out / "README.md").read_text())
    assert about["size_categories"] == ["1K<n<10K"] and about["task_categories"] == ["text-generation"]
    named = configuration_names(row["task"] for row in rows)
    assert datasets.get_dataset_config_names(str(out)) == ["all", *named.values()]
    for task in ("passkey", "last_segment"):
        name = named[task]
        ours = load_dataset(str(out), name, split="test")
        assert set(ours["task"]) == {task} and len(ours) == 32 * len({i for i in cells if cells[i]["task"] == task})
    table = every.remove_columns(["nll", "prompt"]).to_pandas()
    for name, ours in table.groupby("cell"):
        told = cells[name]
        for column in ("model", "method", "task", "length", "trained_length", "seed", "protocol", "version"):
            assert set(ours[column]) == {told[column]}
        assert ours.multiple.eq(told["length"] / 256).all() and sorted(ours["index"]) == list(range(32))
        assert (ours.tokens.min(), ours.tokens.max()) == (told["tokens_min"], told["tokens_max"])


@pytest.mark.slow
def test_perplexities_and_scores_follow_from_the_rows(committed: tuple[Path, list[str]]) -> None:
    table = pq.read_table(sorted(committed[0].glob("*/*.parquet")), partitioning=None).to_pandas()
    cells = dict(list(table.groupby("cell")))
    seen = 0
    for row in rows_of("lexlet"):
        if row["metric"] in (None, "nll", "word_perplexity"):
            continue
        ours = cells[row["cell"]]
        if row["metric"] == "perplexity":
            made = math.exp(np.concatenate(ours.nll.to_list()).astype(np.float64).mean())
        elif row["metric"] == "bits_per_byte":
            made = np.concatenate(ours.nll.to_list()).astype(np.float64).sum() / ours.bytes.sum() / math.log(2)
        else:
            made = ours[f"score_{row['metric']}"].mean()
        assert made == pytest.approx(row["value"], rel=1e-6)
        seen += 1
    assert seen == 198  # 6 x 5 and 3 prices, of 2 likelihoods and of 4 scores


def test_failed_and_truncated_rows_stay(tmp_path: Path) -> None:
    store = keep(tmp_path, [finished("last_segment", "ntk", 1024), finished("last_segment", "pi", 2048)])
    share_samples([tmp_path], tmp_path / "out")
    rows = list(load_dataset(str(tmp_path / "out"), "last_segment", split="test"))
    assert [row["index"] for row in rows] == [*range(32), *range(32)]
    assert [(row["method"], row["index"], row["failed"]) for row in rows if row["failed"]] == [
        ("ntk", 3, "the server closed the connection")
    ]
    assert [(row["method"], row["index"], row["tokens"]) for row in rows if row["truncated"]] == [("pi", 31, 2008)]
    assert rows[3]["nll"] is None
    samples = {(str(each.cell.method), sample.index): sample for each in store.load() for sample in each.samples}
    for row in rows:
        sample = samples[row["method"], row["index"]]
        assert row["nll"] is None if sample.nll is None else row["nll"] == sample.nll.tolist()
    [about] = [result.metric_args or {} for result in share(tmp_path) if (result.metric_args or {}).get("failed")]
    assert (about["length"], about["failed"], about["n"]) == (1024, 1, 31)


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_in_files_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path / "run", fake_cells(n=4))

    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    def written(out: str, *runs: str) -> dict[str, bytes]:
        share_samples([tmp_path / run for run in runs or ["run"]], tmp_path / out)
        return {str(file.relative_to(tmp_path / out)): file.read_bytes() for file in (tmp_path / out).rglob("*.*")}

    one = written("a")
    assert one == written("a") == written("b", "copy", "run")
    assert sorted(one) == ["README.md", "last_segment/test-00000.parquet", "passkey/test-00000.parquet"]
    with monkeypatch.context() as small:
        small.setattr(dataset_files, "BYTES_OF_A_FILE", 10_000)
        several = written("a")
    parts = sorted(name for name in several if name.startswith("last_segment"))
    assert parts == [f"last_segment/test-{number:05}.parquet" for number in range(len(parts))] and len(parts) > 2
    assert all(len(several[name]) < 40_000 for name in parts)  # a cell more, and the footer
    assert len(load_dataset(str(tmp_path / "a"), "last_segment", split="test")) == 4 * 24
    assert written("a") == one  # and the further files are gone


def test_cells_are_read_and_written_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, [finished("last_segment", "pi", 256 + length, n=1) for length in range(20)])
    keep(tmp_path / "more", [finished("last_segment", "pi", 256, n=25)])
    monkeypatch.setattr(dataset_files, "ROWS_OF_A_GROUP", 10)
    asked: list[int] = []
    load = Store.load

    def counted(store: Store, ids: Collection[str] | None = None) -> list[FinishedCell]:
        asked.append(10**9 if ids is None else len(ids))
        return load(store, ids)

    monkeypatch.setattr(Store, "load", counted)
    share_samples([tmp_path, tmp_path / "more"], tmp_path / "out")
    assert max(asked) == 16
    about = pq.read_metadata(tmp_path / "out" / "last_segment" / "test-00000.parquet")
    groups = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
    assert Counter(groups) == {1: 20, 10: 2, 5: 1}
    rows = load_dataset(str(tmp_path / "out"), split="test", streaming=True)
    assert [row["length"] for row in rows.take(27)] == [256] * 26 + [257]


def test_samples_of_some_tasks_and_methods(tmp_path: Path) -> None:
    keep(tmp_path, fake_cells(n=4))
    _, notes = share_samples([tmp_path], tmp_path / "out", tasks=["passkey"], methods=["none", "yarn"])
    assert notes == ["samples: 36 of 9 cells, 1 task", "1 cell refused, without samples"]
    rows = load_dataset(str(tmp_path / "out"), "passkey", split="test")
    assert Counter(rows["method"]) == {"none": 16, "yarn(factor=8.0)": 20} and set(rows["task"]) == {"passkey"}


def test_a_folder_of_other_samples_is_left_alone(tmp_path: Path) -> None:
    keep(tmp_path / "run", [finished("last_segment", "none", 256)])
    for name in (
        "x.parquet",
        "passkey/test-00000.parquet",
        "last_segment/train-00000.parquet",
        "a/last_segment/test-00000.parquet",
    ):
        out = tmp_path / name.replace("/", "-").removesuffix(".parquet")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        with pytest.raises(ValueError, match=f"holds {name}, which share did not write: give an empty folder"):
            share_samples([tmp_path / "run"], out)
        assert [file.read_text() for file in out.rglob("*.*")] == ["mine"]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: give a folder"):
        share_samples([tmp_path / "run"], tmp_path / "file")


def test_a_dataset_card_keeps_what_was_added_by_hand(tmp_path: Path) -> None:
    keep(tmp_path / "run", [finished("last_segment", "none", 256)])
    card = tmp_path / "out" / "README.md"

    def written() -> str:
        share_samples([tmp_path / "run"], tmp_path / "out")
        return card.read_text()

    first = written()
    card.write_text(first.replace("tags:\n", "license: mit  # ours\ntags:\n") + "\nmore text\n")
    assert written() == first.replace("tags:\n", "license: mit  # ours\ntags:\n")
    marker = next(line for line in first.splitlines() if line.startswith("<!--"))
    card.write_text(card.read_text().replace(marker, "") + "\nmore text\n")
    mine = card.read_text()
    keep(tmp_path / "run", [finished("passkey", "none", 256)])
    changed = written()
    assert changed.split("\n---\n")[1] == mine.split("\n---\n")[1] and "license: mit  # ours" in changed
    assert [each["config_name"] for each in read_head(changed)["configs"]] == ["all", "last_segment", "passkey"]
    assert len(load_dataset(str(tmp_path / "out"), split="test")) == 64
    card.write_text("---\n[\n---\n")
    with pytest.raises(ValueError, match=r"README.md cannot be parsed: its head is not YAML"):
        written()


def test_configurations_are_names_of_folders_on_any_disk() -> None:
    tasks = [
        "passkey",
        "Passkey",
        "pAsskey",
        "a(b=1)",
        "a-b-1",
        "all",
        "../../etc",
        "\u65e5\u672c",
        "x" * 300,
        "..",
        "a/b:c*?",
    ]
    names = configuration_names(tasks)
    assert sorted(names) == sorted(tasks) and names["Passkey"] == "Passkey"
    assert len({name.lower() for name in names.values()} | {"all"}) == len(tasks) + 1
    for name in names.values():
        assert len(name) < 90 and not set(name) & set('<>:"/\\|?*[]{}()') and name[0] not in "._-"
    assert configuration_names(["needle(options=4)"]) == {"needle(options=4)": "needle-options-4"}


def test_rows_lead_with_the_unchanged_model_and_sort_by_length(tmp_path: Path) -> None:
    places = [(method, length) for method in ("pi", "abf", "none") for length in (1024, 256)]
    keep(tmp_path, [FinishedCell(cell("x", *place), [likelihood_sample(0, place[1], 0.0)]) for place in places])
    share_samples([tmp_path], tmp_path / "out")
    rows: Iterator[dict[str, Any]] = iter(load_dataset(str(tmp_path / "out"), split="test"))
    order = [(row["method"], row["length"]) for row in rows]
    assert order == [("none", 256), ("none", 1024), ("abf", 256), ("abf", 1024), ("pi", 256), ("pi", 1024)]

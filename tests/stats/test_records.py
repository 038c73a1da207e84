"""Records follow from samples alone."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from scipy.stats import t

import lexbench
from lexbench.core.record import Record, Sample
from lexbench.stats.intervals import wilson_interval
from lexbench.stats.records import build_records, load_cells, records_dataframe, records_of, run_folders
from lexbench.store.format import FinishedCell
from lexbench.store.store import Store
from tests.records_schema import records_schema
from tests.report.fake_run import cell, fake_cells, finished, keep

SCHEMA = Path(__file__).parents[2] / "lexbench/report/record.schema.json"


def text(index: int, nll: list[float], bytes: int = 10, words: int = 2, failed: str | None = None) -> Sample:
    losses = np.array(nll, np.float32)
    return Sample(index=index, cluster=str(index), tokens=20, nll=losses, bytes=bytes, words=words, failed=failed)


def said(index: int, accuracy: float, **changed: object) -> Sample:
    values: dict[str, object] = {"cluster": str(index), "tokens": 20, "scores": {"accuracy": accuracy}, **changed}
    return Sample(index=index, **values)  # type: ignore[arg-type]


def records(*samples: Sample, task: str = "last_segment") -> dict[str | None, Record]:
    found = records_of(FinishedCell(cell(task, "none", 256), list(samples)))
    return {record.metric: record for record in found}


def test_likelihood_metrics_are_those_computed_by_hand() -> None:
    found = records(text(0, [1, 2, 3], bytes=12, words=2), text(1, [4], bytes=8, words=3))
    assert list(found) == ["nll", "perplexity", "bits_per_byte", "word_perplexity"]
    assert found["nll"].value == 2.5  # 10 nats over 4 targets: by token, where the mean of means is 3
    assert found["perplexity"].value == pytest.approx(12.182493960703473)  # e^2.5
    assert found["bits_per_byte"].value == pytest.approx(0.7213475204444817)  # 10 / (20 ln 2)
    assert found["word_perplexity"].value == pytest.approx(7.38905609893065)  # e^2
    assert (found["nll"].n, found["nll"].clusters, found["nll"].interval) == (2, 2, "cluster_bootstrap")
    reach = t.ppf(0.975, 1) * 2 * 1.5 / 4  # residuals -1.5 and 1.5 over 4 targets
    assert found["nll"].high == pytest.approx(2.5 + reach)
    ends = {"nll": 0.0, "perplexity": 1.0, "word_perplexity": 1.0}  # 2.5 - reach is -7.0
    assert {metric: found[metric].low for metric in ends} == ends


def test_floors_are_weighted_by_targets_and_turned_into_the_units_of_the_metric() -> None:
    one = replace(text(0, [1, 2, 3], bytes=12, words=2), floors={"uniform": 8.0, "unigram": 6.0, "bigram": 5.0})
    two = replace(text(1, [4], bytes=8, words=3), floors={"uniform": 8.0, "unigram": 2.0, "bigram": 9.0})
    found = records(one, two)
    assert (found["nll"].uniform, found["nll"].unigram, found["nll"].bigram) == (8.0, 5.0, 6.0)  # (3 * 6 + 2) / 4, ...
    assert (found["nll"].floor, found["nll"].floor_of) == (5.0, "unigram")
    assert found["perplexity"].floor == pytest.approx(148.4131591025766)  # e^5
    assert found["bits_per_byte"].floor == pytest.approx(20 / (20 * math.log(2)))
    assert found["word_perplexity"].floor == pytest.approx(54.598150033144236)  # e^(20 / 5)
    only = records(one, replace(two, floors={"uniform": 8.0}))["nll"]  # a floor of some samples is none of the cell
    assert (only.floor, only.floor_of, only.bigram) == (8.0, "uniform", None)
    assert records(text(0, [1]))["nll"].floor is None


def test_the_floor_of_an_accuracy_is_its_chance() -> None:
    found = records(said(0, 1.0, chance=0.25), said(1, 0.0, chance=0.5), task="passkey")["accuracy"]
    assert (found.floor, found.floor_of) == (0.375, "chance")
    # A benchmark's only score, such as LongBench v2's, has its chance; beside an accuracy it is that of the accuracy.
    only = records(*(said(index, 0.0, chance=0.25, scores={"accuracy_official": 0.0}) for index in (0, 1)))
    assert (only["accuracy_official"].chance, only["accuracy_official"].floor_of) == (0.25, "chance")
    both = records(said(0, 0.0, chance=0.25, scores={"accuracy": 0.0, "contains": 1.0}))
    assert (both["accuracy"].chance, both["contains"].chance) == (0.25, None)


def test_intervals_are_made_in_nats_and_exponentiated_at_their_ends() -> None:
    found = {record.metric: record for record in records_of(finished("last_segment", "pi", 1024))}
    nll, perplexity = found["nll"], found["perplexity"]
    for name in ("value", "low", "high"):
        assert math.log(getattr(perplexity, name)) == pytest.approx(getattr(nll, name), rel=1e-12)


def test_sums_are_exact_where_float32_would_lose_the_small_ones() -> None:
    tokens = 1 << 20
    found = records(text(0, [2.0**25, *[1.0] * tokens]))  # in float32, 2^25 + 1 = 2^25
    assert found["nll"].value == (2.0**25 + tokens) / (tokens + 1)


def test_a_failed_sample_has_no_likelihood_and_is_counted() -> None:
    found = records(
        text(0, [1.0]), text(1, [math.nan], failed="1 of 1 targets have no finite likelihood"), text(2, [2.0])
    )
    assert found["nll"].value == 1.5
    assert (found["nll"].n, found["nll"].failed) == (2, 1)


def test_no_value_is_made_up_where_every_likelihood_failed() -> None:
    found = records(text(0, [math.nan], failed="no"), text(1, [math.inf], failed="no"))
    assert {record.value for record in found.values()} == {None}
    assert {(record.n, record.failed) for record in found.values()} == {(0, 2)}


def test_a_perplexity_beyond_float64_has_no_value() -> None:
    found = records(text(0, [800.0]), text(1, [800.0]))
    assert found["nll"].value == 800.0
    assert (found["perplexity"].value, found["perplexity"].low, found["perplexity"].interval) == (None, None, None)


def test_bytes_and_words_that_are_not_known_make_no_metric() -> None:
    found = records(replace(text(0, [1.0]), bytes=None), text(1, [1.0], words=0))
    assert list(found) == ["nll", "perplexity", "word_perplexity"]
    assert (found["word_perplexity"].value, found["word_perplexity"].low) == (math.e, None)  # one text has no words
    nothing = records(text(0, [1.0], words=0))
    assert nothing["word_perplexity"].value is None


def test_a_failed_answer_counts_as_zero() -> None:
    found = records(said(0, 1.0), said(1, 1.0), said(2, 0.0), said(3, 1.0, failed="died", scores={}), task="passkey")
    record = found["accuracy"]
    expected = wilson_interval(2, 4)
    assert (record.value, record.low, record.high) == (0.5, expected.low, expected.high)
    assert (record.n, record.failed, record.interval) == (4, 1, "wilson")


def test_a_sample_without_the_score_is_left_out_of_its_mean() -> None:
    record = records(said(0, 1.0), said(1, 0.0, scores={}), said(2, 0.0), task="passkey")["accuracy"]
    assert (record.value, record.n) == (0.5, 2)


def test_answers_that_all_failed_leave_one_row_without_a_metric() -> None:
    [record] = records(said(0, 0.0, failed="died", scores={}), task="passkey").values()
    assert (record.metric, record.value, record.failed, record.refused) == (None, None, 1, None)


def test_coverage_stands_beside_every_value() -> None:
    samples = [
        said(0, 1.0, hit_room=True),
        said(1, 0.0, tokens=7, truncated=True),
        said(2, 1.0, tokens=9, hit_room=False),
    ]
    record = records(*samples, task="passkey")["accuracy"]
    assert (record.tokens_min, record.tokens_median, record.tokens_max) == (7, 9.0, 20)
    assert (record.truncated, record.hit_room, record.failed) == (1, 1, 0)


def test_a_refused_cell_has_one_row_with_the_reason() -> None:
    [record] = records_of(FinishedCell(cell("passkey", "none", 16), [], "too short"))
    assert (record.metric, record.value, record.low, record.high) == (None, None, None, None)
    assert (record.n, record.tokens_median, record.refused) == (0, None, "too short")


def test_a_cell_in_several_folders_is_taken_once(tmp_path: Path) -> None:
    cells = [finished("passkey", "none", length, n=4) for length in (256, 512)]
    keep(tmp_path / "a", cells)
    keep(tmp_path / "b/inner", cells[1:])
    assert run_folders([tmp_path]) == [tmp_path / "a", tmp_path / "b/inner"]
    assert build_records([tmp_path]) == build_records([tmp_path / "a"])
    assert [
        record.length for record in build_records([tmp_path / "b", tmp_path / "a"]) if record.metric == "accuracy"
    ] == [each.cell.length for each in sorted(cells, key=lambda each: each.cell.id)]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty/cells").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"folder {tmp_path / name} .*lexbench run") as error:
        build_records([tmp_path / name])
    assert "\n" not in str(error.value)


def test_a_damaged_cell_is_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cells = [finished("passkey", "none", length, n=4) for length in (256, 512)]
    keep(tmp_path, cells)
    file = tmp_path / "cells" / f"{cells[0].cell.id}.parquet"
    file.write_bytes(file.read_bytes()[:100])
    with caplog.at_level(logging.WARNING):
        assert {record.length for record in build_records([tmp_path])} == {512}
    assert str(file) in caplog.text


def test_a_frame_has_a_row_per_record_and_the_multiple_of_the_trained_length() -> None:
    rows = [record for each in fake_cells(tasks=["passkey"]) for record in records_of(each)]
    frame = records_dataframe(rows)
    assert len(frame) == len(rows)
    assert sorted(set(frame.multiple)) == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert frame[frame.refused.notna()].value.isna().all()
    assert list(records_dataframe([]).columns) == list(frame.columns)


def test_the_shipped_schema_is_that_of_the_dataclass() -> None:
    assert json.loads(SCHEMA.read_text()) == records_schema()
    assert records_schema()["properties"]["interval"] == {
        "type": ["string", "null"],
        "description": "wilson or cluster_bootstrap; for a mean over cells mover.",
    }


@pytest.mark.slow
def test_every_row_satisfies_the_shipped_schema(tmp_path: Path) -> None:
    store = keep(
        tmp_path,
        [*fake_cells(), FinishedCell(cell("probe", "none", 256, n=1), [Sample(index=0, cluster="a", tokens=1)])],
    )
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").open()]
    assert len(rows) > 100
    for row in rows:
        validator.validate(row)
    for damage in ({"value": "1.5"}, {"length": 1.5}, {"extra": 1}, {"model": None}):
        assert not validator.is_valid({**rows[0], **damage})
    assert {record.cell for record in build_records([tmp_path])} == {
        each.cell.id for each in Store(store.folder).load()
    }


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("none", None),
        ("pi", f"inv_freq 0.125..{10_000 ** (-30 / 32) / 8:.6g}"),
        ("rerope", "remap Remap(window 128, query (divisor inf, offset 128, floor False, cap inf), key ("),
        ("attention_buckets", "mixture [(inv_freq 1..0.000177828), (inv_freq 1..0.000105"),
    ],
)
def test_a_record_says_what_the_method_came_to(method: str, said: str | None) -> None:
    model = lexbench.Model(name="m", trained_length=256, head_dim=32, rope_base=10_000.0)
    attention = lexbench.method(method).attention(model, 2048).as_data()
    known = finished("last_segment", "none", 2048)
    told = replace(known, cell=replace(known.cell, identity={**known.cell.identity, "attention": attention}))
    record = records_of(told)[0]
    assert record.attention == said if said is None else str(record.attention).startswith(said)


@pytest.mark.parametrize("order", [("defer", "measured"), ("measured", "defer")])
def test_a_measured_cell_is_shown_though_another_folder_put_it_off(tmp_path: Path, order: tuple[str, str]) -> None:
    this = cell("last_segment", "none", 256, n=1)
    Store(tmp_path / "defer").defer(this, "server is down")
    measured = Store(tmp_path / "measured")
    measured.append(this, text(0, [1, 2, 3]))
    measured.finish(this, [0])
    found = [record for record in build_records([tmp_path / name for name in order]) if record.metric == "nll"]
    assert [record.value for record in found] == [2.0]


def test_a_cell_gives_way_to_one_with_more_of_its_questions_and_to_no_other(tmp_path: Path) -> None:
    def measure(n: int, seed: int = 0) -> FinishedCell:
        made = cell("passkey", "yarn", 512, n=n, seed=seed)
        return FinishedCell(made, [said(index, 1.0) for index in range(n)], asked=n)

    def shown(*cells: FinishedCell) -> list[tuple[int, int]]:
        store = Store(tmp_path / str(len(list(tmp_path.iterdir()))))
        for each in cells:
            if each.refused:
                store.refuse(each.cell, each.refused)
                continue
            for sample in each.samples:
                store.append(each.cell, sample)
            store.finish(each.cell, range(each.cell.n))
        loaded = load_cells([store.folder]).finished
        return sorted((each.cell.n, each.cell.identity["seed"]) for each in loaded)

    other = measure(4, seed=1)
    assert shown(measure(4), measure(8), measure(6), other) == [(4, 1), (8, 0)]
    refused = replace(measure(16), samples=[], refused="too few places")
    assert shown(measure(4), measure(8), refused) == [(8, 0), (16, 0)], "a refusal repeats nothing, and is shown"

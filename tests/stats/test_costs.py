"""Costs: rows of a cell are added up, and what a peak is not is not said."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.core.method_key import parse_label
from lexbench.report.notes import notes_text
from lexbench.stats.costs import Cost, cost_summaries, load_costs, merge_batches, qualities_at_cost
from lexbench.stats.records import load_cells as load_records
from lexbench.stats.summaries import SummaryValue
from lexbench.stats.tables import Table, build_tables
from tests.report.fake_run import fake_cells, keep


def row(cell: str, seconds: float, tokens: int, peak: int, **more: object) -> str:
    return json.dumps({"cell": cell, "seconds": seconds, "tokens": tokens, "peak_bytes": peak, **more})


def folder_with(folder: Path, *lines: str) -> Path:
    keep(folder, fake_cells(tasks=("last_segment",), losses={"none": 1.9})[:1])
    (folder / "costs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def run(folder: Path, own_peak: bool) -> tuple[Table, dict[str, Cost]]:
    """A run of made-up costs: 2 microseconds a token of `none` and twice that of `ntk`, 100 bytes a token."""
    made = fake_cells(tasks=("last_segment",), losses={"none": 1.9, "ntk": 0.25, "rerope": 0.0})
    keep(folder, made)
    lines = []
    for each in made:
        each_cell, tokens = each.cell, 32 * each.cell.length
        rate = 4e-6 if str(each_cell.method) == "ntk" else 2e-6
        parts = [[part * rate * tokens, tokens // 2] for part in (0.4, 0.6)]
        more = {"timings": parts, **({"own_peak": True} if own_peak else {})}
        lines.append(row(each_cell.id, rate * tokens, tokens, 5_000_000 + 100 * each_cell.length, **more))
    (folder / "costs.jsonl").write_text("\n".join(lines))
    table = next(each for each in build_tables(load_records([folder]).finished) if each.metric == "nll")
    return table, load_costs([folder])


def by_method(found: list[SummaryValue], name: str) -> dict[str, SummaryValue]:
    return {str(each.method): each for each in found if each.name == name}


def test_rows_of_a_resumed_cell_are_added_up(tmp_path: Path) -> None:
    lines = [row("a", 3.0, 300, 50), row("b", 1.0, 100, 80), row("a", 5.0, 100, 70)]
    found = load_costs([folder_with(tmp_path, *lines)])
    rows = ((3.0, 300), (5.0, 100))
    assert found["a"] == Cost(seconds=8.0, tokens=400, peak_bytes=70, measurements=2, timings=rows)
    assert found["a"].seconds_per_token == 8 / 400
    assert found["b"] == Cost(seconds=1.0, tokens=100, peak_bytes=80, timings=((1.0, 100),))


def test_a_peak_is_a_cells_own_only_where_every_row_says_so(tmp_path: Path) -> None:
    own = {"own_peak": True}
    lines = [row("a", 1.0, 1, 9, **own), row("a", 1.0, 1, 5, **own), row("b", 1.0, 1, 9, **own), row("b", 1.0, 1, 9)]
    found = load_costs([folder_with(tmp_path, *lines)])
    assert found["a"].own_peak and found["a"].peak_bytes == 9
    assert not found["b"].own_peak


def test_a_cell_without_tokens_has_no_seconds_per_token(tmp_path: Path) -> None:
    assert load_costs([folder_with(tmp_path, row("a", 0.1, 0, 9))])["a"].seconds_per_token is None


def test_copies_of_a_cell_count_once_and_a_run_without_costs_has_none(tmp_path: Path) -> None:
    first = folder_with(tmp_path / "one", row("a", 1.0, 10, 9))
    second = folder_with(tmp_path / "two", row("a", 7.0, 10, 9), row("b", 2.0, 10, 9))
    assert [load_costs([first, second])[name].seconds for name in "ab"] == [1.0, 2.0]
    assert load_costs([tmp_path]) == load_costs([first, second])
    (first / "costs.jsonl").unlink()
    assert load_costs([first]) == {}
    with pytest.raises(ValueError, match="does not exist"):
        load_costs([tmp_path / "none"])


@pytest.mark.parametrize("torn", ['{"cell": "b", "sec', "[]", '{"cell": "b"}', '{"cell": "b", "seconds": "x"}', "7"])
def test_what_is_no_cost_is_named_and_left_out(tmp_path: Path, torn: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = load_costs([folder_with(tmp_path, row("a", 1.0, 10, 9), torn)])
    assert list(found) == ["a"]
    assert f"line 2 of {tmp_path / 'costs.jsonl'} is no cost: left out" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"seconds": 1e308},
        {"tokens": 10**400},
        {"peak_bytes": -1},
        {"timings": [[1e308, 1], [1e308, 1]]},
        {"timings": [[1.0, -3], [1.0, 3]]},
    ],
)
def test_a_cost_that_no_machine_has_is_left_out(
    tmp_path: Path, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Sums of some overflow, which was a traceback; others gave a negative rate."""
    odd = json.dumps({"cell": "b", "seconds": 1.0, "tokens": 10, "peak_bytes": 9, **changed})
    with caplog.at_level(logging.WARNING):
        assert list(load_costs([folder_with(tmp_path, row("a", 1.0, 10, 9), odd)])) == ["a"]
    assert "is no cost: left out" in caplog.text


def test_prices_hold_quality_and_cost_of_every_cell_that_has_both(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=False)
    found = qualities_at_cost(table, costs)
    assert [(str(each.method), each.length) for each in found if str(each.method) == "rerope"] == [
        ("rerope", length)
        for length in (128, 256, 512, 1024)  # refused at 2048
    ]
    assert len(found) == 14
    for each in found:
        record = table.entries[each.method, each.length]
        assert (each.value, each.low, each.high) == (record.value, record.low, record.high)
        assert each.cost.seconds_per_token == pytest.approx(4e-6 if str(each.method) == "ntk" else 2e-6)
    del costs[table.entries[parse_label("ntk"), 256].cell]
    assert ("ntk", 256) not in {(str(each.method), each.length) for each in qualities_at_cost(table, costs)}


def test_seconds_per_token_are_those_of_the_longest_length_that_all_have(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=False)
    found = by_method(cost_summaries(table, costs), "seconds_per_token")
    assert {row: each.value for row, each in found.items()} == pytest.approx(
        {"none": 2e-6, "ntk": 4e-6, "rerope": 2e-6}
    )
    assert notes_text(found["ntk"].notes).startswith("at 1024; wall clock")
    # two timings of equally many tokens, 0.8 and 1.2 of the mean: resamples are (0.8, 1.0 or 1.2) of it
    ends = (found["ntk"].low, found["ntk"].high)
    assert ends == pytest.approx((0.8 * 4e-6, 1.2 * 4e-6))
    assert (found["ntk"].interval, found["ntk"].unit) == ("cluster_bootstrap", "seconds per token")
    del costs[table.entries[parse_label("ntk"), 1024].cell]
    assert notes_text(by_method(cost_summaries(table, costs), "seconds_per_token")["none"].notes).startswith("at 512;")
    assert notes_text(cost_summaries(table, {})[0].notes) == "no length at which all methods have a cost"
    assert not any(math.isfinite(each.value) for each in cost_summaries(table, {}) if each.value is not None)


def test_bytes_per_token_are_the_rise_of_peaks_that_were_counted_cell_by_cell(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=True)
    each = by_method(cost_summaries(table, costs), "bytes_per_token")["none"]
    assert each.value == pytest.approx(100.0)
    assert notes_text(each.notes) == "rise of the peak from 128 to 1024; 5102400 bytes in all at 1024"
    table, costs = run(tmp_path / "process", own_peak=False)
    each = by_method(cost_summaries(table, costs), "bytes_per_token")["none"]
    assert each.value is None and notes_text(each.notes).startswith("peaks were not counted cell by cell")


@pytest.mark.slow
def test_one_peak_of_a_process_among_those_of_cells_is_enough_to_say_nothing(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=True)
    name = table.entries[parse_label("none"), 512].cell
    costs[name] = replace(costs[name], own_peak=False)
    found = by_method(cost_summaries(table, costs), "bytes_per_token")
    assert found["none"].value is None and found["ntk"].value == pytest.approx(100.0)


def test_a_cost_without_tokens_has_no_price(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=False)
    name = table.entries[parse_label("ntk"), 512].cell
    costs[name] = replace(costs[name], tokens=0)
    assert ("ntk", 512) not in {(str(each.method), each.length) for each in qualities_at_cost(table, costs)}


@pytest.mark.slow
def test_a_cell_that_was_timed_once_has_no_seconds_per_token(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=False)
    once = {name: replace(cost, timings=((cost.seconds, cost.tokens),)) for name, cost in costs.items()}
    for each in by_method(cost_summaries(table, once), "seconds_per_token").values():
        assert (
            each.value is None
            and notes_text(each.notes) == "timed once at 1024: a comparison needs two timings of a cell"
        )


def test_answers_that_arrive_at_once_are_one_timing() -> None:
    # a batch of three, then of two: the first answer of each waits for all of it; a twentieth of 3 s is 0.15
    timings = [(3.0, 10), (0.001, 20), (0.14, 30), (1.996, 40), (0.001, 50)]
    np.testing.assert_allclose(merge_batches(timings), [(3.141, 60), (1.997, 90)])
    # one by one, of about one length
    assert merge_batches([(1.0, 5), (0.4, 5), (1.2, 6), (0.3, 5)]) == [(1.0, 5), (0.4, 5), (1.2, 6), (0.3, 5)]
    assert merge_batches([(1.0, 0), (2.0, 5)]) == [(2.0, 5)] and merge_batches([]) == []


def test_seconds_per_token_are_those_of_all_timings_together() -> None:
    timings = ((1.0, 10), (2.0, 30), (4.0, 60))
    rate = Cost(seconds=9.0, tokens=100, peak_bytes=None, timings=timings).rate
    assert rate is not None and rate.value == pytest.approx(7 / 100) and rate.timings == 3
    # no resample is below the fastest answer or above the slowest
    assert 2 / 30 <= rate.interval.low < 0.07 < rate.interval.high <= 1 / 10


@pytest.mark.everyday("peaks0")
@pytest.mark.parametrize("peaks", [{1024: 100}, {512: 9_000_000}, {128: 5_102_400}])
def test_memory_a_token_is_never_below_zero(tmp_path: Path, peaks: dict[int, int]) -> None:
    table, costs = run(tmp_path, own_peak=True)
    for length, peak in peaks.items():
        name = table.entries[parse_label("none"), length].cell
        costs[name] = replace(costs[name], peak_bytes=peak)
    found = by_method(cost_summaries(table, costs), "bytes_per_token")
    assert found["none"].value is None and notes_text(found["none"].notes).startswith(
        "the peak does not rise with the length"
    )
    assert found["ntk"].value == pytest.approx(100.0)


@pytest.mark.slow
def test_memory_of_batches_is_not_that_of_a_token(tmp_path: Path) -> None:
    table, costs = run(tmp_path, own_peak=True)
    name = table.entries[parse_label("none"), 512].cell
    costs[name] = replace(costs[name], timings=((1.0, 10), (1e-4, 10)))
    found = by_method(cost_summaries(table, costs), "bytes_per_token")["none"]
    assert found.value is None and "batches" in notes_text(found.notes)


@pytest.mark.slow
def test_the_committed_run_has_a_cost_for_every_measured_cell() -> None:
    folder = Path(__file__).parents[2] / "results" / "reference" / "lexlet"
    finished, costs = load_records([folder]).finished, load_costs([folder])
    assert {each.cell.id for each in finished if each.refused is None} <= costs.keys()
    assert all(1e-6 < (cost.seconds_per_token or 1e-3) < 1e-2 for cost in costs.values())

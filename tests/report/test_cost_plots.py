"""Quality against cost: the front by hand, the numbers of table and costs, and what has no figure."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report.plots.cost_plots import pareto_front, plot_costs, points_at, shared_length, why_no_figure
from lexbench.stats.costs import Cost
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell
from tests.report.pictures import drawn

VALUES = {"none": 0.1, "fast": 0.5, "slow": 0.9, "beaten": 0.5, "worst": 0.0}
SECONDS = {"none": 40.0, "fast": 20.0, "slow": 80.0, "beaten": 30.0, "worst": 90.0}
"""Of cells of 10,000 tokens."""


def answered(values: Mapping[str, float], lengths: tuple[int, ...] = (512,), metric: str = "accuracy") -> Table:
    found = [
        FinishedCell(
            cell("passkey", method, length, n=1),
            [Sample(index=0, cluster="0", tokens=length, scores={metric: value})],
        )
        for method, value in values.items()
        for length in lengths
    ]
    [table] = build_tables(found)
    return table


def timed(seconds: float, *parts: float) -> Cost:
    """Of 10,000 tokens, timed in so many parts of the time and of the tokens."""
    timings = tuple((part * seconds, 10_000 // len(parts)) for part in parts)
    return Cost(seconds=seconds, tokens=10_000, peak_bytes=1, timings=timings)


def costs_of(table: Table, seconds: Mapping[str, float]) -> dict[str, Cost]:
    return {
        record.cell: timed(seconds[str(method)], 0.4, 0.6)
        for (method, _), record in table.entries.items()
        if str(method) in seconds
    }


def test_the_front_is_of_those_that_no_other_is_at_least_as_good_as_in_both() -> None:
    # (2, 2) is beaten by (1, 2) and by (2, 1); (3, 0) is the dearest, and the only one of its quality
    assert pareto_front([(1, 2), (2, 2), (2, 1), (3, 0), (4, 0)]) == [True, False, True, True, False]
    assert pareto_front([(1, 1), (1, 1)]) == [True, True]
    assert pareto_front([]) == []


@pytest.mark.parametrize("count", [1, 2, 50])
def test_the_front_is_where_a_sweep_by_cost_finds_a_new_best(count: int) -> None:
    rng = np.random.default_rng(count)
    pairs = [(float(a), float(b)) for a, b in rng.permutation(400)[: 2 * count].reshape(count, 2)]
    best, swept = float("inf"), set()
    for a, b in sorted(pairs):
        if b < best:
            best = b
            swept.add((a, b))
    assert {pair for pair, on in zip(pairs, pareto_front(pairs), strict=True) if on} == swept


@pytest.mark.slow
def test_numbers_beside_the_figure_are_those_of_the_table_and_of_the_costs(tmp_path: Path) -> None:
    table = answered(VALUES)
    costs = costs_of(table, SECONDS)
    for name in ("a", "b"):
        assert plot_costs(table, costs, tmp_path / name)
    for suffix in (".svg", ".png", ".csv"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["method"] for row in rows] == ["fast", "beaten", "none", "slow", "worst"]  # the fastest first
    for row in rows:
        assert float(row["seconds_per_token"]) == pytest.approx(SECONDS[row["method"]] / 10_000)
        record = table.entries[parse_label(row["method"]), 512]
        assert (row["value"], row["low"], row["high"]) == (str(record.value), str(record.low), str(record.high))
    assert (float(row["fast"]), float(row["slow"])) == pytest.approx(
        (0.8 * SECONDS[row["method"]] / 10_000, 1.2 * SECONDS[row["method"]] / 10_000)
    )  # both answers alike
    assert [row["method"] for row in rows if row["front"] == "True"] == ["fast", "slow"]
    assert (
        "<!-- answers timed one by one; comparable within one run on one machine only -->"
        in (tmp_path / "a.svg").read_text()
    )


def test_where_less_is_better_the_front_is_below(tmp_path: Path) -> None:
    found = [
        FinishedCell(
            cell("last_segment", method, 512, n=1),
            [Sample(index=0, cluster="0", tokens=512, nll=np.full(4, value, np.float32))],
        )
        for method, value in VALUES.items()
    ]
    [table] = [table for table in build_tables(found) if table.metric == "nll"]
    on = {str(point.method) for point in points_at(table, costs_of(table, SECONDS), 512) if point.front}
    assert on == {"fast", "none", "worst"}  # 0.5 at 20 s, 0.1 at 40 s, 0.0 at 90 s


def test_the_length_is_the_longest_of_those_that_most_methods_have() -> None:
    table = answered({"none": 0.5, "yarn": 0.4}, (256, 512, 1024))
    costs = costs_of(table, {"none": 1.0, "yarn": 2.0})
    assert shared_length(table, costs) == 1024
    del costs[table.entries[parse_label("yarn"), 1024].cell]
    assert shared_length(table, costs) == 512
    assert shared_length(table, {}) is None


@pytest.mark.slow
def test_a_length_may_be_stated(tmp_path: Path) -> None:
    table = answered({"none": 0.5, "yarn": 0.4}, (256, 512))
    assert plot_costs(table, costs_of(table, {"none": 1.0, "yarn": 2.0}), tmp_path / "a", length=256)
    assert {row["length"] for row in csv.DictReader((tmp_path / "a.csv").open())} == {"256"}
    assert "at 256 tokens" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    ("values", "metric", "seconds"),
    [
        ({"none": 0.5}, "accuracy", {"none": 1.0}),
        ({"none": 0.5, "yarn": 0.5}, "accuracy", {"none": 1.0}),
        ({"none": 0.5, "yarn": 0.5}, "accuracy", {"none": 1.0, "yarn": 0.0}),
        ({"none": 0.5, "yarn": 0.5}, "accuracy", {}),
        ({"none": 0.5, "yarn": 0.5}, "entropy", {"none": 1.0, "yarn": 2.0}),
    ],
    ids=["one method", "one cost", "no time", "no costs", "no side is better"],
)
def test_where_nothing_can_be_compared_there_is_no_figure(
    tmp_path: Path, values: dict[str, float], metric: str, seconds: dict[str, float]
) -> None:
    table = answered(values, metric=metric)
    assert not plot_costs(table, costs_of(table, seconds), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_cells_that_were_timed_once_are_not_compared(tmp_path: Path) -> None:
    table = answered({"none": 0.5, "yarn": 0.4, "pi": 0.3})
    costs = {
        cell: timed(cost.seconds, 1.0)
        for cell, cost in costs_of(table, dict.fromkeys(VALUES, 1.0) | {"yarn": 2.0, "pi": 3.0}).items()
    }
    assert not plot_costs(table, costs, tmp_path / "a")
    assert why_no_figure(table, costs) == "cells were timed once: a comparison needs two timings of a cell"
    costs[table.entries[parse_label("yarn"), 512].cell] = timed(1.0, 0.5, 0.5)
    assert not plot_costs(table, costs, tmp_path / "a")
    costs[table.entries[parse_label("pi"), 512].cell] = timed(1.0, 0.5, 0.5)
    assert {str(point.method) for point in points_at(table, costs, 512)} == {"yarn", "pi"}
    assert plot_costs(table, costs, tmp_path / "a")


def test_the_front_leaves_out_what_is_at_its_floor_by_its_interval() -> None:
    """Wilson's interval of 9 right answers of 20 is [0.26, 0.66], of 8 [0.22, 0.61], of 1 [0.01, 0.24]."""

    def right(counts: Mapping[str, int], chance: float | None) -> list[str]:
        [table] = build_tables(
            FinishedCell(
                cell("passkey", method, 512, n=20),
                [
                    Sample(index=i, cluster=str(i), tokens=512, scores={"accuracy": float(i < count)}, chance=chance)
                    for i in range(20)
                ],
            )
            for method, count in counts.items()
        )
        costs = costs_of(table, {method: 1.0 + place for place, method in enumerate(counts)})
        return [str(point.method) for point in points_at(table, costs, 512) if point.front]

    assert right({"none": 0, "pi": 5, "ntk": 8, "yarn": 9, "rerope": 20}, 0.25) == ["rerope", "yarn"]
    assert right({"none": 0, "pi": 1, "ntk": 8}, None) == ["ntk", "pi"]


def test_a_floor_outside_the_figure_is_not_in_its_legend(tmp_path: Path) -> None:
    for floor, shown in ((5.0, False), (3.5, True)):
        losses = {"none": 3.5, "pi": 3.4}
        found = [
            FinishedCell(
                cell("last_segment", method, 512, n=8),
                [
                    Sample(
                        index=i, cluster=str(i), tokens=512, nll=np.full(4, loss + i / 100), floors={"bigram": floor}
                    )
                    for i in range(8)
                ],
            )
            for method, loss in losses.items()
        ]
        table = next(each for each in build_tables(found) if each.metric == "nll")
        with drawn() as figures:
            assert plot_costs(table, costs_of(table, {"none": 1.0, "pi": 2.0}), tmp_path / "a")
        axes = figures[0].axes[0]
        legend = axes.get_legend()
        assert legend is not None
        assert ("bigram floor" in [text.get_text() for text in legend.get_texts()]) == shown
        assert (axes.get_ylim()[1] > floor) == shown


def test_refused_cells_have_no_figure(tmp_path: Path) -> None:
    [table] = build_tables([FinishedCell(cell("passkey", name, 512), [], "out of memory") for name in ("none", "yarn")])
    assert not plot_costs(table, {}, tmp_path / "a")


def legend_of(values: Mapping[str, float], seconds: Mapping[str, float], tmp_path: Path) -> Any:
    table = answered(values)
    with drawn() as figures:
        plot_costs(table, costs_of(table, seconds), tmp_path / "a")
    return figures[0].axes[0]


def test_a_method_on_the_front_is_named_even_if_it_is_not_told_apart(tmp_path: Path) -> None:
    values = {"none": 0.0, **{f"m{number:02}": 0.9 - number / 100 for number in range(20)}}
    seconds = dict.fromkeys(values, 10.0) | {"m19": 1.0}
    axes = legend_of(values, seconds, tmp_path)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    first, *others = labels
    assert first == "unmodified (none)"
    assert others == [*(f"m{number:02}" for number in range(7)), "1: m19", "12 others", "Pareto front"]
    assert [text.get_text() for text in axes.texts] == ["1"]


def test_rings_and_steps_are_of_the_front(tmp_path: Path) -> None:
    axes = legend_of(VALUES, SECONDS, tmp_path)
    rings, steps = (line for line in axes.lines if line.get_color() == "0.25")
    np.testing.assert_allclose([rings.get_xdata(), rings.get_ydata()], [[2.0, 8.0], [0.5, 0.9]])  # milliseconds
    assert list(steps.get_ydata()) == [0.5, 0.9, 0.9] and steps.get_drawstyle() == "steps-post"
    assert steps.get_xdata()[-1] == axes.get_xlim()[1]


def test_the_axis_is_logarithmic_where_one_takes_five_times_as_long(tmp_path: Path) -> None:
    assert legend_of({"none": 0.5, "yarn": 0.4}, {"none": 1.0, "yarn": 4.9}, tmp_path).get_xscale() == "linear"
    assert legend_of({"none": 0.5, "yarn": 0.4}, {"none": 1.0, "yarn": 5.0}, tmp_path).get_xscale() == "log"

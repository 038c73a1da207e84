"""Curves of attention are means of the samples' statistics, and the figure is the same bytes every time."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from lexbench.core.record import Sample
from lexbench.kernels.observed import distance_bin_edges
from lexbench.report.plots.attention import (
    _figure,
    curves_of,
    distance_points,
    distance_ticks,
    plot_attention_curves,
    shown_lengths,
)
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, finished

LENGTHS = (128, 256, 1024)


def sample(index: int, length: int, slope: float) -> Sample:
    """Logits that fall straight with the distance, no key seen beyond 500; two heads of two layers."""
    rng = np.random.default_rng([index, length])
    bins = distance_bin_edges(length).astype(np.float32)
    mass = rng.random((2, 2, len(bins) - 1))
    curve = -slope * np.arange(length) + index
    curve[500:] = np.nan
    statistics = {
        "curve": curve,
        "reach": np.array([length * 7 / 8]),
        "edges": bins,
        "mass": mass / mass.sum(2, keepdims=True),
    }
    return Sample(
        index=index,
        cluster=str(index),
        tokens=length,
        scores={"resolution": 0.1},
        statistics={name: values.astype(np.float32) for name, values in statistics.items()},
    )


CELLS = [
    FinishedCell(cell("resolution", method, length, n=2), [sample(index, length, slope) for index in range(2)])
    for method, slope in (("none", 0.01), ("pi", 0.002))
    for length in LENGTHS
]
SAMPLES = {each.cell.id: each.samples for each in CELLS}


def table_of(cells: list[FinishedCell]) -> Table:
    return next(table for table in build_tables(cells) if table.metric in ("resolution", None))


def test_a_curve_is_the_mean_over_samples_and_distances() -> None:
    found = {(str(curve.method), curve.length): curve for curve in curves_of(table_of(CELLS), SAMPLES)}
    assert len(found) == 6
    curve = found["none", 1024]
    assert curve.samples == 2
    for begin, end, value in zip(curve.begins, curve.ends, curve.logits, strict=True):
        seen = np.arange(begin, min(end, 499) + 1)
        assert value == pytest.approx(0.5 - 0.01 * seen.mean(), abs=1e-5) if len(seen) else np.isnan(value)
    assert curve.ends[-1] == 1023
    assert curve.lasts.tolist() == [0, 1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 95, 127, 191, 255, 383, 511, 767, 1023]
    masses = [each.statistics["mass"] for each in SAMPLES[CELLS[2].cell.id]]
    np.testing.assert_allclose(curve.within[3], np.mean([mass[:, :, :4].sum(2) for mass in masses]), rtol=1e-6)
    assert curve.within[-1] == pytest.approx(1)


def test_points_are_each_distance_at_first_then_so_many_an_octave() -> None:
    found = distance_points(1024)
    assert found[:17].tolist() == list(range(17))
    assert len(found[(found >= 64) & (found < 128)]) == len(found[(found >= 256) & (found < 512)]) == 16
    assert {64, 128, 512} <= set(found.tolist()) and found[-1] < 1024
    assert distance_points(1).tolist() == [0]
    assert distance_points(2).tolist() == [0, 1]


def test_logits_are_drawn_where_an_eighth_of_the_queries_see() -> None:
    table = table_of(CELLS)
    figure = _figure(table, list(curves_of(table, SAMPLES)))
    upper, lower = figure.axes[:3], figure.axes[3:6]
    for panel, below in zip(upper, (112, 224, 896), strict=True):
        for line in panel.lines[:2]:
            far = np.asarray(line.get_xdata())[-1]
            assert below * 0.9 < far < below  # 16 points an octave: the last lies within a sixteenth of it
    for curve in curves_of(table, SAMPLES):  # no point stands for a distance that is left out
        assert curve.ends[curve.drawn].max() < 7 / 8 * curve.length <= curve.ends[~curve.drawn].min()
    for panel, length in zip(lower, LENGTHS, strict=True):
        assert np.asarray(panel.lines[0].get_xdata())[-1] == length - 1
        assert panel.get_xticks()[0] == 0 and panel.get_xticklabels()[-1].get_text() == str(length)


def test_ticks_end_with_the_length_and_leave_room_before_it() -> None:
    assert distance_ticks(1024, 6) == [1, 4, 16, 64, 256, 1024]
    assert distance_ticks(1024, 4) == [1, 8, 64, 1024]
    assert distance_ticks(512, 6) == [1, 4, 16, 64, 512]  # 256 is half a step away
    assert distance_ticks(300, 6) == [1, 4, 16, 64, 300]
    assert distance_ticks(12, 6) == [1, 2, 4, 12]
    assert distance_ticks(1, 6) == [1]


def test_of_many_lengths_some_have_a_panel() -> None:
    assert shown_lengths([128, 256, 1024]) == [128, 256, 1024]
    assert shown_lengths([2**k for k in range(11)]) == [2**k for k in (0, 2, 4, 6, 8, 10)]


@pytest.mark.slow
def test_the_figure_stands_beside_its_numbers(tmp_path: Path) -> None:
    table = table_of(CELLS)
    for name in ("a", "b"):
        assert plot_attention_curves(table, SAMPLES, tmp_path / name)
    for suffix in (".svg", ".png", ".csv"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    for curve in curves_of(table, SAMPLES):
        mine = [row for row in rows if (row["method"], row["length"]) == (str(curve.method), str(curve.length))]
        logits = [row for row in mine if row["measure"] == "mean_logit"]
        assert [int(row["begin"]) for row in logits] == curve.begins.tolist()
        assert [float(row["value"] or "nan") for row in logits] == pytest.approx(curve.logits.tolist(), nan_ok=True)
        shares = [row for row in mine if row["measure"] == "share_within"]
        assert [(int(row["end"]), float(row["value"])) for row in shares] == list(
            zip(curve.lasts.tolist(), curve.within.tolist(), strict=True)
        )


def test_samples_without_curves_have_no_figure(tmp_path: Path) -> None:
    other = finished("passkey", "pi", 512)
    [table, *_] = build_tables([other])
    assert not plot_attention_curves(table, {other.cell.id: other.samples}, tmp_path / "a")
    assert not plot_attention_curves(table_of(CELLS), {}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_failed_samples_and_refused_cells_are_left_out(tmp_path: Path) -> None:
    broken = replace(sample(1, 256, 9.0), failed="entropy of attention cannot be told", scores={})
    mixed = FinishedCell(cell("resolution", "none", 256, n=2), [sample(0, 256, 0.01), broken])
    refused = FinishedCell(cell("resolution", "pi", 256, n=2), [], "hf cannot probe a mixture")
    samples = {each.cell.id: each.samples for each in (mixed, refused)}
    [curve] = curves_of(table_of([mixed, refused]), samples)
    assert (str(curve.method), curve.samples) == ("none", 1)
    assert curve.logits[10] == pytest.approx(-0.1, abs=1e-6)
    assert plot_attention_curves(table_of([mixed, refused]), samples, tmp_path / "a")


def test_methods_that_are_not_told_apart_are_grey(tmp_path: Path) -> None:
    cells = [
        FinishedCell(cell("resolution", f"m{number:02}", 256, n=1), [sample(0, 256, number / 1000)])
        for number in range(11)
    ]
    assert plot_attention_curves(table_of(cells), {each.cell.id: each.samples for each in cells}, tmp_path / "a")
    picture = (tmp_path / "a.svg").read_text()
    rule = re.search(r"\.(\w+)\{[^}]*stroke: #d1d1d1", picture)
    assert "<!-- 3 others -->" in picture and rule
    assert picture.count(f'class="{rule[1]}"') == 7  # two panels each, and the legend

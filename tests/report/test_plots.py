"""Figures show the numbers of their tables, the same bytes every time."""

import csv
import io
import math
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report.plots import style
from lexbench.report.plots.heatmaps import depth_strata, plot_heatmap
from lexbench.report.plots.over_length import (
    distinguished_methods,
    labelled_lengths,
    over_length_figure,
    plot_over_length,
)
from lexbench.report.plots.style import MATPLOTLIB_STYLE, PNG_DOTS_PER_INCH, value_limits
from lexbench.stats.differences import paired_differences
from lexbench.stats.intervals import wilson_interval
from lexbench.stats.records import records_of
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, fake_cells, finished
from tests.report.pictures import assert_legible, drawn

CELLS = fake_cells()
TABLES = {table.metric: table for table in build_tables(CELLS)}
SAMPLES = {each.cell.id: each.samples for each in CELLS}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["perplexity", "accuracy"])
def test_figures_are_the_same_bytes_every_time(tmp_path: Path, metric: str) -> None:
    for name in ("a", "b"):
        plot_over_length(TABLES[metric], tmp_path / name)
    for suffix in (".svg", ".png", ".csv"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    picture = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert picture.tag.endswith("svg")
    assert "date" not in (tmp_path / "a.svg").read_text()
    width, height = struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24])
    assert (width, height) == (1152, 640)  # 7.2 x 4.0 inches at 160 dots


@pytest.mark.parametrize(("right", "end"), [(30, "bottom"), (2, "top")])
def test_the_name_of_the_trained_length_stands_where_no_interval_does(right: int, end: str) -> None:
    """Thirty of 32 right answers have an interval near 1, two have one near 0."""
    marks = [
        Sample(index=index, cluster=str(index), tokens=256, scores={"accuracy": float(index < right)})
        for index in range(32)
    ]
    [table] = build_tables([FinishedCell(cell("passkey", "none", length), marks) for length in (256, 1024)])
    [axes] = over_length_figure(table).axes
    [name] = [text for text in axes.texts if text.get_text() == "trained length"]
    assert name.get_verticalalignment() == end


@pytest.mark.slow
def test_a_fixed_place_of_an_empty_label_changes_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fixed", "found"):
        with mpl.rc_context(MATPLOTLIB_STYLE):
            figure, panels = style.panels_for(
                [("a", [parse_label("x")]), ("b", [parse_label("y")])], "heading", "across", "up"
            )
            for axes in panels:
                axes.plot([1, 2, 3], [10, 2000, 30])
            style.save_figure(figure, tmp_path / name, png=False)
        monkeypatch.setattr(style, "place_empty_labels", lambda _: None)
    assert (tmp_path / "fixed.svg").read_bytes() == (tmp_path / "found.svg").read_bytes()


@pytest.mark.parametrize("word", ["NLL (nats per token), lower is better", "self_extend(window=64)", "0.50"])
def test_a_word_has_one_width_in_svg_and_png(word: str) -> None:
    """So a layout for one is right for the other; with matplotlib's own hints they differ by up to 5 %."""
    makers: list[Callable[[], Any]] = [
        lambda: RendererAgg(800, 200, PNG_DOTS_PER_INCH),  # type: ignore[no-untyped-call]
        lambda: RendererSVG(800, 200, io.StringIO()),  # type: ignore[no-untyped-call]
    ]
    with mpl.rc_context(MATPLOTLIB_STYLE):
        dots, points = (make().get_text_width_height_descent(word, FontProperties(size=7), False)[0] for make in makers)
    assert dots * 72 / PNG_DOTS_PER_INCH == pytest.approx(points, rel=2e-3)


@pytest.mark.slow
def test_a_figure_is_laid_out_before_its_first_file_and_an_old_png_goes(tmp_path: Path) -> None:
    for png in (True, False):
        plot_over_length(TABLES["accuracy"], tmp_path / "a", png)
        assert (tmp_path / "a.png").exists() == png
    with drawn() as figures:
        plot_over_length(TABLES["accuracy"], tmp_path / "b")
    assert figures[0].get_layout_engine() is None
    assert_legible(figures[0])


def test_the_numbers_beside_a_figure_are_those_of_the_table(tmp_path: Path) -> None:
    table = TABLES["accuracy"]
    plot_over_length(table, tmp_path / "a.b")
    rows = list(csv.DictReader((tmp_path / "a.b.csv").open()))
    assert len(rows) == len(table.entries)
    for row in rows:
        record = table.entries[parse_label(row["method"]), int(row["length"])]
        assert row["value"] == ("" if record.value is None else str(record.value))
        assert float(row["multiple"]) == record.length / 256
        assert row["refused"] == (record.refused or "")


@pytest.mark.everyday("cells0")
@pytest.mark.parametrize(
    "cells", [[finished("rerope_task", "rerope", 2048)], [finished("last_segment", "none", 300, n=1)]]
)
def test_a_table_of_one_cell_can_be_drawn(tmp_path: Path, cells: list[FinishedCell]) -> None:
    plot_over_length(build_tables(cells)[0], tmp_path / "one")
    assert (tmp_path / "one.svg").exists()


def test_one_collapsed_method_does_not_stretch_the_axis() -> None:
    # worst 2, 3 and 9 above 1: 1 + 1.5 (3 - 1) = 4, which is more than 2 + 1; margin 5 % of 4 - 1
    assert value_limits([2.0, 3.0, 9.0], 1.0, 9.5) == pytest.approx((0.85, 4.15))


def test_the_axis_never_ends_above_all_values_nor_next_to_the_best() -> None:
    assert value_limits([2.0, 2.1], 1.0, 2.2) == pytest.approx((0.94, 2.26))
    # methods that differ by hundredths, one at 9: at least 1 above the best
    assert value_limits([1.01, 1.02, 9.0], 1.0, 9.0) == pytest.approx((1 - 0.05 * 1.01, 2.01 + 0.05 * 1.01))
    assert math.isclose(sum(value_limits([3.0], 3.0, 3.0)), 6.0)


def test_labels_of_lengths_keep_a_tenth_of_the_axis_between_them() -> None:
    assert labelled_lengths([128, 256, 512, 1024], 256) == [128, 256, 512, 1024]
    # from 64 to 65536, half an octave of room counted, a tenth is 1.05 octaves: 3/4 of the trained length must go, not
    # the trained length itself
    assert labelled_lengths([64, 192, 256, 512, 540, 1000, 65536], 256) == [64, 256, 540, 65536]
    assert labelled_lengths([256], 256) == [256]


def frame(table: Table) -> pd.DataFrame:
    """A row per sample of a table."""
    return pd.DataFrame(
        [
            {
                "method": str(record.method),
                "length": record.length,
                "part": sum(sample.depth >= k / 8 for k in range(1, 8)) if sample.depth is not None else None,
                "score": 0.0 if sample.failed else sample.scores["accuracy"],
            }
            for record in table.entries.values()
            for sample in SAMPLES[record.cell]
        ]
    )


def test_strata_of_depth_are_means_of_their_samples() -> None:
    found = {
        (str(s.method), s.length, round(s.depth_low * 8)): s for s in depth_strata(TABLES["accuracy"], SAMPLES) if s.n
    }
    expected = frame(TABLES["accuracy"]).groupby(["method", "length", "part"]).score.agg(["mean", "count"])
    assert len(expected) == len(found) == 23 * 8  # 25 cells, 2 refused
    for place, row in expected.iterrows():
        stratum = found[place]  # type: ignore[index]
        assert [stratum.value, stratum.n] == pytest.approx([row["mean"], row["count"]])


@pytest.mark.parametrize(("n", "strata"), [(32, 8), (16, 8), (15, 4), (8, 4), (4, 2), (3, 1)])
def test_strata_are_as_many_as_leave_two_samples_in_each(n: int, strata: int) -> None:
    each = finished("passkey", "pi", 512, n=n)
    [table, *_] = build_tables([each])
    found = list(depth_strata(table, {each.cell.id: each.samples}))
    assert len(found) == strata
    assert sum(stratum.n for stratum in found) == n
    assert (found[0].depth_low, found[-1].depth_high) == (0.0, 1.0)


@pytest.mark.slow
def test_a_heatmap_stands_beside_its_numbers_with_their_intervals(tmp_path: Path) -> None:
    cells = [finished("passkey", method, length) for method in ("none", "pi") for length in (128, 1024)]
    [table, *_] = build_tables(cells)
    for name in ("a", "b"):
        assert plot_heatmap(table, SAMPLES, tmp_path / name)
    for suffix in (".svg", ".png", ".csv"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert len(rows) == 4 * 8
    row = next(row for row in rows if row["value"] == "0.75")
    assert (float(row["low"]), float(row["high"])) == (wilson_interval(3, 4).low, wilson_interval(3, 4).high)


def test_a_refused_cell_is_hatched_above_its_empty_strata(tmp_path: Path) -> None:
    cells = [finished("passkey", "none", 512, n=4), finished("passkey", "rerope", 2048, n=4)]
    [table, *_] = build_tables(cells)
    with drawn() as figures:
        plot_heatmap(table, {each.cell.id: each.samples for each in cells}, tmp_path / "a")
    axes = figures[0].axes[0]
    [hatched] = [each for each in axes.get_children() if isinstance(each, Rectangle) and each.get_hatch()]
    [strata] = axes.collections
    assert hatched.get_zorder() > strata.get_zorder()
    down = [path.get_extents().get_points()[:, 1] for path in strata.get_paths()]
    assert hatched.get_height() == pytest.approx(np.ptp(down))  # of all strata; both panels stand in one row
    place, *_ = strata.get_paths()[-1].get_extents().get_points()
    assert "refused" in [text.get_text() for text in axes.texts] and hatched.get_xy() <= tuple(place)


def test_samples_without_a_depth_have_no_heatmap(tmp_path: Path) -> None:
    assert not plot_heatmap(TABLES["nll"], SAMPLES, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_needle_at_the_very_end_stands_in_the_last_stratum() -> None:
    each = finished("passkey", "pi", 512, n=4)
    samples = [replace(sample, depth=1.0) for sample in each.samples]
    [table, *_] = build_tables([each])
    assert [stratum.n for stratum in depth_strata(table, {each.cell.id: samples})] == [0, 4]


def test_of_many_methods_the_first_row_and_the_best_are_told_apart() -> None:
    losses = {f"m{number:02}": float(number) for number in range(20)}
    cells = []
    for number, (name, loss) in enumerate({"none": 50.0, **losses}.items()):
        for length in (128, 512):
            told = cell("last_segment", name, length, n=1)
            nll = np.full(
                4, 99.0 - number if length == 128 else loss, np.float32
            )  # inside the trained length: reversed
            cells.append(FinishedCell(told, [Sample(index=0, cluster="0", tokens=length, nll=nll)], None))
    [many] = [table for table in build_tables(cells) if table.metric == "nll"]
    assert list(map(str, distinguished_methods(many))) == ["none", *list(losses)[:7]]
    [few] = [table for table in build_tables(cells[:16]) if table.metric == "nll"]
    assert distinguished_methods(few) == few.methods


def guessed(chances: dict[int, float | None]) -> Table:
    """A table of accuracy with what guessing gives at each length."""
    found = [
        FinishedCell(
            cell("choice", "none", length, n=1),
            [Sample(index=0, cluster="0", tokens=length, scores={"accuracy": 0.5}, chance=chance)],
        )
        for length, chance in chances.items()
    ]
    [table] = build_tables(found)
    return table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chances", "drawn"),
    [
        ({256: 0.25, 512: 0.25}, True),
        ({256: 0.25, 512: 0.125}, True),
        ({256: None, 512: 0.5}, True),
        ({256: 1e-5, 512: 1e-5}, False),
        ({256: None, 512: None}, False),
    ],
    ids=str,
)
def test_chance_is_a_dotted_line_where_it_is_known_and_seen(
    tmp_path: Path, chances: dict[int, float | None], drawn: bool
) -> None:
    plot_over_length(guessed(chances), tmp_path / "a")
    picture = (tmp_path / "a.svg").read_text()
    assert ("<!-- chance -->" in picture) == drawn
    # one line in the axes, at its heights; one in the legend
    rule = re.search(r"\.(\w+)\{[^}]*stroke: #595959; stroke-width: 1\.1", picture)
    assert (picture.count(f'class="{rule[1]}"') if rule else 0) == 2 * drawn


@pytest.mark.everyday("accuracy", "entropy")
@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("accuracy", "accuracy (\u2191 better)"),
        ("qa_f1", "qa_f1 (\u2191 better)"),
        ("resolution", "attention resolution (\u2191 better)"),
        ("entropy", "attention entropy (nats)"),
    ],
)
def test_an_axis_says_which_side_is_better_where_one_is(tmp_path: Path, metric: str, said: str) -> None:
    found = [
        FinishedCell(
            cell("t", "none", length, n=1), [Sample(index=0, cluster="0", tokens=length, scores={metric: length / 999})]
        )
        for length in (256, 2048)
    ]
    plot_over_length(build_tables(found)[0], tmp_path / "a")
    assert f"<!-- {said} -->" in (tmp_path / "a.svg").read_text()


def test_a_stratum_has_the_interval_of_a_cell_with_its_samples_alone() -> None:
    each = finished("passkey", "pi", 512, n=32)
    shares = [1 / 3, 1 / 2, 1.0, 0.0]
    samples = [
        replace(sample, scores={"accuracy": shares[i // 8]}, cluster=f"haystack {i // 16}", failed=None)
        for i, sample in enumerate(each.samples)
    ]
    found = list(depth_strata(build_tables([each])[0], {each.cell.id: samples}))
    assert [stratum.n for stratum in found] == [4] * 8
    for place, stratum in enumerate(found):
        own = [sample for sample in samples if place == min(int(8 * (sample.depth or 0.0)), 7)]
        [alone] = [record for record in records_of(replace(each, samples=own)) if record.metric == "accuracy"]
        assert stratum.value == pytest.approx((1 / 3 + 1 / 2 + 1) / 4) == alone.value
        assert stratum.interval is not None and alone.low is not None
        assert (stratum.interval.low, stratum.interval.high) == (alone.low, alone.high)


def test_a_heatmaps_numbers_have_the_depth_of_each_stratum(tmp_path: Path) -> None:
    each = finished("passkey", "pi", 512, n=8)
    [table, *_] = build_tables([each])
    assert plot_heatmap(table, {each.cell.id: each.samples}, tmp_path / "a")
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["depth"] for row in rows] == ["0.125", "0.375", "0.625", "0.875"]
    assert [(row["depth_low"], row["depth_high"]) for row in rows[:2]] == [("0.0", "0.25"), ("0.25", "0.5")]
    interval = wilson_interval(2, 2)
    assert f"<!-- {interval.low:.2f}-{interval.high:.2f} -->" in (tmp_path / "a.svg").read_text()


def test_measures_and_likelihoods_with_a_depth_have_no_heatmap() -> None:
    sample = Sample(index=0, cluster="0", tokens=256, scores={"entropy": 3.0}, depth=0.5)
    each = FinishedCell(cell("t", "none", 256, n=1), [sample])
    assert list(depth_strata(build_tables([each])[0], {each.cell.id: each.samples})) == []


def scored(metric: str, values: dict[str, float]) -> Table:
    """Methods with one value each, at twice the trained length."""
    found = [
        FinishedCell(cell("t", method, 512, n=1), [Sample(index=0, cluster="0", tokens=512, scores={metric: value})])
        for method, value in values.items()
    ]
    return build_tables(found)[0]


@pytest.mark.parametrize(
    ("metric", "kept"), [("accuracy", range(13, 20)), ("resolution", range(13, 20)), ("entropy", range(7))]
)
def test_the_best_of_many_are_those_of_the_better_side(metric: str, kept: range) -> None:
    table = scored(metric, {"none": 0.0, **{f"m{number:02}": number / 20 for number in range(20)}})
    assert list(map(str, distinguished_methods(table))) == ["none", *(f"m{number:02}" for number in kept)]


@pytest.mark.slow
def test_every_measure_of_attention_is_inside_the_axes(tmp_path: Path) -> None:
    plot_over_length(
        scored("attention_distance", {"none": 900.0, **{f"m{number}": 10.0 + number for number in range(6)}}),
        tmp_path / "a",
    )
    assert "above the axis" not in (tmp_path / "a.svg").read_text()


def test_a_figure_decides_by_paired_differences_and_has_levels_beside_them() -> None:
    """Eight texts of eight documents: yarn is 0.5 nats better than none on every one at 512, and the same at 256."""
    losses = {("none", 256): 2.0, ("yarn", 256): 2.0, ("none", 512): 2.5, ("yarn", 512): 2.0}
    found = [
        FinishedCell(
            cell("last_segment", name, length, n=8),
            [
                Sample(index=at, cluster=str(at), tokens=length, nll=np.full(4, loss + at / 5, np.float32))
                for at in range(8)
            ],
        )
        for (name, length), loss in losses.items()
    ]
    [table] = [each for each in build_tables(found) if each.metric == "nll"]
    samples = {each.cell.id: each.samples for each in found}
    left, right = over_length_figure(table, paired_differences(table, samples)).axes
    points = {float(np.asarray(line.get_xdata())[0]): line for line in left.lines if np.size(line.get_xdata()) == 1}
    assert {at: float(np.asarray(line.get_ydata())[0]) for at, line in points.items()} == pytest.approx({1: 0, 2: 0.5})
    faces = {at: line.get_markerfacecolor() for at, line in points.items()}
    assert faces[1.0] == "white" != faces[2.0]  # of 2^8 flips two are as far: 2 comparisons * 2 / 256 < 0.05
    assert "better than the unmodified model by: nats" in " ".join(left.get_ylabel().split())
    assert "\u2191 better" in right.get_ylabel() and right.yaxis_inverted()  # less loss is higher up
    for axes in (left, right):  # bars, and no band beside them
        assert not any(isinstance(each, PolyCollection) for each in axes.collections)


def test_a_shortened_svg_has_the_elements_styles_and_references_of_its_figure() -> None:
    figure = Figure()
    axes = figure.subplots()
    for place in range(3):
        axes.plot([0, 1], [place, 2 * place], "o-", label=f"a < b {place}")
        axes.fill_between([0, 1], [place, place], [place + 1, place + 2], alpha=0.2)
    axes.set_title('not an attribute: style="x" style="x" id="y"')
    axes.legend()
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    plain, short = stream.getvalue(), style.shorten_svg(stream.getvalue())
    assert len(short) < 0.9 * len(plain) and b'style="x" style="x" id="y"' in short
    before, after = (
        [each for each in ElementTree.fromstring(svg).iter() if each.tag.startswith("{http://www.w3.org/2000/svg}")]
        for svg in (plain, short)
    )
    before = [each for each in before if not each.tag.endswith("metadata")]
    [sheet] = [each for each in after if each.tag.endswith("style")]
    rules = dict(re.findall(r"\.(\w+)\{([^}]*)\}", sheet.text or ""))
    assert [each.tag for each in before] == [each.tag for each in after]
    for one, two in zip(before, after, strict=True):
        assert one.get("style") == (rules[two.attrib["class"]] if "class" in two.attrib else two.get("style"))
    ids = {each.get("id") for each in after}
    assert set(re.findall(r"#([mp][0-9a-f]{10})\b", short.decode())) <= ids
    assert style.shorten_svg(short) == short

"""Maps of differences show the numbers of the differences: order, colours, marks and what is refused."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report.plots.difference_maps import (
    colour_limit,
    difference_colours,
    plot_difference_map,
    rank_methods,
    text_colour_on,
)
from lexbench.stats.differences import Differences, paired_differences
from lexbench.stats.notes import Note, NoteKind
from lexbench.stats.tables import build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell, fake_cells
from tests.report.pictures import drawn

Losses = Mapping[str, Mapping[int, float | None]]


def compared(losses: Losses, metric: str = "nll", n: int = 8) -> Differences:
    """Methods whose every sample has one value at a length; None: refused."""
    found = []
    for method, values in losses.items():
        for length, value in values.items():
            told = cell("passkey" if metric != "nll" else "last_segment", method, length, n=n)
            samples = [] if value is None else [_sample(metric, index, length, value) for index in range(n)]
            found.append(FinishedCell(told, samples, "out of memory" if value is None else None))
    [table] = [table for table in build_tables(found) if table.metric == metric]
    made = paired_differences(table, {each.cell.id: each.samples for each in found})
    assert made is not None
    return made


def _sample(metric: str, index: int, length: int, value: float) -> Sample:
    about: dict[str, Any] = {"index": index, "cluster": str(index), "tokens": length}
    if metric == "nll":
        return Sample(**about, nll=np.full(4, value, np.float32))
    return Sample(**about, scores={metric: value})


def axes_of(found: Differences, folder: Path) -> Axes:
    with drawn() as figures:
        assert plot_difference_map(found, folder / "a")
    return figures[0].axes[0]


def words(axes: Axes) -> dict[tuple[int, int], Any]:
    """Texts by column and row."""
    return {(int(text.get_position()[0]), int(text.get_position()[1])): text for text in axes.texts}


TWO: Losses = {"none": {256: 3.0, 512: 4.0}, "better": {256: 3.0, 512: 3.5}, "worse": {256: 3.25, 512: 6.0}}


@pytest.mark.slow
def test_the_numbers_beside_a_map_are_those_of_the_differences(tmp_path: Path) -> None:
    cells = fake_cells()
    samples = {each.cell.id: each.samples for each in cells}
    [table] = [table for table in build_tables(cells) if table.metric == "nll"]
    found = paired_differences(table, samples)
    assert found is not None
    for name in ("a", "b"):
        assert plot_difference_map(found, tmp_path / name)
    for suffix in (".svg", ".png", ".csv"):
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert len(rows) == len(found.entries) == 4 * 5
    for row in rows:
        each = found.entries[parse_label(row["method"]), int(row["length"])]
        for name in ("difference", "low", "high", "p", "p_holm", "significant", "refused"):
            value = getattr(each, name)
            assert row[name] == ("" if value is None else str(value))
        assert float(row["multiple"]) == each.length / 256 and row["unit"] == "nats per token"


def test_fields_hold_differences_of_the_means_bold_and_starred_where_significant(tmp_path: Path) -> None:
    axes = axes_of(compared(TWO), tmp_path)
    # eight pairs that all differ alike: p = 2 / 2^8 = 0.008, times at most 4 comparisons below 0.05
    texts = {place: (text.get_text(), text.get_fontweight()) for place, text in words(axes).items()}
    assert texts == {
        (0, 0): ("3.000", "normal"),
        (1, 0): ("4.000", "normal"),
        (0, 1): ("0.000", "normal"),
        (1, 1): ("-0.500*", "bold"),
        (0, 2): ("+0.250*", "bold"),
        (1, 2): ("+2.000*", "bold"),
    }
    assert [label.get_text() for label in axes.get_yticklabels()] == ["unmodified (none): value", "better", "worse"]


def test_what_is_not_significant_after_holm_has_no_star(tmp_path: Path) -> None:
    # five pairs: p = 2 / 2^5 = 0.0625
    texts = [text.get_text() for text in axes_of(compared(TWO, n=5), tmp_path).texts]
    assert not any("*" in text for text in texts) and "-0.500" in texts


def test_fields_have_the_colour_of_their_difference(tmp_path: Path) -> None:
    found = compared(TWO)
    [fields] = axes_of(found, tmp_path).collections
    corners = [path.get_extents().get_points()[0].astype(int).tolist() for path in fields.get_paths()]
    patches = {
        (x, y): tuple(colour) for (x, y), colour in zip(corners, np.asarray(fields.get_facecolor()), strict=True)
    }
    assert colour_limit(found) == 2.0
    blue, white, red = to_rgba("#005F9E"), to_rgba("#FFFFFF"), to_rgba("#C04E00")
    assert patches[1, 2] == pytest.approx(red, abs=0.01)
    assert patches[0, 1] == pytest.approx(white, abs=0.01)
    # a quarter of the way from white to blue, half of it to the colour between them
    between = [(a + b) / 2 for a, b in zip(white, to_rgba("#8FC3E4"), strict=True)]
    assert patches[1, 1] == pytest.approx(between, abs=0.02)
    # of five pairs nothing is significant: 0.35 of red, the rest white
    [few] = axes_of(compared(TWO, n=5), tmp_path).collections
    pale = [1 - 0.35 * (1 - part) for part in red[:3]]
    assert any(colour[:3] == pytest.approx(pale, abs=0.01) for colour in np.asarray(few.get_facecolor()))
    assert difference_colours(found)(0.0) == pytest.approx(blue, abs=0.01)  # less NLL is better
    assert difference_colours(compared({"none": {512: 0.0}, "a": {512: 1.0}}, "accuracy"))(1.0) == pytest.approx(
        blue, abs=0.01
    )


def test_where_no_side_is_better_colours_say_so_and_methods_keep_their_order() -> None:
    found = compared({"none": {512: 1.0}, "b": {512: 0.0}, "a": {512: 5.0}}, "entropy")
    assert difference_colours(found).name == "PRGn"
    assert list(map(str, rank_methods(found))) == ["a", "b"]


def test_the_colours_end_where_nine_of_ten_differences_lie_within() -> None:
    values = {f"m{number:02}": {512: 3.0 + number} for number in range(1, 21)}
    assert colour_limit(compared({"none": {512: 3.0}, **values})) == 19.0  # the 18.1st of 20, rounded up


@pytest.mark.parametrize(("metric", "least"), [("nll", 0.1), ("accuracy", 25.0)])
def test_small_differences_are_pale(metric: str, least: float) -> None:
    assert colour_limit(compared({"none": {512: 0.5}, "a": {512: 0.51}}, metric)) == least
    assert colour_limit(compared({"none": {512: 1.0}, "a": {512: 1.0}}, "entropy")) == 1.0


def test_methods_are_ranked_at_the_longest_length_then_at_the_next(tmp_path: Path) -> None:
    found = compared(
        {
            "none": {256: 3.0, 512: 3.0},
            "a": {256: 3.0, 512: None},
            "b": {256: 3.0, 512: 2.0},
            "c": {256: 2.0, 512: 2.0},
            "d": {256: 1.0, 512: 4.0},
        }
    )
    assert list(map(str, rank_methods(found))) == ["c", "b", "d", "a"]
    higher = compared({"none": {512: 0.5}, "bad": {512: 0.0}, "good": {512: 1.0}}, "accuracy")
    assert list(map(str, rank_methods(higher))) == ["good", "bad"]


def test_refused_is_hatched_and_what_has_no_pairs_grey(tmp_path: Path) -> None:
    found = compared({"none": {256: 3.0, 512: None}, "a": {256: 2.0, 512: 2.0}, "b": {256: None, 512: 2.0}})
    axes = axes_of(found, tmp_path)
    texts = {place: text.get_text() for place, text in words(axes).items()}
    assert texts == {
        (0, 0): "3.000",
        (1, 0): "refused",
        (0, 1): "-1.000*",
        (1, 1): "no pairs",
        (0, 2): "refused",
        (1, 2): "no pairs",
    }
    fields = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    hatched = {(field.get_x(), field.get_y()) for field in fields if field.get_hatch()}
    assert hatched == {(1, 0), (0, 2)}


def test_the_same_attention_is_said(tmp_path: Path) -> None:
    found = compared({"none": {256: 3.0}, "a": {256: 3.0}, "b": {256: 2.0}})
    same = replace(found.entries[parse_label("a"), 256], apart=Note(NoteKind.SAME_ATTENTION))
    texts = words(axes_of(replace(found, entries={**found.entries, (parse_label("a"), 256): same}), tmp_path))
    assert [texts[0, row].get_text() for row in (1, 2)] == ["-1.000*", "same attention"]


def test_without_any_pair_there_is_no_map(tmp_path: Path) -> None:
    none_refused: Losses = {"none": {512: None}, "a": {512: 2.0}}
    other_refused: Losses = {"none": {512: 2.0}, "a": {512: None}}
    for losses in (none_refused, other_refused):
        assert not plot_difference_map(compared(losses), tmp_path / "a")
    found = compared(TWO)
    assert not plot_difference_map(replace(found, entries={}), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_the_trained_length_is_a_line_between_columns(tmp_path: Path) -> None:
    [line] = [line for line in axes_of(compared(TWO), tmp_path).lines if line.get_linestyle() == "--"]
    assert np.array(line.get_xdata()).tolist() == [1, 1]  # 256 is the trained length: it stands left of the line


def test_ink_stands_out() -> None:
    assert text_colour_on((0.0, 0.0, 0.0, 1.0)) == "white" and text_colour_on((1.0, 1.0, 1.0, 1.0)) == "black"
    # the grey of equal contrast: (L + 0.05)^2 = 1.05 * 0.05, L = 0.179, which is 0.461 in sRGB
    assert text_colour_on((0.45, 0.45, 0.45, 1.0)) == "white" and text_colour_on((0.47, 0.47, 0.47, 1.0)) == "black"


def test_differences_of_scores_are_in_points(tmp_path: Path) -> None:
    axes = axes_of(compared({"none": {512: 0.25}, "a": {512: 0.5}}, "accuracy"), tmp_path)
    assert [text.get_text().rstrip("*") for text in axes.texts] == ["25.0", "+25.0"]

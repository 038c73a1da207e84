"""Every figure is legible: two methods or 45, long names, refused cells, no interval, one length, greyscale."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.lines import Line2D

from lexbench.core import registry
from lexbench.core.method_key import parse_label
from lexbench.core.record import Sample
from lexbench.report import looks
from lexbench.report.plots import cost_plots, difference_maps, heatmaps, over_length, position_plots
from lexbench.report.plots.style import LEGEND_LINE_CHARACTERS, NARROW_LEGEND_CHARACTERS, fitting_characters, wrap_name
from lexbench.stats.costs import Cost
from lexbench.stats.differences import paired_differences
from lexbench.stats.positions import curves_by_position
from lexbench.stats.tables import Table, build_tables
from lexbench.store.format import FinishedCell
from tests.report.fake_run import cell
from tests.report.pictures import assert_legible, drawn

pytestmark = pytest.mark.slow

LONG = "self_extend(window=1024, group=8, note='a name that nobody would give'), hf(dtype=bfloat16, revision=0123abcd)"
Samples = Mapping[str, Sequence[Sample]]


def made(
    methods: Sequence[str], lengths: Sequence[int], task: str, n: int = 4, refused: str = ""
) -> list[FinishedCell]:
    """Likelihoods of `prefix`, whose targets begin at the start; accuracies with depths elsewhere."""
    found = []
    for number, method in enumerate(methods):
        for length in lengths:
            told = cell(task, method, length, n=n)
            if method == refused:
                found.append(FinishedCell(told, [], "out of memory at batch 1"))
                continue
            samples = [_sample(task, index, length, 1.0 + number / 9) for index in range(n)]
            found.append(FinishedCell(told, samples))
    return found


def _sample(task: str, index: int, length: int, loss: float) -> Sample:
    about: dict[str, Any] = {"index": index, "cluster": str(index), "tokens": length}
    if task == "passkey":
        return Sample(**about, scores={"accuracy": float((index + loss) % 2 > 0.9)}, depth=index / 8)
    nll = np.full(length - 1, loss, np.float32) + np.float32(index / 10)
    return Sample(**about, nll=nll, facts={"start": 0, "positions": [1]})


def curve(table: Table, samples: Samples, stem: Path) -> bool:
    over_length.plot_over_length(table, stem, found=paired_differences(table, samples))
    return True


def levels(table: Table, samples: Samples, stem: Path) -> bool:
    over_length.plot_over_length(table, stem)
    return True


def positions(table: Table, samples: Samples, stem: Path) -> bool:
    found = curves_by_position(table, samples)
    if found:
        position_plots.plot_by_position(table, found, stem)
    return bool(found)


def scatter(table: Table, samples: Samples, stem: Path) -> bool:
    costs = {
        record.cell: Cost(
            seconds=1.0 + place**2,
            tokens=1000 * record.length,
            peak_bytes=1,
            timings=tuple((part * (1.0 + place**2), 500 * record.length) for part in (0.4, 0.6)),
        )
        for place, record in enumerate(table.entries.values())
        if not record.refused
    }
    return cost_plots.plot_costs(table, costs, stem)


def map_of_differences(table: Table, samples: Samples, stem: Path) -> bool:
    found = paired_differences(table, samples)
    return found is not None and difference_maps.plot_difference_map(found, stem)


KINDS: list[Callable[[Table, Samples, Path], bool]] = [
    curve,
    levels,
    heatmaps.plot_heatmap,
    positions,
    scatter,
    map_of_differences,
]
MANY = ["none", *(f"method_{number}" for number in range(44))]
CASES: dict[str, tuple[Sequence[str], Sequence[int], dict[str, Any]]] = {
    "two": (["none", "yarn"], (128, 256, 512), {}),
    "many": (MANY, (256, 512), {}),
    "long names": (["none", LONG, LONG.upper(), "c" * 120], (256, 512), {}),
    "one length": (["none", "yarn"], (512,), {}),
    "no interval": (["none", "yarn"], (256, 512), {"n": 1}),
    "refused": (["none", "yarn", "rerope"], (256, 512), {"refused": "rerope"}),
    "mathematics": (["none", "$\\frac{$", "_hidden", "a\nb\x00"], (256, 512), {}),
    "close lengths": (["none", "yarn"], tuple(range(256, 512, 16)), {}),
}


@pytest.mark.parametrize("task", ["prefix", "passkey"])
@pytest.mark.parametrize("case", CASES)
def test_no_figure_cuts_words_off_or_lays_them_on_one_another(tmp_path: Path, case: str, task: str) -> None:
    methods, lengths, more = CASES[case]
    cells = made(methods, lengths, task, **more)
    samples = {each.cell.id: each.samples for each in cells}
    [table] = [table for table in build_tables(cells) if table.metric in ("nll", "accuracy")]
    with drawn() as figures:
        made_some = [kind(table, samples, tmp_path / "a") for kind in KINDS]
    assert len(figures) == sum(made_some) >= 3
    for figure in figures:
        assert_legible(figure)


def families() -> list[list[str]]:
    """Methods of each family of the registry."""
    names = registry.registered_names("method")
    return [[name for name in names if looks.family_of(name) == family] for family in looks.METHOD_FAMILIES]


def test_lines_are_told_apart_without_colour() -> None:
    for names in families():
        seen = {
            (look.marker, look.dash)
            for look in looks.looks_of_methods(list(map(parse_label, ["none", *names]))).values()
        }
        assert len(seen) == len(names) + 1


def test_lines_of_many_points_have_markers_here_and_there(tmp_path: Path) -> None:
    names = [names[0] for names in families()]
    cells = made(["none", *names], (4096,), "prefix")
    table = next(table for table in build_tables(cells) if table.metric == "nll")
    with drawn() as figures:
        position_plots.plot_by_position(
            table, curves_by_position(table, {each.cell.id: each.samples for each in cells}), tmp_path / "a"
        )
    lines = [
        line for line in figures[0].axes[0].lines if isinstance(line, Line2D) and len(np.array(line.get_xdata())) > 4
    ]
    assert len(lines) == 8
    assert len({str(line.get_marker()) for line in lines}) == 8


def test_a_name_is_wrapped_and_of_a_longer_one_the_middle_is_left_out() -> None:
    assert wrap_name("yarn(factor=8, attention_factor=1)", 20) == "yarn(factor=8,\nattention_factor=1)"
    assert wrap_name("a  b\n c", 20) == "a b c"
    assert wrap_name("nats per token (\u2193 better)", 20) == "nats per token\n(\u2193 better)"
    text = wrap_name("x" * 500 + "end", 20)
    assert len(text.split("\n")) <= 3 and max(map(len, text.split("\n"))) <= 20
    assert text.startswith("xxx") and text.endswith("end") and "\u2026" in text
    assert wrap_name("a\x00b\ud800", 20) == "a\ufffdb\ufffd"


def test_a_legend_names_every_method_in_lines_of_its_width(tmp_path: Path) -> None:
    cells = made(["none", LONG, "$\\frac{$", "_hidden"], (256, 512), "passkey")
    [table] = build_tables(cells)
    with drawn() as figures:
        over_length.plot_over_length(table, tmp_path / "a")
    legend = figures[0].axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[0] == "unmodified (none)" and {"$\\frac{$", "_hidden"} <= set(labels) and len(labels) == 4
    assert max(len(line) for label in labels for line in label.split("\n")) <= LEGEND_LINE_CHARACTERS


def test_a_line_holds_as_many_characters_as_its_inches() -> None:
    # 6 inches are 432 points; a character of 10 points is 6 wide
    assert fitting_characters(6.0, 10.0) == 72


def test_figures_load_no_graphical_surface() -> None:
    modules = "lexbench.report.plots.cost_plots, lexbench.report.show.plots"
    code = f"import {modules}, sys; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_no_name_of_the_registry_is_broken_in_the_legends_of_several_panels() -> None:
    names = [name for names in families() for name in names]
    assert [wrap_name(name, NARROW_LEGEND_CHARACTERS) for name in names] == names
